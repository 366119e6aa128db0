// SPDX-License-Identifier: GPL-2.0-only

//! How much may be promoted a second: a bucket of bytes.

/// Bytes of a MB, as NUMA balancing's limit counts them.
pub const MB: u64 = 1 << 20;

/// Bytes that may be saved up at least, of any rate but none: a batch of mainline's.
const LEAST_BURST: u64 = 2 * MB;

/// A bucket. It may be in debt for a folio.
#[derive(Default)]
pub struct Bucket {
    bytes: i64,
    since_us: u64,
    /// What is left of a byte, in parts of a million.
    part: u64,
}

/// Bytes that may be saved up.
fn most(bytes_per_s: u64) -> u64 {
    match bytes_per_s {
        0 => 0,
        _ => (bytes_per_s / 10).max(LEAST_BURST),
    }
}

impl Bucket {
    /// Lets in what came since the last time, at a rate in bytes a second: at most what a tenth of
    /// a second does.
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
        // Past a second all is full, at any rate.
        let us = now_us.saturating_sub(self.since_us).min(1_000_000);
        self.since_us = now_us;
        let parts = bytes_per_s.saturating_mul(us).saturating_add(self.part);
        self.part = parts % 1_000_000;
        let bytes = self.bytes.saturating_add((parts / 1_000_000) as i64);
        self.bytes = bytes.min(most(bytes_per_s) as i64);
    }

    /// Whether half of what may be saved up is there: who looks for what to promote earlier finds
    /// that it may hardly promote anything.
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
        let most = most(bytes_per_s) as i64;
        most > 0 && self.bytes >= most / 2
    }

    /// Takes what a folio has; `false`: there is nothing left.
    pub fn take(&mut self, bytes: u64) -> bool {
        if self.bytes <= 0 {
            return false;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }

    /// Gives back what was taken and not used.
    pub fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes as i64);
    }
}
