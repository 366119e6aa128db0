// SPDX-License-Identifier: GPL-2.0-only
//! The errors of the service, which extend those of 2004, and advice for each.

use crate::Counts;
use std::{fmt, io};

/// A major error, which ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// `ENODEV`: the node has no memory, or a cpuset of the caller or the process does not allow
    /// it.
    IllegalNode,
    /// `ESRCH`: there is no such process, or it has exited.
    NoSuchProcess,
    /// `EPERM`: the caller lacks a privilege.
    NotPermitted,
    /// `EINVAL`: an argument is invalid.
    InvalidArgument,
    /// `EFAULT`: a part of the range is not mapped.
    IllegalAddress,
    /// `ENOMEM`: no memory for the call, or no free memory on the node.
    NoMemory,
    /// `ENOSYS`: this kernel has no `/dev/page_migrate`, or that file is another device.
    NoService,
    /// `E2BIG`: this kernel's service is older than a member or flag that the call uses.
    TooNew,
    /// `EBADF`: the file descriptor is not a pidfd.
    NotAPidFd,
    /// `EINTR`: the caller is being killed.
    Interrupted,
    /// Any other error number.
    Other(i32),
}

impl Error {
    /// Maps the error number of a failed call.
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

    /// Maps the error number of a failed open of the device.
    pub(crate) fn of_open(errno: i32) -> Self {
        match errno {
            libc::ENOENT | libc::ENXIO | libc::ENODEV => Self::NoService,
            libc::EACCES => Self::NotPermitted,
            other => Self::of_call(other),
        }
    }

    /// Maps the error number of a failed `pidfd_open(2)`. A thread that is not the leader of its
    /// group gives `ENOENT`, and `EINVAL` on older kernels.
    pub(crate) fn of_pidfd_open(errno: i32) -> Self {
        match errno {
            libc::ENOENT => Self::InvalidArgument,
            other => Self::of_call(other),
        }
    }

    pub(crate) fn last(of: impl Fn(i32) -> Self) -> Self {
        of(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Returns the error number, as `page_migrate.h` stores it in `errno`.
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

    /// Returns what the user can do about the error.
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
                "run as root in the initial user namespace for physical addresses; have permission to \
                 ptrace(2) a process of another user; have CAP_SYS_NICE for pages that other processes \
                 share"
            }
            Self::InvalidArgument => {
                "give at most 262144 physical addresses in a call, the number of a process (not of a kernel \
                 thread), and flags that the call supports"
            }
            Self::IllegalAddress => {
                "choose a range that is completely mapped in /proc/PID/maps, or skip its holes"
            }
            Self::NoMemory => "free memory on that node, or choose another",
            Self::NoService => {
                "boot a kernel with CONFIG_FERRY_SERVICE=y, and check that /dev/page_migrate exists"
            }
            Self::TooNew => "use a newer kernel, or the programs that came with this one",
            Self::NotAPidFd => "pass a file descriptor of pidfd_open(2)",
            Self::Interrupted => "nothing; the caller is being killed",
            Self::Other(libc::EMFILE | libc::ENFILE) => "close files, or raise the limit on them",
            Self::Other(_) => "see the error, which is of the system rather than of the service",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IllegalNode => "the node has no memory, or a cpuset does not allow it (ENODEV)",
            Self::NoSuchProcess => "no such process (ESRCH)",
            Self::NotPermitted => "not permitted (EPERM)",
            Self::InvalidArgument => "an argument is invalid (EINVAL)",
            Self::IllegalAddress => "a part of the range is not mapped (EFAULT)",
            Self::NoMemory => "no memory, or none on that node (ENOMEM)",
            Self::NoService => "this kernel has no page migration service (ENOSYS)",
            Self::TooNew => "this kernel's service is older than the call (E2BIG)",
            Self::NotAPidFd => "not a pidfd (EBADF)",
            Self::Interrupted => "killed during the call (EINTR)",
            Self::Other(errno) => return io::Error::from_raw_os_error(*errno).fmt(f),
        })
    }
}

impl std::error::Error for Error {}

/// A migrating call that a major error ended. Pages migrated before the error stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The error that ended the call.
    pub error: Error,
    /// Pages handled before the error.
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
                // The device does not know the ioctl, so it is another device.
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
