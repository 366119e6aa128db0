// SPDX-License-Identifier: GPL-2.0-only
//! Names of counters, and formats of numbers, for people.

use super::{
    histogram::Range,
    rates::{Count, Counts},
    sample::Times,
};

/// Counters that are shown elsewhere.
const ELSEWHERE: [&str; 9] = [
    "batches",
    "pages_caller",
    "pages_helper",
    "pages_dma",
    "crews",
    "crew_pages_caller",
    "crew_pages_helper",
    "helper_usec",
    "pgmigrate_success",
];

/// Reasons for not sharing pages (or lists, where the text says so).
const WHY: [(&str, &str); 15] = [
    ("serial_small", "too few to share"),
    ("serial_alone", "no idle CPU may help"),
    ("serial_busy", "all lanes in use"),
    ("refused_pinned", "has unexpected references"),
    ("refused_private", "has private data"),
    ("refused_mapping", "unsupported mapping"),
    ("refused_movable_ops", "is a driver's page"),
    ("refused_full", "no room in the lane"),
    ("copy_failed", "source folio is poisoned"),
    ("dma_failed", "copied again: engine failed"),
    ("dma_late", "engine timed out"),
    ("crew_small", "lists too short"),
    ("crew_alone", "lists: no idle CPU may help"),
    ("crew_busy", "lists: too many crews"),
    ("pgmigrate_fail", "not migrated at all"),
];

const DEMOTED: &str = "pgdemote_";

#[derive(Clone)]
pub struct Row {
    pub words: String,
    pub count: Count,
}

/// Returns the counts of pages left to the caller, by reason: the known reasons in order, then
/// unknown counters of newer kernels.
pub fn left_alone(counters: &Counts) -> Vec<Row> {
    let known = WHY.iter().filter_map(|&(name, words)| {
        let count = *counters.get(name)?;
        let words = words.to_owned();
        Some(Row { words, count })
    });
    let is_known = |name: &str| ELSEWHERE.contains(&name) || WHY.iter().any(|why| why.0 == name);
    let others = counters
        .iter()
        .filter(|(name, _)| !is_known(name) && !name.starts_with(DEMOTED))
        .map(|(name, &count)| Row {
            words: name.clone(),
            count,
        });
    known.chain(others).collect()
}

/// Returns demoted pages, by the cause of demotion.
pub fn demoted(counters: &Counts) -> Vec<Row> {
    let row = |(name, &count): (&String, &Count)| {
        let words = name.strip_prefix(DEMOTED)?.to_owned();
        Some(Row { words, count })
    };
    counters.iter().filter_map(row).collect()
}

/// Returns counts by name, such as the pages that helpers handled by reason.
pub fn named(counts: &Counts) -> Vec<Row> {
    let row = |(name, &count): (&String, &Count)| Row {
        words: name.replace('_', " "),
        count,
    };
    counts.iter().map(row).collect()
}

/// Returns the cgroups whose pages were migrated, those with most pages first.
pub fn cgroups(counts: &Counts) -> Vec<Row> {
    let row = |(name, &count): (&String, &Count)| Row {
        words: name.clone(),
        count,
    };
    let migrated = counts.iter().filter(|(_, count)| count.total > 0);
    let mut rows: Vec<Row> = migrated.map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.count.gained, row.count.total)));
    rows
}

/// Formats a number of bytes, in binary units.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x40_0000 => format!("{} KB", bytes >> 10),
        0x40_0000..0x1_0000_0000 => format!("{} MB", bytes >> 20),
        _ => format!("{} GB", bytes >> 30),
    }
}

/// Formats a number with three digits and a decimal unit.
pub fn short(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G", "T"] {
        if number < 999.5 {
            return if unit.is_empty() && number.fract() == 0.0 || number >= 99.95 {
                format!("{number:.0}{unit}")
            } else if number >= 9.995 {
                format!("{number:.1}{unit}")
            } else {
                format!("{number:.2}{unit}")
            };
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

/// Formats microseconds.
pub fn time(us: u64) -> String {
    let (number, unit) = match us {
        0..1_000 => return format!("{us} us"),
        1_000..1_000_000 => (us as f64 / 1e3, "ms"),
        _ => (us as f64 / 1e6, "s"),
    };
    if number < 99.95 {
        format!("{number:.1} {unit}")
    } else {
        format!("{number:.0} {unit}")
    }
}

pub fn range(range: Option<Range>) -> String {
    match range {
        None => "-".to_owned(),
        Some(Range {
            below_us: Some(below),
            ..
        }) => format!("< {}", time(below)),
        Some(Range { from_us, .. }) => format!(">= {}", time(from_us)),
    }
}

/// Returns the median and the 99th percentile, or why there are none.
pub fn percentiles(times: &Times) -> String {
    match times {
        Err(why) => why.clone(),
        Ok(times) if times.events() == 0 => "none in this interval".to_owned(),
        Ok(times) => format!(
            "median {}, 99% {}",
            range(times.percentile(500)),
            range(times.percentile(990))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (0.25, "0.25"),
            (12.34, "12.3"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1234.0, "1.23k"),
            (131_072.0, "131k"),
            (12_345_678.0, "12.3M"),
            (u64::MAX as f64, "18447P"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn times_and_bounds() {
        assert_eq!(time(512), "512 us");
        assert_eq!(time(32_768), "32.8 ms");
        assert_eq!(time(524_288), "524 ms");
        assert_eq!(time(2_097_152), "2.1 s");
        let of = |from_us, below_us| range(Some(Range { from_us, below_us }));
        assert_eq!(of(32, Some(64)), "< 64 us");
        assert_eq!(of(64, None), ">= 64 us");
        assert_eq!(range(None), "-");
    }

    #[test]
    fn every_counter_is_shown_once() {
        let count = Count::default();
        let names = ["serial_small", "ferry_later", "pgdemote_kswapd", "crews"];
        let counters: Counts = names.map(|name| (name.to_owned(), count)).into();
        let words = |rows: Vec<Row>| rows.into_iter().map(|r| r.words).collect::<Vec<_>>();
        assert_eq!(
            words(left_alone(&counters)),
            ["too few to share", "ferry_later"]
        );
        assert_eq!(words(demoted(&counters)), ["kswapd"]);
    }
}
