// SPDX-License-Identifier: GPL-2.0-only
//! Results of `move_pages(2)`, `migrate_pages(2)` and `mbind(2)` for invalid arguments; they are
//! the same on every kernel.

mod full_node;

use anyhow::{Result, ensure};
use libc::{EACCES, EBUSY, EFAULT, EINVAL, ENODEV, ENOENT, ESRCH};

use crate::harness::{Case, Log, expect};
use crate::plan::FolioSize;
use crate::sys::{
    self, MF_MOVE, MF_MOVE_ALL, MF_STRICT, Mapping, PAGE, RawMove, Reserved, Ret, UNSET, UserPtr,
};
use crate::{pattern, region};

const PAGES: usize = 8;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("errors/bad-node", bad_node),
        Case::new("errors/node-goes-bad-midway", node_goes_bad_midway),
        Case::new("errors/both-nodes-in-one-list", both_nodes),
        Case::new("errors/unmapped", unmapped),
        Case::new("errors/zero-page", zero_page),
        Case::new("errors/same-page-twice", same_page_twice),
        Case::new("errors/already-there", already_there),
        Case::new("errors/bad-arrays", bad_arrays),
        Case::new("errors/arrays-end-midway", arrays_end_midway),
        Case::new("errors/query", query),
        Case::new("errors/query-bad-arrays", query_bad_arrays),
        Case::new("errors/no-pages", no_pages),
        Case::new("errors/flags", flags),
        Case::new("errors/no-such-process", no_such_process),
        Case::new("errors/migrate_pages", migrate_pages),
        Case::new("errors/mbind", mbind),
        Case::new("errors/node-full", full_node::node_full).limit(120),
        Case::new("errors/node-full-mbind", full_node::node_full_mbind).limit(120),
        Case::new(
            "errors/huge-pages-to-full-node",
            full_node::huge_pages_to_full_node,
        )
        .limit(120),
    ]
}

/// Maps eight small pages on node 0 and fills them.
fn pages() -> Result<Mapping> {
    region::filled(FolioSize::Small, PAGES, 1)
}

/// Makes a call, records its result, and checks the contents.
fn call(
    log: &mut Log,
    name: &str,
    map: &Mapping,
    addrs: &[usize],
    nodes: &[i32],
) -> Result<(Ret, Vec<i32>)> {
    let mut status = vec![UNSET; addrs.len()];
    let ret = sys::move_pages(0, addrs, nodes, &mut status, MF_MOVE);
    log.note(name, ret, &status);
    pattern::check(map.words(), 1)?;
    Ok((ret, status))
}

fn bad_node(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    for node in [-1, 2, 63, 64, 1023, 1024, 99_999, i32::MAX, i32::MIN] {
        let (ret, status) = call(
            log,
            &format!("to node {node}"),
            &map,
            &addrs,
            &[node; PAGES],
        )?;
        expect("return", ret, Ret::failed(ENODEV))?;
        expect("status", status, vec![UNSET; PAGES])?;
    }
    region::check_on(&addrs, 0)
}

fn node_goes_bad_midway(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    let (ret, status) = call(
        log,
        "4 good, 1 bad, 3 good",
        &map,
        &addrs,
        &[1, 1, 1, 1, 9, 1, 1, 1],
    )?;
    expect("return", ret, Ret::failed(ENODEV))?;
    // Pages queued before the bad node still move.
    expect("status", status[..4].to_vec(), vec![1; 4])?;
    region::check_on(&addrs[..4], 1)?;
    region::check_on(&addrs[4..], 0)
}

fn both_nodes(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    let nodes = [1, 0, 1, 0, 1, 1, 0, 0];
    let (ret, status) = call(log, "by turns", &map, &addrs, &nodes)?;
    ret.zero("move_pages")?;
    expect("status", status, nodes.to_vec())?;
    let back = nodes.map(|n| 1 - n);
    let (ret, status) = call(log, "the other way", &map, &addrs, &back)?;
    ret.zero("move_pages")?;
    expect("status", status, back.to_vec())
}

fn unmapped(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let hole = Reserved::new(PAGE)?;
    let untouched = Mapping::anon(PAGE, PAGE)?;
    let mut addrs = map.addrs(PAGE);
    let gone = Mapping::anon(PAGE, PAGE)?.addr();
    (addrs[1], addrs[3], addrs[4], addrs[6]) = (gone, hole.addr(), untouched.addr(), 0);
    let (ret, status) = call(log, "holes between", &map, &addrs, &[1; PAGES])?;
    ret.zero("move_pages")?;
    expect(
        "status",
        status,
        vec![1, -EFAULT, 1, -ENOENT, -ENOENT, 1, -EFAULT, 1],
    )?;
    // Kernel addresses, and addresses that no process can have.
    let addrs = [
        usize::MAX & !(PAGE - 1),
        0xffff_8880_0000_0000,
        1 << 47,
        map.addr(),
    ];
    let (ret, status) = call(log, "no user addresses", &map, &addrs, &[1; 4])?;
    ret.zero("move_pages")?;
    expect("status", status, vec![-EFAULT, -EFAULT, -EFAULT, 1])
}

