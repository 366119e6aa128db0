// SPDX-License-Identifier: GPL-2.0-only

//! Every function that C calls: `unsafe` as thin as it can be, straight to safe code.
//!
//! C header:
//! [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    abstractions::{
        demotion::Parts,
        folio_pair::PairedLists,
        knob::Knob,
        migrate_batch::MigrateBatch,
        migration::{
            IsolatedList,
            MigrateCall, //
        }, //
    },
    copy::{
        self,
        copier::CpuCopier, //
    },
    crew,
    logic::{
        flight::Ticket,
        item::Outcome, //
    }, //
};

#[cfg(CONFIG_NUMA_MIGRATION)]
use crate::abstractions::move_pages::MovePages;

type Batch<'a> = MigrateBatch<'a, CpuCopier>;

/// A batch begins: called by `ferry_batch_begin()`. May sleep.
///
/// # Safety
///
/// `batch` must be initialised, valid, the caller's own, and have no board.
#[export]
pub unsafe extern "C" fn ferry_copy_begin(batch: *mut bindings::ferry_batch) {
    // SAFETY: By the safety requirement.
    unsafe { Batch::from_raw(batch) }.begin();
}

/// A batch is unmapped and flushed: called by `ferry_batch_post()`. May sleep.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_begin()` left it. The lists must be those that
/// `migrate_pages_batch()` has between the flush and the first switch: as many destinations as
/// sources, in the same order, all locked by the caller, the sources unmapped and the destinations
/// seen by nobody else, or pages with movable_ops. All that are posted must stay so until they are
/// taken back by `ferry_copy_take()` or `ferry_copy_end()`, which must be called.
#[export]
pub unsafe extern "C" fn ferry_copy_post(
    batch: *mut bindings::ferry_batch,
    dst_folios: *mut bindings::list_head,
    src_folios: *mut bindings::list_head,
) {
    // SAFETY: By the safety requirement; nobody changes the lists before we return.
    let lists = unsafe { PairedLists::from_raw(dst_folios, src_folios) };
    // SAFETY: By the safety requirement.
    let mut batch = unsafe { Batch::from_raw(batch) };
    copy::post(lists, crew::spare_threads, &mut batch);
}

/// Takes back the next marked folio, which the caller is about to switch: called by
/// `ferry_folio_copied()`. May sleep.
///
/// Returns 1 if its content is in the new folio, 0 if the caller must copy it, `-EHWPOISON` if it
/// cannot be read, `-EIO` if a DMA engine may still write the new folio, `-EOPNOTSUPP` if no engine
/// has copied it and no CPU may.
///
/// The marked folios must come here in their order on the lists, each once. If `src` and `dst` are
/// not the next pair that was posted, this warns, waits until no task copies any folio of the
/// batch, and from then on leaves every folio of it to the caller.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_post()` or this function left it last. The folios that were
/// posted and not taken back must still be as they were posted. With `-EIO` the destination must be
/// put, and neither read nor written.
#[export]
pub unsafe extern "C" fn ferry_copy_take(
    batch: *mut bindings::ferry_batch,
    src: *mut bindings::folio,
    dst: *mut bindings::folio,
) -> c_int {
    // SAFETY: By the safety requirement.
    match unsafe { Batch::from_raw(batch) }.take_pair(src, dst) {
        Some(Outcome::Copied) => 1,
        Some(Outcome::Failed) => -(bindings::EHWPOISON as c_int),
        Some(Outcome::Lost) => EIO.to_errno(),
        Some(Outcome::Refused) => EOPNOTSUPP.to_errno(),
        None => 0,
    }
}

/// A batch is mapped again: called by `ferry_batch_end()`. May sleep.
///
/// # Safety
///
/// `batch` must be as `ferry_copy_post()` or `ferry_copy_take()` left it last. Folios that were
/// posted and not taken back must be what they were.
#[export]
pub unsafe extern "C" fn ferry_copy_end(batch: *mut bindings::ferry_batch, reason: c_int) {
    // SAFETY: By the safety requirement.
    let ended = unsafe { Batch::from_raw(batch) }.end(reason);
    copy::count(&ended);
    crew::charge(ended.copied.helper_ns);
}

