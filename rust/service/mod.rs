// SPDX-License-Identifier: GPL-2.0-only

//! The service of `/dev/page_migrate`: migrates pages by physical address, or in a range of a
//! process's addresses, and counts them.
//!
//! - [`request`]: checks what the caller may do;
//! - [`target`]: a process, and ranges of its addresses;
//! - [`page_frame`]: folios by page frame number;
//! - [`physical`]: a call with a table of physical addresses;
//! - [`range`]: a call with a range of addresses;
//! - [`lists`]: how both are divided into lists.
//!
//! Context: the calling task, which may sleep and may be killed. No locks here: calls share nothing
//! but the counters.
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

use self::{
    events::ServiceEvent,
    request::CheckedRequest, //
};

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

/// Any task may open the device. The calls that need a privilege check it.
const MODE: u16 = 0o666;

/// Registers the device. May sleep. Fails like [`misc_device::register`].
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
            COUNTERS => write_counters(arg),
            _ => Err(ENOTTY),
        }?;
        Ok(0)
    }
}

/// The result of a call, in base pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Pages that were migrated.
    pub successful: u64,
    /// Pages of the target process that were not migrated.
    pub failed: u64,
}

impl Counts {
    /// Adds a list of `isolated` base pages, of which `moved` were migrated.
    pub fn add(&mut self, isolated: usize, moved: u64) {
        self.successful += moved;
        self.failed += (isolated as u64).saturating_sub(moved);
    }
}

/// The structure of a call that migrates pages.
trait Call: Extensible {
    /// The counter of accepted calls.
    const EVENT: ServiceEvent;
    /// The start and the end of the two results in the structure, as offsets.
    const COUNTS: (usize, usize);

    /// Checks that the caller may make this call. May sleep.
    fn check_access(&self, file: &File) -> Result<CheckedRequest>;
    /// Migrates the pages. May sleep.
    fn run(&self, request: &CheckedRequest, counts: &mut Counts) -> Result;
    /// Stores the two results.
    fn set_counts(&mut self, counts: Counts);
    /// Returns the report for the tracepoint.
    fn report(&self) -> bindings::ferry_service_report;
}

/// Checks a call, runs it, counts it, and writes its results to user space.
fn serve<T: Call>(file: &File, arg: usize) -> Result {
    let mut user = FromUser::<T>::read(arg).inspect_err(|_| ServiceEvent::Refused.count(1))?;
    let mut counts = Counts::default();
    let result = match user.value.check_access(file) {
        Ok(request) => {
            T::EVENT.count(1);
            let result = user.value.run(&request, &mut counts);
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
    user.value.set_counts(counts);
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

    fn check_access(&self, file: &File) -> Result<CheckedRequest> {
        physical::check_access(self, file)
    }

    fn run(&self, request: &CheckedRequest, counts: &mut Counts) -> Result {
        physical::migrate(self, request, counts)
    }

    fn set_counts(&mut self, counts: Counts) {
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

    fn check_access(&self, _file: &File) -> Result<CheckedRequest> {
        range::check_access(self)
    }

    fn run(&self, request: &CheckedRequest, counts: &mut Counts) -> Result {
        range::migrate(self, request, counts)
    }

    fn set_counts(&mut self, counts: Counts) {
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

fn write_counters(arg: usize) -> Result {
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
