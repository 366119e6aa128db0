// SPDX-License-Identifier: GPL-2.0-only
//! Forked processes that check something, or that are killed in the end.

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, pause};

use crate::harness::expect;
use crate::sys::{clone_vm, fork_child};

/// A child process; killed on drop.
pub struct Child(Pid);

impl Child {
    /// Runs `body` in a forked process, which exits with 0 if it succeeds. See [`fork_child`].
    pub fn start(body: impl FnOnce() -> Result<()>) -> Result<Self> {
        let run = || body().map_err(|e| eprintln!("# in a child: {e:#}")).is_ok();
        fork_child(run).map(Self)
    }

    /// Starts a process that only sleeps.
    pub fn sleeping() -> Result<Self> {
        Self::start(|| {
            loop {
                pause();
            }
        })
    }

    /// As `sleeping`, with the memory of this process.
    pub fn sharing_memory() -> Result<Self> {
        clone_vm().map(Self)
    }

    pub fn pid(&self) -> Pid {
        self.0
    }

    /// Waits until the process has ended.
    pub fn wait(self) -> Result<WaitStatus> {
        let status = waitpid(self.0, None)?;
        std::mem::forget(self);
        Ok(status)
    }

    /// Checks that the process still runs.
    pub fn still_runs(&self) -> Result<()> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.0), flags)?;
        expect("status of the child", status, WaitStatus::StillAlive)
    }

    /// Waits until the process has ended, and fails unless it exits with 0.
    ///
    /// `expected` names the expected end in the error, as in "the child to exit with 0".
    pub fn finish(self, expected: &str) -> Result<()> {
        let status = self.wait()?;
        ensure!(
            matches!(status, WaitStatus::Exited(_, 0)),
            "expected {expected}, got {status:?}"
        );
        Ok(())
    }

    /// Kills the process, and fails unless it runs until then. `expected` names the expected end in
    /// the error.
    pub fn kill(self, expected: &str) -> Result<()> {
        kill(self.0, Signal::SIGKILL)?;
        let status = self.wait()?;
        ensure!(
            matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
            "expected {expected}, got {status:?}"
        );
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A test that gave up its rights may not kill its child; the harness ends both.
        if kill(self.0, Signal::SIGKILL).is_ok() {
            let _ = waitpid(self.0, None);
        }
    }
}