/// A list is to be migrated: called by `ferry_crew()`. May sleep.
///
/// Returns whether it was; if not, nothing was changed.
///
/// # Safety
///
/// All must be as `migrate_pages()` has it before its first batch: lists that are valid and its
/// own, of isolated folios; counters; and what its caller has given it, valid until this returns.
#[export]
pub unsafe extern "C" fn ferry_crew_migrate(
    call: *const bindings::ferry_call,
    from: *mut bindings::list_head,
    ret_folios: *mut bindings::list_head,
    stats: *mut bindings::migrate_pages_stats,
    nr_failed: *mut c_int,
) -> bool {
    // SAFETY: By the safety requirement.
    let Some(call) = (unsafe { MigrateCall::new(&*call) }) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    let mut from = unsafe { IsolatedList::from_raw(from) };
    // SAFETY: By the safety requirement.
    let mut ret = unsafe { IsolatedList::from_raw(ret_folios) };
    let Some(outcome) = crew::migrate(call, &mut from, &mut ret) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    outcome.tell(unsafe { &mut *stats }, unsafe { &mut *nr_failed });
    true
}

/// A long list is to be shrunk, and to be demoted what is not in use: called by
/// `ferry_demote_parts()`. May sleep.
///
/// Returns whether it was; if not, nothing was changed.
///
/// # Safety
///
/// `call` must be as for `ferry_crew_migrate()`. `parts` must be the caller's, valid until this
/// returns, as its lists, which link isolated folios, and its function be for this task to call.
/// `left` must be an empty list of the caller's, and `nr_demoted` valid for a write.
#[export]
pub unsafe extern "C" fn ferry_crew_demote(
    call: *const bindings::ferry_call,
    parts: *mut bindings::ferry_parts,
    left: *mut bindings::list_head,
    nr_demoted: *mut c_uint,
) -> bool {
    // SAFETY: By the safety requirement.
    let Some(call) = (unsafe { MigrateCall::new(&*call) }) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    let mut parts = unsafe { Parts::from_raw(parts) };
    // SAFETY: By the safety requirement.
    let mut left = unsafe { IsolatedList::from_raw(left) };
    let Some(outcome) = crew::demotion::demote(call, &mut parts, &mut left) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    unsafe { *nr_demoted = outcome.stats.nr_succeeded as c_uint };
    true
}

/// Pages are to be moved: called by `ferry_move_pages()`. May sleep.
///
/// Returns whether they were, and in `err` what `do_pages_move()` returns.
///
/// # Safety
///
/// `args` must be what `do_pages_move()` was called with, in the task whose user space it names,
/// and `err` be valid for a write.
#[cfg(CONFIG_NUMA_MIGRATION)]
#[export]
pub unsafe extern "C" fn ferry_crew_move_pages(
    args: *const bindings::ferry_move_pages,
    err: *mut c_int,
) -> bool {
    // SAFETY: By the safety requirement.
    let request = unsafe { MovePages::from_raw(args) };
    let Some(result) = crew::move_pages::move_pages(&request) else {
        return false;
    };
    // SAFETY: By the safety requirement.
    unsafe { *err = result };
    true
}

/// What each page of a folio adds to the next batch: called by `ferry_batch_price()`. For any
/// context but NMI.
///
/// Returns parts of a unit, or 0: as in mainline.
///
/// # Safety
///
/// `from` must be a list of isolated folios, valid and the caller's own.
#[export]
pub unsafe extern "C" fn ferry_copy_price(from: *mut bindings::list_head) -> c_uint {
    // SAFETY: By the safety requirement.
    let mut from = unsafe { IsolatedList::from_raw(from) };
    copy::price(&mut from, crew::spare_threads).unwrap_or(0)
}

