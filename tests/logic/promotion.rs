// SPDX-License-Identifier: GPL-2.0-only

//! Promotion of synthetic traces of accesses: linear reads, a Zipf distribution, a working set that
//! moves, a scan over a hot set; the rate; the back-off for a set that does not fit.
#![cfg(not(loom))]

use std::collections::{HashSet, VecDeque};

use ferry_logic::promotion::backoff::{Backoff, EPOCH_MS, STOPPED};
use ferry_logic::promotion::choose::{least_frequency, next_look_ms, AGAIN, BUSY_MS, IDLE_MS};
use ferry_logic::promotion::hot_table::{HotFolio, HotTable, Tick, ENTRIES};
use ferry_logic::promotion::rate::{Bucket, MB};
use ferry_logic::promotion::recent_moves::{FolioId, RecentMoves, Word, SOON_S};
use ferry_logic::promotion::ring::{Access, Ends, Ring, Slot};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const ROUND_MS: u64 = 20;

/// Two memory tiers. `top` has the pages of the top tier, `order` the same pages, oldest first. All
/// other pages are on the lower tier.
struct Machine {
    words: Vec<u64>,
    recent_moves: Vec<Word>,
    top: HashSet<u64>,
    order: VecDeque<u64>,
    room: usize,
    bucket: Bucket,
    backoff: Backoff,
    rate: u64,
    now_ms: u64,
    refaults: u64,
    promoted_now: u64,
    promoted: u64,
}

impl Machine {
    fn new(room: usize, rate: u64) -> Self {
        Self {
            words: vec![0; ENTRIES],
            recent_moves: (0..32768).map(|_| Word::new()).collect(),
            top: HashSet::new(),
            order: VecDeque::new(),
            room,
            bucket: Bucket::default(),
            backoff: Backoff::default(),
            rate,
            now_ms: 1000,
            refaults: 0,
            promoted_now: 0,
            promoted: 0,
        }
    }

    /// Reads pages, which takes one round. Returns the fraction that the top tier had.
    fn read(&mut self, pages: impl IntoIterator<Item = u64>) -> f64 {
        let tick = Tick::at(self.now_ms);
        let (mut hits, mut reads) = (0, 0);
        for pfn in pages {
            reads += 1;
            if self.top.contains(&pfn) {
                hits += 1;
                continue;
            }
            let frequency = 1;
            let folio = HotFolio {
                to: 0,
                pfn,
                frequency,
            };
            let again = HotTable(&mut self.words).note(folio, tick) >= AGAIN;
            if again && self.backoff.has_made_room() {
                self.refaults += u64::from(self.is_back(pfn));
            }
        }
        self.promote(tick);
        self.now_ms += ROUND_MS;
        f64::from(hits) / f64::from(reads.max(1))
    }

    /// Returns whether the folio is a refault, once for each.
    fn is_back(&self, pfn: u64) -> bool {
        RecentMoves(&self.recent_moves).take(FolioId::of(1, pfn), self.now_ms / 1000)
    }

    fn promote(&mut self, tick: Tick) {
        if self.backoff.is_due(self.now_ms) {
            let (promoted, refaults) = (self.promoted_now, self.refaults);
            self.backoff.look(self.now_ms, promoted, refaults);
            (self.promoted_now, self.refaults) = (0, 0);
        }
        let limit = self.backoff.limit(self.rate);
        self.bucket.refill(self.now_ms * 1000, limit);
        if !self.bucket.is_half_full(limit) {
            return;
        }
        let least = least_frequency(self.backoff.level());
        let mut folios = Vec::new();
        HotTable(&mut self.words).choose(tick, least, 512, 0, |folio| folios.push(folio));
        folios.sort_unstable();
        for folio in folios {
            if !self.bucket.take(PAGE) {
                HotTable(&mut self.words).note(folio, tick);
                continue;
            }
            let now_s = self.now_ms / 1000;
            let recent_moves = RecentMoves(&self.recent_moves);
            if !self.top.insert(folio.pfn) {
                continue;
            }
            self.order.push_back(folio.pfn);
            self.refaults += u64::from(self.is_back(folio.pfn));
            recent_moves.remember(FolioId::of(1, folio.pfn), now_s);
            self.promoted_now += 1;
            self.promoted += 1;
            if self.top.len() > self.room {
                let old = self.order.pop_front().unwrap();
                self.top.remove(&old);
                self.refaults += u64::from(self.is_back(old));
                recent_moves.remember(FolioId::of(1, old), now_s);
                self.backoff.made_room();
            }
        }
    }

    /// Reads a file linearly, over and over. Returns the fraction of the last round that the top
    /// tier had.
    fn loop_over(&mut self, first: u64, pages: u64, each: u64, rounds: u64) -> f64 {
        let mut last = 0.0;
        for round in 0..rounds {
            let at = round * each;
            last = self.read((at..at + each).map(|page| first + page % pages));
        }
        last
    }
}

