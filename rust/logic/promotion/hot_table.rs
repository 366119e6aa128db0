// SPDX-License-Identifier: GPL-2.0-only

//! The recently read folios of a node, with access counts: a set-associative table of fixed size.
//! It has one user at a time; in the kernel a mutex protects it.
//!
//! - Folios that are neighbours in memory are neighbours in the table, so [`HotTable::choose`]
//!   returns folios roughly in the order of addresses.
//! - A full set replaces the folio with the fewest accesses.
//! - Counts halve with each tick of about 4 seconds.
//!
//! `of_a_scan_over_a_hot_set_the_hot_come_first`, `what_is_old_is_forgotten` and
//! `a_record_gives_each_folio_once` in `tests/logic/promotion.rs` check this.

/// Words in a table, one per folio: 128 KB for each node.
pub const ENTRIES: usize = 16384;
/// Words in a set: one cache line.
const WAYS: usize = 8;
/// log2 of the length of a tick in milliseconds: about 4 seconds.
const TICK_SHIFT: u32 = 12;

const PFN_BITS: u32 = 40;
const NODE_BITS: u32 = 10;
const TICK_BITS: u32 = 8;
/// Access counts have the six bits that are left.
const MAX_FREQUENCY: u64 = 63;

/// A coarse time. It wraps after 17 minutes; an entry that was not looked at since then may be
/// taken for a recent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(u8);

impl Tick {
    /// Returns the tick of a time in milliseconds.
    pub fn at(now_ms: u64) -> Self {
        Self((now_ms >> TICK_SHIFT) as u8)
    }
}

/// A folio that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotFolio {
    /// The node that it should be promoted to.
    pub to: u16,
    /// The frame number of its first page, below 2^40.
    pub pfn: u64,
    /// Number of accesses, halved with each tick.
    pub frequency: u32,
}

fn pack(folio: HotFolio, tick: Tick) -> u64 {
    let frequency = u64::from(folio.frequency).min(MAX_FREQUENCY);
    ((frequency << TICK_BITS | u64::from(tick.0)) << NODE_BITS | u64::from(folio.to)) << PFN_BITS
        | folio.pfn
}

fn unpack(word: u64, now: Tick) -> HotFolio {
    let then = (word >> (PFN_BITS + NODE_BITS)) as u8;
    let frequency = (word >> (PFN_BITS + NODE_BITS + TICK_BITS)) as u32;
    let ticks = u32::from(now.0.wrapping_sub(then));
    HotFolio {
        to: (word >> PFN_BITS) as u16 & ((1 << NODE_BITS) - 1),
        pfn: word & ((1 << PFN_BITS) - 1),
        frequency: frequency.checked_shr(ticks).unwrap_or(0),
    }
}

/// A table in words that are initially 0.
pub struct HotTable<'a>(pub &'a mut [u64]);

impl HotTable<'_> {
    fn set(&mut self, pfn: u64) -> &mut [u64] {
        let sets = (self.0.len() / WAYS).max(1) as u64;
        let near = pfn / WAYS as u64;
        // Spreads folios at a distance of a multiple of the table size over the sets.
        let far = (near / sets).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let set = ((near ^ far) % sets) as usize;
        self.0.chunks_mut(WAYS).nth(set).unwrap_or_default()
    }

    /// Adds accesses to the count of a folio and returns the sum. A new folio is not added, and 0
    /// returned, if all folios of its set have more accesses.
    pub fn note(&mut self, folio: HotFolio, now: Tick) -> u32 {
        let set = self.set(folio.pfn);
        let value = |word: &u64| match *word {
            0 => 0,
            _ => unpack(*word, now).frequency + 1,
        };
        let same = |word: &u64| *word != 0 && unpack(*word, now).pfn == folio.pfn;
        let (way, old) = match set.iter().position(same) {
            Some(at) => (set.get_mut(at), true),
            None => (set.iter_mut().min_by_key(|word| value(word)), false),
        };
        let Some(way) = way else {
            return 0;
        };
        let was = match *way {
            0 => 0,
            _ => unpack(*way, now).frequency,
        };
        let frequency = match old {
            true => was.saturating_add(folio.frequency),
            false if was <= folio.frequency => folio.frequency,
            false => return 0,
        };
        *way = pack(HotFolio { frequency, ..folio }, now);
        frequency
    }

    /// Removes up to `most` folios with at least `least` accesses from the table and passes them to
    /// `take`. Folios with more accesses, by powers of two, are preferred. Returns the number of
    /// folios with `least` accesses that are left. The walk begins at word `from`; callers vary it,
    /// so that not always the same folios are left.
    ///
    /// ```
    /// use ferry_logic::promotion::hot_table::{HotFolio, HotTable, Tick};
    ///
    /// let mut words = vec![0; 1024];
    /// let mut table = HotTable(&mut words);
    /// let (folio, now) = (|pfn| HotFolio { to: 0, pfn, frequency: 1 }, Tick::at(0));
    /// for pfn in [3, 8, 5, 8] {
    ///     table.note(folio(pfn), now);
    /// }
    /// let mut taken = Vec::new();
    /// assert_eq!(table.choose(now, 1, 1, 0, |folio| taken.push(folio.pfn)), 2);
    /// assert_eq!(taken, [8]);
    /// ```
    pub fn choose(
        &mut self,
        now: Tick,
        least: u32,
        most: usize,
        from: usize,
        mut take: impl FnMut(HotFolio),
    ) -> usize {
        let class = |folio: &HotFolio| folio.frequency.max(1).ilog2() as usize;
        let is_hot = |folio: &HotFolio| folio.frequency >= least.max(1);
        let mut classes = [0usize; 6];
        for word in self.0.iter_mut() {
            let folio = unpack(*word, now);
            if folio.frequency == 0 {
                *word = 0;
            } else if let Some(nr) = classes.get_mut(class(&folio)).filter(|_| is_hot(&folio)) {
                *nr += 1;
            }
        }
        // For each class, hottest first, the number of folios that are taken.
        let mut room = most;
        for nr in classes.iter_mut().rev() {
            let taken = room.min(*nr);
            room -= taken;
            *nr -= taken;
        }
        let left: usize = classes.iter().sum();
        let mut quota = most - room;
        // The first folios of a class on the walk are left, the others taken.
        let start = from.checked_rem(self.0.len()).unwrap_or(0);
        let (before, after) = self.0.split_at_mut(start);
        for word in after.iter_mut().chain(before) {
            if quota == 0 {
                break;
            }
            let folio = unpack(*word, now);
            if !is_hot(&folio) {
                continue;
            }
            match classes.get_mut(class(&folio)) {
                Some(skip) if *skip > 0 => *skip -= 1,
                _ => {
                    *word = 0;
                    quota -= 1;
                    take(folio);
                }
            }
        }
        left
    }
}
