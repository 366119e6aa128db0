// SPDX-License-Identifier: GPL-2.0-only
//! Migrates pages to another memory node by physical address, or as a range of a process's
//! addresses. It uses `/dev/page_migrate`, the service of kernels with `CONFIG_FERRY_SERVICE`.
//!
//! [`Service::migrate_physical`] and [`Service::migrate_range`] are `migrate_ph_pages()` and
//! `migrate_virt_addr_range()` of the page migration service of 2004. A major error ends a call and
//! reports the work done before it ([`Stopped`]); minor errors are counted ([`Counts`]). Callers
//! also need [`Spread`], the nodes that memory is on, and [`physical_addresses`], the addresses of the
//! caller's own pages.
//!
//! Migration moves memory without changing its content, so callers need no `unsafe`, whatever
//! addresses they pass.
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
pub use service::{Counters, Counts, DEVICE, MAX_TABLE, Moved, Options, Service};

/// Returns the size of a base page in bytes.
pub fn page_size() -> u64 {
    sys::page_size()
}
