// SPDX-License-Identifier: GPL-2.0-only
//! The changes between two samples, in total and per second.

use super::sample::{Counters, Sample, Times};
use ferry_numa::nodes::Node;
use serde::Serialize;
use std::collections::BTreeMap;

pub type Counts = BTreeMap<String, Count>;

/// The value and the increase of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Count {
    /// Increase in the interval.
    pub gained: u64,
    pub per_s: f64,
    /// Since boot, or since the user reset the totals.
    pub total: u64,
}

/// The changes in one interval.
pub struct Report {
    pub seconds: f64,
    page_size: u64,
    pub counters: Counts,
    pub helped: Counts,
    /// The counters of each folder of [`PARTS`](super::sample::PARTS) that the kernel has.
    pub parts: BTreeMap<&'static str, Counts>,
    pub cgroups: Counts,
    pub nodes: Vec<Node>,
    /// Times in this interval.
    pub unmapped: Times,
    pub first_folio: Times,
    pub settings: Vec<(String, String)>,
}

impl Report {
    /// Compares two samples. Totals count from `base`, or from boot.
    pub fn new(before: &Sample, after: &Sample, base: Option<&Sample>, page_size: u64) -> Self {
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let counts =
            |of: fn(&Sample) -> &Counters| counts(of(before), of(after), base.map(of), seconds);
        let of_part =
            |sample: &Sample, part: &str| sample.parts.get(part).cloned().unwrap_or_default();
        let part = |(&name, now): (&&'static str, &Counters)| {
            let base = base.map(|base| of_part(base, name));
            (
                name,
                self::counts(&of_part(before, name), now, base.as_ref(), seconds),
            )
        };
        Report {
            seconds,
            page_size,
            parts: after.parts.iter().map(part).collect(),
            cgroups: counts(|s| &s.cgroups),
            nodes: after.nodes.clone(),
            counters: counts(|s| &s.counters),
            helped: counts(|s| &s.helped),
            unmapped: since(&after.unmapped, &before.unmapped),
            first_folio: since(&after.first_folio, &before.first_folio),
            settings: after.settings.clone(),
        }
    }

    pub fn counter(&self, name: &str) -> Count {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Returns the rate of a counter of pages, in GB/s.
    pub fn gbps(&self, name: &str) -> f64 {
        self.counter(name).per_s * self.page_size as f64 / 1e9
    }

    /// Returns the average number of CPUs that helpers used; `None` if the kernel does not count
    /// it.
    pub fn helper_cpus(&self) -> Option<f64> {
        self.counters
            .get("helper_usec")
            .map(|usec| usec.per_s / 1e6)
    }

    pub fn is_on(&self) -> bool {
        let on = |(name, value): &(String, String)| name == "mt_page_copy" && value == "1";
        self.settings.iter().any(on)
    }
}

/// Returns the increase of a counter, which may have wrapped. Returns 0 for one that was reset, as
/// its increase is unknown.
pub fn gained(before: u64, after: u64) -> u64 {
    let gain = after.wrapping_sub(before);
    if gain <= u64::MAX / 2 {
        gain
    } else {
        0
    }
}

fn counts(before: &Counters, after: &Counters, base: Option<&Counters>, seconds: f64) -> Counts {
    let count = |name: &str, now: u64| {
        let gained_since = |then: &Counters| then.get(name).map_or(0, |&then| gained(then, now));
        let gained = gained_since(before);
        Count {
            gained,
            per_s: if seconds > 0.0 {
                gained as f64 / seconds
            } else {
                0.0
            },
            total: base.map_or(now, gained_since),
        }
    };
    after
        .iter()
        .map(|(name, &now)| (name.clone(), count(name, now)))
        .collect()
}

fn since(after: &Times, before: &Times) -> Times {
    let after = after.as_ref().map_err(Clone::clone)?;
    Ok(match before {
        Ok(before) => after.since(before),
        Err(_) => after.since(after),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::sample::fixture, *};
    use std::time::Duration;

    const PAGE: u64 = 4096;

    /// Returns two samples, `seconds` apart; the second has the given counters.
    fn pair(seconds: f64, counters: &[(&str, u64)]) -> (Sample, Sample) {
        let before = fixture::sample(&fixture::ferry());
        let mut after = before.clone();
        after.at += Duration::from_secs_f64(seconds);
        for &(name, value) in counters {
            after.counters.insert(name.to_owned(), value);
        }
        (before, after)
    }

    #[test]
    fn rates_are_of_the_interval() {
        let (before, mut after) = pair(
            2.0,
            &[("pgmigrate_success", 504_000), ("helper_usec", 3_250_000)],
        );
        after.helped.insert("syscall".to_owned(), 1_900);
        let report = Report::new(&before, &after, None, PAGE);
        assert_eq!(report.gbps("pgmigrate_success"), 250_000.0 * 4096.0 / 1e9);
        assert_eq!(report.helper_cpus(), Some(1.5));
        let helped = report.helped["syscall"];
        assert_eq!((helped.gained, helped.per_s), (200, 100.0));
        assert_eq!(helped.total, 1_900);
        assert_eq!(report.counter("batches").per_s, 0.0);
        assert_eq!(report.counter("no such").total, 0);
        assert!(report.is_on());
        assert_eq!(report.unmapped.unwrap().events(), 0);
    }

    #[test]
    fn totals_begin_where_they_were_set_back() {
        let (before, after) = pair(1.0, &[("batches", 20)]);
        let total = |base| {
            Report::new(&before, &after, base, PAGE)
                .counter("batches")
                .total
        };
        assert_eq!((total(None), total(Some(&before))), (20, 8));
    }

    #[test]
    fn counters_wrap_or_begin_anew() {
        assert_eq!(gained(u64::MAX - 5, 10), 16);
        assert_eq!(gained(0, u64::MAX / 2), u64::MAX / 2);
        assert_eq!(gained(1000, 10), 0);
        let (before, after) = pair(1.0, &[("batches", 3)]);
        let batches = Report::new(&before, &after, Some(&before), PAGE).counter("batches");
        assert_eq!((batches.gained, batches.total), (0, 0));
    }

    #[test]
    fn no_time_has_no_rates() {
        let (before, after) = pair(0.0, &[("pgmigrate_success", 9_000_000)]);
        let report = Report::new(&before, &after, None, PAGE);
        assert_eq!(report.gbps("pgmigrate_success"), 0.0);
        // The same is true for a clock that went backwards.
        let report = Report::new(&after, &before, None, PAGE);
        assert_eq!(report.counter("pgmigrate_success").per_s, 0.0);
    }

    #[test]
    fn row_that_was_not_there_before_gained_nothing() {
        let (before, after) = pair(1.0, &[("ferry_new", 77)]);
        let new = Report::new(&before, &after, None, PAGE).counter("ferry_new");
        assert_eq!((new.gained, new.total), (0, 77));
    }

    #[test]
    fn kernel_that_does_not_count_helpers_time() {
        let (before, mut after) = pair(1.0, &[]);
        after.counters.remove("helper_usec");
        assert_eq!(Report::new(&before, &after, None, PAGE).helper_cpus(), None);
    }
}
