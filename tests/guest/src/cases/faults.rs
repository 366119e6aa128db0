// SPDX-License-Identifier: GPL-2.0-only
//! Tests with fault injection: one allocation of the caller fails in each call, or many at random, or
//! writes to swap space fail. The call may fail with `ENOMEM` or leave pages in place. Contents must
//! stay, and the next call without faults must migrate all pages.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libc::ENOMEM;

use super::disk::Swap;
use crate::harness::{Case, expect_some, skip};
use crate::kernel::{self, Setting};
use crate::patience::repeat_until;
use crate::plan::{Engine, FolioSize};
use crate::sys::service::{Call as ServiceCall, LONG, Service};
use crate::sys::{self, MF_MOVE, MF_MOVE_MT, Mapping, PAGE, UNSET};
use crate::threads::beside;
use crate::{pattern, region};

/// Debugfs folders of fault injection: slab objects, and pages.
const FAULTS: [&str; 2] = [
    "/sys/kernel/debug/failslab",
    "/sys/kernel/debug/fail_page_alloc",
];
/// The same for requests to block devices.
const REQUESTS: &str = "/sys/kernel/debug/fail_make_request";
/// More faults than a test causes: the file counts them down.
const MOST_FAULTS: &str = "1000000";
const THREADS: u32 = 4;
/// Pages of a short list, and of a list long enough for a crew.
const FEW: usize = 48;
const MANY: usize = 2048;
/// Upper limit of the allocations in a call.
const MOST: u32 = 100_000;
const SLOW: u32 = 300;

/// The call that migrates the pages.
#[derive(Clone, Copy)]
enum By {
    MovePages,
    Asked,
    Mbind,
    MigratePages,
    Range,
    Phys,
}

pub fn cases() -> Vec<Case> {
    let crew = Engine::On(THREADS);
    let mut cases = Vec::new();
    for (name, by) in [
        ("move-pages", By::MovePages),
        ("bind", By::Mbind),
        ("migrate-pages", By::MigratePages),
        ("service-range", By::Range),
        ("service-phys", By::Phys),
    ] {
        let run = move |_: &mut _| each(Engine::Off, by, FolioSize::Small, FEW);
        cases.push(Case::new(format!("faults/{name}"), run).limit(SLOW));
    }
    for (name, engine, by, size, pages) in [
        ("asked", Engine::Off, By::Asked, FolioSize::Small, MANY),
        ("crew", crew, By::MovePages, FolioSize::Small, MANY),
        ("mbind-crew", crew, By::Mbind, FolioSize::Small, MANY),
        ("service-crew", crew, By::Range, FolioSize::Small, MANY),
        ("service-long", crew, By::Phys, FolioSize::Small, MANY),
        ("huge", crew, By::MovePages, FolioSize::Huge, 2 * FOLIO),
    ] {
        let run = move |_: &mut _| each(engine, by, size, pages);
        cases.push(Case::new(format!("faults/{name}"), run).limit(SLOW));
    }
    cases.push(Case::new("faults/helpers", |_| helpers()).limit(SLOW));
    cases.push(Case::new("faults/swap", |_| swap()).limit(SLOW));
    cases
}

/// Base pages of a huge folio.
const FOLIO: usize = FolioSize::Huge.bytes() / PAGE;

/// Changed settings of fault injection. Allocations that may sleep can fail, and failures are not
/// logged.
struct Injection {
    settings: Vec<Setting>,
}

impl Drop for Injection {
    /// Restores the settings in reverse order, so that the probability of each fault is restored
    /// first.
    fn drop(&mut self) {
        while self.settings.pop().is_some() {}
    }
}

impl Injection {
    /// Lets allocations of marked tasks fail with a probability of `percent` %.
    fn new(percent: u32) -> Result<Self> {
        if !Path::new("/proc/self/fail-nth").exists() {
            return Err(skip("this kernel has no fault injection"));
        }
        let mut injection = Self {
            settings: Vec::new(),
        };
        for folder in FAULTS {
            let mut set = |file: &str, value: &str| {
                let path = format!("{folder}/{file}");
                // Slab objects have neither of these.
                let is_of_pages = ["min-order", "ignore-gfp-highmem"].contains(&file);
                if !is_of_pages || folder == FAULTS[1] {
                    injection.settings.push(Setting::change(&path, value)?);
                }
                anyhow::Ok(())
            };
            set("verbose", "0")?;
            set("ignore-gfp-wait", "N")?;
            set("ignore-gfp-highmem", "N")?;
            set("min-order", "0")?;
            set("task-filter", "Y")?;
            set("times", MOST_FAULTS)?;
            set("probability", &percent.to_string())?;
        }
        Ok(injection)
    }
}

