// SPDX-License-Identifier: GPL-2.0-only

//! The service of `/dev/page_migrate`: pages are migrated by physical address, or by a range of a
//! process's addresses, and counted.
//!
//! - [`request`]: who may do what to whom;
//! - [`physical`]: a table of physical addresses;
//! - [`range`]: a range of addresses;
//! - [`lists`]: how either is cut into lists, where it is much.
//!
//! Contexts: that of the calling task, which may sleep and may be killed. No locks here; one call
//! knows nothing of another but what both count.
//!
//! C header: [`include/uapi/linux/page_migrate.h`](srctree/include/uapi/linux/page_migrate.h)
//!
//! Boundary: `events.rs`, `page_frame.rs`, `target.rs`. Only these files contain unsafe code.

pub mod events;
pub mod hooks;
pub mod lists;
pub mod page_frame;
pub mod physical;
pub mod range;
pub mod request;
pub mod target;

use core::mem::offset_of;
use kernel::{
    bindings,
    fs::File,
    ioctl::_IO,
    miscdevice::{
        MiscDevice,
        MiscDeviceRegistration, //
    },
    prelude::*, //
};

use self::events::ServiceEvent;

use crate::kernel::{
    extensible::{
        Extensible,
        FromUser, //
    },
    misc_device::{
        self,
        BuiltIn, //
    }, //
};

const PHYS: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 0);
const RANGE: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 1);
const COUNTERS: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 2);

/// Who may open the device: everybody, as what needs a right asks for it.
const MODE: u16 = 0o666;

/// Registers the device. May sleep. Fails as [`misc_device::register`].
pub fn register() -> Result {
    misc_device::register::<Service>(c"page_migrate", MODE)
}

struct Service;

#[vtable]
impl MiscDevice for Service {
    type OwnerModule = BuiltIn;
    type Ptr = ();

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result {
        Ok(())
    }

    fn ioctl((): (), file: &File, cmd: u32, arg: usize) -> Result<isize> {
        match cmd {
            PHYS => serve::<bindings::page_migrate_phys>(file, arg),
            RANGE => serve::<bindings::page_migrate_range>(file, arg),
            COUNTERS => tell_counters(arg),
            _ => Err(ENOTTY),
        }?;
        Ok(0)
    }
}

/// What a call has come to, in base pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Migrated.
    pub successful: u64,
    /// Not migrated, though they were to be.
    pub failed: u64,
}

impl Counts {
    /// Adds a list of so many base pages, of which so many were migrated.
    pub fn add(&mut self, isolated: usize, moved: u64) {
        self.successful += moved;
        self.failed += (isolated as u64).saturating_sub(moved);
    }
}

/// A call that migrates, as its structure has it.
trait Call: Extensible {
    /// What it is to count when it is let in.
    const EVENT: ServiceEvent;
    /// Where its two numbers are in the structure, together: from, and to before.
    const COUNTS: (usize, usize);
    /// What was found out of it.
    type Job;

    /// Whether the caller may have it done. May sleep.
    fn check_access(&self, file: &File) -> Result<Self::Job>;
    /// Does it. May sleep.
    fn run(&self, job: &Self::Job, counts: &mut Counts) -> Result;
    /// Sets its two numbers.
    fn tell(&mut self, counts: Counts);
    /// For the tracepoint.
    fn report(&self) -> bindings::ferry_service_report;
}

/// Has a call done, counted and told.
fn serve<T: Call>(file: &File, arg: usize) -> Result {
    let mut user = FromUser::<T>::read(arg).inspect_err(|_| ServiceEvent::Refused.count(1))?;
    let mut counts = Counts::default();
    let result = match user.value.check_access(file) {
        Ok(job) => {
            T::EVENT.count(1);
            let result = user.value.run(&job, &mut counts);
            ServiceEvent::Aborted.count(result.is_err().into());
            result
        }
        Err(error) => {
            ServiceEvent::Refused.count(1);
            Err(error)
        }
    };
    ServiceEvent::Successful.count(counts.successful);
    ServiceEvent::Failed.count(counts.failed);
    user.value.tell(counts);
    events::trace(&bindings::ferry_service_report {
        error: result.err().map_or(0, Error::to_errno),
        successful: counts.successful,
        failed: counts.failed,
        ..user.value.report()
    });
    let written = user.write(T::COUNTS.0, T::COUNTS.1);
    result.and(written)
}

impl Call for bindings::page_migrate_phys {
    const EVENT: ServiceEvent = ServiceEvent::PhysCalls;
    const COUNTS: (usize, usize) = (offset_of!(Self, successful), offset_of!(Self, failed) + 8);
    type Job = request::CheckedRequest;

    fn check_access(&self, file: &File) -> Result<Self::Job> {
        physical::check_access(self, file)
    }

    fn run(&self, job: &Self::Job, counts: &mut Counts) -> Result {
        physical::migrate(self, job, counts)
    }

    fn tell(&mut self, counts: Counts) {
        (self.successful, self.failed) = (counts.successful, counts.failed);
    }

    fn report(&self) -> bindings::ferry_service_report {
        bindings::ferry_service_report {
            phys: true,
            flags: self.flags,
            length: self.length,
            node: self.node,
            pid: self.pid,
            ..Default::default()
        }
    }
}

impl Call for bindings::page_migrate_range {
    const EVENT: ServiceEvent = ServiceEvent::RangeCalls;
    const COUNTS: (usize, usize) = (offset_of!(Self, successful), offset_of!(Self, failed) + 8);
    type Job = request::CheckedRequest;

    fn check_access(&self, _file: &File) -> Result<Self::Job> {
        range::check_access(self)
    }

    fn run(&self, job: &Self::Job, counts: &mut Counts) -> Result {
        range::migrate(self, job, counts)
    }

    fn tell(&mut self, counts: Counts) {
        (self.successful, self.failed) = (counts.successful, counts.failed);
    }

    fn report(&self) -> bindings::ferry_service_report {
        bindings::ferry_service_report {
            phys: false,
            flags: self.flags,
            length: self.length,
            node: self.node,
            pid: self.pid,
            ..Default::default()
        }
    }
}

fn tell_counters(arg: usize) -> Result {
    type Counters = bindings::page_migrate_counters;

    let mut user = FromUser::<Counters>::read(arg)?;
    if user.value.flags != 0 {
        return Err(EINVAL);
    }
    user.value = Counters {
        size: user.value.size,
        flags: 0,
        phys_calls: ServiceEvent::PhysCalls.sum(),
        phys_entries: ServiceEvent::PhysEntries.sum(),
        phys_ignored: ServiceEvent::PhysIgnored.sum(),
        range_calls: ServiceEvent::RangeCalls.sum(),
        successful: ServiceEvent::Successful.sum(),
        failed: ServiceEvent::Failed.sum(),
        refused: ServiceEvent::Refused.sum(),
        aborted: ServiceEvent::Aborted.sum(),
    };
    user.write(offset_of!(Counters, phys_calls), size_of::<Counters>())
}
