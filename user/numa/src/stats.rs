// SPDX-License-Identifier: GPL-2.0-only
//! The number of timed calls in a run, and the figures derived from them.

use std::time::Duration;

/// Short calls are repeated for this time, so that a scheduler tick has little weight.
const RUN: Duration = Duration::from_millis(60);
const MAX_CALLS: usize = 256;

/// Returns whether a run of `calls` calls in `elapsed` is long enough. Runs have an even number of
/// calls, at least two, so both directions weigh the same.
pub fn enough(calls: usize, elapsed: Duration, asked: Option<Duration>) -> bool {
    let long = match asked {
        Some(asked) => elapsed >= asked,
        None => elapsed >= RUN || calls >= MAX_CALLS,
    };
    calls >= 2 && calls % 2 == 0 && long
}

/// Returns the middle value, or the mean of the two in the middle; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[mid]),
        _ => Some((sorted[mid - 1] + sorted[mid]) / 2.0),
    }
}

/// Returns the throughput in 1e9 bytes a second.
pub fn gbps(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_even_and_bounded() {
        let calls = |each: Duration| (0..).find(|&n| enough(n as usize, each * n, None));
        assert_eq!(calls(Duration::ZERO), Some(MAX_CALLS as u32));
        assert_eq!(calls(RUN / 9), Some(10));
        assert_eq!(calls(RUN / 4), Some(4));
        assert_eq!(calls(RUN * 10), Some(2));
    }

    #[test]
    fn a_run_is_as_long_as_it_is_asked_to_be() {
        let asked = Some(RUN * 10);
        assert!(!enough(2 * MAX_CALLS, RUN * 9, asked));
        assert!(!enough(1, RUN * 10, asked));
        assert!(enough(2, RUN * 10, asked));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn throughput() {
        assert_eq!(gbps(2_000_000_000, 0.5), 4.0);
    }
}
