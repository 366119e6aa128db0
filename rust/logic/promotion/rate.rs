// SPDX-License-Identifier: GPL-2.0-only

//! Rate limit of promotion: a token bucket of bytes.
//!
//! `a_rate_is_kept` in `tests/logic/promotion.rs` checks the limit with proptest.

/// Bytes in a MB, as in the rate limit of NUMA balancing.
pub const MB: u64 = 1 << 20;

/// Minimum burst in bytes, for any rate above 0: the size of a batch in mainline.
const MIN_BURST: u64 = 2 * MB;

/// A token bucket. It may be overdrawn by one folio.
#[derive(Default)]
pub struct Bucket {
    /// Bytes that may be taken; negative if it is overdrawn.
    bytes: i64,
    /// Time of the last refill.
    since_us: u64,
    /// The fraction of a byte that was not added yet, in millionths.
    fraction: u64,
}

/// Returns the capacity of the bucket in bytes.
fn capacity(bytes_per_s: u64) -> u64 {
    match bytes_per_s {
        0 => 0,
        _ => (bytes_per_s / 10).max(MIN_BURST),
    }
}

impl Bucket {
    /// Adds the bytes that accrued since the last call at `bytes_per_s`. The bucket holds a tenth
    /// of a second's worth, and at least 2 MB.
    ///
    /// ```
    /// use ferry_logic::promotion::rate::{Bucket, MB};
    ///
    /// let mut bucket = Bucket::default();
    /// bucket.refill(1_000_000, 64 * MB);
    /// bucket.refill(1_050_000, 64 * MB);
    /// let mut taken = 0;
    /// while bucket.take(4096) {
    ///     taken += 4096;
    /// }
    /// assert!((6 * MB..7 * MB).contains(&taken));
    /// ```
    pub fn refill(&mut self, now_us: u64, bytes_per_s: u64) {
        // A second fills the bucket at any rate.
        let us = now_us.saturating_sub(self.since_us).min(1_000_000);
        self.since_us = now_us;
        let parts = bytes_per_s.saturating_mul(us).saturating_add(self.fraction);
        self.fraction = parts % 1_000_000;
        let bytes = self.bytes.saturating_add((parts / 1_000_000) as i64);
        self.bytes = bytes.min(capacity(bytes_per_s) as i64);
    }

    /// Returns whether the bucket is at least half full. A worker that looks for hot folios earlier
    /// could hardly promote any.
    ///
    /// ```
    /// use ferry_logic::promotion::rate::{Bucket, MB};
    ///
    /// let mut bucket = Bucket::default();
    /// bucket.refill(1_000, 4 * MB);
    /// assert!(!bucket.is_half_full(4 * MB));
    /// bucket.refill(260_000, 4 * MB);
    /// assert!(bucket.is_half_full(4 * MB));
    /// assert!(!bucket.is_half_full(0));
    /// ```
    pub fn is_half_full(&self, bytes_per_s: u64) -> bool {
        let capacity = capacity(bytes_per_s) as i64;
        capacity > 0 && self.bytes >= capacity / 2
    }

    /// Takes the bytes of a folio. Returns `false` if the bucket is empty.
    pub fn take(&mut self, bytes: u64) -> bool {
        if self.bytes <= 0 {
            return false;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }

    /// Returns bytes that were taken and not used.
    pub fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes as i64);
    }
}
