// SPDX-License-Identifier: GPL-2.0-only
//! Calls of `move_pages(2)` from a random generator with fixed seeds: long and short lists, valid,
//! invalid and mixed. The results are recorded, to compare with the vanilla kernel's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::harness::{Case, Log};
use crate::kernel::{self, Setting};
use crate::plan::FolioSize;
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, Mapping, PAGE, RawMove, Reserved, UNSET, UserPtr};
use crate::{pattern, region};

/// Number of tests, and of calls in each: ten thousand in all. A debug kernel makes fewer calls.
const SEEDS: u64 = 10;
const CALLS: usize = 1000;
const CALLS_IF_SLOW: usize = 60;

/// Small private pages, which most calls name.
const OWN: usize = 640;
/// Pages of each special kind.
const FEW: usize = 16;
/// Longest list.
const MOST: usize = 1024;

/// Number of status values to record one by one; longer lists are recorded as a hash.
const MANY: usize = 64;

pub fn cases() -> Vec<Case> {
    (0..SEEDS)
        .map(|seed| {
            Case::new(format!("generated/{seed}"), move |log: &mut Log| {
                generated(log, seed)
            })
            .limit(400)
        })
        .collect()
}

fn generated(log: &mut Log, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    // Half of the tests use runs also where the engine is off.
    let with_runs = match seed % 2 {
        0 => None,
        _ => Setting::change_if_there(super::runs::ENABLED, "always")?,
    };
    let before = kernel::counters()?;
    let world = World::new()?;
    let calls = if kernel::is_slow() {
        CALLS_IF_SLOW
    } else {
        CALLS
    };
    for nr in 0..calls {
        if rng.u8(..) < 96 {
            region::move_map(&world.own, rng.i32(0..2)).context("moving all pages to one node")?;
        }
        let call = Call::new(&mut rng, &world);
        world.run(log, nr, &call)?;
        if nr % 32 == 0 || nr + 1 == calls {
            pattern::check(world.own.words(), 1)?;
            pattern::check(world.file.words(), 2)?;
            pattern::check(world.huge.words(), 3)?;
        }
    }
    let gained = kernel::gained(&before, &kernel::counters()?);
    if with_runs.is_some() {
        ensure_gain(&gained, "run_pages")?;
    }
    // Crews need another CPU. The kernels of the series' first topics have none.
    if kernel::has_crews() && kernel::engine_is_on()? && kernel::online_cpus()?.len() > 1 {
        ensure_gain(&gained, "crews")?;
    }
    Ok(())
}

/// Checks that a counter has grown.
fn ensure_gain(gained: &BTreeMap<String, u64>, row: &str) -> Result<()> {
    ensure!(
        gained.get(row).copied().unwrap_or_default() > 0,
        "expected {row} to grow: {gained:?}"
    );
    Ok(())
}

/// Memory of all kinds, and the arrays that name it. An inaccessible page follows each array.
struct World {
    own: Mapping,
    /// A memfd, mapped twice.
    file: Mapping,
    alias: Mapping,
    huge: Mapping,
    /// Never written.
    zero: Mapping,
    untouched: Mapping,
    hole: Reserved,
    pages: Mapping,
    nodes: Mapping,
    status: Mapping,
}

impl World {
    fn new() -> Result<Self> {
        let own = region::filled(FolioSize::Small, OWN, 1)?;
        let fd = memfd_create(c"generated", MFdFlags::empty()).context("memfd_create")?;
        nix::unistd::ftruncate(&fd, (FEW * PAGE) as i64).context("ftruncate")?;
        let file = Mapping::file(&fd, FEW * PAGE, libc::MAP_SHARED, PAGE)?;
        let alias = Mapping::file(&fd, FEW * PAGE, libc::MAP_SHARED, PAGE)?;
        pattern::fill(file.words(), 2);
        pattern::check(alias.words(), 2)?;
        let huge = region::large(1, 3)?.0;
        let zero = Mapping::anon(FEW * PAGE, PAGE)?;
        zero.advise(0, FEW * PAGE, libc::MADV_NOHUGEPAGE)?;
        ensure!(
            zero.words().iter().all(|word| word.load(Relaxed) == 0),
            "expected zeroes in fresh memory"
        );
        Ok(Self {
            own,
            file,
            alias,
            huge,
            zero,
            untouched: Mapping::anon(FEW * PAGE, PAGE)?,
            hole: Reserved::new(FEW * PAGE)?,
            pages: Mapping::before_a_hole(MOST * 8)?,
            nodes: Mapping::before_a_hole(MOST * 4)?,
            status: Mapping::before_a_hole(MOST * 4)?,
        })
    }

