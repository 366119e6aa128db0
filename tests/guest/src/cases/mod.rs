// SPDX-License-Identifier: GPL-2.0-only
//! The functional tests, by topic.

mod accounting;
mod balance;
mod balancing;
mod compat;
mod counters;
mod crews;
mod differential;
pub mod disk;
pub mod dma;
mod errors;
mod faults;
mod generated;
mod hugetlb;
mod killed;
mod kinds;
mod large;
mod limits;
mod litmus;
mod lru_caches;
mod matrix;
mod method;
mod migrc;
mod nodes;
pub mod pinned;
pub mod policy;
mod programs;
mod promotion;
mod races;
mod retained;
mod rights;
mod runs;
mod seed;
mod service;
mod settings;
mod starved;
mod sysctl;
mod system;
mod tiers;
pub mod unplug;

use crate::harness::Case;
use crate::kernel;
pub use disk::{Disk, FileSystem, Tmpfs};

/// Returns the tests that this kernel supports.
pub fn all() -> Vec<Case> {
    of(kernel::has_engine(), kernel::has_service())
}

/// Returns the tests of all kernels.
pub fn every() -> Vec<Case> {
    of(true, true)
}

fn of(has_engine: bool, has_service: bool) -> Vec<Case> {
    let mut all = matrix::cases();
    all.extend(races::cases());
    all.extend(crews::cases());
    all.extend(pinned::cases());
    all.extend(errors::cases());
    all.extend(generated::cases());
    all.extend(compat::cases());
    all.extend(differential::cases());
    all.extend(lru_caches::cases());
    all.extend(policy::cases());
    all.extend(tiers::cases());
    all.extend(system::cases());
    all.extend(unplug::cases());
    if has_service {
        all.extend(service::cases());
    }
    all.extend(seed::cases());
    all.extend(programs::cases());
    if has_engine {
        all.extend(sysctl::cases());
        all.extend(settings::cases());
        all.extend(limits::cases());
        all.extend(counters::cases());
        all.extend(hugetlb::cases());
        all.extend(killed::cases());
        all.extend(faults::cases());
        all.extend(balance::cases());
        all.extend(balancing::cases());
        all.extend(accounting::cases());
        all.extend(method::cases());
        all.extend(dma::cases());
        all.extend(litmus::cases());
        all.extend(migrc::cases());
        all.extend(nodes::cases());
        all.extend(large::cases());
        all.extend(retained::cases());
        all.extend(rights::cases());
        all.extend(runs::cases());
        all.extend(starved::cases());
        all.extend(promotion::cases());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::every;
    use crate::harness::has;

    const SECURITY: &str = include_str!("../../../../docs/security.rst");

    #[test]
    fn tests_that_docs_name_exist() {
        let all: Vec<String> = every().into_iter().map(|case| case.name).collect();
        let is_group = |group: &str| {
            all.iter()
                .any(|name| name.starts_with(&format!("{group}/")))
        };
        let quoted = SECURITY.split("``").skip(1).step_by(2);
        let named: Vec<_> = quoted
            .filter(|text| {
                text.split_once('/')
                    .is_some_and(|(group, _)| is_group(group))
            })
            .collect();
        assert!(named.len() > 30, "{named:?}");
        for text in named {
            assert!(all.iter().any(|name| has(name, text)), "no test {text}");
        }
    }
}