fn zero_page(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let zero = Mapping::anon(PAGE, PAGE)?;
    zero.advise(0, PAGE, libc::MADV_NOHUGEPAGE)?;
    let read = zero.words()[0].load(std::sync::atomic::Ordering::Relaxed);
    expect("fresh memory", read, 0)?;
    let addrs = [map.addr(), zero.addr(), map.addr() + PAGE];
    let (ret, status) = call(log, "zero page between", &map, &addrs, &[1; 3])?;
    ret.zero("move_pages")?;
    expect("status", status, vec![1, -EFAULT, 1])
}

fn same_page_twice(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let at = map.addr();
    let (ret, status) = call(log, "thrice", &map, &[at, at, at + 8], &[1; 3])?;
    ret.zero("move_pages")?;
    expect("status", status, vec![1, -EBUSY, 1])
}

fn already_there(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    let (ret, status) = call(log, "to where it is", &map, &addrs, &[0; PAGES])?;
    ret.zero("move_pages")?;
    expect("status", status, vec![0; PAGES])
}

/// The three arrays of a call, each in its own mapping.
struct Arrays {
    pages: Mapping,
    nodes: Mapping,
    status: Mapping,
}

impl Arrays {
    /// Creates arrays before an inaccessible page. The last four addresses end exactly there.
    fn new(addrs: &[usize], node: i32) -> Result<Self> {
        let array = || Mapping::before_a_hole(PAGE);
        let arrays = Self {
            pages: array()?,
            nodes: array()?,
            status: array()?,
        };
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let last = PAGE / 8;
        for (i, &addr) in addrs.iter().enumerate() {
            arrays.pages.words()[i].store(addr as u64, relaxed);
        }
        for (i, &addr) in addrs.iter().take(4).enumerate() {
            arrays.pages.words()[last - 4 + i].store(addr as u64, relaxed);
        }
        let pair = u64::from(node as u32) | u64::from(node as u32) << 32;
        for word in &arrays.nodes.words()[..last] {
            word.store(pair, relaxed);
        }
        Ok(arrays)
    }

    fn all(&self) -> RawMove<'_> {
        RawMove {
            pid: 0,
            count: PAGES,
            pages: UserPtr::In(&self.pages, 0),
            nodes: UserPtr::In(&self.nodes, 0),
            status: UserPtr::In(&self.status, 0),
            flags: MF_MOVE,
        }
    }
}

/// Returns the same call with one of its arrays at another address.
fn with<'a>(call: RawMove<'a>, array: &str, at: UserPtr<'a>) -> RawMove<'a> {
    match array {
        "pages" => RawMove { pages: at, ..call },
        "nodes" => RawMove { nodes: at, ..call },
        _ => RawMove { status: at, ..call },
    }
}

fn bad_arrays(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let arrays = Arrays::new(&map.addrs(PAGE), 1)?;
    for (name, bad) in [("null", UserPtr::Null), ("bad", UserPtr::Bad)] {
        // A null pointer for `nodes` would be a query, not an error.
        for (which, bad) in [("pages", bad), ("status", bad), ("nodes", UserPtr::Bad)] {
            let ret = sys::move_pages_raw(&with(arrays.all(), which, bad));
            log.note(format!("{name} {which}"), ret, &[]);
            expect(which, ret, Ret::failed(EFAULT))?;
            pattern::check(map.words(), 1)?;
            region::move_map(&map, 0)?;
        }
    }
    Ok(())
}

fn arrays_end_midway(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    let arrays = Arrays::new(&addrs, 1)?;
    for (which, at) in [
        ("pages", UserPtr::In(&arrays.pages, PAGE - 32)),
        ("nodes", UserPtr::In(&arrays.nodes, PAGE - 16)),
        ("status", UserPtr::In(&arrays.status, PAGE - 16)),
    ] {
        let ret = sys::move_pages_raw(&with(arrays.all(), which, at));
        let after = sys::places(0, &addrs)?;
        log.note(format!("{which} ends after 4"), ret, &after);
        expect(which, ret, Ret::failed(EFAULT))?;
        pattern::check(map.words(), 1)?;
        region::move_map(&map, 0)?;
    }
    Ok(())
}

fn query(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let untouched = Mapping::anon(PAGE, PAGE)?;
    let addrs = [map.addr(), untouched.addr(), 0, map.addr() + PAGE];
    region::move_all(&addrs[3..], 1, MF_MOVE)?;
    let mut status = [UNSET; 4];
    let ret = sys::query_nodes(0, &addrs, &mut status);
    log.note("query", ret, &status);
    ret.zero("query")?;
    expect("status", status, [0, -ENOENT, -EFAULT, 1])
}

