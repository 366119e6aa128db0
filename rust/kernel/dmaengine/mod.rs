// SPDX-License-Identifier: GPL-2.0-only

//! Memory-to-memory copies on dmaengine channels.
//!
//! An engine completes copies in any order, late or never, and may write to the destination until
//! it answers. So a submitted transfer, with its DMA mapping, belongs to its [`DmaChannel`] until
//! the answer. A caller that stops waiting lets the copy [time out](InUse::time_out): the transfer
//! stays where it is, with its memory, until the engine answers. To terminate the channel is not
//! enough, except with the few drivers that are known to wait for their hardware. A [`DmaChannel`]
//! is never freed.
//!
//! A [`DmaChannel`] has one user at a time, which submits transfers and collects the completed
//! ones. The engine's callback only writes a ticket. [`logic::flight`](crate::logic::flight)
//! defines what happens if a copy is answered and times out at the same time; loom checks it.
//!
//! The driver is trusted to answer each copy once, when the engine is done with the memory, and to
//! report whether the copy succeeded.
//!
//! - [`channel`]: a slot for a channel;
//! - [`in_use`]: the exclusive use of a slot, and the copies in flight on it;
//!
//! Before a driver is unbound, [`leave`] closes the slots that have channels of its device.
//!
//! Locks: only those of drivers and of the DMA API; the user of a [`DmaChannel`] has exclusive
//! access. Context: tasks and softirqs with interrupts enabled, unless stated otherwise.
//!
//! C header: [`include/linux/dmaengine.h`](srctree/include/linux/dmaengine.h)

pub mod channel;
pub mod in_use;

use core::{
    ops::Range,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::SetOnce,
    types::NotThreadSafe, //
};

use super::{
    folio::Folio,
    sched::NodeId, //
};

pub use self::{
    channel::DmaChannel,
    in_use::{
        InUse,
        SubmitError, //
    }, //
};

/// Maximum number of channels in use.
pub const MAX_CHANNELS: usize = bindings::FERRY_MAX_CHANNELS as usize;

/// A copy that an engine can perform. It owns its memory.
///
/// # Safety
///
/// From its submission until it is returned, or dropped by the [`DmaChannel`], even if it is moved:
///
/// - Its folios and pages must not change; there must be at least one page, and all pages must exist
///   in both folios.
/// - Neither folio may be freed, and those pages of the destination may not be read or written.
///
/// The same pages of the source may be read and written. If the source is written before the
/// transfer is returned, the destination may have any content.
pub unsafe trait Transfer: Send + 'static {
    /// Returns the destination folio and the source folio.
    fn folios(&self) -> (&Folio, &Folio);

    /// Returns the pages to copy, counted from the start of each folio.
    fn pages(&self) -> Range<u32>;
}

/// A dmaengine channel for memory copies. Its drop releases it, and may sleep.
///
/// # Invariants
///
/// `0` points to a channel that this value has requested. The driver stays while this value exists:
/// either the [`Requested`] that has the channel holds the device lock, or the channel is in a
/// [`DmaChannel`] that [`leave`] closes.
struct Channel(NonNull<bindings::dma_chan>);

// SAFETY: Any task may use and release a channel.
unsafe impl Send for Channel {}

/// A channel that was just requested. Its device lock is held, so its driver cannot be unbound.
///
/// The channel can only move into a [`DmaChannel`]. That is how it outlives the device lock:
/// [`leave`] closes or abandons an open [`DmaChannel`] before the driver is unbound.
///
/// # Invariants
///
/// The task that holds this value has locked `device`, unless it is null.
///
/// # Examples
///
/// ```ignore
/// static SLOT: SetOnce<DmaChannel<Both>> = SetOnce::new(); // never freed
/// SLOT.populate(DmaChannel::new());
/// let slot = SLOT.as_ref().ok_or(EBUSY)?;
/// assert!(Requested::new().ok_or(ENODEV)?.open(slot).is_ok());
/// let mut user = slot.try_use().ok_or(EBUSY)?;
/// assert!(user.submit(both).is_ok());
/// user.issue();
/// let answers = Answers::now();
/// user.collect(|both, good| assert!(good && both.dst.bytes() == both.src.bytes()));
/// if !user.is_idle() {
///     answers.wait_for_more(1_000_000); // then collect again
/// }
/// ```
pub struct Requested {
    /// [`None`] once the channel is in a [`DmaChannel`].
    channel: Option<Channel>,
    device: *mut bindings::device,
    _lock: NotThreadSafe,
}

