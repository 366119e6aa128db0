// SPDX-License-Identifier: GPL-2.0-only

//! The checks of both calls before anything is done.
//!
//! No locks. Context: the calling task, which may sleep.

use kernel::{
    bindings,
    prelude::*, //
};

use super::target::{
    Name,
    Target, //
};

use crate::{
    crew::user_pages::{
        AskedHelp,
        Destination,
        Help, //
    },
    kernel::misc_device::Capability, //
};

const SHARED: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_SHARED;
const PIDFD: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_PIDFD;
const HOLES: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_HOLES;
const MT: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_MT;

/// The flag of a table of more than one page.
pub const LONG: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_LONG;

/// Flags that both calls accept.
const COMMON_FLAGS: u32 = SHARED | PIDFD | MT;
/// Flags that a call by physical address accepts.
pub const PHYS_FLAGS: u32 = COMMON_FLAGS | LONG;
/// Flags that a call by range accepts.
pub const RANGE_FLAGS: u32 = COMMON_FLAGS | HOLES;

/// The arguments that both calls have.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Flags of `enum page_migrate_flags`.
    pub flags: u32,
    /// The destination node.
    pub node: i32,
    /// The process, or a pidfd.
    pub pid: i32,
}

/// A request that was checked.
pub struct CheckedRequest {
    /// The target process.
    pub target: Target,
    /// The destination node.
    pub node: Destination,
    /// Whether pages that other processes map as well are migrated.
    pub shared: bool,
    /// Whether unmapped addresses are skipped.
    pub holes: bool,
    /// Whether idle CPUs may help.
    pub help: Help,
    /// The right to get help, if the request asked for it, until the request is dropped.
    _asked: Option<AskedHelp>,
}

impl Request {
    /// Checks the request of a call that accepts the flags `known`. May sleep.
    ///
    /// Fails with `EINVAL` for an unknown flag or a kernel thread, with `EINTR` if the caller is
    /// being killed, and with `EPERM`, `ESRCH`, `EBADF` or `ENODEV`.
    pub fn check(self, known: u32) -> Result<CheckedRequest> {
        let has = |flag| self.flags & flag != 0;
        if has(!known) {
            return Err(EINVAL);
        }
        if has(SHARED) {
            Capability::SysNice.check()?;
        }
        let name = match self.pid {
            fd if has(PIDFD) => Name::PidFd(fd),
            0 => Name::Caller,
            pid => Name::Pid(pid),
        };
        let target = Target::find(name)?;
        let node = target.destination(self.node)?;
        let asked = has(MT).then(AskedHelp::new).flatten();
        Ok(CheckedRequest {
            target,
            node,
            shared: has(SHARED),
            holes: has(HOLES),
            help: match asked {
                Some(_) => Help::Asked,
                None => Help::AsConfigured,
            },
            _asked: asked,
        })
    }
}
