// SPDX-License-Identifier: GPL-2.0-only

//! The channels that batches may use.
//!
//! They are taken when an operator says how many, and given back when he says fewer, or when a
//! driver leaves its device. A batch takes the ports that are free at that moment; one that finds
//! none is copied by CPUs.
//!
//! Locks: that of the fleet, under which channels come and go, and are told of; in it, what the end
//! of a channel takes. It is taken inside of the notifiers of a bus, so channels are requested
//! before it is. Batches take no lock.

use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

use super::table::DmaSegment;

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
    workers::{
        knob,
        settings, //
    }, //
};

/// How often copies that were given up are looked after.
const SWEEP_MS: u32 = 1000;
/// When their engine is stopped, if it can be, in nanoseconds.
const PATIENCE_NS: i64 = 10_000_000_000;

/// Room for as many channels as there may be.
#[pin_data]
struct Channels {
    ports: KVec<KBox<DmaChannel<DmaSegment>>>,
    sweeper: Arc<DelayedFn>,
    /// Lets go of the hooks when drivers have left the last channels.
    releaser: Arc<DelayedFn>,
    /// Ports that a batch may find free: a hint, so relaxed.
    usable: Atomic<u32>,
    #[pin]
    lock: Mutex<()>,
}

static FLEET: SetOnce<Pin<KBox<Channels>>> = SetOnce::new();