/// Before idle CPUs take part for the first time: called when `vm.mt_page_copy` is written, or
/// somebody asks for help. May sleep; returns 0 or -ENOMEM. One caller at a time.
#[export]
pub extern "C" fn ferry_prepare() -> c_int {
    match crew::prepare().and_then(|()| copy::prepare()) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// Applies a setting: called when its file is written, under the lock of the sysctls or under that
/// of the settings in sysfs, so two writers of different files may be here. May sleep.
///
/// Returns 0, or an error number: nothing has changed, but that some of the channels that were to
/// be given back may be.
#[export]
pub extern "C" fn ferry_set(which: bindings::ferry_setting, value: c_uint) -> c_int {
    let Some(knob) = Knob::from_raw(which, value) else {
        return EINVAL.to_errno();
    };
    match copy::set(knob) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// How many channels of DMA engines there are for batches. For any context.
#[export]
pub extern "C" fn ferry_dma_nr_open() -> c_uint {
    copy::dma::nr_open() as c_uint
}

/// The channel with this number: its name, its node and what it has done. May sleep.
///
/// Returns how many bytes were written to `buf`, from `at` on; 0: there is no such channel.
///
/// # Safety
///
/// `buf` must be what a `show` of sysfs has, and hold `at` bytes.
#[export]
pub unsafe extern "C" fn ferry_dma_tell(nr: c_uint, buf: *mut c_char, at: c_int) -> c_int {
    let told = copy::dma::read_out(nr as usize, |name, node, counts| {
        let node = node.map_or(bindings::NUMA_NO_NODE, |node| node.0);
        // SAFETY: By the safety requirement; the name is valid meanwhile.
        unsafe { bindings::ferry_dma_emit(buf, at, name, node, &counts) }
    });
    told.unwrap_or(0)
}

/// Notes that an engine is done with a copy, and whether it is good: called by the callback of its
/// descriptor. Any context but NMI.
///
/// # Safety
///
/// `ticket` must be the one that `ferry_dma_submit()` was given with that copy. Called once for
/// each copy.
#[export]
pub unsafe extern "C" fn ferry_dma_answer(ticket: *const c_void, good: bool) {
    // SAFETY: `ticket` is the ticket of a place in a port, which lives for ever.
    unsafe { &*ticket.cast::<Ticket>() }.answer(good);
}

/// The driver of a device is about to leave it: called by the notifier of its bus. May sleep.
#[export]
pub extern "C" fn ferry_dma_leave(dev: *mut bindings::device) {
    copy::dma::leave(dev as usize);
}

#[cfg(CONFIG_FERRY_MIGRC)]
pub mod migrc {
    //! Those of [`migrc`].
    //!
    //! C header: `mm/ferry/c-glue/include/linux/ferry_migrc.h`

    use super::*;
    use crate::{
        abstractions::{
            group::{
                flushed_cpus,
                ledger::CompletedFlush,
                Drain,
                FileBucket,
                Group,
                InBatch,
                OfTask, //
            },
            may_flush::MayFlush, //
        },
        logic::coverage::Moment,
        migrc, //
    };

    /// Of a batch only this is looked at: the rest of it may not be set.
    ///
    /// # Safety
    ///
    /// `batch` must be valid, its `group` set, and the caller's own while the slot is.
    unsafe fn slot<'a>(batch: *mut bindings::ferry_batch) -> &'a mut *mut c_void {
        // SAFETY: By the safety requirement.
        unsafe { &mut (*batch).group }
    }

    fn put_back<S: OfTask>(slot: &mut *mut c_void, group: Option<Group<S>>) {
        if let Some(group) = group {
            *slot = group.into_raw();
        }
    }

    /// A batch begins that may be left unflushed: called by `ferry_defer_begin()`. May sleep.
    ///
    /// # Safety
    ///
    /// `batch` must be valid, the caller's own, and have no group. The caller may sleep, with
    /// interrupts on.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_begin(batch: *mut bindings::ferry_batch) {
        // SAFETY: By the safety requirement.
        unsafe { put_back(slot(batch), MayFlush::with(migrc::begin)) };
    }

    /// A batch is unmapped: called by `ferry_unmap_flush()`. May sleep.
    ///
    /// # Safety
    ///
    /// `batch` must be valid, the caller's own, and have its group from `ferry_migrc_begin()`. The
    /// caller may sleep, with interrupts on.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_flush(batch: *mut bindings::ferry_batch) {
        // SAFETY: By the safety requirement.
        let slot = unsafe { slot(batch) };
        // SAFETY: By the safety requirement.
        if let Some(InBatch::Unmapping(group)) = unsafe { InBatch::take(slot) } {
            // SAFETY: By the safety requirement.
            put_back(slot, unsafe { MayFlush::with(|may| group.defer(may)) });
        }
    }

    /// A folio is migrated: called by `ferry_keep()`. May sleep.
    ///
    /// # Safety
    ///
    /// `batch` must be valid, the caller's own, and have its group from `ferry_migrc_flush()`.
    /// `src` must be a folio of it with a reference of the caller's, which nobody uses any more and
    /// which is on no list, and `dst` where it is now. The caller may sleep, with interrupts on.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_keep(
        batch: *mut bindings::ferry_batch,
        src: *mut bindings::folio,
        dst: *mut bindings::folio,
    ) {
        // SAFETY: By the safety requirement.
        let slot = unsafe { slot(batch) };
        // SAFETY: By the safety requirement.
        if let Some(InBatch::Pending(mut group)) = unsafe { InBatch::take(slot) } {
            // SAFETY: By the safety requirement.
            match unsafe { group.keep(src, dst) } {
                true => put_back(slot, Some(group)),
                // SAFETY: By the safety requirement.
                false => unsafe { MayFlush::with(|may| migrc::overflow(group, may)) },
            }
        }
    }

    /// A batch is migrated: called by `ferry_defer_end()`. May sleep.
    ///
    /// # Safety
    ///
    /// `batch` must be valid, the caller's own, and have its group from one of the above. The
    /// caller may sleep, with interrupts on.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_end(batch: *mut bindings::ferry_batch) {
        // SAFETY: By the safety requirement. If all of it failed before it was flushed there is
        // nothing to flush for.
        if let Some(InBatch::Pending(group)) = unsafe { InBatch::take(slot(batch)) } {
            // SAFETY: By the safety requirement.
            unsafe { MayFlush::with(|may| migrc::end(group, may)) };
        }
    }

    /// Before migrc is switched on. May sleep; returns 0 or -ENOMEM. One caller at a time.
    #[export]
    pub extern "C" fn ferry_migrc_prepare() -> c_int {
        match migrc::prepare() {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }

    /// Frees all that is retained; returns how many pages. May sleep.
    ///
    /// # Safety
    ///
    /// The caller may sleep, with interrupts on.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_drain(why: bindings::ferry_drain) -> c_uint {
        let Some(why) = Drain::from_raw(why) else {
            return 0;
        };
        // SAFETY: By the safety requirement.
        unsafe { MayFlush::with(|may| migrc::drain(why, may)) }
    }

    /// A flush of all of an address space is about to begin: called by `ferry_before_mm_flush()`.
    /// For any context.
    #[export]
    pub extern "C" fn ferry_migrc_now() -> u64 {
        migrc::now().map_or(0, Moment::into_raw)
    }

    /// Schedules the frees of groups that are covered: called by `ferry_mm_flushed()`. For any
    /// context but NMI.
    #[export]
    pub extern "C" fn ferry_migrc_complete() {
        migrc::complete();
    }

    /// Frees retained folios of the files of a bucket: called by `ferry_before_write()`. May sleep.
    ///
    /// # Safety
    ///
    /// `file` must be below `1 << FERRY_FILE_BITS`. The caller must be allowed to sleep, with
    /// interrupts on.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_drain_file(file: c_uint) {
        // SAFETY: The caller may sleep, with interrupts on, and `file` is below the bound.
        unsafe { MayFlush::with(|may| migrc::drain_file(FileBucket::from_raw(file), may)) };
    }

    /// Numbers a flush of CPUs that is about to begin: called by `ferry_before_batch_flush()`. For
    /// any context.
    ///
    /// # Safety
    ///
    /// `arch` must be valid.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_covering(
        arch: *const bindings::arch_tlbflush_unmap_batch,
    ) -> u64 {
        // SAFETY: By the safety requirement.
        migrc::covering(unsafe { flushed_cpus(arch) }).map_or(0, Moment::into_raw)
    }

    /// Notes that the flush is complete: called by `ferry_after_batch_flush()`. For any context but
    /// NMI.
    ///
    /// # Safety
    ///
    /// `flush` must be a number that `ferry_migrc_covering()` returned, not 0. The flush that it
    /// was called for must have begun since, and be complete.
    #[export]
    pub unsafe extern "C" fn ferry_migrc_covered(flush: u64) {
        // SAFETY: By the safety requirement.
        migrc::covered(unsafe { CompletedFlush::from_raw(flush) });
    }
}

