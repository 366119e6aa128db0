// SPDX-License-Identifier: GPL-2.0-only
//! Moves each kind of memory by each system call, to the other node and back.

use anyhow::{Context, Result, ensure};

use super::kinds::{KINDS, Make, Mem};
use crate::harness::{Case, Log};
use crate::patience::at_last;
use crate::region::{check_on, check_status};
use crate::sys::{self, MF_MOVE_ALL, MF_STRICT, Ret};

type Call = fn(&Mem, i32, &mut Log) -> Result<()>;

const CALLS: &[(&str, Call)] = &[
    ("move_pages", move_pages),
    ("migrate_pages", migrate_pages),
    ("mbind", mbind),
];

pub fn cases() -> Vec<Case> {
    let pairs = KINDS
        .iter()
        .flat_map(|kind| CALLS.iter().map(move |call| (kind, call)));
    pairs
        .map(|(&(kind, make), &(name, call))| {
            Case::new(format!("{kind}/{name}"), move |log| {
                there_and_back(make, call, log)
            })
        })
        .collect()
}

fn there_and_back(make: Make, call: Call, log: &mut Log) -> Result<()> {
    let mem = make()?;
    if mem.movable {
        // New memory may be on any node; the tested moves start from node 0.
        let first = || {
            move_to(&mem, 0).0.zero("move_pages")?;
            check_on(&mem.addrs, 0)
        };
        let result = if mem.held { at_last(first) } else { first() };
        result.context("first move to node 0")?;
    }
    for node in [1, 0, 1, 0] {
        let before = sys::places(0, &mem.addrs)?;
        let moved = |log: &mut Log| {
            call(&mem, node, log)?;
            ensure!(
                mem.movable || sys::places(0, &mem.addrs)? == before,
                "expected unmovable memory to stay where it is"
            );
            Ok(())
        };
        let result = match mem.held {
            false => moved(log),
            true => at_last(|| moved(&mut Log::default())),
        };
        result.with_context(|| format!("to node {node}"))?;
        mem.check()
            .with_context(|| format!("after the move to node {node}"))?;
    }
    Ok(())
}

fn move_to(mem: &Mem, node: i32) -> (Ret, Vec<i32>) {
    // The record of vanilla has this value where the kernel writes no status.
    let mut status = vec![i32::MIN; mem.addrs.len()];
    let nodes = vec![node; mem.addrs.len()];
    let ret = sys::move_pages(0, &mem.addrs, &nodes, &mut status, mem.flags);
    (ret, status)
}

fn move_pages(mem: &Mem, node: i32, log: &mut Log) -> Result<()> {
    let call = format!("move_pages to {node}");
    let (ret, status) = move_to(mem, node);
    if !mem.movable {
        log.note(call, ret, &status);
        return Ok(());
    }
    ret.zero("move_pages")?;
    if mem.exact {
        log.note(call, ret, &status);
        check_status(&status, node)?;
    }
    check_on(&mem.addrs, node)
}

/// Moves the whole process. The number of its other pages that stay differs between runs.
fn migrate_pages(mem: &Mem, node: i32, log: &mut Log) -> Result<()> {
    let ret = sys::migrate_pages(0, 1 << (1 - node), 1 << node);
    ensure!(ret.ret >= 0, "migrate_pages failed: errno {}", ret.errno);
    if !mem.movable {
        return Ok(());
    }
    let after = sys::places(0, &mem.addrs)?;
    log.note(
        format!("nodes after migrate_pages to {node}"),
        Ret::default(),
        &after,
    );
    check_status(&after, node)
}

fn mbind(mem: &Mem, node: i32, log: &mut Log) -> Result<()> {
    let flags = mem.flags | MF_STRICT;
    let ret = sys::mbind(mem.map.addr(), mem.map.len(), node as u32, flags);
    log.note(format!("mbind to {node}"), ret, &[]);
    if !mem.movable {
        return Ok(());
    }
    if ret.ret != 0 && mem.flags != MF_MOVE_ALL {
        ret.zero("mbind")?;
    }
    check_on(&mem.addrs, node)
}
