// SPDX-License-Identifier: GPL-2.0-only
//! Messages in the kernel log that report an error of the kernel.

/// Parts of these messages. Reports of RCU stalls are left out: a busy host can delay an emulated CPU
/// beyond the stall timeout.
const ALARMS: [&str; 13] = [
    "BUG:",
    "WARNING:",
    "KASAN:",
    "UBSAN:",
    "Oops",
    "Kernel panic",
    "general protection",
    "Bad page",
    "possible circular locking",
    "possible recursive locking",
    "inconsistent lock state",
    "blocked for more than",
    "refcount_t:",
];

/// Returns whether a line of the kernel log reports an error of the kernel.
pub fn is_alarm(line: &str) -> bool {
    ALARMS.iter().any(|alarm| line.contains(alarm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_error_reports_are_alarms() {
        let reports = [
            "[    1.0] BUG: KASAN: slab-use-after-free in ferry_copy",
            "[    1.0] WARNING: CPU: 0 PID: 1 at mm/migrate.c:1",
            "[    1.0] INFO: task x:1 blocked for more than 122 seconds.",
            "[    1.0] Oops: general protection fault, probably for non-canonical address",
        ];
        assert!(reports.into_iter().all(is_alarm));
        let others = [
            "",
            "[    1.0] page dumped because: unmovable page",
            "[    1.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
        ];
        assert!(!others.into_iter().any(is_alarm));
    }
}
