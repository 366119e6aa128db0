// SPDX-License-Identifier: GPL-2.0-only
//! Code of `rust/logic` with any input, compared with simple and slow code.

use std::collections::HashSet;

use arbitrary::Arbitrary;
use ferry_logic::batch::{Grains, segments};
use ferry_logic::coverage::{Coverage, Moment, Word};
use ferry_logic::sorted_prefix::{SortedPrefix, TAGGED};
use ferry_logic::span::whole_pages;

const PAGE: usize = 4096;
/// CPUs of the flushes in a [`Case::Flushes`], one bit each.
const CPUS: usize = 128;

/// One input.
#[derive(Arbitrary, Debug)]
pub enum Case {
    /// Addresses of a `move_pages(2)`, as pages and offsets.
    Addresses(Vec<(u8, u16)>),
    /// Addresses of any value.
    AnyAddresses(Vec<usize>),
    /// A table of first pages, which may be broken.
    Folios {
        starts: Vec<u32>,
        total: u16,
        threads: u8,
    },
    /// A range of bytes.
    Range { address: u64, length: u64 },
    /// Groups of retained folios, and flushes.
    Flushes(Vec<Step>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Step {
    /// Folios are retained until these CPUs have been flushed.
    Retain { cpus: u128 },
    /// A flush of these CPUs begins.
    Begin { cpus: u128 },
    /// A flush is complete.
    Complete { flush: u8 },
}

/// Checks one input.
///
/// # Panics
///
/// Panics if the code answers another way than the simple code.
pub fn check(case: &Case) {
    match case {
        Case::Addresses(pages) => {
            let addr = |&(page, offset): &(u8, u16)| usize::from(page) * PAGE + usize::from(offset);
            addresses(&pages.iter().map(addr).collect::<Vec<_>>());
        }
        Case::AnyAddresses(all) => addresses(all),
        Case::Folios {
            starts,
            total,
            threads,
        } => folios(starts, u32::from(*total), u32::from(*threads)),
        Case::Range { address, length } => range(*address, *length),
        Case::Flushes(steps) => flushes(steps),
    }
}

/// Takes the ascending addresses at the start, as `move_pages(2)` does, and looks each further one up.
fn addresses(all: &[usize]) {
    let mut prefix = SortedPrefix::default();
    let (taken, rest) = all.split_at(prefix.climbs(all));
    prefix.add(taken);
    let ascends = |pair: &[usize]| pair[0] / PAGE < pair[1] / PAGE;
    assert!(taken.windows(2).all(ascends));
    assert!(taken.iter().all(|&addr| addr < TAGGED));
    if let Some(&next) = rest.first() {
        let last = taken.last().map(|addr| addr / PAGE);
        assert!(next >= TAGGED || last.is_some_and(|last| next / PAGE <= last));
        prefix.break_off();
        assert_eq!(prefix.climbs(rest), 0);
    }
    let pages: HashSet<_> = taken.iter().map(|addr| addr / PAGE).collect();
    for &addr in rest.iter().filter(|&&addr| addr < TAGGED) {
        let found = prefix.has(addr, |at| taken.get(at).copied());
        assert_eq!(found, pages.contains(&(addr / PAGE)));
    }
}

/// Cuts a batch into grains, and these into parts of folios.
fn folios(starts: &[u32], total: u32, threads: u32) {
    let grains = Grains::new(total, threads);
    let is_whole = starts.first() == Some(&0)
        && starts.is_sorted_by(|a, b| a < b)
        && starts.last().is_some_and(|&last| last < total);
    let mut at = 0;
    for index in 0..grains.count() {
        let grain = grains.range(index);
        assert_eq!(grain.start, at);
        at = grain.end;
        let mut pages = 0;
        for part in segments(starts, total, grain.clone()) {
            assert!(part.item < starts.len());
            pages += part.nr_pages;
            if is_whole {
                let first = starts[part.item] + part.first_page;
                let end = starts.get(part.item + 1).copied().unwrap_or(total);
                assert!(first >= grain.start && first + part.nr_pages <= end.min(grain.end));
            }
        }
        assert!(pages <= grain.end - grain.start);
        assert!(!is_whole || pages == grain.end - grain.start);
    }
    assert_eq!(at, total);
}

fn range(address: u64, length: u64) {
    let page = PAGE as u128;
    let first = u128::from(address) / page * page;
    let end = (u128::from(address) + u128::from(length)).div_ceil(page) * page;
    match whole_pages(address, length, PAGE as u64) {
        Some(pages) if length == 0 => assert!(pages.is_empty()),
        Some(pages) => assert_eq!(
            (u128::from(pages.start), u128::from(pages.end)),
            (first, end)
        ),
        None => assert!(end > u128::from(u64::MAX)),
    }
}

/// A flush, as the simple code knows it.
struct Flush {
    moment: Moment,
    cpus: u128,
    /// The step at which it began.
    began: usize,
    is_complete: bool,
}

/// A group may be freed only if each of its CPUs had a complete flush that began later.
fn flushes(steps: &[Step]) {
    let words = |number: usize| (0..number).map(|_| Word::default()).collect::<Vec<_>>();
    let coverage = Coverage::new(words(CPUS / 64), words(CPUS), words(CPUS));
    let halves = |cpus: u128| [cpus as usize, (cpus >> 64) as usize];
    let (mut groups, mut all) = (Vec::new(), Vec::<Flush>::new());
    for (now, step) in steps.iter().enumerate() {
        match *step {
            Step::Retain { cpus } => groups.push((coverage.retain(&halves(cpus)), cpus, now)),
            Step::Begin { cpus } => all.extend(coverage.begin(&halves(cpus)).map(|moment| Flush {
                moment,
                cpus,
                began: now,
                is_complete: false,
            })),
            Step::Complete { flush } => {
                let flush = usize::from(flush) % all.len().max(1);
                if let Some(flush) = all.get_mut(flush).filter(|flush| !flush.is_complete) {
                    coverage.complete(flush.moment);
                    flush.is_complete = true;
                }
            }
        }
    }
    for (group, cpus, retained) in groups {
        let flushed = all
            .iter()
            .filter(|flush| flush.is_complete && flush.began > retained)
            .fold(0, |flushed, flush| flushed | flush.cpus);
        let covered = coverage.covers(&halves(cpus), group);
        assert!(!covered || cpus & !flushed == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbitrary::Unstructured;

    #[test]
    fn inputs_of_random_bytes_hold() {
        let mut rng = fastrand::Rng::with_seed(1);
        for length in 1..1000 {
            let mut bytes = vec![0; length % 300];
            rng.fill(&mut bytes);
            if let Ok(case) = Case::arbitrary(&mut Unstructured::new(&bytes)) {
                check(&case);
            }
        }
    }

    #[test]
    fn a_flush_that_began_before_covers_nothing() {
        flushes(&[
            Step::Retain { cpus: 1 },
            Step::Begin { cpus: 1 },
            Step::Retain { cpus: 1 },
            Step::Complete { flush: 0 },
        ]);
    }
}
