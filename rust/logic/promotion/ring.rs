// SPDX-License-Identifier: GPL-2.0-only

//! A ring of accesses that tasks record on one CPU, for one reader: single producer, single
//! consumer. Accesses are lost while it is full.
//!
//! Tasks that read files pay for recording. So a CPU writes only its own memory, reads only one
//! word that the reader of the ring writes, and neither side waits.
//!
//! 1. The writer loads `tail`, fills a slot and advances `head` ([`Ring::push`]).
//! 2. The reader loads `head`, reads the slots before it and advances `tail` ([`Ring::drain`]).
//!
//! Memory ordering:
//!
//! | release | acquire | makes visible |
//! |---|---|---|
//! | `push`, store of `head` | `drain`, load of `head` | the filled slots |
//! | `drain`, store of `tail` | `push`, load of `tail` | the reads of slots that become free |
//!
//! Only tasks write, without preemption: an interrupt that wrote between two steps of the task that
//! it interrupts could make that task move `head` behind `tail`.
//!
//! Checked by loom: `ring_of_accesses` (`tests/logic/loom/ring.rs`); by proptest:
//! `a_ring_gives_what_it_took_in_order` (`tests/logic/promotion.rs`).

use super::super::sync::{const_unless_loom, AtomicU32, AtomicU64};

/// Slots in a ring: 16 KB for each CPU.
pub const SLOTS: usize = 2048;

/// The pace while nothing may be promoted, or while the ring is full: one access in 2^8 is tried.
pub const LONGEST_PACE: u32 = 8;

/// Returns the pace, as a power of two: one access in 2^pace is recorded.
///
/// All accesses are recorded while they are few, so that little is missed. As the ring fills up
/// fewer are, so that tasks that read fast pay for few.
///
/// ```
/// use ferry_logic::promotion::ring::{pace, LONGEST_PACE, SLOTS};
///
/// assert_eq!(pace(SLOTS, 0), 0);
/// assert!(pace(SLOTS, SLOTS / 2) > pace(SLOTS, SLOTS / 8));
/// assert_eq!(pace(SLOTS, SLOTS), LONGEST_PACE);
/// ```
pub fn pace(slots: usize, used: usize) -> u32 {
    match used {
        _ if used < slots / 16 => 0,
        _ if used < slots / 2 => 3,
        _ if used < slots => 5,
        _ => LONGEST_PACE,
    }
}

/// Bits of a page frame number: more than any machine needs.
const PFN_BITS: u32 = 40;
/// Bits of a node number.
const NODE_BITS: u32 = 10;

/// One read of a folio; it fits one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The frame number of its first page, below 2^40.
    pub pfn: u64,
    /// The node of the folio, below 1024.
    pub from: u16,
    /// The node that it should be promoted to, below 1024.
    pub to: u16,
}

impl Access {
    /// Returns the access in one word; [`None`] if a number is too large.
    fn pack(self) -> Option<u64> {
        let fits =
            self.pfn >> PFN_BITS == 0 && self.from >> NODE_BITS == 0 && self.to >> NODE_BITS == 0;
        let nodes = u64::from(self.to) << NODE_BITS | u64::from(self.from);
        fits.then_some(nodes << PFN_BITS | self.pfn)
    }

    fn unpack(word: u64) -> Self {
        let node = |at: u32| (word >> at & ((1 << NODE_BITS) - 1)) as u16;
        Self {
            pfn: word & ((1 << PFN_BITS) - 1),
            from: node(PFN_BITS),
            to: node(PFN_BITS + NODE_BITS),
        }
    }
}

/// Room for one access.
pub struct Slot(AtomicU64);

impl Slot {
    const_unless_loom! {
        /// Returns an empty slot.
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// A counter in a cache line of its own.
#[repr(align(64))]
struct End(AtomicU32);

/// The ends of a ring: how many accesses were written, and how many were read.
pub struct Ends {
    head: End,
    tail: End,
}

impl Ends {
    const_unless_loom! {
        /// Returns the ends of an empty ring.
        pub fn new() -> Self {
            Self {
                head: End(AtomicU32::new(0)),
                tail: End(AtomicU32::new(0)),
            }
        }
    }
}

impl Default for Ends {
    fn default() -> Self {
        Self::new()
    }
}

/// A ring. The number of its slots is a power of two.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    /// Its ends.
    pub ends: &'a Ends,
    /// Its slots.
    pub slots: &'a [Slot],
}

impl Ring<'_> {
    fn slot(&self, at: u32) -> Option<&Slot> {
        self.slots
            .get(at as usize & self.slots.len().wrapping_sub(1))
    }

    /// Records an access and returns the number of slots in use; [`None`] if the access was lost.
    ///
    /// For a task on the CPU that owns the ring, with preemption disabled. Not for interrupts.
    ///
    /// ```
    /// use ferry_logic::promotion::ring::{Access, Ends, Ring, Slot};
    ///
    /// let (ends, slots) = (Ends::new(), [Slot::new(), Slot::new()]);
    /// let ring = Ring { ends: &ends, slots: &slots };
    /// let access = |pfn| Access { pfn, from: 1, to: 0 };
    /// assert_eq!(ring.push(access(7)), Some(1));
    /// assert_eq!(ring.push(access(9)), Some(2));
    /// assert_eq!(ring.push(access(11)), None);
    /// let mut taken = Vec::new();
    /// ring.drain(|it| taken.push(it));
    /// assert_eq!(taken, [access(7), access(9)]);
    /// ```
    pub fn push(&self, access: Access) -> Option<usize> {
        let head = self.ends.head.0.load_relaxed();
        let tail = self.ends.tail.0.load_acquire();
        let used = head.wrapping_sub(tail) as usize;
        if used >= self.slots.len() {
            return None;
        }
        self.slot(head)?.0.store_relaxed(access.pack()?);
        self.ends.head.0.store_release(head.wrapping_add(1));
        Some(used + 1)
    }

    /// Passes all recorded accesses to `take` and returns their number. One caller at a time.
    pub fn drain(&self, mut take: impl FnMut(Access)) -> u32 {
        let tail = self.ends.tail.0.load_relaxed();
        let head = self.ends.head.0.load_acquire();
        let room = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let nr = head.wrapping_sub(tail).min(room);
        for at in 0..nr {
            if let Some(slot) = self.slot(tail.wrapping_add(at)) {
                take(Access::unpack(slot.0.load_relaxed()));
            }
        }
        self.ends.tail.0.store_release(head);
        nr
    }
}