#[cfg(CONFIG_FERRY_PAGECACHE_PROMOTION)]
pub mod promotion {
    //! Those of [`promote`].
    //!
    //! C header: `mm/ferry/c-glue/include/linux/ferry_promotion.h`

    use super::*;
    use crate::{
        logic::promotion::ring::Access,
        promote, //
    };

    /// A folio of a lower tier was read: called by `ferry_record_access()`, for tasks and not for
    /// interrupts. `cpu` is the one that this runs on, without being preempted.
    ///
    /// Returns of how many accesses the next is to be recorded, as a power of two.
    #[export]
    pub extern "C" fn ferry_promotion_record(
        cpu: c_uint,
        pfn: c_ulong,
        from: c_int,
        to: c_int,
    ) -> c_uint {
        // None is so large: it is refused.
        let node = |nid: c_int| u16::try_from(nid).unwrap_or(u16::MAX);
        let access = Access {
            pfn: pfn as u64,
            from: node(from),
            to: node(to),
        };
        promote::record(cpu as usize, access)
    }

    /// A folio was promoted: called by `ferry_record_migration()`. For any context but NMI.
    ///
    /// # Safety
    ///
    /// `cached` must be valid.
    #[export]
    pub unsafe extern "C" fn ferry_promotion_promoted(cached: *const bindings::ferry_cached) {
        // SAFETY: By the safety requirement.
        promote::promoted(unsafe { &*cached });
    }

