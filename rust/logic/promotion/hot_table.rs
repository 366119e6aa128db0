// SPDX-License-Identifier: GPL-2.0-only

//! What was read recent_moves of a node, and how often: a table of a fixed size, of sets. It has one
//! owner.
//!
//! Neighbours in memory are neighbours in the table, so what is taken out of it is nearly in the
//! order of addresses. A set that is full forgets what was read least. What was read is worth half
//! as much a tick later.

/// Words of a table: 128 KB for each node, for as many folios.
pub const ENTRIES: usize = 16384;
/// Words of a set, a cache line.
const WAYS: usize = 8;
/// A tick in milliseconds, as a power of two: 4 seconds.
const TICK_SHIFT: u32 = 12;

const PFN_BITS: u32 = 40;
const NODE_BITS: u32 = 10;
const TICK_BITS: u32 = 8;
const MOST: u64 = 63;

/// A time, coarse: it comes again after a quarter of an hour, and then what nobody has looked at
/// since may be taken for new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(u8);

impl Tick {
    /// That of a time in milliseconds.
    pub fn at(now_ms: u64) -> Self {
        Self((now_ms >> TICK_SHIFT) as u8)
    }
}

/// A folio that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotFolio {
    /// The node that it should be on.
    pub to: u16,
    /// The number of its first page, below 2^40.
    pub pfn: u64,
    /// How often it was, as far as that counts now.
    pub frequency: u32,
}

fn pack(pick: HotFolio, tick: Tick) -> u64 {
    let frequency = u64::from(pick.frequency).min(MOST);
    ((frequency << TICK_BITS | u64::from(tick.0)) << NODE_BITS | u64::from(pick.to)) << PFN_BITS
        | pick.pfn
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

/// A table, over words that begin as zeroes.
pub struct HotTable<'a>(pub &'a mut [u64]);

impl HotTable<'_> {
    fn set(&mut self, pfn: u64) -> &mut [u64] {
        let sets = (self.0.len() / WAYS).max(1) as u64;
        let near = pfn / WAYS as u64;
        // What is a multiple of the table apart is not in one set.
        let far = (near / sets).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let set = ((near ^ far) % sets) as usize;
        self.0.chunks_mut(WAYS).nth(set).unwrap_or_default()
    }

    /// Adds so many accesses to those of a folio; how many it has then. A folio that is new is not
    /// noted where all others were read more than once.
    pub fn note(&mut self, pick: HotFolio, now: Tick) -> u32 {
        let set = self.set(pick.pfn);
        let value = |word: &u64| match *word {
            0 => 0,
            _ => unpack(*word, now).frequency + 1,
        };
        let same = |word: &u64| *word != 0 && unpack(*word, now).pfn == pick.pfn;
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
            true => was.saturating_add(pick.frequency),
            false if was <= pick.frequency => pick.frequency,
            false => return 0,
        };
        *way = pack(HotFolio { frequency, ..pick }, now);
        frequency
    }

    /// Takes out folios that were read `least` times or more, those that were read most before
    /// others, at most so many; how many are left of such. `from`: where to begin, so that not
    /// always the same are left.
    ///
    /// ```
    /// use ferry_logic::promotion::hot_table::{HotFolio, HotTable, Tick};
    ///
    /// let mut words = vec![0; 1024];
    /// let mut record = HotTable(&mut words);
    /// let (pick, now) = (|pfn| HotFolio { to: 0, pfn, frequency: 1 }, Tick::at(0));
    /// for pfn in [3, 8, 5, 8] {
    ///     record.note(pick(pfn), now);
    /// }
    /// let mut taken = Vec::new();
    /// assert_eq!(record.choose(now, 1, 1, 0, |pick| taken.push(pick.pfn)), 2);
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
        let class = |pick: &HotFolio| pick.frequency.max(1).ilog2() as usize;
        let is_hot = |pick: &HotFolio| pick.frequency >= least.max(1);
        let mut classes = [0usize; 6];
        for word in self.0.iter_mut() {
            let pick = unpack(*word, now);
            if pick.frequency == 0 {
                *word = 0;
            } else if let Some(nr) = classes.get_mut(class(&pick)).filter(|_| is_hot(&pick)) {
                *nr += 1;
            }
        }
        // Of each class, from the hottest on, what there is room for.
        let mut room = most;
        for nr in classes.iter_mut().rev() {
            let taken = room.min(*nr);
            room -= taken;
            *nr -= taken;
        }
        let left: usize = classes.iter().sum();
        let mut quota = most - room;
        // What is left of a class, is left where the walk comes by first.
        let start = from.checked_rem(self.0.len()).unwrap_or(0);
        let (before, after) = self.0.split_at_mut(start);
        for word in after.iter_mut().chain(before) {
            if quota == 0 {
                break;
            }
            let pick = unpack(*word, now);
            if !is_hot(&pick) {
                continue;
            }
            match classes.get_mut(class(&pick)) {
                Some(stays) if *stays > 0 => *stays -= 1,
                _ => {
                    *word = 0;
                    quota -= 1;
                    take(pick);
                }
            }
        }
        left
    }
}
