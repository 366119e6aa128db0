// SPDX-License-Identifier: GPL-2.0-only

//! Channels of engines that copy memory, and the copies that they were asked for.
//!
//! An engine answers when it likes, in any order, or never, and until it has it may write. So what
//! was submitted belongs to its [`DmaChannel`], with its DMA mapping, until the answer. Who waits no
//! longer [gives it up](InUse::give_up_late): it stays where it is, memory and all, until the
//! engine has answered. That it was terminated is not enough, but of the few drivers that are known
//! to wait for their hardware. Ports are never freed.
//!
//! A port has one user at a time, who submits, and takes back what has landed; the engine's answer
//! touches nothing but a ticket of the port. [`logic::flight`](crate::logic::flight), which is
//! checked with loom, defines what happens if a copy is answered and given up at the same time.
//!
//! What is trusted is the driver: that it answers each copy once, when the engine is done with it,
//! and says whether it is good.
//!
//! - [`port`]: a channel, or room for one, and what it copies;
//! - `opened`: the ports that are told when a driver leaves.
//!
//! Locks: none but those of drivers and of the DMA API; a port is used by who has it. Contexts:
//! where nothing else is said, tasks and softirqs with interrupts on.
//!
//! C header: [`include/linux/dmaengine.h`](srctree/include/linux/dmaengine.h)

pub mod channel;
mod opened;

use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*,
    types::NotThreadSafe, //
};

use super::{
    folio::Folio,
    sched::NodeId, //
};

pub use self::{
    channel::{
        DmaChannel,
        InUse,
        SubmitError, //
    },
    opened::leave, //
};

/// Channels that are used at most.
pub const MAX_CHANNELS: usize = bindings::FERRY_MAX_CHANNELS as usize;

/// Pages of a folio that are to be copied to the same pages of another.
#[derive(Clone, Copy)]
pub struct CopyRange<'a> {
    /// Where to.
    pub dst: &'a Folio,
    /// Where from.
    pub src: &'a Folio,
    /// The first page, counted from the start of the folio.
    pub first_page: u32,
    /// How many pages; not 0.
    pub nr_pages: u32,
}

/// What an engine can be asked to copy: the memory itself, not borrowed.
///
/// # Safety
///
/// From when it is submitted until it is given back, or dropped by the port, wherever it is moved
/// to: its [`leg`](Transfer::leg) must be the same, of one page or more that exist in both folios;
/// neither folio may be freed, and those pages of the destination may not be read or written.
///
/// Those pages of the source may be read and written. The destination has the content of the source
/// only if the source was not written until the load was given back; otherwise it may have any
/// bytes.
pub unsafe trait Transfer: Send + 'static {
    /// What is to be copied.
    fn leg(&self) -> CopyRange<'_>;
}

/// A channel that copies memory, given back when dropped, which may sleep.
///
/// # Invariants
///
/// `0` points to a channel that is ours alone. Its driver stays as long as this exists: either its
/// device is locked by the [`Requested`] that the channel is in, or the channel is in a [`DmaChannel`] that
/// [`leave`] knows.
struct Channel(NonNull<bindings::dma_chan>);

// SAFETY: A channel may be used and given back by any task.
unsafe impl Send for Channel {}

/// A channel that was just requested. Its device is locked, so the driver cannot leave.
///
/// The channel itself never gets out of this but into a [`DmaChannel`]: without the lock of its device
/// only a port may have it, which [`leave`] closes when the driver leaves.
///
/// # Invariants
///
/// `device` is locked by the bearer's task, unless it is null.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../../tests/examples/dmaengine.rs")]
/// ```
pub struct Requested {
    /// [`None`] once a port has it.
    channel: Option<Channel>,
    device: *mut bindings::device,
    _lock: NotThreadSafe,
}

impl Requested {
    /// Requests a channel of some engine; [`None`]: all are taken, or there is none. May sleep.
    pub fn new() -> Option<Self> {
        let mut device = core::ptr::null_mut();
        // SAFETY: `device` is valid for a write.
        let chan = unsafe { bindings::ferry_dma_request(&mut device) };
        // INVARIANT: The channel was just given to this task alone, with its device locked.
        let channel = Some(Channel(NonNull::new(chan)?));
        Some(Self {
            channel,
            device,
            _lock: NotThreadSafe,
        })
    }

    /// Opens `port` with the channel, and unlocks its device. Gives the request back, with the
    /// device still locked, if the port has a channel or is in use, or too many ports were opened.
    /// May sleep.
    ///
    /// When the driver of the device is about to leave, [`leave`] closes the port.
    pub fn open<L: Transfer>(mut self, port: &'static DmaChannel<L>) -> Result<(), Self> {
        // Before the device is unlocked.
        if opened::enter(port).is_err() {
            return Err(self);
        }
        match self.channel.take().map(|channel| port.open(channel)) {
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
        // Before its driver may go.
        drop(self.channel.take());
        // SAFETY: By the type invariant this task has locked it.
        unsafe { bindings::ferry_dma_requested(self.device) };
    }
}

impl Channel {
    /// The C channel.
    fn as_raw(&self) -> *mut bindings::dma_chan {
        self.0.as_ptr()
    }

    /// The node that its engine is on; [`None`]: not told.
    fn node(&self) -> Option<NodeId> {
        // SAFETY: By the type invariant the channel exists.
        let node = unsafe { bindings::ferry_dma_node(self.0.as_ptr()) };
        (node >= 0).then_some(NodeId(node))
    }

    /// The device that the engine is, as an address to be compared with others.
    fn device(&self) -> usize {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_device(self.0.as_ptr()) as usize }
    }

    /// What the kernel calls it.
    fn name(&self) -> *const c_char {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_name(self.0.as_ptr()) }
    }

    /// Stops it, if its driver is known to wait for the hardware: whether nothing is under way any
    /// more, nor will be answered. May sleep.
    fn stop(&self) -> bool {
        // SAFETY: By the type invariant the channel exists.
        unsafe { bindings::ferry_dma_stop(self.0.as_ptr()) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours.
        unsafe { bindings::ferry_dma_release(self.0.as_ptr()) };
    }
}

/// Whether the system is about to suspend, or has: devices may not answer. For any context.
pub fn is_suspending() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_dma_asleep() }
}

/// How many answers there were, of all engines, before somebody looked for those that he wants.
#[derive(Clone, Copy)]
pub struct Answers(u32);

impl Answers {
    /// Those so far. For any context.
    pub fn now() -> Self {
        // SAFETY: No requirements.
        Self(unsafe { bindings::ferry_dma_answers() })
    }

    /// Waits until there is one more, whosoever, for so many microseconds at most. May sleep.
    pub fn wait_for_more(self, us: u32) {
        // SAFETY: No requirements.
        unsafe { bindings::ferry_dma_wait(self.0, us) };
    }
}