    /// A folio was demoted, or `for_room`, as its node was short of free memory: called by
    /// `ferry_record_migration()`. For any context but NMI.
    ///
    /// # Safety
    ///
    /// `cached` must be valid.
    #[export]
    pub unsafe extern "C" fn ferry_promotion_demoted(
        cached: *const bindings::ferry_cached,
        from_top: bool,
    ) {
        // SAFETY: By the safety requirement.
        promote::demoted(unsafe { &*cached }, from_top);
    }

    /// Promotion is on: called when its switch is written. May sleep; returns 0 or -ENOMEM. One
    /// caller at a time.
    #[export]
    pub extern "C" fn ferry_promotion_start() -> c_int {
        match promote::start() {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }

    /// It is off: when this returns nothing is off the LRU for it, nor will be. May sleep. One
    /// caller at a time.
    #[export]
    pub extern "C" fn ferry_promotion_stop() {
        promote::stop();
    }

    /// How far the brake is drawn, 0 to 8. For any context.
    #[export]
    pub extern "C" fn ferry_promotion_brake() -> c_uint {
        promote::brake_level()
    }
}

/// The service's device: called once, when all else is there. May sleep; 0 or an error number.
#[cfg(CONFIG_FERRY_SERVICE)]
#[export]
pub extern "C" fn ferry_service_register() -> c_int {
    match crate::service::register() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}
