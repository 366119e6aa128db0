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
    alloc::flags::GFP_KERNEL_ACCOUNT,
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
    events::{
        Failure,
        Failures,
        ServiceEvent, //
    },
    request::CheckedRequest, //
};

use crate::{
    crew::user_pages::UserArray,
    kernel::{
        extensible::{
            Extensible,
            FromUser, //
        },
        misc_device::{
            self,
            BuiltIn, //
        },
        sched::now_ns, //
    }, //
};

const PHYS: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 0);
const RANGE: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 1);
const COUNTERS: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 2);
const MATRIX: u32 = _IO(bindings::PAGE_MIGRATE_IOC, 3);

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
            MATRIX => write_matrix(arg),
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
    pub failed: Failures,
}

impl Counts {
    /// Adds a list of `isolated` base pages, of which `moved` were migrated.
    pub fn add(&mut self, isolated: usize, moved: u64) {
        self.successful += moved;
        let left = (isolated as u64).saturating_sub(moved);
        self.failed.add(Failure::Move, left);
    }
}

/// The structure of a call that migrates pages.
trait Call: Extensible {
    /// The counter of accepted calls, and that of their time.
    const EVENTS: (ServiceEvent, ServiceEvent);
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
    let end = |how: ServiceEvent, error: Error| {
        how.count(1);
        events::count_error(error);
    };
    let mut user =
        FromUser::<T>::read(arg).inspect_err(|&error| end(ServiceEvent::Refused, error))?;
    let mut counts = Counts::default();
    let result = match user.value.check_access(file) {
        Ok(request) => {
            let (calls, usec) = T::EVENTS;
            let start = now_ns();
            let result = user.value.run(&request, &mut counts);
            calls.count(1);
            usec.count(((now_ns() - start) / 1000) as u64);
            result.inspect_err(|&error| end(ServiceEvent::Aborted, error))
        }
        Err(error) => {
            end(ServiceEvent::Refused, error);
            Err(error)
        }
    };
    ServiceEvent::Successful.count(counts.successful);
    counts.failed.count();
    user.value.set_counts(counts);
    events::trace(&bindings::ferry_service_report {
        error: result.err().map_or(0, Error::to_errno),
        successful: counts.successful,
        failed: counts.failed.sum(),
        ..user.value.report()
    });
    let written = user.write(T::COUNTS.0, T::COUNTS.1);
    result.and(written)
}

impl Call for bindings::page_migrate_phys {
    const EVENTS: (ServiceEvent, ServiceEvent) = (ServiceEvent::PhysCalls, ServiceEvent::PhysUsec);
    const COUNTS: (usize, usize) = (offset_of!(Self, successful), offset_of!(Self, failed) + 8);

    fn check_access(&self, file: &File) -> Result<CheckedRequest> {
        physical::check_access(self, file)
    }

    fn run(&self, request: &CheckedRequest, counts: &mut Counts) -> Result {
        physical::migrate(self, request, counts)
    }

    fn set_counts(&mut self, counts: Counts) {
        (self.successful, self.failed) = (counts.successful, counts.failed.sum());
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
    const EVENTS: (ServiceEvent, ServiceEvent) =
        (ServiceEvent::RangeCalls, ServiceEvent::RangeUsec);
    const COUNTS: (usize, usize) = (offset_of!(Self, successful), offset_of!(Self, failed) + 8);

    fn check_access(&self, _file: &File) -> Result<CheckedRequest> {
        range::check_access(self)
    }

    fn run(&self, request: &CheckedRequest, counts: &mut Counts) -> Result {
        range::migrate(self, request, counts)
    }

    fn set_counts(&mut self, counts: Counts) {
        (self.successful, self.failed) = (counts.successful, counts.failed.sum());
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
        phys_usec: ServiceEvent::PhysUsec.sum(),
        range_usec: ServiceEvent::RangeUsec.sum(),
        failures: Failures::counted(),
        errors: events::counted_errors(),
    };
    user.write(offset_of!(Counters, phys_calls), size_of::<Counters>())
}

/// Writes the pages migrated between each two nodes. Fails with `ENOSPC` if the caller's table is
/// too small.
fn write_matrix(arg: usize) -> Result {
    type Matrix = bindings::page_migrate_matrix;

    let mut user = FromUser::<Matrix>::read(arg)?;
    if user.value.flags != 0 {
        return Err(EINVAL);
    }
    let (room, nodes) = (user.value.nodes, events::nodes());
    user.value.nodes = nodes as u64;
    user.write(offset_of!(Matrix, nodes), size_of::<Matrix>())?;
    if room < nodes as u64 {
        return Err(ENOSPC);
    }
    let table = UserArray::new(user.value.table as usize, nodes * nodes);
    let mut row = KVec::from_elem(0u64, nodes, GFP_KERNEL_ACCOUNT)?;
    for from in 0..nodes {
        for (to, pages) in row.iter_mut().enumerate() {
            *pages = events::moved(from, to);
        }
        table.write(from * nodes, &row)?;
    }
    Ok(())
}
