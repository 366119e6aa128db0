// SPDX-License-Identifier: GPL-2.0-only
//! The service of `/dev/page_migrate`: calls, errors, permissions and races.

mod calls;
mod errnos;
mod fuzz;
mod kinds;
mod layout;
mod locked;
mod owners;
mod races;
mod rights;
mod statistics;

use anyhow::{Result, ensure};

use crate::child::Child;
use crate::harness::{Case, expect};
use crate::plan::FolioSize;
use crate::sys::service::{Call, Done, LONG, MAX_TABLE, Service};
use crate::sys::{Mapping, PAGE};
use crate::{kernel, pattern, region};

const PAGES: usize = 64;

pub fn cases() -> Vec<Case> {
    let mut all = calls::cases();
    all.extend(errnos::cases());
    all.extend(layout::cases());
    all.extend(kinds::cases());
    all.extend(locked::cases());
    all.extend(owners::cases());
    all.extend(rights::cases());
    all.extend(statistics::cases());
    all.extend(races::cases());
    all.extend(fuzz::cases());
    all
}

/// Returns memory on node 0 with the pattern of seed 1.
fn memory(folio: FolioSize, count: usize) -> Result<Mapping> {
    region::filled(folio, count, 1)
}

fn small_pages() -> Result<Mapping> {
    memory(FolioSize::Small, PAGES)
}

/// Returns the physical addresses of the pages of `map`, all of which must be present.
fn table(map: &Mapping) -> Result<Vec<u64>> {
    let table = kernel::addresses_of(std::process::id() as i32, map)?;
    ensure!(
        table.iter().all(|&address| address != 0),
        "expected all pages to be present"
    );
    Ok(table)
}

/// Returns a call that moves all of `map` to `node`.
fn whole(map: &Mapping, node: i32) -> Call {
    Call::range(map.addr(), map.len(), node)
}

fn says(done: Done, errno: i32, successful: usize, failed: usize) -> Result<()> {
    let expected = Done {
        errno,
        successful: successful as u64,
        failed: failed as u64,
    };
    expect("result of the call", done, expected)
}

/// Migrates by parts of a table, each short enough for one call, until a call fails. Returns the
/// summed counts and the error of the last call.
fn by_parts(service: &Service, table: &[u64], call: Call) -> Done {
    let mut all = Done::default();
    for part in table.chunks(MAX_TABLE as usize) {
        let done = service.phys(part, call);
        all = Done {
            errno: done.errno,
            successful: all.successful + done.successful,
            failed: all.failed + done.failed,
        };
        if done.errno != 0 {
            break;
        }
    }
    all
}

/// A way to migrate all of a mapping to the node of a call.
type Moves = fn(&Service, &Mapping, Call) -> Result<Done>;

fn by_range(service: &Service, map: &Mapping, call: Call) -> Result<Done> {
    Ok(service.range(Call {
        at: map.addr() as u64,
        length: map.len() as u64,
        ..call
    }))
}

fn by_address(service: &Service, map: &Mapping, call: Call) -> Result<Done> {
    Ok(by_parts(service, &table(map)?, call))
}

fn by_long_table(service: &Service, map: &Mapping, call: Call) -> Result<Done> {
    Ok(service.phys(&table(map)?, call.flags(call.flags | LONG)))
}

/// Runs `body` in a child. A failure there fails the test.
fn in_child(body: impl FnOnce() -> Result<()>) -> Result<()> {
    Child::start(body)?.finish("the child to exit with 0")
}

/// Moves `map` to and fro by range, by tables and by a long table, and checks nodes and contents.
fn shuttle(service: &Service, map: &Mapping, pid: i32, flags: u32) -> Result<()> {
    let pages = map.len() / PAGE;
    let addrs = map.addrs(PAGE);
    let all = whole(map, 1).pid(pid).flags(flags);
    says(service.range(all), 0, pages, 0)?;
    region::check_on(&addrs, 1)?;
    pattern::check(map.words(), 1)?;
    let done = by_parts(service, &table(map)?, Call::to(0).pid(pid).flags(flags));
    says(done, 0, pages, 0)?;
    region::check_on(&addrs, 0)?;
    pattern::check(map.words(), 1)?;
    for node in [1, 0] {
        let call = Call::to(node).pid(pid).flags(flags | LONG);
        says(service.phys(&table(map)?, call), 0, pages, 0)?;
        region::check_on(&addrs, node)?;
        pattern::check(map.words(), 1)?;
    }
    whole_matrix(service)
}

/// Checks that the pages of all pairs of nodes are those that were migrated. No other call may be
/// at work.
fn whole_matrix(service: &Service) -> Result<()> {
    let (_, nodes, _) = service.matrix(0);
    let (_, _, table) = service.matrix(nodes);
    let successful = service.counters()?.successful;
    expect(
        "pages by pair of nodes",
        table.iter().sum::<u64>(),
        successful,
    )
}
