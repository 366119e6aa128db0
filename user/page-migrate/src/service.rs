// SPDX-License-Identifier: GPL-2.0-only
//! The open device and its three calls.

use crate::{Error, Node, PhysAddr, Stopped, Target, abi, sys};
use std::{
    fmt,
    fs::File,
    ops::{AddAssign, Range},
};

/// The device that the service is asked by.
pub const DEVICE: &str = "/dev/page_migrate";

/// How many physical addresses a call may name: so many base pages of 4 KB are 1 GB. Those of 2004
/// could name a page of addresses, and the kernel is told where it is to take more.
pub const MAX_TABLE: usize = abi::MAX_LONG_TABLE;

/// What became of the pages of a call that migrates; those of a large folio are counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Base pages migrated.
    pub successful: u64,
    /// Base pages that were to be migrated and could not.
    pub failed: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.successful = self.successful.saturating_add(more.successful);
        self.failed = self.failed.saturating_add(more.failed);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { successful, failed } = self;
        write!(f, "{successful} pages migrated, {failed} failed")
    }
}

/// How pages are to be migrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Also pages that unrelated processes have mapped: needs `CAP_SYS_NICE`
    /// ([`Error::NotPermitted`]).
    pub shared: bool,
    /// Pass over addresses that nothing is mapped at, instead of ending there with
    /// [`Error::IllegalAddress`]: for ranges alone ([`Error::InvalidArgument`]).
    pub holes: bool,
    /// Let idle CPUs take part, whatever `vm.mt_page_copy` is.
    pub parallel: bool,
}

impl Options {
    fn flags(self) -> u32 {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        flag(self.shared, abi::SHARED) | flag(self.holes, abi::HOLES) | flag(self.parallel, abi::MT)
    }
}

/// What the service has done since boot, for all its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls by physical address that were let in.
    pub phys_calls: u64,
    /// Physical addresses that these named.
    pub phys_entries: u64,
    /// Those that were passed over: of other processes, of none, on the node already.
    pub phys_ignored: u64,
    /// Calls for ranges that were let in.
    pub range_calls: u64,
    /// Base pages migrated.
    pub successful: u64,
    /// Base pages that could not be.
    pub failed: u64,
    /// Calls that were not let in.
    pub refused: u64,
    /// Calls that were, and ended early with an error.
    pub aborted: u64,
}

impl Counters {
    /// All of them, by the names that `/sys/kernel/mm/ferry/service/` has.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("phys_calls", self.phys_calls),
            ("phys_entries", self.phys_entries),
            ("phys_ignored", self.phys_ignored),
            ("range_calls", self.range_calls),
            ("successful", self.successful),
            ("failed", self.failed),
            ("refused", self.refused),
            ("aborted", self.aborted),
        ]
    }
}

/// The open device. It may be used by several threads at once.
#[derive(Debug)]
pub struct Service(File);

impl Service {
    /// Opens the device. Who is to name physical addresses must have the right to that already now.
    pub fn open() -> Result<Self, Error> {
        match File::open(DEVICE) {
            Ok(file) => Ok(Self(file)),
            Err(error) => Err(Error::of_open(error.raw_os_error().unwrap_or(0))),
        }
    }

