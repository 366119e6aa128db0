// SPDX-License-Identifier: GPL-2.0-only
//! The process that owns the pages: the caller, or one named by number or pidfd.

use crate::{Error, node::NotANumber, sys};
use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    str::FromStr,
};

/// The number of a process or of one of its threads, which may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(i32);

impl Pid {
    /// Returns `None` for a number that no process can have.
    pub const fn new(number: i32) -> Option<Self> {
        if number <= 0 {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Returns the number, as the kernel uses it.
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Pid {
    type Err = NotANumber;

    fn from_str(text: &str) -> Result<Self, NotANumber> {
        let number = text.parse().ok();
        number.and_then(Self::new).ok_or(NotANumber("process"))
    }
}

/// A reference to one process. Unlike its number it is never reused after the process has exited.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens a process that exists now. Only the leader of a thread group can be opened; other
    /// threads fail with [`Error::InvalidArgument`].
    pub fn open(pid: Pid) -> Result<Self, Error> {
        sys::pidfd_open(pid.0).map(Self)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The process whose pages migrate, together with those that share its memory (`CLONE_VM`).
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// The calling process.
    Caller,
    /// A process by number.
    Process(Pid),
    /// A process by pidfd.
    PidFd(BorrowedFd<'a>),
}

impl Target<'_> {
    /// Returns the number for the kernel, and whether it is a pidfd.
    pub(crate) fn named(self) -> (i32, bool) {
        match self {
            Self::Caller => (0, false),
            Self::Process(pid) => (pid.0, false),
            Self::PidFd(fd) => (fd.as_raw_fd(), true),
        }
    }
}

impl<'a> From<&'a PidFd> for Target<'a> {
    fn from(fd: &'a PidFd) -> Self {
        Self::PidFd(fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_taken_for_the_caller() {
        for number in [0, -1, i32::MIN] {
            assert!(Pid::new(number).is_none());
            assert!(number.to_string().parse::<Pid>().is_err());
        }
        assert_eq!(Target::Caller.named(), (0, false));
        assert_eq!(Target::Process(Pid(7)).named(), (7, false));
    }

    #[test]
    fn pidfd_of_this_process_and_of_none() {
        let own = Pid::new(std::process::id() as i32).unwrap();
        let fd = PidFd::open(own).unwrap();
        assert!(Target::from(&fd).named().1);
        // Above the kernel's limit on process numbers.
        assert_eq!(
            PidFd::open(Pid(i32::MAX)).unwrap_err(),
            Error::NoSuchProcess
        );
    }
}
