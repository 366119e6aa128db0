// SPDX-License-Identifier: GPL-2.0-only

//! The DMA channels that batches may use.
//!
//! An operator sets the number of channels. They are requested when that number grows, and released
//! when it shrinks or when a driver is unbound from its device. A batch takes the channels that are
//! free when it is posted; if none is, CPUs copy the batch.
//!
//! Lock order:
//!
//! 1. the device lock of an engine, which [`Requested`] holds and which is held during bus
//!    notifications, and the lock of that notifier chain;
//! 2. `Channels::lock`, for opening, closing and reading out channels;
//! 3. the locks that the release of a channel takes.
//!
//! Batches take no lock.

pub mod feed;

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

use self::feed::DmaPages;

use crate::{
    kernel::{
        delayed_fn::{
            DelayedFn,
            Queue, //
        },
        dmaengine::{
            self,
            is_suspending,
            DmaChannel,
            InUse,
            Requested,
            MAX_CHANNELS, //
        },
        flush_token::FlushToken,
        sched::NodeId, //
    },
    workers::settings, //
};

/// Interval at which copies that timed out are checked, in milliseconds.
const SWEEP_MS: u32 = 1000;
/// Age of such a copy at which its engine is stopped, if it can be, in nanoseconds.
const PATIENCE_NS: i64 = 10_000_000_000;

/// All channels that may be open at a time, and their sweeper.
#[pin_data]
struct Channels {
    slots: KVec<KBox<DmaChannel<DmaPages>>>,
    sweeper: Arc<DelayedFn>,
    /// Releases the hold on the hooks when drivers have left the last channels.
    releaser: Arc<DelayedFn>,
    #[pin]
    lock: Mutex<()>,
}

static CHANNELS: SetOnce<Pin<KBox<Channels>>> = SetOnce::new();

