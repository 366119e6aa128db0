// SPDX-License-Identifier: GPL-2.0-only
//! The system calls that have no safe form elsewhere, with nearly all of this program's `unsafe` code.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail, ensure};
use ferry_numa::{Mapping, RawMove, Ret, UserPtr, page_size};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// The requests of `/dev/page_migrate`, from `linux/page_migrate.h`, and one that it does not have.
pub const PHYS: u32 = 0xbc00;
pub const RANGE: u32 = 0xbc01;
pub const COUNTERS: u32 = 0xbc02;
pub const MATRIX: u32 = 0xbc03;
pub const UNKNOWN: u32 = 0xbcff;

/// Offset in bytes of the table that the kernel writes for [`MATRIX`], and its rows and columns.
const TABLE_AT: usize = 2048;
const TABLE_NODES: u64 = 2;

mod kcov {
    nix::ioctl_write_int_bad!(init_trace, nix::request_code_read!(b'c', 1, 8));
    nix::ioctl_write_int_bad!(enable, nix::request_code_none!(b'c', 100));
    nix::ioctl_write_int_bad!(disable, nix::request_code_none!(b'c', 101));
}

/// Gives a file of KCOV a buffer of `words` words, to be mapped.
pub fn kcov_init(file: &File, words: usize) -> Result<()> {
    let words = words.try_into().context("too large a buffer of KCOV")?;
    // SAFETY: The argument is a number.
    unsafe { kcov::init_trace(file.as_raw_fd(), words) }.context("KCOV_INIT_TRACE")?;
    Ok(())
}

/// Has the kernel write the addresses of the code that this task runs to the mapped buffer, as
/// `KCOV_TRACE_PC`.
pub fn kcov_enable(file: &File) -> Result<()> {
    // SAFETY: The argument is a number. The kernel writes words of a mapping, which are atomics.
    unsafe { kcov::enable(file.as_raw_fd(), 0) }.context("KCOV_ENABLE")?;
    Ok(())
}

/// Ends what [`kcov_enable`] began.
pub fn kcov_disable(file: &File) -> Result<()> {
    // SAFETY: The argument is a number, which must be 0.
    unsafe { kcov::disable(file.as_raw_fd(), 0) }.context("KCOV_DISABLE")?;
    Ok(())
}

/// Calls `move_pages(2)` with possibly invalid arguments. The arrays in mappings are those of
/// [`Mapping::before_a_hole`], and that of statuses must have room for as many elements as that of
/// addresses.
pub fn move_pages(call: &RawMove<'_>) -> Result<Ret> {
    if let (UserPtr::In(pages, first), UserPtr::In(status, at)) = (call.pages, call.status) {
        let room = |map: &Mapping, at, size| (map.len() - page_size() - at) / size;
        ensure!(
            room(status, at, 4) >= room(pages, first, 8),
            "no room for the statuses"
        );
    }
    // SAFETY: The kernel reads the address of an element before it writes its status, and the array of
    // addresses ends at a hole. So it writes only words of the mapping, which are atomics.
    Ok(unsafe { ferry_numa::move_pages_raw(call) })
}

/// Calls `mbind(2)` with possibly invalid arguments.
pub fn mbind(addr: usize, len: usize, mode: i32, nodes: &u64, flags: u32) -> Ret {
    // SAFETY: The kernel reads one word at `nodes`, and changes the policy and the place of pages, but
    // not their contents.
    Ret::from_raw(unsafe {
        libc::syscall(
            libc::SYS_mbind,
            addr,
            len,
            libc::c_long::from(mode),
            std::ptr::from_ref(nodes),
            libc::c_ulong::from(u64::BITS + 1),
            libc::c_ulong::from(flags),
        )
    })
}

/// Writes `structure` to `argument`, which has a page at least, and makes an ioctl of
/// `/dev/page_migrate` with it.
pub fn service(
    file: &File,
    request: u32,
    argument: &Mapping,
    mut structure: [u64; 4],
) -> Result<Ret> {
    ensure!(argument.len() >= 4096, "no room behind the argument");
    match request {
        PHYS | RANGE | COUNTERS | UNKNOWN => {}
        MATRIX => {
            structure[1] = (argument.addr() + TABLE_AT) as u64;
            structure[2] %= TABLE_NODES + 1;
        }
        _ => bail!("request {request:#x} may write any memory"),
    }
    let words = argument.words();
    words
        .iter()
        .take(64)
        .for_each(|word| word.store(0, Relaxed));
    for (word, value) in words.iter().zip(structure) {
        word.store(value, Relaxed);
    }
    // SAFETY: The kernel writes only words of the mapping, which are atomics, or nothing: the only
    // structure that names memory for it to write is that of MATRIX, which names the mapping.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), request.into(), argument.addr()) };
    Ok(Ret::from_raw(ret.into()))
}

/// Runs `child` in a copy of this process, and waits for its end.
pub fn fork_and(child: impl FnOnce()) -> Result<()> {
    // SAFETY: This process has one thread, so the copy may do all that the process may.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => {
            child();
            // SAFETY: As in the parent. The copy must not run what the process does at its exit.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => loop {
            match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => return Ok(()),
                // libFuzzer's timer has interrupted the call.
                Err(Errno::EINTR) => {}
                other => bail!("a child ended with {other:?}"),
            }
        },
    }
}

/// Starts a copy of this process that runs `first`, and then stops until its parent ends. Returns
/// when it has stopped.
pub fn sleeper(first: impl FnOnce()) -> Result<Pid> {
    // SAFETY: As in `fork_and()`.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => {
            let done = prctl::set_pdeathsig(Signal::SIGKILL);
            first();
            let done = done.and_then(|()| raise(Signal::SIGSTOP));
            // SAFETY: As in `fork_and()`.
            unsafe { libc::_exit(done.is_err().into()) }
        }
        ForkResult::Parent { child } => match waitpid(child, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(..)) => Ok(child),
            other => bail!("the child did not stop: {other:?}"),
        },
    }
}

/// Returns a pidfd of a process.
pub fn pidfd(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: The arguments are numbers.
    let ret = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let fd = Errno::result(ret).context("pidfd_open")?;
    // SAFETY: The descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd.try_into()?) })
}