impl Requested {
    /// Requests a channel of any engine; [`None`] if no channel is available. May sleep.
    pub fn new() -> Option<Self> {
        let mut device = core::ptr::null_mut();
        // SAFETY: `device` is valid for a write.
        let chan = unsafe { bindings::ferry_dma_request(&mut device) };
        // INVARIANT: The channel was just given to this caller alone, with its device locked.
        let channel = Some(Channel(NonNull::new(chan)?));
        Some(Self {
            channel,
            device,
            _lock: NotThreadSafe,
        })
    }

    /// Opens `slot` with the channel, and unlocks its device. If the slot has a channel or is in
    /// use, or too many slots are open, returns the request with the device still locked. May sleep.
    ///
    /// [`leave`] closes the slot before the driver of the device is unbound.
    pub fn open<L: Transfer>(mut self, slot: &'static DmaChannel<L>) -> Result<(), Self> {
        // Before the device is unlocked.
        if enter(slot).is_err() {
            return Err(self);
        }
        match self.channel.take().map(|channel| slot.open(channel)) {
            Some(Err(channel)) => {
                self.channel = Some(channel);
                Err(self)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Requested {
    fn drop(&mut self) {
        // The channel must be released while the device lock keeps the driver.
        drop(self.channel.take());
        // SAFETY: By the type invariant this task holds the device lock.
        unsafe { bindings::ferry_dma_requested(self.device) };
    }
}

impl Channel {
    /// Returns the C channel.
    fn as_raw(&self) -> *mut bindings::dma_chan {
        self.0.as_ptr()
    }

    /// Returns the node of the engine; [`None`] if it is not known.
    fn node(&self) -> Option<NodeId> {
        // SAFETY: By the type invariant the channel exists.
        let node = unsafe { bindings::ferry_dma_node(self.0.as_ptr()) };
        (node >= 0).then_some(NodeId(node))
    }

    /// Returns the address of the engine's device, to be compared with others.
    fn device(&self) -> usize {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_device(self.0.as_ptr()) as usize }
    }

    /// Returns the name of the channel.
    fn name(&self) -> *const c_char {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_name(self.0.as_ptr()) }
    }

    /// Stops the engine, if its driver is known to wait for the hardware. Returns whether no copy
    /// is in flight any more and none will be answered. May sleep.
    fn stop(&self) -> bool {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_stop(self.0.as_ptr()) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value has requested the channel, and does not use it
        // again.
        unsafe { bindings::ferry_dma_release(self.0.as_ptr()) };
    }
}

/// Returns whether the system is suspending or suspended, so that devices may not answer. For any
/// context.
pub fn is_suspending() -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::ferry_dma_asleep() }
}

/// The number of answers of all engines at one time. A caller takes it before it checks its own
/// copies, and then waits for a later answer.
#[derive(Clone, Copy)]
pub struct Answers(u32);

impl Answers {
    /// Returns the present number. For any context.
    pub fn now() -> Self {
        // SAFETY: The function has no requirements.
        Self(unsafe { bindings::ferry_dma_answers() })
    }

    /// Waits until an engine gives another answer, for at most `us` microseconds. May sleep.
    pub fn wait_for_more(self, us: u32) {
        // SAFETY: The function has no requirements.
        unsafe { bindings::ferry_dma_wait(self.0, us) };
    }
}

/// Maximum number of slots that are ever opened: those of batches, and as many others.
const MAX_SLOTS: usize = 2 * MAX_CHANNELS;

/// A slot, for any type of transfer.
trait OpenSlot: Sync {
    /// Takes the channel out of the slot, if its device is at this address, because the driver of
    /// the device is about to be unbound. Returns whether the engine has memory of copies that it
    /// did not answer. May sleep.
    fn abandon(&'static self, device: usize) -> bool;
}

/// The slots that were opened. Places are taken in order, and never given back.
///
/// No lock: a slot is entered before the device of its first channel is unlocked, and stays.
static SLOTS: [SetOnce<&'static dyn OpenSlot>; MAX_SLOTS] = [const { SetOnce::new() }; MAX_SLOTS];

/// Enters a slot, if it is not entered yet. For any context.
///
/// Fails with `ENOSPC` if there is no room.
fn enter(slot: &'static dyn OpenSlot) -> Result {
    let is_entered = SLOTS.iter().any(|place| {
        let is_same = |entered: &&dyn OpenSlot| core::ptr::addr_eq(*entered, slot);
        place.as_ref().is_some_and(is_same) || place.populate(slot)
    });
    match is_entered {
        true => Ok(()),
        false => Err(ENOSPC),
    }
}

/// Closes all slots that have channels of the device at this address, before its driver is unbound.
/// Called with the device locked. May sleep.
///
/// Returns whether engines have memory of copies that they did not answer, which stays with them.
pub fn leave(device: usize) -> bool {
    let mut any = false;
    for slot in SLOTS.iter().filter_map(SetOnce::as_ref) {
        any |= slot.abandon(device);
    }
    any
}
