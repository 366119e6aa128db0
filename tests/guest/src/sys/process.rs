// SPDX-License-Identifier: GPL-2.0-only
//! Processes, scheduling, special files and swap.

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid};

/// Runs `body` in a forked child, whose exit status is 0 if it returned true.
///
/// The process must have one thread, or `body` must use only plain memory and system calls: locks
/// held by other threads stay locked in the child.
pub fn fork_child(body: impl FnOnce() -> bool) -> Result<Pid> {
    // SAFETY: The caller follows the rule above; glibc resets its allocator in the child.
    match unsafe { nix::unistd::fork() }.context("fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let status = if body() { 0 } else { 1 };
            // SAFETY: `_exit()` does not run the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Starts a process that shares this one's memory, and sleeps until it is killed.
pub fn clone_vm() -> Result<Pid> {
    extern "C" fn wait(_: *mut libc::c_void) -> i32 {
        loop {
            // SAFETY: pause() takes no pointers.
            unsafe { libc::pause() };
        }
    }
    const STACK: usize = 64 << 10;
    let stack = Box::leak(vec![0u128; STACK / size_of::<u128>()].into_boxed_slice());
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: The child only sleeps, on its own stack, which is never freed.
    let pid = unsafe { libc::clone(wait, top, flags, std::ptr::null_mut()) };
    Ok(Pid::from_raw(Errno::result(pid).context("clone")?))
}

/// Confines the calling task to one CPU.
pub fn run_on(cpu: usize) -> Result<()> {
    ferry_numa::confine(&[cpu])
}

/// Sets the nice value of a task, from -20 to 19.
pub fn renice(pid: Pid, nice: i32) -> Result<()> {
    // SAFETY: setpriority() takes no pointers.
    let ret = unsafe { libc::setpriority(libc::PRIO_PROCESS, pid.as_raw() as u32, nice) };
    Errno::result(ret).map(drop).context("setpriority")
}

/// Makes the calling task a SCHED_FIFO task.
pub fn run_first_in_first_out(priority: i32) -> Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `param` is valid during the call.
    let ret = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) };
    Errno::result(ret).map(drop).context("sched_setscheduler")
}

/// Creates a file whose memory is not in the kernel's direct map.
pub fn memfd_secret() -> Result<OwnedFd> {
    // SAFETY: memfd_secret() takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    let fd = Errno::result(fd).context("memfd_secret")?;
    // SAFETY: The system call returned a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn swap_on(path: &str) -> Result<()> {
    let path = CString::new(path)?;
    // SAFETY: `path` is a valid C string.
    Errno::result(unsafe { libc::swapon(path.as_ptr(), 0) })
        .map(drop)
        .context("swapon")
}

pub fn swap_off(path: &str) -> Result<()> {
    let path = CString::new(path)?;
    // SAFETY: `path` is a valid C string.
    Errno::result(unsafe { libc::swapoff(path.as_ptr()) })
        .map(drop)
        .context("swapoff")
}
