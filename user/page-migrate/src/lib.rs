// SPDX-License-Identifier: GPL-2.0-only
//! Migrates pages to another memory node by their physical addresses, or as a range of any process's
//! addresses: the service of `/dev/page_migrate`, which kernels with `CONFIG_FERRY_SERVICE` have.
//!
//! [`Service::migrate_physical`] and [`Service::migrate_range`] are what the page migration service of
//! 2004 called `migrate_ph_pages()` and `migrate_virt_addr_range()`. A major error ends a call, and says
//! what was done before ([`Stopped`]); what is minor is counted ([`Counts`]). Beside them is what their
//! callers want to know: [`Spread`], on which nodes memory is, and [`physical_addresses`] of one's own.
//!
//! Migration changes where memory lies, not what is in it: nothing here needs `unsafe` of its callers,
//! whatever addresses they name.
//!
//! ```no_run
//! use page_migrate::{Node, Options, Pid, Service, Spread, Target};
//!
//! let service = Service::open()?;
//! let victim = Pid::new(4711).ok_or("no number of a process")?;
//! let range = 0x7f00_0000_0000..0x7f00_0010_0000;
//! let counts = service.migrate_range(
//!     range.clone(),
//!     Node::new(1).ok_or("no number of a node")?,
//!     Target::Process(victim),
//!     Options::default(),
//! )?;
//! println!("{counts}; now {}", Spread::of(Some(victim), range)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod abi;
mod error;
#[cfg(test)]
mod header_tests;
mod node;
mod pagemap;
mod places;
mod process;
mod service;
#[allow(unsafe_code)]
mod sys;

pub use error::{Error, Stopped};
pub use node::{Node, NotANumber};
pub use pagemap::{PhysAddr, physical_addresses};
pub use places::Spread;
pub use process::{Pid, PidFd, Target};
pub use service::{Counters, Counts, DEVICE, MAX_TABLE, Options, Service};

/// Bytes of a base page.
pub fn page_size() -> u64 {
    sys::page_size()
}