    /// Makes the call and records its result.
    fn run(&self, log: &mut Log, nr: usize, call: &Call) -> Result<()> {
        let count = call.addrs.len();
        let nodes = match call.status_over_nodes {
            Some(_) => &self.status,
            None => &self.nodes,
        };
        let at = |array: &Mapping, size: usize, ends_after: usize| {
            array.len() - PAGE - ends_after.min(count) * size
        };
        let (pages_at, status_at) = (
            at(&self.pages, 8, call.pages),
            at(&self.status, 4, call.status),
        );
        let nodes_at = match call.status_over_nodes {
            Some(behind) => status_at.saturating_add_signed(-4 * behind),
            None => at(&self.nodes, 4, call.nodes_end),
        };
        fill_status(&self.status);
        for (addr, word) in call
            .addrs
            .iter()
            .zip(&self.pages.words()[pages_at / 8..self.room(&self.pages)])
        {
            word.store(*addr as u64, Relaxed);
        }
        for (i, &node) in call.nodes.iter().enumerate() {
            let byte = nodes_at + i * 4;
            if byte < nodes.len() - PAGE {
                store_i32(nodes.words(), byte / 4, node);
            }
        }
        let ret = sys::move_pages_raw(&RawMove {
            pid: 0,
            count,
            pages: UserPtr::In(&self.pages, pages_at),
            nodes: UserPtr::In(nodes, nodes_at),
            status: UserPtr::In(&self.status, status_at),
            flags: call.flags,
        });
        let told: Vec<i32> = (status_at / 4..(self.status.len() - PAGE) / 4)
            .take(count)
            .map(|i| load_i32(self.status.words(), i))
            .collect();
        log.note(format!("{nr}: {}", call.name), ret, &in_short(&told));

        let addrs = self.own.addrs(PAGE);
        let mut nodes = vec![UNSET; addrs.len()];
        let ret = sys::query_nodes(0, &addrs, &mut nodes);
        log.note(format!("{nr}: then"), ret, &in_short(&nodes));
        Ok(())
    }

    fn room(&self, array: &Mapping) -> usize {
        (array.len() - PAGE) / 8
    }

    /// Returns an address of a random kind.
    fn any(&self, rng: &mut Rng) -> usize {
        let few = rng.usize(..FEW) * PAGE;
        match rng.u8(..9) {
            0 => self.file.addr() + few,
            1 => self.alias.addr() + few,
            2 => self.huge.addr() + few * 7 % self.huge.len(),
            3 => self.zero.addr() + few,
            4 => self.untouched.addr() + few,
            5 => self.hole.addr() + few,
            6 => *rng
                .choice(&[
                    0,
                    1 << 47,
                    0xffff_8880_0000_0000,
                    usize::MAX,
                    1 << 56 | self.own.addr(),
                ])
                .unwrap_or(&0),
            _ => self.own.addr() + rng.usize(..OWN) * PAGE,
        }
    }
}

/// One generated call.
struct Call {
    name: String,
    addrs: Vec<usize>,
    nodes: Vec<i32>,
    flags: i32,
    /// Number of elements before the end of each array, if the array is that long.
    pages: usize,
    nodes_end: usize,
    status: usize,
    /// Distance in elements between the status array and `nodes`, if they share memory.
    status_over_nodes: Option<isize>,
}

impl Call {
    fn new(rng: &mut Rng, world: &World) -> Self {
        let count = match rng.u8(..8) {
            0 => rng.usize(1..16),
            1 | 2 => rng.usize(16..256),
            _ => rng.usize(256..OWN),
        };
        let (order, addrs) = addresses(rng, world, count);
        let (whither, nodes) = nodes(rng, addrs.len());
        let ends = |rng: &mut Rng| match rng.u8(..24) {
            0 => rng.usize(..addrs.len()),
            _ => usize::MAX,
        };
        let (pages, nodes_end, status) = (ends(rng), ends(rng), ends(rng));
        let status_over_nodes = (rng.u8(..8) == 0).then(|| rng.isize(-3..4));
        let all = rng.u8(..8) == 0;
        Self {
            name: format!(
                "{} {order} {whither}{}, status over nodes: {status_over_nodes:?}",
                addrs.len(),
                if all { ", all" } else { "" },
            ),
            addrs,
            nodes,
            flags: if all { MF_MOVE_ALL } else { MF_MOVE },
            pages,
            nodes_end,
            status,
            status_over_nodes,
        }
    }
}

