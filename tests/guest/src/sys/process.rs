// SPDX-License-Identifier: GPL-2.0-only
//! Processes and special files.

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid};

/// Runs `body` in a forked child, whose exit status is 0 when it returned true.
///
/// Call it while the process has one thread, or keep `body` to plain memory and system calls: locks held
/// by other threads stay held in the child for ever.
pub fn fork_child(body: impl FnOnce() -> bool) -> Result<Pid> {
    // SAFETY: see above; glibc itself makes its allocator usable in the child.
    match unsafe { nix::unistd::fork() }.context("fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let status = if body() { 0 } else { 1 };
            // SAFETY: leaves without the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
    }
}

/// A process that shares this one's memory, and waits until it is killed.
pub fn clone_vm() -> Result<Pid> {
    extern "C" fn wait(_: *mut libc::c_void) -> i32 {
        loop {
            // SAFETY: no pointers.
            unsafe { libc::pause() };
        }
    }
    const STACK: usize = 64 << 10;
    let stack = Box::leak(vec![0u128; STACK / size_of::<u128>()].into_boxed_slice());
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the child does nothing but wait, on a stack of its own, which is never freed.
    let pid = unsafe { libc::clone(wait, top, flags, std::ptr::null_mut()) };
    Ok(Pid::from_raw(Errno::result(pid).context("clone")?))
}

/// How nice a task is to others, from -20 to 19.
pub fn renice(pid: Pid, nice: i32) -> Result<()> {
    // SAFETY: takes numbers alone.
    let ret = unsafe { libc::setpriority(libc::PRIO_PROCESS, pid.as_raw() as u32, nice) };
    Errno::result(ret).context("setpriority")?;
    Ok(())
}

/// Makes the calling task a real-time task, which only tasks of higher priority preempt.
pub fn run_first_in_first_out(priority: i32) -> Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: The parameters are valid for the call.
    let ret = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) };
    Errno::result(ret).context("sched_setscheduler")?;
    Ok(())
}

/// A file of memory that is not in the kernel's direct map.
pub fn memfd_secret() -> Result<OwnedFd> {
    // SAFETY: no pointers; on success the descriptor is new and ours.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    let fd = Errno::result(fd).context("memfd_secret")?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn swap_on(path: &str) -> Result<()> {
    let path = CString::new(path)?;
    // SAFETY: a valid C string.
    Errno::result(unsafe { libc::swapon(path.as_ptr(), 0) }).context("swapon")?;
    Ok(())
}

pub fn swap_off(path: &str) -> Result<()> {
    let path = CString::new(path)?;
    // SAFETY: a valid C string.
    Errno::result(unsafe { libc::swapoff(path.as_ptr()) }).context("swapoff")?;
    Ok(())
}
