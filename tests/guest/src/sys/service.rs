// SPDX-License-Identifier: GPL-2.0-only
//! The ioctls of `/dev/page_migrate`, as defined in `linux/page_migrate.h`.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

use super::{PAGE, compat};
use super::{Ret, UserPtr};

pub const DEVICE: &str = "/dev/page_migrate";

pub const SHARED: u32 = 1;
pub const PIDFD: u32 = 2;
pub const HOLES: u32 = 4;
pub const MT: u32 = 8;
pub const LONG: u32 = 16;

pub const MAX_TABLE: u64 = 512;
pub const MAX_LONG_TABLE: u64 = 262_144;

pub const PHYS: u32 = 0xbc00;
pub const RANGE: u32 = 0xbc01;
pub const COUNTERS: u32 = 0xbc02;
pub const MATRIX: u32 = 0xbc03;

/// `struct page_migrate_phys`, and `struct page_migrate_range` with the same layout, where `at` is
/// an address and `length` counts bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Call {
    pub size: u32,
    pub flags: u32,
    pub at: u64,
    pub length: u64,
    pub node: i32,
    pub pid: i32,
    pub successful: u64,
    pub failed: u64,
}

/// `struct page_migrate_counters`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    pub size: u32,
    pub flags: u32,
    pub phys_calls: u64,
    pub phys_entries: u64,
    pub phys_ignored: u64,
    pub range_calls: u64,
    pub successful: u64,
    pub failed: u64,
    pub refused: u64,
    pub aborted: u64,
    pub phys_usec: u64,
    pub range_usec: u64,
    /// By [`FAILURES`].
    pub failures: [u64; 8],
    /// By [`ERRORS`].
    pub errors: [u64; 16],
}

/// Files in `failures/`, in the order of `enum page_migrate_failure`.
pub const FAILURES: [&str; 4] = ["shared", "unmovable", "busy", "move"];

/// Files in `errors/`, in the order of `enum page_migrate_error`.
pub const ERRORS: [&str; 9] = [
    "eperm", "esrch", "eintr", "ebadf", "enomem", "efault", "enodev", "einval", "other",
];

/// `struct page_migrate_matrix`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Matrix {
    size: u32,
    flags: u32,
    table: u64,
    nodes: u64,
}

/// Result of a call: 0 or an error number, and its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub errno: i32,
    pub successful: u64,
    pub failed: u64,
}

impl Call {
    pub fn range(addr: usize, len: usize, node: i32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            at: addr as u64,
            length: len as u64,
            node,
            ..Self::default()
        }
    }

    /// Returns the structure as the kernel reads it.
    pub fn words(&self) -> [u64; 6] {
        [
            u64::from(self.size) | u64::from(self.flags) << 32,
            self.at,
            self.length,
            u64::from(self.node as u32) | u64::from(self.pid as u32) << 32,
            self.successful,
            self.failed,
        ]
    }

    /// Returns a call by physical address, without its table.
    pub fn to(node: i32) -> Self {
        Self::range(0, 0, node)
    }

    pub fn pid(self, pid: i32) -> Self {
        Self { pid, ..self }
    }

    pub fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }
}

impl Done {
    /// Fails if the call returned an error or a page failed to move. `expected` names the expected end
    /// in the error.
    pub fn complete(self, expected: &str) -> Result<()> {
        ensure!(
            (self.errno, self.failed) == (0, 0),
            "expected {expected}, got {self:?}"
        );
        Ok(())
    }

    fn new(ret: Ret, call: &Call) -> Self {
        Self {
            errno: ret.errno,
            successful: call.successful,
            failed: call.failed,
        }
    }
}

/// The open device.
pub struct Service(File);

impl Service {
    pub fn open() -> Result<Self> {
        let file = File::options()
            .read(true)
            .open(DEVICE)
            .with_context(|| format!("opening {DEVICE}"))?;
        Ok(Self(file))
    }

    /// Migrates a range.
    pub fn range(&self, mut call: Call) -> Done {
        // SAFETY: The kernel writes only members that it knows, all of which `Call` has, whatever
        // `size` is. Migration changes where pages are, not their contents.
        let ret = unsafe { self.ioctl(RANGE, (&raw mut call).addr()) };
        Done::new(ret, &call)
    }

    /// Migrates by `table`; `at` and `length` of the call are ignored.
    pub fn phys(&self, table: &[u64], call: Call) -> Done {
        self.phys_raw(Call {
            at: table.as_ptr().addr() as u64,
            length: table.len() as u64,
            ..call
        })
    }

    /// Migrates by a table at any address.
    pub fn phys_raw(&self, mut call: Call) -> Done {
        // SAFETY: As in `range()`; the kernel only reads the table.
        let ret = unsafe { self.ioctl(PHYS, (&raw mut call).addr()) };
        Done::new(ret, &call)
    }

    pub fn counters(&self) -> Result<Counters> {
        let mut counters = Counters {
            size: size_of::<Counters>() as u32,
            ..Counters::default()
        };
        // SAFETY: `counters` has the size in its `size` member.
        unsafe { self.ioctl(COUNTERS, (&raw mut counters).addr()) }.zero("reading counters")?;
        Ok(counters)
    }

    /// Asks for the pages by pair of nodes, with a table for `nodes` nodes. Returns the error
    /// number, the kernel's number of nodes, and the table.
    pub fn matrix(&self, nodes: usize) -> (i32, usize, Vec<u64>) {
        let mut table = vec![0u64; nodes * nodes];
        let mut matrix = Matrix {
            size: size_of::<Matrix>() as u32,
            table: table.as_mut_ptr().addr() as u64,
            nodes: nodes as u64,
            ..Matrix::default()
        };
        // SAFETY: `matrix` has the size in its `size` member, and the table has that many rows and
        // columns.
        let ret = unsafe { self.ioctl(MATRIX, (&raw mut matrix).addr()) };
        (ret.errno, matrix.nodes as usize, table)
    }

    /// Makes any ioctl with a possibly invalid pointer. In a mapping it must leave a page of room
    /// behind the pointer, and the kernel writes no further.
    pub fn raw(&self, cmd: u32, arg: UserPtr<'_>) -> Result<Ret> {
        check_room(arg)?;
        // SAFETY: The kernel writes only words of a mapping, or nothing.
        Ok(unsafe { self.ioctl(cmd, arg.addr()) })
    }

    /// As `raw`, from a 32-bit program. The mapping must have a 32-bit address.
    pub fn raw_compat(&self, cmd: u32, arg: UserPtr<'_>) -> Result<Ret> {
        check_room(arg)?;
        let args = [
            self.0.as_raw_fd() as u32,
            cmd,
            compat::short(arg.addr())?,
            0,
            0,
            0,
        ];
        // SAFETY: As in `raw()`.
        Ok(unsafe { compat::call(compat::IOCTL, args) })
    }

    /// # Safety
    ///
    /// The kernel may write the memory at `arg`, so it must be the caller's.
    unsafe fn ioctl(&self, cmd: u32, arg: usize) -> Ret {
        // SAFETY: The caller guarantees that the kernel may write the memory at `arg`.
        let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::c_ulong::from(cmd), arg) };
        Ret::from_raw(ret.into())
    }
}

fn check_room(arg: UserPtr<'_>) -> Result<()> {
    if let UserPtr::In(map, offset) = arg {
        ensure!(
            offset + PAGE <= map.len(),
            "expected a page of room behind the pointer"
        );
    }
    Ok(())
}
