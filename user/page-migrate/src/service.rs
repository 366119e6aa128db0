// SPDX-License-Identifier: GPL-2.0-only
//! The open device and its calls.

use crate::{Error, Node, PhysAddr, Stopped, Target, abi, sys};
use std::{
    fmt,
    fs::File,
    ops::{AddAssign, Range},
};

/// Path of the device.
pub const DEVICE: &str = "/dev/page_migrate";

/// The most physical addresses in one call: 1 GB in base pages of 4 KB. A call of 2004 had at most
/// one page of addresses; the crate tells the kernel when a table is longer.
pub const MAX_TABLE: usize = abi::MAX_LONG_TABLE;

/// Result of a migrating call. A large folio counts with all its base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)] // A part of the structures of the calls.
pub struct Counts {
    /// Base pages migrated.
    pub successful: u64,
    /// Base pages that could not be migrated.
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

/// Options of a migrating call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Also migrate pages that unrelated processes map. Needs `CAP_SYS_NICE`, else fails with
    /// [`Error::NotPermitted`].
    pub shared: bool,
    /// Skip unmapped addresses, instead of ending there with [`Error::IllegalAddress`]. Only for
    /// ranges; else fails with [`Error::InvalidArgument`].
    pub holes: bool,
    /// Let idle CPUs take part, whatever the value of `vm.mt_page_copy`.
    pub parallel: bool,
}

impl Options {
    fn flags(self) -> u32 {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        flag(self.shared, abi::SHARED) | flag(self.holes, abi::HOLES) | flag(self.parallel, abi::MT)
    }
}

/// Counters of the service since boot, for all callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)] // The end of `struct page_migrate_counters`.
pub struct Counters {
    /// Accepted calls by physical address.
    pub phys_calls: u64,
    /// Physical addresses in these calls.
    pub phys_entries: u64,
    /// Addresses skipped: no page, a page of another process, or already on the node.
    pub phys_ignored: u64,
    /// Accepted calls for ranges.
    pub range_calls: u64,
    /// Base pages migrated.
    pub successful: u64,
    /// Base pages that could not be migrated.
    pub failed: u64,
    /// Rejected calls.
    pub refused: u64,
    /// Accepted calls that ended early with an error.
    pub aborted: u64,
    /// Microseconds in accepted calls by physical address.
    pub phys_usec: u64,
    /// Microseconds in accepted calls for ranges.
    pub range_usec: u64,
    /// Base pages that could not be migrated, by `enum page_migrate_failure`.
    pub failures: [u64; abi::ROOM_FAILURES],
    /// Rejected calls, and calls that ended early, by `enum page_migrate_error`.
    pub errors: [u64; abi::ROOM_ERRORS],
}

/// Files of `failures` in `/sys/kernel/mm/ferry/service/`, in the order of `enum
/// page_migrate_failure`.
const FAILURES: [&str; abi::NR_FAILURES] = [
    "failures/shared",
    "failures/unmovable",
    "failures/busy",
    "failures/move",
];

/// The same for `errors` and `enum page_migrate_error`.
const ERRORS: [&str; abi::NR_ERRORS] = [
    "errors/eperm",
    "errors/esrch",
    "errors/eintr",
    "errors/ebadf",
    "errors/enomem",
    "errors/efault",
    "errors/enodev",
    "errors/einval",
    "errors/other",
];

impl Counters {
    /// Returns all counters with their names in `/sys/kernel/mm/ferry/service/`.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let mut named = vec![
            ("phys_calls", self.phys_calls),
            ("phys_entries", self.phys_entries),
            ("phys_ignored", self.phys_ignored),
            ("range_calls", self.range_calls),
            ("successful", self.successful),
            ("failed", self.failed),
            ("refused", self.refused),
            ("aborted", self.aborted),
            ("phys_usec", self.phys_usec),
            ("range_usec", self.range_usec),
        ];
        named.extend(FAILURES.into_iter().zip(self.failures));
        named.extend(ERRORS.into_iter().zip(self.errors));
        named
    }
}

/// Base pages that the service has migrated since boot, for all callers, by pair of nodes. Those of
/// a list that is being migrated are included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    nodes: usize,
    table: Vec<u64>,
}

impl Moved {
    /// Returns the number of nodes, with or without memory: all up to the highest possible one.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the pages migrated from one node to another; 0 for nodes that cannot exist.
    pub fn between(&self, from: usize, to: usize) -> u64 {
        match from.max(to) < self.nodes {
            true => self.table[from * self.nodes + to],
            false => 0,
        }
    }

    /// Returns all pairs with pages: from, to, and the number.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let pairs = self
            .table
            .iter()
            .enumerate()
            .filter(|&(_, &pages)| pages > 0);
        pairs.map(|(at, &pages)| (at / self.nodes, at % self.nodes, pages))
    }
}

/// The open device. Several threads can use it at once.
#[derive(Debug)]
pub struct Service(File);

impl Service {
    /// Opens the device. The right to name physical addresses depends on the privileges at this
    /// time.
    pub fn open() -> Result<Self, Error> {
        match File::open(DEVICE) {
            Ok(file) => Ok(Self(file)),
            Err(error) => Err(Error::of_open(error.raw_os_error().unwrap_or(0))),
        }
    }

    /// Migrates pages to `node` by physical address. Pages that `target` does not map, and
    /// addresses without a page, are skipped. This is a single kernel call, with at most
    /// [`MAX_TABLE`] addresses, else it fails with [`Error::InvalidArgument`].
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

    /// As [`migrate_physical`](Self::migrate_physical), for any number of addresses, in as many
    /// calls as needed.
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

    /// Migrates a range of `target`'s addresses to `node`. For another process this needs the same
    /// permission as `move_pages(2)`. A range that ends before it begins fails with
    /// [`Error::InvalidArgument`]; an empty one succeeds.
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

    /// Returns the counters since boot.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(sys::counters(&self.0)?.values)
    }

    /// Returns the pages migrated since boot, by pair of nodes.
    pub fn moved(&self) -> Result<Moved, Error> {
        let mut moved = Moved::default();
        loop {
            let nodes = sys::matrix(&self.0, &mut moved.table, moved.nodes)?;
            if nodes == moved.nodes {
                return Ok(moved);
            }
            moved = Moved {
                nodes,
                table: vec![0; nodes * nodes],
            };
        }
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
    let stopped = |error| Stopped {
        error,
        done: call.counts,
    };
    done.map(|()| call.counts).map_err(stopped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;

    /// A service whose file is another device.
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
        assert_eq!(null().moved(), Err(Error::NoService));
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
    fn pages_by_pair_of_nodes() {
        let moved = Moved {
            nodes: 3,
            table: vec![0, 7, 0, 0, 0, 9, 0, 0, 0],
        };
        assert_eq!(moved.pairs().collect::<Vec<_>>(), [(0, 1, 7), (1, 2, 9)]);
        assert_eq!(moved.between(1, 2), 9);
        assert_eq!(moved.between(0, 3) + moved.between(3, 0), 0);
        assert_eq!(Moved::default().pairs().count(), 0);
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
