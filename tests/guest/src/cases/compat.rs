// SPDX-License-Identifier: GPL-2.0-only
//! `move_pages(2)` called as 32-bit programs do: the elements of `pages` have 32 bits. Ferry reads
//! many elements at once only for 64-bit programs, and leaves calls of 32-bit ones to mainline.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use fastrand::Rng;
use libc::{EFAULT, ENODEV};

use crate::harness::{Case, Log, expect};
use crate::kernel::Setting;
use crate::sys::{self, MF_MOVE, Mapping, PAGE, RawMove, Ret, UNSET, UserPtr};
use crate::{pattern, region};

/// Pages with contents; as many again were never touched.
const PAGES: usize = 512;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("compat/same-outcomes", same_outcomes),
        Case::new("compat/array-ends", array_ends),
    ]
}

/// A list: its name; an index into the memory for each element, or `None` for the address 0; the
/// nodes; and the result of the call.
type List = (&'static str, Vec<Option<usize>>, Vec<i32>, Ret);

fn lists() -> Vec<List> {
    let in_order: Vec<_> = (0..PAGES).map(Some).collect();
    let mut shuffled: Vec<_> = (0..2 * PAGES).map(Some).collect();
    Rng::with_seed(1).shuffle(&mut shuffled);
    let mut holes = in_order.clone();
    holes.iter_mut().step_by(50).for_each(|page| *page = None);
    let by_turns = (0..PAGES).map(|page| (page / 40 % 2) as i32).collect();
    let mut bad_node = vec![1; PAGES];
    bad_node[PAGES / 2] = 9;
    let (to_1, ok) = (vec![1; PAGES], Ret::default());
    vec![
        ("in order", in_order.clone(), to_1.clone(), ok),
        ("shuffled, half untouched", shuffled, vec![1; 2 * PAGES], ok),
        ("with address 0", holes, to_1, ok),
        ("to both nodes", in_order.clone(), by_turns, ok),
        ("a bad node", in_order, bad_node, Ret::failed(ENODEV)),
    ]
}

/// Returns the memory to move, on node 0 and at 32-bit addresses.
fn memory() -> Result<Mapping> {
    let map = sys::low_memory(2 * PAGES * PAGE)?;
    sys::mbind(map.addr(), map.len(), 0, 0).zero("mbind")?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    pattern::fill(&map.words()[..PAGES * PAGE / 8], 1);
    Ok(map)
}

/// Arrays of a call at 32-bit addresses, whose elements have 32 bits.
struct Arrays {
    count: usize,
    pages: Mapping,
    nodes: Mapping,
    status: Mapping,
}

impl Arrays {
    fn new(pages: &[usize], nodes: &[i32]) -> Result<Self> {
        let array = |values: &[u32]| -> Result<Mapping> {
            let map = sys::low_memory((values.len() * 4).next_multiple_of(PAGE))?;
            for (word, pair) in map.words().iter().zip(values.chunks(2)) {
                let high = pair.get(1).copied().unwrap_or_default();
                word.store(u64::from(pair[0]) | u64::from(high) << 32, Relaxed);
            }
            Ok(map)
        };
        let pages: Vec<u32> = pages.iter().map(|&page| page as u32).collect();
        let nodes: Vec<u32> = nodes.iter().map(|&node| node as u32).collect();
        Ok(Self {
            count: pages.len(),
            status: array(&vec![UNSET as u32; pages.len()])?,
            pages: array(&pages)?,
            nodes: array(&nodes)?,
        })
    }

    fn call(&self) -> RawMove<'_> {
        RawMove {
            pid: 0,
            count: self.count,
            pages: UserPtr::In(&self.pages, 0),
            nodes: UserPtr::In(&self.nodes, 0),
            status: UserPtr::In(&self.status, 0),
            flags: MF_MOVE,
        }
    }

    fn status(&self) -> Vec<i32> {
        let words = self.status.words().iter().map(|word| word.load(Relaxed));
        let all = words.flat_map(|word| [word as i32, (word >> 32) as i32]);
        all.take(self.count).collect()
    }
}

/// Calls of both kinds have the same result, statuses and effect.
fn same_outcomes(log: &mut Log) -> Result<()> {
    let _runs = Setting::change_if_there(super::runs::ENABLED, "always")?;
    for (name, list, nodes, wanted) in lists() {
        let (short, long) = (memory()?, memory()?);
        let addrs = |map: &Mapping| -> Vec<usize> {
            let addr = |page: &Option<usize>| page.map_or(0, |page| map.addr() + page * PAGE);
            list.iter().map(addr).collect()
        };
        let arrays = Arrays::new(&addrs(&short), &nodes)?;
        let ret = sys::move_pages_32(&arrays.call())?;
        let mut status = vec![UNSET; list.len()];
        let long_ret = sys::move_pages(0, &addrs(&long), &nodes, &mut status, MF_MOVE);
        log.note(name, ret, &arrays.status());
        let outcome = |map: &Mapping, ret: Ret, status: Vec<i32>| -> Result<_> {
            pattern::check(&map.words()[..PAGES * PAGE / 8], 1)?;
            Ok((ret, status, sys::places(0, &map.addrs(PAGE))?))
        };
        let got = outcome(&short, ret, arrays.status()).context(name)?;
        expect(name, got, outcome(&long, long_ret, status)?)?;
        expect(name, ret, wanted)?;
    }
    Ok(())
}

/// An array that ends in a page without access. Pages whose elements could be read have moved.
fn array_ends(log: &mut Log) -> Result<()> {
    const READABLE: usize = 100;
    let map = memory()?;
    let addrs = &map.addrs(PAGE)[..PAGES];
    let whole = Arrays::new(addrs, &[1; PAGES])?;
    let pages = sys::low_memory(2 * PAGE)?;
    let start = PAGE - 4 * READABLE;
    for (at, word) in (start..PAGE).step_by(8).zip(whole.pages.words()) {
        pages.words()[at / 8].store(word.load(Relaxed), Relaxed);
    }
    pages.protect(PAGE, PAGE, libc::PROT_NONE)?;
    let ret = sys::move_pages_32(&RawMove {
        pages: UserPtr::In(&pages, start),
        ..whole.call()
    })?;
    log.note("pages end", ret, &whole.status());
    expect("return", ret, Ret::failed(EFAULT))?;
    region::check_on(&addrs[..READABLE], 1)?;
    region::check_on(&addrs[READABLE..], 0)?;
    pattern::check(&map.words()[..PAGES * PAGE / 8], 1)
}