impl Channels {
    fn new() -> Result<Pin<KBox<Self>>> {
        let mut slots = KVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?;
        for _ in 0..MAX_CHANNELS {
            slots.push(KBox::new(DmaChannel::new(), GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let sweeper = DelayedFn::new(Queue::Freezable, look_after)?;
        let releaser = DelayedFn::new(Queue::Unbound, |_| settings::channels_gone())?;
        KBox::pin_init(
            pin_init!(Self {
                slots,
                sweeper,
                releaser,
                lock <- new_mutex!((), "ferry::Channels::lock"),
            }),
            GFP_KERNEL,
        )
    }

    fn slots(&'static self) -> impl Iterator<Item = &'static DmaChannel<DmaPages>> {
        self.slots.iter().map(|slot| &**slot)
    }

    fn open_slots(&'static self) -> impl Iterator<Item = &'static DmaChannel<DmaPages>> {
        self.slots().filter(|slot| slot.is_open())
    }
}

fn channels() -> Option<&'static Channels> {
    CHANNELS.as_ref().map(|channels| &**channels)
}

/// Returns the number of open channels. For any context.
pub fn nr_open() -> usize {
    channels().map_or(0, |all| all.open_slots().count())
}

/// Returns the number of open channels without a copy that timed out. For any context.
pub fn nr_usable() -> u32 {
    let usable = |slot: &&DmaChannel<DmaPages>| slot.nr_timed_out() == 0;
    channels().map_or(0, |all| all.open_slots().filter(usable).count() as u32)
}

/// Opens or closes channels until `nr` are open, or until no more are available. May sleep; one
/// caller at a time.
///
/// Fails with `ENODEV` if no channel is available. Fails with `EBUSY` if one cannot be closed,
/// because its engine neither answers nor stops; other channels may be closed by then.
pub fn open(nr: usize) -> Result {
    if CHANNELS.as_ref().is_none() {
        if nr == 0 {
            return Ok(());
        }
        // It cannot fail: there is one caller at a time.
        CHANNELS.populate(Channels::new()?);
    }
    let all = channels().ok_or(ENOMEM)?;
    while nr_open() < nr {
        let Some(requested) = Requested::new() else {
            break;
        };
        let _guard = all.lock.lock();
        // A slot that was just closed may still be in use.
        let mut left = Some(requested);
        for slot in all.slots().filter(|slot| !slot.is_open()) {
            left = left.and_then(|requested| requested.open(slot).err());
        }
        if left.is_some() {
            break;
        }
    }
    let _guard = all.lock.lock();
    let surplus = nr_open().saturating_sub(nr);
    // Channels that do not answer are closed first.
    let stuck = |slot: &&DmaChannel<DmaPages>| slot.nr_timed_out() > 0;
    let well = all.open_slots().filter(move |slot| !stuck(slot));
    let first = Iterator::chain(all.open_slots().filter(stuck), well);
    // An error of one channel does not keep the others open.
    first
        .take(surplus)
        .map(DmaChannel::close)
        .fold(Ok(()), Result::and)?;
    match nr_open() {
        0 if nr > 0 => Err(ENODEV),
        _ => Ok(()),
    }
}

/// Releases the channels of a device before its driver is unbound; `device` is its address. If
/// these were the last, the hold on the hooks is released later, outside of the device lock. May
/// sleep.
pub fn leave(device: usize) {
    let all = channels();
    // The slots of batches are opened and closed under it.
    let _guard = all.map(|all| all.lock.lock());
    if dmaengine::leave(device) {
        pr_warn!("a DMA engine leaves that did not answer: folios stay with it\n");
    }
    if let Some(all) = all.filter(|_| nr_open() == 0) {
        DelayedFn::after(&all.releaser, 0);
    }
}

/// Calls `tell` with the name, the node and the counters of channel number `nr`; returns [`None`]
/// if `nr` is not the number of a channel. May sleep.
pub fn read_out<R>(
    nr: usize,
    tell: impl FnOnce(*const c_char, Option<NodeId>, bindings::ferry_dma_counts) -> R,
) -> Option<R> {
    let all = channels()?;
    // The lock keeps the channel open, and so its name valid.
    let _guard = all.lock.lock();
    let slot = all.slots().filter(|slot| slot.is_open()).nth(nr)?;
    let (name, counts) = slot.read_out()?;
    Some(tell(name, slot.node(), counts))
}

/// Returns whether there are usable channels, and a batch of `pages` base pages is large enough for
/// them. For any context.
pub fn is_for(pages: u32) -> bool {
    pages as usize * PAGE_SIZE >= settings::dma_min_bytes() as usize
        && nr_usable() > 0
        && !is_suspending()
}

/// Takes up to `most` channels that are free now. Channels on `node`, the node of the destination,
/// come first.
pub fn take(node: Option<NodeId>, most: u32) -> impl Iterator<Item = InUse<DmaPages>> {
    let slots: &'static [_] = channels().map_or(&[], |all| &all.slots);
    let open = move |near: bool| {
        let wanted = move |slot: &DmaChannel<_>| slot.is_open() && (slot.node() == node) == near;
        slots.iter().filter(move |slot| wanted(slot))
    };
    Iterator::chain(open(true), open(false))
        .filter_map(|slot| {
            if is_suspending() {
                return None;
            }
            let mut slot = slot.try_use()?;
            (slot.room() > 0).then_some(slot)
        })
        .take(most as usize)
}

/// Starts the sweeper after a copy timed out. The sweeper frees the memory once the engine is done
/// with it.
pub fn sweep() {
    if let Some(all) = channels() {
        DelayedFn::after(&all.sweeper, SWEEP_MS);
    }
}

/// Collects copies that timed out, and repeats until their engines are done with them.
fn look_after(_: FlushToken<'_>) {
    let Some(all) = channels() else {
        return;
    };
    let is_late = |slot: &&DmaChannel<DmaPages>| slot.nr_timed_out() > 0;
    for mut slot in all.slots().filter(is_late).filter_map(DmaChannel::try_use) {
        slot.collect(|_, _| ());
        // Once per channel: the engine stops, or is not asked again.
        if slot.is_late(PATIENCE_NS) && slot.may_stop() && slot.reclaim(0).is_err() {
            pr_warn!("a DMA engine does not answer: folios stay with it until it does\n");
        }
    }
    if all.slots().any(|slot| slot.nr_timed_out() > 0) {
        DelayedFn::after(&all.sweeper, SWEEP_MS);
    }
}
