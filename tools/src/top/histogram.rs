// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's histograms of times: parsing, differences and percentiles.

use super::rates::gained;
use serde::Serialize;

/// Numbers of events by duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Histogram {
    /// In ascending order, the last one unbounded. Empty if the histogram was never read.
    pub buckets: Vec<Bucket>,
}

/// Events shorter than a bound, and not shorter than that of the previous bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Upper bound in microseconds; `None` if unbounded.
    pub below_us: Option<u64>,
    pub count: u64,
}

/// The bucket of a percentile, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    pub from_us: u64,
    /// `None` if unbounded.
    pub below_us: Option<u64>,
}

impl Histogram {
    /// Parses lines of `below_us count`; the last bound is the word `inf`. The error says what is
    /// wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut buckets: Vec<Bucket> = Vec::new();
        for line in text.lines() {
            let bucket = bucket(line).ok_or_else(|| format!("`{line}` is malformed"))?;
            if let Some(last) = buckets.last() {
                let ascends = match (last.below_us, bucket.below_us) {
                    (Some(last), Some(next)) => last < next,
                    (last, _) => last.is_some(),
                };
                if !ascends {
                    return Err(format!("`{line}` is out of order"));
                }
            }
            buckets.push(bucket);
        }
        match buckets.last() {
            Some(last) if last.below_us.is_none() => Ok(Histogram { buckets }),
            _ => Err("its last bucket is missing".to_owned()),
        }
    }

    /// Returns the events since `before`, or all events if its buckets differ.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let bounds = |h: &Histogram| h.buckets.iter().map(|b| b.below_us).collect::<Vec<_>>();
        if bounds(self) != bounds(before) {
            return self.clone();
        }
        let pairs = self.buckets.iter().zip(&before.buckets);
        Histogram {
            buckets: pairs
                .map(|(now, then)| Bucket {
                    below_us: now.below_us,
                    count: gained(then.count, now.count),
                })
                .collect(),
        }
    }

    /// Returns the number of events.
    pub fn events(&self) -> u128 {
        self.buckets.iter().map(|b| u128::from(b.count)).sum()
    }

    /// Returns the bucket of the time that `permille` of 1000 events do not exceed; `None` without
    /// events.
    pub fn percentile(&self, permille: u32) -> Option<Range> {
        let events = self.events();
        if events == 0 {
            return None;
        }
        let rank = (events * u128::from(permille)).div_ceil(1000).max(1);
        let (mut seen, mut from_us) = (0, 0);
        for bucket in &self.buckets {
            seen += u128::from(bucket.count);
            if seen >= rank {
                return Some(Range {
                    from_us,
                    below_us: bucket.below_us,
                });
            }
            from_us = bucket.below_us.unwrap_or(from_us);
        }
        None
    }

    /// Returns the buckets from the first to the last that is not empty, and the lower bound of the
    /// first.
    pub fn filled(&self) -> (u64, &[Bucket]) {
        let is_filled = |b: &Bucket| b.count > 0;
        let Some(first) = self.buckets.iter().position(is_filled) else {
            return (0, &[]);
        };
        let last = self.buckets.iter().rposition(is_filled).unwrap_or(first);
        let from = first.checked_sub(1).and_then(|i| self.buckets[i].below_us);
        (from.unwrap_or(0), &self.buckets[first..=last])
    }
}

fn bucket(line: &str) -> Option<Bucket> {
    let mut words = line.split_whitespace();
    let (bound, count) = (words.next()?, words.next()?);
    let below_us = match bound {
        "inf" => None,
        number => Some(number.parse().ok()?),
    };
    let count = count.parse().ok()?;
    words.next().is_none().then_some(Bucket { below_us, count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(counts: &[u64]) -> Histogram {
        let last = counts.len() - 1;
        let bound = |i: usize| (i < last).then(|| 32 << i);
        let buckets = counts.iter().enumerate().map(|(i, &count)| Bucket {
            below_us: bound(i),
            count,
        });
        Histogram {
            buckets: buckets.collect(),
        }
    }

    #[test]
    fn the_kernels_format() {
        let read = Histogram::parse("32 17\n64 5\n128 0\ninf 1\n").unwrap();
        assert_eq!(read, of(&[17, 5, 0, 1]));
        assert_eq!(Histogram::parse("inf 3\n").unwrap(), of(&[3]));
    }

    #[test]
    fn what_is_malformed_is_named() {
        for (text, why) in [
            ("", "last bucket"),
            ("32 1\n", "last bucket"),
            ("32\ninf 0\n", "`32`"),
            ("32 1 2\ninf 0\n", "`32 1 2`"),
            ("32 -1\ninf 0\n", "`32 -1`"),
            ("x 1\ninf 0\n", "`x 1`"),
            ("64 1\n32 1\ninf 0\n", "`32 1` is out of order"),
            ("32 1\n32 1\ninf 0\n", "out of order"),
            ("inf 0\n32 1\ninf 0\n", "out of order"),
            ("inf 0\ninf 0\n", "out of order"),
            ("32 1\n\ninf 0\n", "malformed"),
        ] {
            let error = Histogram::parse(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn percentiles_are_bucket_bounds() {
        let times = of(&[50, 49, 0, 1]);
        let range = |from_us, below_us| Some(Range { from_us, below_us });
        assert_eq!(times.percentile(500), range(0, Some(32)));
        assert_eq!(times.percentile(501), range(32, Some(64)));
        assert_eq!(times.percentile(990), range(32, Some(64)));
        assert_eq!(times.percentile(1000), range(128, None));
        assert_eq!(of(&[0, 0]).percentile(500), None);
        assert_eq!(Histogram::default().percentile(500), None);
        let most = of(&[u64::MAX, u64::MAX]);
        assert_eq!(most.percentile(990), range(32, None));
    }

    #[test]
    fn differences() {
        assert_eq!(of(&[5, 7]).since(&of(&[2, 7])), of(&[3, 0]));
        assert_eq!(of(&[1, 7]).since(&of(&[2, 6])), of(&[0, 1]), "backwards");
        assert_eq!(of(&[1, 7]).since(&of(&[2])), of(&[1, 7]), "other buckets");
    }

    #[test]
    fn empty_ends_are_left_out() {
        let times = of(&[0, 3, 0, 2, 0, 0]);
        let (from, filled) = times.filled();
        assert_eq!((from, filled), (32, &times.buckets[1..4]));
        assert_eq!(of(&[1, 0]).filled().0, 0);
        assert!(of(&[0, 0]).filled().1.is_empty());
    }

    proptest! {
        #[test]
        fn percentile_is_that_of_the_sorted_events(
            counts in prop::collection::vec(0_u64..40, 1..12),
            permille in 1_u32..=1000,
        ) {
            let times = of(&counts);
            // The bucket number of every event.
            let events: Vec<usize> = counts
                .iter()
                .enumerate()
                .flat_map(|(i, &count)| vec![i; count as usize])
                .collect();
            let naive = (1..=events.len())
                .find(|n| n * 1000 >= events.len() * permille as usize)
                .map(|n| events[n - 1]);
            let found = times.percentile(permille);
            prop_assert_eq!(found.map(|r| r.below_us), naive.map(|i| times.buckets[i].below_us));
            if let (Some(range), Some(i)) = (found, naive) {
                let from = if i == 0 { 0 } else { times.buckets[i - 1].below_us.unwrap() };
                prop_assert_eq!(range.from_us, from);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9 \n-]{0,60}") {
            let _ = Histogram::parse(&text);
        }
    }
}