    /// Migrates the pages at physical addresses to `node`: those that `target` has mapped; all others,
    /// and addresses without a page, are passed over. One call of the kernel's: not more than
    /// [`MAX_TABLE`] addresses ([`Error::InvalidArgument`]).
    ///
    /// Needs `CAP_SYS_ADMIN` in the initial user namespace.
    ///
    /// ```no_run
    /// use page_migrate::{Node, Options, Service, Target, physical_addresses};
    ///
    /// let memory = vec![1u8; 1 << 20];
    /// let start = memory.as_ptr().addr() as u64;
    /// let hot: Vec<_> = physical_addresses(start..start + 4096)?.into_iter().flatten().collect();
    /// let node = Node::new(1).ok_or("no node")?;
    /// let counts =
    ///     Service::open()?.migrate_physical(&hot, node, Target::Caller, Options::default())?;
    /// assert_eq!(counts.failed, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn migrate_physical(
        &self,
        table: &[PhysAddr],
        node: Node,
        target: Target<'_>,
        options: Options,
    ) -> Result<Counts, Stopped> {
        let mut call = migrate(node, target, options);
        if table.len() > abi::MAX_TABLE {
            call.flags |= abi::LONG;
        }
        let done = sys::migrate_physical(&self.0, table, &mut call);
        outcome(done, &call)
    }

    /// As [`migrate_physical`](Self::migrate_physical), of any number of addresses, in as many calls as
    /// it takes.
    pub fn migrate_physical_all(
        &self,
        list: &[PhysAddr],
        node: Node,
        target: Target<'_>,
        options: Options,
    ) -> Result<Counts, Stopped> {
        let mut all = Counts::default();
        for table in list.chunks(MAX_TABLE) {
            match self.migrate_physical(table, node, target, options) {
                Ok(counts) => all += counts,
                Err(stopped) => {
                    all += stopped.done;
                    return Err(Stopped {
                        done: all,
                        ..stopped
                    });
                }
            }
        }
        Ok(all)
    }

    /// Migrates a range of the addresses of `target` to `node`. For a process other than the caller that
    /// needs what `move_pages(2)` needs. A range that ends before it begins is
    /// [`Error::InvalidArgument`]; one that has nothing in it, nothing to do.
    pub fn migrate_range(
        &self,
        range: Range<u64>,
        node: Node,
        target: Target<'_>,
        options: Options,
    ) -> Result<Counts, Stopped> {
        let Some(length) = range.end.checked_sub(range.start) else {
            return Err(Stopped {
                error: Error::InvalidArgument,
                done: Counts::default(),
            });
        };
        let mut call = abi::Migrate {
            at: range.start,
            length,
            ..migrate(node, target, options)
        };
        let done = sys::migrate_range(&self.0, &mut call);
        outcome(done, &call)
    }

    /// What was done since boot.
    pub fn counters(&self) -> Result<Counters, Error> {
        let read = sys::counters(&self.0)?;
        Ok(Counters {
            phys_calls: read.phys_calls,
            phys_entries: read.phys_entries,
            phys_ignored: read.phys_ignored,
            range_calls: read.range_calls,
            successful: read.successful,
            failed: read.failed,
            refused: read.refused,
            aborted: read.aborted,
        })
    }
}

fn migrate(node: Node, target: Target<'_>, options: Options) -> abi::Migrate {
    let (pid, is_fd) = target.named();
    abi::Migrate {
        size: size_of::<abi::Migrate>() as u32,
        flags: options.flags() | if is_fd { abi::PIDFD } else { 0 },
        node: node.number(),
        pid,
        ..abi::Migrate::default()
    }
}

fn outcome(done: Result<(), Error>, call: &abi::Migrate) -> Result<Counts, Stopped> {
    let counts = Counts {
        successful: call.successful,
        failed: call.failed,
    };
    match done {
        Ok(()) => Ok(counts),
        Err(error) => Err(Stopped {
            error,
            done: counts,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;

    /// Something that is open and no service.
    fn null() -> Service {
        Service(File::open("/dev/null").unwrap())
    }

    #[test]
    fn flags_are_the_kernel_s() {
        let all = Options {
            shared: true,
            holes: true,
            parallel: true,
        };
        assert_eq!(all.flags(), abi::SHARED | abi::HOLES | abi::MT);
        assert_eq!(Options::default().flags(), 0);
        let node = Node::new(3).unwrap();
        let fd = crate::PidFd::open(Pid::new(std::process::id() as i32).unwrap()).unwrap();
        let call = migrate(node, Target::from(&fd), Options::default());
        assert_eq!((call.flags, call.node, call.size), (abi::PIDFD, 3, 48));
    }

    #[test]
    fn another_device_is_no_service() {
        let node = Node::new(0).unwrap();
        let options = Options::default();
        let stopped = Stopped {
            error: Error::NoService,
            done: Counts::default(),
        };
        let list = vec![PhysAddr(0); MAX_TABLE + 1];
        assert_eq!(null().counters(), Err(Error::NoService));
        assert_eq!(
            null().migrate_range(0..4096, node, Target::Caller, options),
            Err(stopped)
        );
        assert_eq!(
            null().migrate_physical_all(&list, node, Target::Caller, options),
            Err(stopped)
        );
    }

    #[test]
    fn range_the_wrong_way_round_is_refused_here() {
        let node = Node::new(0).unwrap();
        let end = Range { start: 2, end: 1 };
        let refused = null().migrate_range(end, node, Target::Caller, Options::default());
        assert_eq!(refused.unwrap_err().error, Error::InvalidArgument);
    }

    #[test]
    fn counts_add_up() {
        let mut counts = Counts {
            successful: u64::MAX - 1,
            failed: 1,
        };
        counts += Counts {
            successful: 7,
            failed: 2,
        };
        assert_eq!((counts.successful, counts.failed), (u64::MAX, 3));
    }
}
