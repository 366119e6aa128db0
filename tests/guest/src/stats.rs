// SPDX-License-Identifier: GPL-2.0
//! How many timed calls make a run, and the one figure they give.

/// Runs that move less than this are repeated, so that one scheduler tick does not decide.
const ENOUGH_BYTES: usize = 4 << 20;
const MAX_CALLS: usize = 64;

/// Timed calls in one run: always even, so that a run weighs both directions alike.
pub fn calls_per_run(bytes_per_call: usize) -> usize {
    if bytes_per_call >= ENOUGH_BYTES {
        return 2;
    }
    ENOUGH_BYTES
        .div_ceil(bytes_per_call)
        .clamp(8, MAX_CALLS)
        .next_multiple_of(2)
}

/// The middle value, or the mean of the two in the middle; `None` of nothing.
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

/// Throughput in units of 1e9 bytes a second.
pub fn gbps(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_even_and_bounded() {
        for bytes in [4096, 65536, 1 << 20, (4 << 20) - 4096, 4 << 20, 1 << 30] {
            let calls = calls_per_run(bytes);
            assert!(
                calls % 2 == 0 && (2..=MAX_CALLS).contains(&calls),
                "{bytes}"
            );
        }
        assert_eq!(calls_per_run(4096), MAX_CALLS);
        assert_eq!(calls_per_run(64 << 20), 2);
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