impl Channels {
    fn new() -> Result<Pin<KBox<Self>>> {
        let mut ports = KVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?;
        for _ in 0..MAX_CHANNELS {
            ports.push(KBox::new(DmaChannel::new(), GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let sweeper = DelayedFn::new(Queue::Freezable, look_after)?;
        let releaser = DelayedFn::new(Queue::Unbound, |_| knob::channels_gone())?;
        KBox::pin_init(
            pin_init!(Self {
                ports,
                sweeper,
                releaser,
                usable: Atomic::new(0),
                lock <- new_mutex!((), "ferry::Channels::lock"),
            }),
            GFP_KERNEL,
        )
    }

    fn ports(&'static self) -> impl Iterator<Item = &'static DmaChannel<DmaSegment>> {
        self.ports.iter().map(|port| &**port)
    }

    fn open_ports(&'static self) -> impl Iterator<Item = &'static DmaChannel<DmaSegment>> {
        self.ports().filter(|port| port.is_open())
    }

    /// Channels have come, gone, or been found not to answer.
    fn count(&'static self) {
        let usable = self.open_ports().filter(|port| port.parked() == 0);
        self.usable.store(usable.count() as u32, Relaxed);
    }
}

fn fleet() -> Option<&'static Channels> {
    FLEET.as_ref().map(|fleet| &**fleet)
}

/// How many channels there are. For any context.
pub fn nr_open() -> usize {
    fleet().map_or(0, |fleet| fleet.open_ports().count())
}

/// How many of them answer. For any context.
pub fn nr_usable() -> u32 {
    fleet().map_or(0, |fleet| fleet.usable.load(Relaxed))
}

/// Takes channels, or gives some back, until there are so many, or no more are to be had. May
/// sleep; one caller at a time.
///
/// Fails with `ENODEV` if there is none, and with `EBUSY` if one cannot be given back, as its
/// engine neither answers nor stops; others may be back by then.
pub fn open(nr: usize) -> Result {
    if FLEET.as_ref().is_none() {
        if nr == 0 {
            return Ok(());
        }
        // Never lost: one caller at a time.
        FLEET.populate(Channels::new()?);
    }
    let fleet = fleet().ok_or(ENOMEM)?;
    while nr_open() < nr {
        let Some(requested) = Requested::new() else {
            break;
        };
        let _guard = fleet.lock.lock();
        // A port that was just closed may still be in use.
        let mut left = Some(requested);
        for port in fleet.ports().filter(|port| !port.is_open()) {
            left = left.and_then(|requested| requested.open(port).err());
        }
        if left.is_some() {
            break;
        }
    }
    let _guard = fleet.lock.lock();
    let surplus = nr_open().saturating_sub(nr);
    // First those that do not answer.
    let stuck = |port: &&DmaChannel<DmaSegment>| port.parked() > 0;
    let well = fleet.open_ports().filter(move |port| !stuck(port));
    let first = Iterator::chain(fleet.open_ports().filter(stuck), well);
    // Of each: one that stays does not keep the others.
    let closed = first
        .take(surplus)
        .map(DmaChannel::close)
        .fold(Ok(()), Result::and);
    fleet.count();
    closed?;
    match nr_open() {
        0 if nr > 0 => Err(ENODEV),
        _ => Ok(()),
    }
}

/// The driver of a device, at this address, is about to leave it: gives its channels back, and
/// later, outside of the device's lock, the hold on the hooks if these were the last. May sleep.
pub fn leave(device: usize) {
    let fleet = fleet();
    // Ports of batches are opened and closed under it.
    let _guard = fleet.map(|fleet| fleet.lock.lock());
    if dmaengine::leave(device) {
        pr_warn!("a DMA engine leaves that did not answer: folios stay with it\n");
    }
    let Some(fleet) = fleet else {
        return;
    };
    fleet.count();
    if nr_open() == 0 {
        DelayedFn::after(&fleet.releaser, 0);
    }
}

/// Tells of the channel with this number: its name, its node, and what it has done; [`None`]: there
/// is none. May sleep.
pub fn read_out<R>(
    nr: usize,
    tell: impl FnOnce(*const c_char, Option<NodeId>, bindings::ferry_dma_counts) -> R,
) -> Option<R> {
    let fleet = fleet()?;
    // The name stays as long as the lock is held.
    let _guard = fleet.lock.lock();
    let port = fleet.ports().filter(|port| port.is_open()).nth(nr)?;
    let (name, counts) = port.read_out()?;
    Some(tell(name, port.node(), counts))
}

/// Whether there are channels, and a batch of so many base pages is large enough for them. For any
/// context.
pub fn is_for(pages: u32) -> bool {
    nr_usable() > 0
        && pages as usize * PAGE_SIZE >= settings::dma_min_bytes() as usize
        && !is_suspending()
}

/// Up to `most` ports that are free now: first those of engines on `node`, to which is copied.
pub fn take(node: Option<NodeId>, most: u32) -> impl Iterator<Item = InUse<DmaSegment>> {
    let near = move |port: &&DmaChannel<DmaSegment>| port.node() == node;
    let all = || fleet().into_iter().flat_map(Channels::open_ports);
    let far = all().filter(move |port| !near(port));
    Iterator::chain(all().filter(near), far)
        .take_while(|_| !is_suspending())
        .filter_map(DmaChannel::try_use)
        .filter_map(|mut port| (port.room() > 0).then_some(port))
        .take(most as usize)
}

/// Copies were given up: sees that their memory comes back.
pub fn sweep() {
    if let Some(fleet) = fleet() {
        fleet.count();
        DelayedFn::after(&fleet.sweeper, SWEEP_MS);
    }
}

/// Looks after copies that were given up, until their engines are done with them.
fn look_after(_: FlushToken<'_>) {
    let Some(fleet) = fleet() else {
        return;
    };
    let parked = |port: &&DmaChannel<DmaSegment>| port.parked() > 0;
    for mut port in fleet.ports().filter(parked).filter_map(DmaChannel::try_use) {
        port.collect(|_, _| ());
        // Once for each channel: it stops, or is never asked to again.
        if port.is_late(PATIENCE_NS) && port.may_stop() && port.reclaim(0).is_err() {
            pr_warn!("a DMA engine does not answer: folios stay with it until it does\n");
        }
    }
    {
        // Not to count what has changed by the time it is told.
        let _guard = fleet.lock.lock();
        fleet.count();
    }
    if fleet.ports().any(|port| port.parked() > 0) {
        DelayedFn::after(&fleet.sweeper, SWEEP_MS);
    }
}
