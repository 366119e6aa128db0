// SPDX-License-Identifier: GPL-2.0-only

//! The number of threads that is chosen on modelled machines, and the size of batches.
#![cfg(not(loom))]

use ferry_logic::batch_size::{self, page_price, pages_within, PageCosts, PARTS, UNITS};
use ferry_logic::thread_choice::{
    best, choose, learn, learn_of, learns, step, Rates, LEARN_EVERY, STEPS,
};
use proptest::prelude::*;

/// A machine: bytes per microsecond, by number of threads.
type Curve = fn(u32) -> f64;

/// In turn: each thread adds as much; memory bandwidth is the limit; more than two threads disturb
/// each other; helpers only cost time.
const CURVES: [Curve; 4] = [
    |n| 2000.0 * f64::from(n),
    |n| f64::min(2000.0 * f64::from(n), 7000.0),
    |n| 4000.0 / f64::from(n.max(2) - 1),
    |n| 2000.0 / f64::from(n),
];

struct Machine {
    rates: Rates,
    turn: u32,
}

impl Machine {
    fn new() -> Self {
        Self {
            rates: Rates::default(),
            turn: 0,
        }
    }

    /// Does 1 MB of work with up to `most` threads, and returns their number. `noise` is the factor
    /// by which it takes longer than the curve says.
    fn work(&mut self, curve: Curve, most: u32, noise: f64) -> u32 {
        self.turn += 1;
        let threads = choose(&self.rates, 1, most, self.turn);
        // As in the kernel, work of one thread is measured only in an exploration.
        if threads == 1 && !learns(self.turn) {
            return 1;
        }
        let us = f64::from(1 << 20) / curve(threads) * noise;
        let at = step(threads);
        self.rates[at] = learn_of(&self.rates, at, 1 << 20, (us * 1000.0) as u64);
        threads
    }

    /// Returns the time of `works` pieces of work, if a single thread takes 1 for each.
    fn time(&mut self, curve: Curve, most: u32, works: usize) -> f64 {
        let times = (0..works).map(|_| curve(1) / curve(self.work(curve, most, 1.0)));
        times.sum()
    }
}