/// Returns a number below `n` with a Zipf distribution: number `i` has a weight of about 1 / (i +
/// 1).
fn zipf(n: u64, seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    let unit = (*seed >> 11) as f64 / (1u64 << 53) as f64;
    ((n as f64).powf(unit) - 1.0) as u64
}

/// Spreads ranks over a file.
fn place(rank: u64, pages: u64) -> u64 {
    rank * 7919 % pages
}

#[test]
fn a_linear_read_that_fits_comes_up() {
    let mut machine = Machine::new(10_000, 64 * MB);
    assert_eq!(machine.loop_over(0, 8000, 1000, 80), 1.0);
    assert_eq!(machine.promoted, 8000);
    assert_eq!(machine.backoff.level(), 0);
}

#[test]
fn a_linear_read_that_does_not_fit_is_left_alone() {
    let mut machine = Machine::new(10_000, 256 * MB);
    machine.loop_over(0, 20_000, 2000, 200);
    let (before, rounds) = (machine.promoted, 3000);
    machine.loop_over(0, 20_000, 2000, rounds);
    let unlimited = 256 * MB / PAGE * rounds * ROUND_MS / 1000;
    let promoted = machine.promoted - before;
    assert!(promoted * 500 < unlimited, "{promoted} of {unlimited}");
    assert!(machine.backoff.level() >= 3, "{}", machine.backoff.level());
}

#[test]
fn zipf_comes_up_by_nine_parts_in_ten() {
    const PAGES: u64 = 30_000;
    let mut machine = Machine::new(40_000, 64 * MB);
    let (mut seed, mut share) = (1, 0.0);
    for _ in 0..400 {
        let reads: Vec<u64> = (0..1000)
            .map(|_| place(zipf(PAGES, &mut seed), PAGES))
            .collect();
        share = machine.read(reads);
    }
    assert!(share > 0.9, "{share}");
}

#[test]
fn of_zipf_that_does_not_fit_the_hot_come_up() {
    const PAGES: u64 = 60_000;
    let mut machine = Machine::new(15_000, 32 * MB);
    let (mut seed, mut share) = (1, 0.0);
    for _ in 0..3000 {
        let reads: Vec<u64> = (0..500)
            .map(|_| place(zipf(PAGES, &mut seed), PAGES))
            .collect();
        share = share * 0.99 + machine.read(reads) * 0.01;
    }
    // A random quarter of the pages would get a quarter of the reads.
    assert!(share > 0.6, "{share}");
}

#[test]
fn a_working_set_that_moves_is_followed() {
    let mut machine = Machine::new(10_000, 64 * MB);
    for set in 0..3u64 {
        let share = machine.loop_over(set * 100_000, 4000, 1000, 200);
        assert_eq!(share, 1.0, "set {set}");
        // After this time what was promoted was worth it.
        machine.now_ms += (SOON_S + 1) * 1000;
    }
}

#[test]
fn of_a_scan_over_a_hot_set_the_hot_come_first() {
    let mut words = vec![0; ENTRIES];
    let mut table = HotTable(&mut words);
    let now = Tick::at(0);
    let note = |table: &mut HotTable<'_>, pfn| {
        table.note(
            HotFolio {
                to: 0,
                pfn,
                frequency: 1,
            },
            now,
        )
    };
    for round in 0..8 {
        for pfn in 0..512 {
            note(&mut table, pfn * 16);
        }
        // Meanwhile a scan reads other folios, in all ten times as many as the table has.
        let from = 1_000_000 + round * 20_480;
        for pfn in from..from + 20_480 {
            note(&mut table, pfn);
        }
    }
    let mut hot = 0;
    table.choose(now, 1, 512, 0, |folio| {
        hot += u32::from(folio.pfn < 1_000_000)
    });
    assert!(hot > 400, "{hot} of 512");
}

#[test]
fn what_is_old_is_forgotten() {
    let mut words = vec![0; 64];
    let mut table = HotTable(&mut words);
    let folio = HotFolio {
        to: 3,
        pfn: 9,
        frequency: 1,
    };
    for times in 1..=10 {
        assert_eq!(table.note(folio, Tick::at(0)), times);
    }
    let mut taken = Vec::new();
    // After three ticks an eighth of the count is left.
    let later = Tick::at(3 << 12);
    assert_eq!(table.choose(later, 2, 10, 0, |folio| taken.push(folio)), 0);
    assert!(taken.is_empty());
    table.choose(later, 1, 10, 0, |folio| taken.push(folio));
    assert_eq!(taken, [folio]);
}