fn query_bad_arrays(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let arrays = Arrays::new(&map.addrs(PAGE), 1)?;
    let end_of_pages = UserPtr::In(&arrays.pages, PAGE - 32);
    let end_of_status = UserPtr::In(&arrays.status, PAGE - 16);
    for (what, array, at) in [
        ("pages", "pages", UserPtr::Bad),
        ("status", "status", UserPtr::Bad),
        ("end of pages", "pages", end_of_pages),
        ("end of status", "status", end_of_status),
    ] {
        let query = with(arrays.all(), "nodes", UserPtr::Null);
        let ret = sys::move_pages_raw(&with(query, array, at));
        log.note(format!("query with bad {what}"), ret, &[]);
        expect(what, ret, Ret::failed(EFAULT))?;
    }
    Ok(())
}

fn no_pages(log: &mut Log) -> Result<()> {
    let ret = sys::move_pages(0, &[], &[], &mut [], MF_MOVE);
    log.note("no pages", ret, &[]);
    ret.zero("move_pages")?;
    let raw = RawMove {
        pid: 0,
        count: 0,
        pages: UserPtr::Bad,
        nodes: UserPtr::Bad,
        status: UserPtr::Bad,
        flags: MF_MOVE,
    };
    let ret = sys::move_pages_raw(&raw);
    log.note("no pages at bad addresses", ret, &[]);
    ret.zero("move_pages")
}

fn flags(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    for flags in [MF_STRICT, 8, 16, MF_MOVE | MF_STRICT, -1, i32::MIN] {
        let (ret, status) = sys::move_to(0, &addrs, 1, flags);
        log.note(format!("flags {flags}"), ret, &status);
        expect("return", ret, Ret::failed(EINVAL))?;
        expect("status", status, vec![UNSET; PAGES])?;
    }
    for (flags, node) in [(0, 1), (MF_MOVE_ALL, 0), (MF_MOVE | MF_MOVE_ALL, 1)] {
        let (ret, status) = sys::move_to(0, &addrs, node, flags);
        log.note(format!("flags {flags}"), ret, &status);
        ret.zero("move_pages")?;
        expect("status", status, vec![node; PAGES])?;
    }
    pattern::check(map.words(), 1)
}

fn no_such_process(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let addrs = map.addrs(PAGE);
    for pid in [i32::MAX, -1] {
        let (ret, mut status) = sys::move_to(pid, &addrs, 1, MF_MOVE);
        log.note(format!("pid {pid}"), ret, &status);
        expect("return", ret, Ret::failed(ESRCH))?;
        let ret = sys::query_nodes(pid, &addrs, &mut status);
        log.note(format!("query of pid {pid}"), ret, &status);
        expect("return", ret, Ret::failed(ESRCH))?;
    }
    // A kernel thread exists, but has no memory.
    let (ret, status) = sys::move_to(2, &addrs, 1, MF_MOVE);
    log.note("a kernel thread", ret, &status);
    expect("return", ret, Ret::failed(EINVAL))?;
    region::check_on(&addrs, 0)
}

fn migrate_pages(log: &mut Log) -> Result<()> {
    let calls = [
        ("to no node", 0, 1, 0, EINVAL),
        ("to a node that is not there", 0, 1, 1 << 5, EINVAL),
        ("of no process", i32::MAX, 1, 2, ESRCH),
        ("of a kernel thread", 2, 1, 2, EINVAL),
    ];
    for (name, pid, from, to, errno) in calls {
        let ret = sys::migrate_pages(pid, from, to);
        log.note(name, ret, &[]);
        expect(name, ret, Ret::failed(errno))?;
    }
    let ret = sys::migrate_pages(0, 0, 2);
    log.note("from no node", ret, &[]);
    ret.zero("migrate_pages from no node")
}

fn mbind(log: &mut Log) -> Result<()> {
    let map = pages()?;
    let hole = Mapping::anon(PAGE, PAGE)?.addr();
    let (at, len) = (map.addr(), map.len());
    let calls = [
        ("unaligned", at + 8, len, 1, MF_MOVE, EINVAL),
        ("a node that is not there", at, len, 5, MF_MOVE, EINVAL),
        ("invalid flags", at, len, 1, 1 << 10, EINVAL),
        ("nothing mapped", hole, PAGE, 1, MF_MOVE, EFAULT),
    ];
    for (name, addr, len, node, flags, errno) in calls {
        let ret = sys::mbind(addr, len, node, flags);
        log.note(name, ret, &[]);
        expect(name, ret, Ret::failed(errno))?;
    }
    let ret = sys::mbind(at, 0, 1, MF_MOVE);
    log.note("no bytes", ret, &[]);
    ret.zero("mbind of no bytes")?;
    let ret = sys::mbind(at, len, 1, MF_STRICT);
    log.note("strict without move", ret, &[]);
    expect("strict without move", ret, Ret::failed(libc::EIO))?;
    region::check_on(&map.addrs(PAGE), 0)?;
    pattern::check(map.words(), 1)
}
