// SPDX-License-Identifier: GPL-2.0-only

//! Who may have what migrated: what both calls ask before anything is done.

use kernel::{
    bindings,
    prelude::*, //
};

use super::target::{
    Name,
    Target, //
};

use crate::{
    crew::{
        migration::{
            AskedHelp,
            Help, //
        },
        user_pages::Destination, //
    },
    kernel::misc_device::Capability, //
};

const SHARED: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_SHARED;
const PIDFD: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_PIDFD;
const HOLES: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_HOLES;
const MT: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_MT;

/// The flag of a table of more than a page.
pub const LONG: u32 = bindings::page_migrate_flags_PAGE_MIGRATE_LONG;

/// Flags that each call may have.
const COMMON_FLAGS: u32 = SHARED | PIDFD | MT;
/// Flags that a call by physical address may have.
pub const PHYS_FLAGS: u32 = COMMON_FLAGS | LONG;
/// Flags that a call by range may have.
pub const RANGE_FLAGS: u32 = COMMON_FLAGS | HOLES;

/// What both calls say.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Those of `enum page_migrate_flags`.
    pub flags: u32,
    /// Where pages are to go.
    pub node: i32,
    /// Whose.
    pub pid: i32,
}

/// A request that was found good.
pub struct CheckedRequest {
    /// Whose pages.
    pub target: Target,
    /// Where they are to go.
    pub node: Destination,
    /// Also those that others have mapped.
    pub shared: bool,
    /// Addresses at which nothing is mapped are passed over.
    pub holes: bool,
    /// Whether idle CPUs take part.
    pub help: Help,
    /// The right to be helped, if the request asked for it. It is held until the request is
    /// dropped.
    _asked: Option<AskedHelp>,
}

impl Request {
    /// Whether the caller may have that done; `known`: the flags of the call. May sleep.
    ///
    /// `EINVAL`: another flag, or a process of the kernel's own; `EPERM`; `ESRCH`; `EBADF`;
    /// `ENODEV`; `EINTR`: the caller is being killed.
    pub fn admit(self, known: u32) -> Result<CheckedRequest> {
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
                None => Help::AsSwitched,
            },
            _asked: asked,
        })
    }
}