#[test]
fn the_brake_stops_all_and_recovers() {
    let mut backoff = Backoff::default();
    let mut now = 0;
    let mut look = |backoff: &mut Backoff, promoted, refaults| {
        now += EPOCH_MS;
        assert!(backoff.is_due(now));
        backoff.look(now, promoted, refaults);
    };
    (0..10).for_each(|_| look(&mut backoff, 1000, 10));
    assert_eq!(backoff.level(), 0);
    (0..10).for_each(|_| look(&mut backoff, 1000, 600));
    assert_eq!((backoff.level(), backoff.limit(1 << 30)), (STOPPED, 0));
    (0..2000).for_each(|_| look(&mut backoff, 0, 0));
    assert_eq!((backoff.level(), backoff.limit(1 << 30)), (0, 1 << 30));
}

#[test]
fn what_little_comes_back_of_much_is_let_pass() {
    let mut backoff = Backoff::default();
    let mut now = 0;
    let mut look = |backoff: &mut Backoff, promoted, refaults| {
        now += EPOCH_MS;
        backoff.look(now, promoted, refaults);
    };
    (0..10).for_each(|_| look(&mut backoff, 128, 0));
    (0..20).for_each(|_| look(&mut backoff, 0, 0));
    // All folios are where they should be; then another program needs memory for a while.
    (0..30).for_each(|_| look(&mut backoff, 0, 2));
    assert_eq!(backoff.level(), 0);
    // More refaults raise the level in the end.
    (0..100).for_each(|_| look(&mut backoff, 0, 4));
    assert!(backoff.level() > 0);
}

#[test]
fn looks_are_rare_while_nothing_is_found() {
    let pauses = (0..12).scan(BUSY_MS, |pause, _| {
        *pause = next_look_ms(*pause, false, 0);
        Some(*pause)
    });
    assert_eq!(pauses.last(), Some(IDLE_MS));
    assert_eq!(next_look_ms(IDLE_MS, true, 0), BUSY_MS);
}

proptest! {
    #[test]
    fn a_rate_is_kept(steps in prop::collection::vec((1u64..200_000, 1u64..600), 1..200), mbps in 0u64..5000) {
        let mut bucket = Bucket::default();
        let (mut now, mut taken) = (0, 0);
        for (us, pages) in steps {
            now += us;
            bucket.refill(now, mbps * MB);
            for _ in 0..pages {
                taken += u64::from(bucket.take(PAGE)) * PAGE;
            }
            let burst = if mbps == 0 { 0 } else { (mbps * MB / 10).max(2 * MB) + PAGE };
            prop_assert!(taken <= mbps * MB * now / 1_000_000 + burst);
        }
    }

    #[test]
    fn a_ring_gives_what_it_took_in_order(steps in prop::collection::vec((0u32..40, any::<bool>()), 1..60)) {
        let (ends, slots) = (Ends::new(), [(); 16].map(|()| Slot::new()));
        let ring = Ring { ends: &ends, slots: &slots };
        let (mut next, mut wanted) = (0, VecDeque::new());
        for (pushes, drains) in steps {
            for _ in 0..pushes {
                next += 1;
                let access = Access { pfn: next, from: 1023, to: (next % 1024) as u16 };
                if ring.push(access).is_some() {
                    wanted.push_back(access);
                } else {
                    prop_assert_eq!(wanted.len(), 16);
                }
            }
            if drains {
                let mut taken = VecDeque::new();
                prop_assert_eq!(ring.drain(|access| taken.push_back(access)) as usize, wanted.len());
                prop_assert_eq!(&taken, &wanted);
                wanted.clear();
            }
        }
    }

    #[test]
    fn a_record_gives_each_folio_once(pfns in prop::collection::vec(0u64..(1 << 40), 1..300), most in 1usize..64) {
        let mut words = vec![0; 1024];
        let mut table = HotTable(&mut words);
        let now = Tick::at(77 << 12);
        for &pfn in &pfns {
            table.note(HotFolio { to: (pfn % 1024) as u16, pfn, frequency: 1 }, now);
        }
        let mut seen = HashSet::new();
        loop {
            let mut folios = Vec::new();
            let left = table.choose(now, 1, most, 500, |folio| folios.push(folio));
            prop_assert!(folios.len() <= most);
            for folio in &folios {
                prop_assert!(pfns.contains(&folio.pfn) && folio.to == (folio.pfn % 1024) as u16);
                prop_assert!(seen.insert(folio.pfn));
            }
            if folios.is_empty() {
                prop_assert_eq!(left, 0);
                break;
            }
        }
    }
}

#[test]
fn an_access_that_does_not_fit_a_word_is_refused() {
    let (ends, slots) = (Ends::new(), [Slot::new()]);
    let ring = Ring {
        ends: &ends,
        slots: &slots,
    };
    assert_eq!(
        ring.push(Access {
            pfn: 1 << 40,
            from: 0,
            to: 0
        }),
        None
    );
    assert_eq!(
        ring.push(Access {
            pfn: 1,
            from: 1024,
            to: 0
        }),
        None
    );
    assert_eq!(
        ring.push(Access {
            pfn: (1 << 40) - 1,
            from: 1023,
            to: 1023
        }),
        Some(1)
    );
}
