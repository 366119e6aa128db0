// SPDX-License-Identifier: GPL-2.0-only

//! Accesses of the readers on one CPU, for one who takes them all: a ring with a writer and a
//! reader, which loses what there is no room for.
//!
//! Readers of files pay for it: so a CPU writes to memory of its own alone, and looks only at what
//! who takes them has written once since. Nobody waits.
//!
//! The writer fills a slot and then moves the head, with a release; the reader takes what the head
//! it has acquired covers, and then moves the tail, with a release: the writer, who acquires that,
//! fills no slot that is being read. An interrupt that wrote between two steps of the task that it
//! interrupts could move the head behind the tail: only tasks write.

use super::super::sync::{const_unless_loom, AtomicU32, AtomicU64};

/// Slots of a ring: 16 KB for each CPU.
pub const SLOTS: usize = 2048;

/// Of how many accesses one is looked at while nothing may be promoted, and where there is no room,
/// as a power of two.
pub const LONGEST_PACE: u32 = 8;

/// Of how many accesses one is recorded, as a power of two, by how full the ring is: all while they
/// are few, so that little is missed; then fewer and fewer, so that those who read fast pay for
/// hardly any.
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

/// Bits of a page frame number: more than any machine has.
const PFN_BITS: u32 = 40;
/// Bits of a node.
const NODE_BITS: u32 = 10;

/// That a folio was read, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The number of its first page, below 2^40.
    pub pfn: u64,
    /// The node it is on, below 1024.
    pub from: u16,
    /// The node that it should be on, below 1024.
    pub to: u16,
}

impl Access {
    /// [`None`]: a number is too large.
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

/// Room for an access.
pub struct Slot(AtomicU64);

impl Slot {
    const_unless_loom! {
        /// An empty one.
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

/// In a cache line of its own.
#[repr(align(64))]
struct End(AtomicU32);

/// Where a ring begins and ends, counted from its first access on.
pub struct Ends {
    head: End,
    tail: End,
}

impl Ends {
    const_unless_loom! {
        /// Those of an empty ring.
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

/// A ring: its ends, and its slots, a power of two of them.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    /// Where it begins and ends.
    pub ends: &'a Ends,
    /// Its slots.
    pub slots: &'a [Slot],
}

impl Ring<'_> {
    fn slot(&self, at: u32) -> Option<&Slot> {
        self.slots
            .get(at as usize & self.slots.len().wrapping_sub(1))
    }

    /// For a task of the CPU whose ring it is, not preempted meanwhile: notes an access; how many
    /// slots are in use then. [`None`]: there was no room.
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

    /// For one at a time: takes what was noted by now; how many that is.
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
