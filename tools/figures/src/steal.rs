// SPDX-License-Identifier: GPL-2.0-only
//! CPU time that the hypervisor gave to others while this machine wanted it. It makes figures vary.

use std::fs;

/// A share above this, in percent, causes a warning.
const MUCH: f64 = 3.0;

/// The CPU times at the start of a measurement.
pub struct Steal(Times);

/// CPU times of `/proc/stat`, in ticks since boot.
#[derive(Clone, Copy, Default)]
struct Times {
    wanted: u64,
    stolen: u64,
}

impl Times {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks: Vec<u64> = line
            .unwrap_or_default()
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        // Fields: user nice system idle iowait irq softirq steal. user and nice include guest time.
        let [user, nice, system, _, _, irq, softirq, stolen, ..] = ticks[..] else {
            return Self::default();
        };
        Self {
            wanted: user + nice + system + irq + softirq + stolen,
            stolen,
        }
    }
}

impl Steal {
    /// Begins a measurement.
    pub fn start() -> Self {
        Self(Times::now())
    }

    /// Returns the share of the CPU time wanted since the start that was stolen, in percent.
    pub fn percent(&self) -> f64 {
        Self::between(self.0, Times::now())
    }

    fn between(from: Times, to: Times) -> f64 {
        match to.wanted.saturating_sub(from.wanted) {
            0 => 0.0,
            wanted => 100.0 * to.stolen.saturating_sub(from.stolen) as f64 / wanted as f64,
        }
    }
}

/// Returns the warning for figures taken while this share was stolen, if it is large.
pub fn warning(percent: f64) -> Option<String> {
    (percent > MUCH).then(|| {
        format!(
            "warning: the hypervisor of this machine gave {percent:.0} % of the CPU time it wanted to others; \
             do not trust figures by time"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_of_what_was_wanted() {
        let from = Times::parse("cpu  100 0 50 900 7 1 2 10 0 0\ncpu0 1 1 1 1 1 1 1 1\n");
        let to = Times::parse("cpu  160 0 70 990 9 1 2 30 0 0\n");
        assert_eq!(Steal::between(from, to), 20.0);
        assert_eq!(Steal::between(to, to), 0.0);
        assert_eq!(Steal::between(Times::parse(""), Times::parse("cpu 1")), 0.0);
    }

    #[test]
    fn little_is_not_worth_a_word() {
        assert!(warning(1.0).is_none());
        assert!(warning(20.4).unwrap().contains("20 %"));
    }
}