proptest! {
    #[test]
    fn what_is_found_is_nearly_the_best(
        curve in 0..CURVES.len(),
        most in 2u32..=32,
        noise in proptest::collection::vec(0.95f64..1.05, 3000),
    ) {
        let curve = CURVES[curve];
        let mut machine = Machine::new();
        for noise in noise {
            let threads = machine.work(curve, most, noise);
            prop_assert!((1..=most).contains(&threads));
        }
        let steps = STEPS.into_iter().filter(|&n| n <= most).chain([most]);
        let fastest = steps.map(curve).fold(0.0, f64::max);
        let found = curve(best(&machine.rates, most));
        prop_assert!(found >= fastest * 0.8, "{found} of {fastest}: {:?}", machine.rates);
    }

    #[test]
    fn a_change_is_noticed(most in 2u32..=8) {
        let mut machine = Machine::new();
        for _ in 0..1000 {
            machine.work(CURVES[0], most, 1.0);
        }
        prop_assert_eq!(best(&machine.rates, most), most);
        for _ in 0..2000 {
            machine.work(CURVES[3], most, 1.0);
        }
        prop_assert_eq!(best(&machine.rates, most), 1);
        // A number of threads that was too slow for long is explored rarely.
        for _ in 0..6000 {
            machine.work(CURVES[0], most, 1.0);
        }
        prop_assert_eq!(best(&machine.rates, most), most);
    }

    /// Explorations cost little in the long run even where helpers make the work ten times slower,
    /// as on a virtual machine that gets no time on its host's CPUs.
    #[test]
    fn hopeless_helpers_cost_little(most in 2u32..=32) {
        let curve = |n| if n == 1 { 2000.0 } else { 200.0 };
        let mut machine = Machine::new();
        let first = machine.time(curve, most, 64);
        let steps = (step(most) + 1) as f64;
        prop_assert!(first <= 64.0 + 10.0 * steps.min(6.0), "{first} for 64");
        machine.time(curve, most, 20_000);
        let then = machine.time(curve, most, 20_000);
        prop_assert!(then <= 1.02 * 20_000.0, "{then} for 20000");
    }

    #[test]
    fn little_is_spent_on_learning(most in 2u32..=32) {
        let mut machine = Machine::new();
        let others = (0..6400).filter(|_| machine.work(CURVES[0], most, 1.0) != most).count();
        let lessons = 6400 / LEARN_EVERY + LEARN_EVERY.ilog2();
        prop_assert!(others <= lessons as usize, "{others} of 6400");
    }

    #[test]
    fn a_choice_keeps_its_bounds(
        rates in any::<Rates>(),
        least in 0u32..=40,
        most in 0u32..=40,
        turn in any::<u32>(),
    ) {
        let threads = choose(&rates, least, most, turn);
        prop_assert!(threads >= 1 && threads <= most.max(1));
        prop_assert!(best(&rates, most) >= 1 && best(&rates, most) <= most.max(1));
        prop_assert!(threads >= STEPS[step(least.min(most))].min(most));
    }

    /// The rates of more threads than a call may have do not change its decision.
    #[test]
    fn threads_beyond_the_most_do_not_matter(
        rates in any::<Rates>(),
        most in 1u32..=12,
        turn in any::<u32>(),
        at in 0usize..4,
        ns in 1u64..1_000_000_000,
    ) {
        let mut within = rates;
        within[step(most) + 1..].fill(0);
        prop_assert_eq!(choose(&rates, 1, most, turn), choose(&within, 1, most, turn));
        let at = at.min(step(most));
        prop_assert_eq!(
            learn_of(&rates, at, 1 << 20, ns),
            learn_of(&within, at, 1 << 20, ns)
        );
    }

    #[test]
    fn learning_never_overflows(rate in any::<u32>(), bytes in any::<u64>(), ns in any::<u64>()) {
        prop_assert!(learn(rate, bytes, ns) > 0 || (rate == 0 && ns == 0));
        let pages = bytes as u32;
        prop_assert!(batch_size::learn(rate, pages, ns) > 0 || (rate == 0 && pages == 0));
    }

    /// However long a page takes, a batch of folios of one size takes no longer than the budget or
    /// twice its flush, unless it has one folio. It has at most 32 MB and 512 folios.
    #[test]
    fn batches_keep_to_their_time(
        large: bool,
        handful: bool,
        threads in 0u32..=64,
        ns in 1u32..=1_000_000,
        flush_ns in 0u32..=100_000_000,
        budget_us in 10u64..=1_000_000,
        order in 0u32..=9,
    ) {
        let costs = PageCosts { flush_ns, small_ns: ns, alone_ns: ns, shared_ns: ns };
        let flush_ns = u64::from(flush_ns);
        let price = page_price(large, handful, threads, costs, budget_us * 1000).unwrap_or(PARTS);
        let cost = (u64::from(price) << order).div_ceil(u64::from(PARTS));
        prop_assert!(cost >= 1);
        // As in migrate_pages_batch(), the folio that reaches the limit is part of the batch.
        let folios = u64::from(UNITS).div_ceil(cost);
        // A batch is no shorter than in mainline, unless the budget requires it.
        let as_in_mainline = u64::from(UNITS).div_ceil(1 << order);
        let at_least = (budget_us * 1000 / 2).saturating_sub(flush_ns).max(flush_ns);
        if as_in_mainline << order <= at_least / u64::from(ns) {
            prop_assert!(folios >= as_in_mainline, "{folios} of {as_in_mainline}");
        }
        prop_assert!(folios <= 512);
        prop_assert!(folios << order <= 8192 + 512);
        let without_last = (folios - 1) << order;
        let at_most = (budget_us * 1000).saturating_sub(flush_ns).max(flush_ns);
        prop_assert!(without_last * u64::from(ns) <= at_most + u64::from(ns));
    }

    /// Chunks find the length that takes as long as the budget, whatever of a page's time is before
    /// the flush, from any pace that was measured before.
    #[test]
    fn chunks_find_their_time(
        unmap_ns in 100u64..=4000,
        rest_ns in 100u64..=4000,
        flush_ns in 1000u64..=100_000,
        budget_ns in 200_000u64..=4_000_000,
        mut pace in (0u32..=100_000_000, 0u32..=100_000).prop_map(|(flush_ns, small_ns)| PageCosts {
            flush_ns,
            small_ns,
            ..PageCosts::default()
        }),
    ) {
        let page_ns = unmap_ns + rest_ns;
        let took = |pages: u32| u64::from(pages) * page_ns + flush_ns;
        let mut pages = 0;
        for _ in 0..400 {
            pages = pages_within(false, pace, budget_ns, 16).min(512);
            pace.flush_ns = batch_size::learn_flush(pace.flush_ns, flush_ns);
            pace.small_ns = batch_size::learn(pace.small_ns, pages, took(pages) - flush_ns);
        }
        let tenth = budget_ns / 10;
        prop_assert!(pages == 16 || took(pages) <= budget_ns + tenth, "{pages} pages");
        prop_assert!(pages == 512 || took(pages + 1) >= budget_ns - tenth, "{pages} pages");
    }

    #[test]
    fn chunks_keep_to_their_time(
        ns in 1u32..=1_000_000,
        flush_ns: u32,
        budget_ns in any::<u64>(),
    ) {
        let costs = PageCosts { flush_ns, small_ns: ns, ..PageCosts::default() };
        let pages = u64::from(pages_within(false, costs, budget_ns, 16));
        let flush_ns = u64::from(flush_ns);
        let left = budget_ns.saturating_sub(flush_ns).max(flush_ns);
        prop_assert!(pages >= 16);
        prop_assert!(pages == 16 || pages * u64::from(ns) <= left);
        prop_assert!((pages + 1) * u64::from(ns) > left.min(u64::from(u32::MAX)));
    }
}
