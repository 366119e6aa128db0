// SPDX-License-Identifier: GPL-2.0-only
//! Why a call did not do what it was asked to, by the list of errors of 2004, and what to do about it.

use crate::Counts;
use std::{fmt, io};

/// A major error: what ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// `ENODEV`: the node has no memory, or a cpuset of the caller's or the process's does not allow it.
    IllegalNode,
    /// `ESRCH`: there is no such process, or it is no more.
    NoSuchProcess,
    /// `EPERM`: the caller may not.
    NotPermitted,
    /// `EINVAL`: an argument is no good.
    InvalidArgument,
    /// `EFAULT`: something in the range is not mapped.
    IllegalAddress,
    /// `ENOMEM`: no memory for the call, or none on the node.
    NoMemory,
    /// `ENOSYS`: this kernel has no `/dev/page_migrate`, or that is something else.
    NoService,
    /// `E2BIG`: this kernel's service is older than what was asked of it.
    TooNew,
    /// `EBADF`: no pidfd.
    NotAPidFd,
    /// `EINTR`: the caller is being killed.
    Interrupted,
    /// Another error number.
    Other(i32),
}

impl Error {
    /// Of an error number that a call has ended with.
    pub(crate) fn of_call(errno: i32) -> Self {
        match errno {
            libc::ENODEV => Self::IllegalNode,
            libc::ESRCH => Self::NoSuchProcess,
            libc::EPERM => Self::NotPermitted,
            libc::EINVAL => Self::InvalidArgument,
            libc::EFAULT => Self::IllegalAddress,
            libc::ENOMEM => Self::NoMemory,
            libc::ENOSYS | libc::ENOTTY => Self::NoService,
            libc::E2BIG => Self::TooNew,
            libc::EBADF => Self::NotAPidFd,
            libc::EINTR => Self::Interrupted,
            other => Self::Other(other),
        }
    }

    /// Of an error number that opening the device has ended with.
    pub(crate) fn of_open(errno: i32) -> Self {
        match errno {
            libc::ENOENT | libc::ENXIO | libc::ENODEV => Self::NoService,
            libc::EACCES => Self::NotPermitted,
            other => Self::of_call(other),
        }
    }

    /// Of an error number that `pidfd_open(2)` has ended with: no leader of its threads is `ENOENT`,
    /// or was `EINVAL`.
    pub(crate) fn of_pidfd_open(errno: i32) -> Self {
        match errno {
            libc::ENOENT => Self::InvalidArgument,
            other => Self::of_call(other),
        }
    }

    pub(crate) fn last(of: impl Fn(i32) -> Self) -> Self {
        of(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The error number, as `page_migrate.h` has it in `errno`.
    pub fn errno(self) -> i32 {
        match self {
            Self::IllegalNode => libc::ENODEV,
            Self::NoSuchProcess => libc::ESRCH,
            Self::NotPermitted => libc::EPERM,
            Self::InvalidArgument => libc::EINVAL,
            Self::IllegalAddress => libc::EFAULT,
            Self::NoMemory => libc::ENOMEM,
            Self::NoService => libc::ENOSYS,
            Self::TooNew => libc::E2BIG,
            Self::NotAPidFd => libc::EBADF,
            Self::Interrupted => libc::EINTR,
            Self::Other(errno) => errno,
        }
    }

    /// What its user can do about it.
    ///
    /// ```
    /// assert!(page_migrate::Error::NoService.advice().contains("CONFIG_FERRY_SERVICE"));
    /// ```
    pub fn advice(self) -> &'static str {
        match self {
            Self::IllegalNode => {
                "choose a node of /sys/devices/system/node/has_memory that cpuset.mems.effective of \
                 both cgroups, the caller's and the process's, has"
            }
            Self::NoSuchProcess => "see whether the process is still there",
            Self::NotPermitted => {
                "be root in the initial user namespace for physical addresses; for a process of \
                 somebody else's have the right to ptrace(2) it; for pages that others share have \
                 CAP_SYS_NICE"
            }
            Self::InvalidArgument => {
                "give at most 262144 physical addresses a call, the number of a process (not of a thread \
                 of the kernel), and flags that the call has"
            }
            Self::IllegalAddress => {
                "take a range that /proc/PID/maps has as a whole, or pass over its holes"
            }
            Self::NoMemory => "free memory on that node, or choose another",
            Self::NoService => {
                "boot a kernel with CONFIG_FERRY_SERVICE=y, and see that /dev has page_migrate"
            }
            Self::TooNew => "use a kernel as new as this program, or what came with that kernel",
            Self::NotAPidFd => "give a file descriptor of pidfd_open(2)",
            Self::Interrupted => "nothing: the caller is being killed",
            Self::Other(libc::EMFILE | libc::ENFILE) => "close files, or raise the limit on them",
            Self::Other(_) => "see what the error says of the system as it is",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IllegalNode => "the node has no memory, or a cpuset does not allow it (ENODEV)",
            Self::NoSuchProcess => "no such process (ESRCH)",
            Self::NotPermitted => "not permitted (EPERM)",
            Self::InvalidArgument => "an argument is no good (EINVAL)",
            Self::IllegalAddress => "something in the range is not mapped (EFAULT)",
            Self::NoMemory => "no memory, or none on that node (ENOMEM)",
            Self::NoService => "this kernel has no page migration service (ENOSYS)",
            Self::TooNew => "this kernel's service is older than what it was asked for (E2BIG)",
            Self::NotAPidFd => "no pidfd (EBADF)",
            Self::Interrupted => "killed meanwhile (EINTR)",
            Self::Other(errno) => return io::Error::from_raw_os_error(*errno).fmt(f),
        })
    }
}

impl std::error::Error for Error {}

/// A call that migrates and was ended by a major error: what it did before stays done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// What ended it.
    pub error: Error,
    /// What was done until then.
    pub done: Counts,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.done {
            Counts {
                successful: 0,
                failed: 0,
            } => self.error.fmt(f),
            done => write!(f, "{}; before that: {done}", self.error),
        }
    }
}

impl std::error::Error for Stopped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_return() {
        for errno in 1..134 {
            let error = Error::of_call(errno);
            let expected = match errno {
                // No ioctl of the device's: it is something else.
                libc::ENOTTY => libc::ENOSYS,
                other => other,
            };
            assert_eq!(error.errno(), expected);
            assert!(!error.to_string().is_empty() && !error.advice().is_empty());
        }
    }

    #[test]
    fn missing_device_is_no_illegal_node() {
        for errno in [libc::ENOENT, libc::ENXIO, libc::ENODEV] {
            assert_eq!(Error::of_open(errno), Error::NoService);
        }
        assert_eq!(Error::of_call(libc::ENODEV), Error::IllegalNode);
        assert_eq!(Error::of_open(libc::EACCES), Error::NotPermitted);
        assert_eq!(Error::of_open(libc::EMFILE), Error::Other(libc::EMFILE));
        assert_eq!(Error::of_pidfd_open(libc::ENOENT), Error::InvalidArgument);
    }

    #[test]
    fn what_was_done_is_told_if_there_is_any() {
        let stopped = |successful| Stopped {
            error: Error::IllegalAddress,
            done: Counts {
                successful,
                failed: 0,
            },
        };
        assert_eq!(stopped(0).to_string(), Error::IllegalAddress.to_string());
        assert!(stopped(3).to_string().contains("3 pages migrated"));
    }
}