impl By {
    /// Prepares a call. Returns a closure that only makes the call and returns its error number, so
    /// that no other allocation fails.
    fn prepared<'a>(
        self,
        map: &'a Mapping,
        addrs: &'a [usize],
    ) -> Result<Box<dyn FnMut() -> i32 + 'a>> {
        let by_move = |flags| {
            let (nodes, mut status) = (vec![1; addrs.len()], vec![UNSET; addrs.len()]);
            move || sys::move_pages(0, addrs, &nodes, &mut status, flags).errno
        };
        Ok(match self {
            Self::MovePages => Box::new(by_move(MF_MOVE)),
            Self::Asked => Box::new(by_move(MF_MOVE | MF_MOVE_MT)),
            Self::Mbind => Box::new(|| sys::mbind(map.addr(), map.len(), 1, MF_MOVE).errno),
            Self::MigratePages => Box::new(|| sys::migrate_pages(0, 1 << 0, 1 << 1).errno),
            Self::Range => {
                let service = Service::open()?;
                let call = ServiceCall::range(map.addr(), map.len(), 1);
                Box::new(move || service.range(call).errno)
            }
            Self::Phys => {
                let service = Service::open()?;
                let table = kernel::addresses_of(std::process::id() as i32, map)?;
                Box::new(move || service.phys(&table, ServiceCall::to(1).flags(LONG)).errno)
            }
        })
    }
}

/// Lets one allocation of the calling task fail in each call, until a call makes fewer allocations.
fn each(engine: Engine, by: By, size: FolioSize, pages: usize) -> Result<()> {
    let _injection = Injection::new(0)?;
    if matches!(by, By::Range | By::Phys) && !kernel::has_service() {
        return Err(skip("this kernel has no service"));
    }
    kernel::set_engine(engine)?;
    let nth_file = File::options()
        .read(true)
        .write(true)
        .open("/proc/thread-self/fail-nth")
        .context("opening fail-nth")?;
    let (mut has_shown, mut had_crew) = (false, false);
    // No allocation fails in the first round, which maps the code of the test.
    let mut nth = 0;
    while nth < MOST {
        // A huge folio may be split by the last call.
        let map = region::filled(size, pages * PAGE / size.bytes(), 1)?;
        let addrs = map.addrs(PAGE);
        let mut call = by.prepared(&map, &addrs)?;
        let crews = kernel::counter("crews")?;
        nth_file.write_at(nth.to_string().as_bytes(), 0)?;
        let errno = call();
        // The kernel counts the number down to 0.
        let mut rest = [0; 16];
        let length = nth_file.read_at(&mut rest, 0)?;
        nth_file.write_at(b"0", 0)?;
        drop(call);
        had_crew |= kernel::counter("crews")? > crews;
        let has_failed = nth > 0 && rest[..length].trim_ascii() == b"0";
        let left = sys::places(0, &addrs)?.contains(&0);
        whole(&map, &addrs, errno).with_context(|| match has_failed {
            true => format!("after allocation {nth} failed"),
            false => "without a failed allocation".to_owned(),
        })?;
        if nth > 0 && !has_failed {
            ensure!(nth > 1, "expected an allocation in the call");
            // Crews and runs try again without the fault, so only short calls show it.
            ensure!(
                has_shown || pages != FEW,
                "expected an error or a page that stays"
            );
            ensure!(had_crew || pages != MANY, "expected a crew");
            return Ok(());
        }
        has_shown |= errno != 0 || left;
        nth += if pages == FEW { 1 } else { 1 + nth / 4 };
    }
    anyhow::bail!("expected fewer than {MOST} allocations in a call");
}

/// Checks the result of a call to node 1 with faults. Then migrates all pages there, which fails if a
/// page is still isolated or locked.
fn whole(map: &Mapping, addrs: &[usize], errno: i32) -> Result<()> {
    ensure!(
        [0, ENOMEM].contains(&errno),
        "expected success or ENOMEM, got errno {errno}"
    );
    pattern::check(map.words(), 1)?;
    for place in sys::places(0, addrs)? {
        ensure!([0, 1].contains(&place), "expected node 0 or 1, got {place}");
    }
    region::move_all(addrs, 1, MF_MOVE)?;
    pattern::check(map.words(), 1)
}