/// Generates the list of addresses, and a description of it.
fn addresses(rng: &mut Rng, world: &World, count: usize) -> (&'static str, Vec<usize>) {
    let first = rng.usize(..=OWN - count);
    let mut addrs: Vec<usize> = (first..first + count)
        .map(|page| world.own.addr() + page * PAGE)
        .collect();
    let order = match rng.u8(..8) {
        0 | 1 => "ascending",
        2 => {
            for _ in 0..1 + count / 256 {
                let at = rng.usize(..count);
                addrs[at] = world.any(rng);
            }
            "ascending, but for some"
        }
        3 => {
            for _ in 0..1 + count / 400 {
                let again = addrs[rng.usize(..addrs.len())] + rng.usize(..PAGE);
                addrs.insert(rng.usize(..=addrs.len()), again);
            }
            "ascending, some twice"
        }
        4 => {
            addrs.reverse();
            "descending"
        }
        5 => {
            rng.shuffle(&mut addrs);
            "shuffled"
        }
        6 => {
            let rest = addrs.split_off(count / 2);
            addrs.splice(0..0, rest);
            "in two parts"
        }
        _ => {
            addrs.iter_mut().for_each(|addr| *addr = world.any(rng));
            "of all kinds"
        }
    };
    (order, addrs)
}

/// Generates the list of destination nodes, and a description of it.
fn nodes(rng: &mut Rng, count: usize) -> (&'static str, Vec<i32>) {
    let node = rng.i32(0..2);
    let mut nodes = vec![node; count];
    let whither = match rng.u8(..8) {
        0 => {
            let length = rng.usize(1..400);
            for (at, node) in nodes.iter_mut().enumerate() {
                *node ^= (at / length % 2) as i32;
            }
            "by turns"
        }
        1 => {
            let bad = rng.choice(&[-1, 2, 63, 1024, i32::MAX]).unwrap_or(&-1);
            nodes[rng.usize(..count)] = *bad;
            "to a bad node"
        }
        _ => "to a node",
    };
    (whither, nodes)
}

fn fill_status(status: &Mapping) {
    let pair = UNSET as u64 | (UNSET as u64) << 32;
    for word in &status.words()[..(status.len() - PAGE) / 8] {
        word.store(pair, Relaxed);
    }
}

fn load_i32(words: &[AtomicU64], at: usize) -> i32 {
    (words[at / 2].load(Relaxed) >> (at % 2 * 32)) as i32
}

fn store_i32(words: &[AtomicU64], at: usize, value: i32) {
    let shift = at % 2 * 32;
    let word = &words[at / 2];
    let rest = word.load(Relaxed) & !(u64::from(u32::MAX) << shift);
    word.store(rest | u64::from(value as u32) << shift, Relaxed);
}

/// Returns run-length encoded values, or a hash of them if there are many.
pub fn in_short(values: &[i32]) -> Vec<i32> {
    let mut short: Vec<i32> = Vec::new();
    for run in values.chunk_by(|a, b| a == b) {
        short.extend([run[0], run.len() as i32]);
    }
    if short.len() > MANY {
        let sum = short.iter().fold(0u64, |sum, &value| {
            (sum ^ u64::from(value as u32)).wrapping_mul(0x100_0000_01b3)
        });
        return vec![UNSET, short.len() as i32, (sum >> 32) as i32, sum as i32];
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_short_keeps_apart_what_differs() {
        assert!(in_short(&[]).is_empty());
        assert_eq!(in_short(&[1, 1, -2, 1]), [1, 2, -2, 1, 1, 1]);
        let many: Vec<i32> = (0..100).collect();
        let mut other = many.clone();
        other.swap(3, 4);
        assert_ne!(in_short(&many), in_short(&other));
        assert!(in_short(&many).len() <= MANY);
    }

    #[test]
    fn halves_of_words() {
        let words = [AtomicU64::new(0), AtomicU64::new(u64::MAX)];
        for (at, value) in [(0, 5), (1, -7), (2, 9)] {
            store_i32(&words, at, value);
            assert_eq!(load_i32(&words, at), value);
        }
        assert_eq!(load_i32(&words, 3), -1);
    }
}