/// Sets `make-it-fail` of all kernel workers, some of which are helpers.
fn mark_workers(value: &str) -> Result<()> {
    let mut marked = 0;
    for entry in fs::read_dir("/proc")? {
        let task = entry?.path();
        // A worker may end meanwhile.
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.starts_with("kworker/") && fs::write(task.join("make-it-fail"), value).is_ok() {
            marked += 1;
        }
    }
    expect_some("marked workers", marked)
}

/// Lets one allocation in a hundred fail while crews migrate: of helpers, then of the caller as well.
fn helpers() -> Result<()> {
    let injection = Injection::new(1)?;
    kernel::set_engine(Engine::On(THREADS))?;
    let map = region::filled(FolioSize::Small, MANY, 1)?;
    let addrs = map.addrs(PAGE);
    let mut status = vec![UNSET; MANY];
    // Opened here, because opening allocates memory.
    let marked = File::options()
        .write(true)
        .open("/proc/self/make-it-fail")
        .context("opening make-it-fail")?;
    let mut node = 0;
    let mut with_faults = |of_caller: &[u8]| -> Result<i32> {
        node = 1 - node;
        let nodes = vec![node; MANY];
        mark_workers("1")?;
        marked.write_at(of_caller, 0)?;
        let ret = sys::move_pages(0, &addrs, &nodes, &mut status, MF_MOVE);
        marked.write_at(b"0", 0)?;
        mark_workers("0")?;
        ensure!(
            [0, ENOMEM].contains(&ret.errno),
            "expected success or ENOMEM, got {ret:?}"
        );
        pattern::check(map.words(), 1)?;
        Ok(1 - node)
    };
    let faults_left = || kernel::number(format!("{}/times", FAULTS[1]));
    // Only workers are marked, so each failure is one of theirs.
    repeat_until("allocations of helpers fail", || {
        let (helped, before) = (kernel::helped()?, faults_left()?);
        with_faults(b"0")?;
        Ok(faults_left()? < before && kernel::helped()? > helped)
    })?;
    repeat_until("helpers migrate, and pages are left", || {
        let helped = kernel::helped()?;
        let left_on = with_faults(b"1")?;
        Ok(sys::places(0, &addrs)?.contains(&left_on) && kernel::helped()? > helped)
    })?;
    drop(injection);
    whole(&map, &addrs, 0)
}

/// Lets half of the writes to swap space fail while pages are paged out, compacted and migrated. A page
/// whose write failed stays in memory.
fn swap() -> Result<()> {
    const ROUNDS: u32 = 16;
    if !Path::new(REQUESTS).exists() {
        return Err(skip("this kernel has no fault injection for block devices"));
    }
    kernel::set_engine(Engine::On(THREADS))?;
    let swap = Swap::new()?;
    let set = |file: &str, value: &str| Setting::change(&format!("{REQUESTS}/{file}"), value);
    let _limits = [set("verbose", "0")?, set("times", MOST_FAULTS)?];
    let _fails = Setting::change(&swap.fault_switch(), "1")?;
    let map = region::filled(FolioSize::Small, MANY, 1)?;
    let addrs = map.addrs(PAGE);
    let faults_left = || kernel::number(format!("{REQUESTS}/times"));
    let migrated = || kernel::vmstat_sum("pgmigrate_success");
    let (faults, moved) = (faults_left()?, migrated()?);
    for round in 0..ROUNDS {
        let failing = set("probability", "50")?;
        let page_out = || map.advise(0, map.len(), libc::MADV_PAGEOUT);
        beside("the task that pages out", page_out, || {
            for node in [1, 0] {
                kernel::compact();
                sys::move_to(0, &addrs, node, MF_MOVE);
            }
            Ok(())
        })?;
        drop(failing);
        // Reads all pages that are in swap space.
        pattern::check(map.words(), 1).with_context(|| format!("round {round}"))?;
    }
    ensure!(faults_left()? < faults, "expected writes that fail");
    ensure!(migrated()? > moved, "expected pages that migrate");
    whole(&map, &addrs, 0)
}
