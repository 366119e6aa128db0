// SPDX-License-Identifier: GPL-2.0-only
//! Limits that an administrator sets, and that no caller can pass: the right to ask for help, CPU
//! quotas, lanes that are kept for reclaim, and real-time tasks that take the CPUs of helpers. Most are
//! also set while a crew is at work.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::crews::{AFTER_CHECKS, crewed};
use super::rights::Identity;
use crate::cgroup::Groups;
use crate::child::Child;
use crate::demotion::{Reclaim, count_on, forget_use};
use crate::harness::{Case, expect, skip};
use crate::kernel::{self, COPY, CREW, SWITCH, Setting, THREADS, WORKING};
use crate::patience::{repeat_until, wait_until};
use crate::plan::FolioSize;
use crate::sys::service::{Call, MT, Service};
use crate::sys::{
    self, MF_MOVE, MF_MOVE_MT, Mapping, PAGE, renice, run_first_in_first_out, run_on,
};
use crate::threads::join;
use crate::trace::Tracing;
use crate::{pattern, region};

const SLOW: u32 = 240;
/// Number of pages of a list that is long enough for a crew.
const LIST: usize = 2048;
/// Pages of a list on which a crew is at work for long enough to be interrupted.
const LONG: usize = 16384;
/// Pages of [`LONG`] that a helper may carry after it was forbidden to: those of its chunk, of 256 at
/// most, and those of the process that the test does not count.
const BEGUN: usize = LONG / 16;
/// The test counts one page in 64, fewer than a chunk has.
const SAMPLED: usize = 64;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("limits/flag-allowed", |_| flag_allowed()).limit(SLOW),
        Case::new("limits/flag-ignored", |_| flag_ignored()).limit(SLOW),
        Case::new("limits/flag-privileged", |_| flag_privileged()).limit(SLOW),
        Case::new("limits/key-off-again", |_| key_off_again()).limit(SLOW),
        Case::new("limits/nice", |_| nice()).limit(SLOW),
        Case::new("limits/weight", |_| in_group(&LOW_WEIGHT, false, ask)).limit(SLOW),
        Case::new("limits/weight-of-ancestor", |_| {
            in_group(&LOW_WEIGHT, true, ask)
        })
        .limit(SLOW),
        Case::new("limits/weight-of-real-time", |_| weight_of_real_time()).limit(SLOW),
        Case::new("limits/quota", |_| in_group(&QUOTA, false, ask)).limit(SLOW),
        Case::new("limits/quota-of-ancestor", |_| in_group(&QUOTA, true, ask)).limit(SLOW),
        Case::new("limits/service-flag-ignored", |_| service_flag_ignored()).limit(SLOW),
        Case::new("limits/service-quota", |_| {
            in_group(&QUOTA, false, ask_service)
        })
        .limit(SLOW),
        Case::new("limits/lanes-for-reclaim", |_| lanes_for_reclaim()).limit(SLOW),
        Case::new("limits/real-time", |_| real_time()).limit(SLOW),
        Case::new("limits/switched-off-meanwhile", |_| {
            set_meanwhile(move_long, SWITCH, "0")
        })
        .limit(SLOW),
        Case::new("limits/list-switched-off-meanwhile", |_| {
            set_meanwhile(migrate_all, SWITCH, "0")
        })
        .limit(SLOW),
        Case::new("limits/crews-off-meanwhile", |_| {
            set_meanwhile(move_long, CREW, "0")
        })
        .limit(SLOW),
        Case::new("limits/fewer-threads-meanwhile", |_| {
            set_meanwhile(move_long, THREADS, "1")
        })
        .limit(SLOW),
        Case::new("limits/flag-ignored-meanwhile", |_| {
            let _off = Setting::change(SWITCH, "0")?;
            set_meanwhile(ask_for_long, &file("mt_flag"), "ignore")
        })
        .limit(SLOW),
        Case::new("limits/quota-meanwhile", |_| {
            limit_meanwhile(move_long, QUOTA.file, QUOTA.limited, QUOTA.usual)
        })
        .limit(SLOW),
        Case::new("limits/weight-meanwhile", |_| {
            limit_meanwhile(
                move_long,
                LOW_WEIGHT.file,
                LOW_WEIGHT.limited,
                LOW_WEIGHT.usual,
            )
        })
        .limit(SLOW),
        Case::new("limits/confined-meanwhile", |_| {
            limit_meanwhile(move_long, "cpuset.cpus", "0", "\n")
        })
        .limit(SLOW),
        Case::new("limits/nodes-meanwhile", |_| {
            limit_meanwhile(migrate_all, "cpuset.mems", "1", "0-1")
        })
        .limit(SLOW),
    ]
}

fn file(name: &str) -> String {
    format!("{COPY}/{name}")
}

fn refused(why: &str) -> Result<u64> {
    kernel::number(file(&format!("refused/{why}")))
}

/// Moves the memory to and fro, and asks for helpers.
fn ask(map: &Mapping) -> Result<()> {
    for node in [1, 0] {
        region::move_all(&map.addrs(PAGE), node, MF_MOVE | MF_MOVE_MT)?;
    }
    pattern::check(map.words(), 1)
}

/// As [`ask`], by the range call of `/dev/page_migrate`.
fn ask_service(map: &Mapping) -> Result<()> {
    let service = Service::open()?;
    for node in [1, 0] {
        let done = service.range(Call::range(map.addr(), map.len(), node).flags(MT));
        done.complete("no errors")?;
    }
    pattern::check(map.words(), 1)
}

fn list() -> Result<Mapping> {
    region::filled(FolioSize::Small, LIST, 1)
}

/// Calls `ask` until a crew took part, whether or not the engine is on.
fn ask_until_crewed(map: &Mapping, ask: fn(&Mapping) -> Result<()>) -> Result<()> {
    let crews = || kernel::counter("crews");
    repeat_until("crews grows", || {
        let before = crews()?;
        ask(map)?;
        Ok(crews()? > before)
    })
}

/// Calls `ask` a few times. Pages must move without helpers, and each refusal is counted.
fn ask_in_vain(map: &Mapping, why: &str, ask: fn(&Mapping) -> Result<()>) -> Result<()> {
    let (before, count) = (kernel::helped()?, refused(why)?);
    for _ in 0..8 {
        ask(map)?;
    }
    ensure!(kernel::helped()? == before, "expected no pages by helpers");
    ensure!(refused(why)? > count, "expected refused/{why} to grow");
    Ok(())
}

/// Checks that a task without privileges gets helpers that it asks for.
fn flag_allowed() -> Result<()> {
    let _off = Setting::change(SWITCH, "0")?;
    for identity in [Identity::User, Identity::RootOfUsers] {
        let child = Child::start(|| {
            // Mapped before: an unprivileged task cannot check that it has no huge pages.
            let map = list()?;
            identity.assume()?;
            ask_until_crewed(&map, ask)
        })?;
        child.finish(AFTER_CHECKS)?;
    }
    Ok(())
}

fn flag_ignored() -> Result<()> {
    let _off = Setting::change(SWITCH, "0")?;
    let map = list()?;
    {
        let _ignore = Setting::change(&file("mt_flag"), "ignore")?;
        ask_in_vain(&map, "mt_flag", ask)?;
        // With the engine on, the same calls get helpers.
        let _on = Setting::change(SWITCH, "1")?;
        crewed(|| ask(&map))?;
    }
    ask_until_crewed(&map, ask)
}

fn flag_privileged() -> Result<()> {
    let _off = Setting::change(SWITCH, "0")?;
    let _privileged = Setting::change(&file("mt_flag"), "privileged")?;
    let map = list()?;
    ask_until_crewed(&map, ask)?;
    for identity in [Identity::User, Identity::RootInside] {
        let child = Child::start(|| {
            // Mapped before: an unprivileged task cannot check that it has no huge pages.
            let map = list()?;
            identity.assume()?;
            ask_in_vain(&map, "mt_flag", ask)
        })?;
        child.finish(AFTER_CHECKS)?;
    }
    Ok(())
}

/// Checks that a call that asks for helpers enables the hooks, and that they are disabled again.
fn key_off_again() -> Result<()> {
    let is_on = || anyhow::Ok(kernel::value(file("active"))? == "1");
    let wait_off = || {
        while is_on()? {
            sleep(Duration::from_millis(50));
        }
        anyhow::Ok(())
    };
    let _off = Setting::change(SWITCH, "0")?;
    wait_off()?;
    let map = list()?;
    // Only the hooks start crews.
    ask_until_crewed(&map, ask)?;
    wait_off()?;
    {
        let _on = Setting::change(SWITCH, "1")?;
        ask(&map)?;
        sleep(Duration::from_millis(2500));
        ensure!(is_on()?, "expected active hooks with vm.mt_page_copy on");
    }
    wait_off()
}

/// As [`flag_ignored`], for the service.
fn service_flag_ignored() -> Result<()> {
    let _off = Setting::change(SWITCH, "0")?;
    let _ignore = Setting::change(&file("mt_flag"), "ignore")?;
    let map = list()?;
    ask_in_vain(&map, "mt_flag", ask_service)?;
    let _allow = Setting::change(&file("mt_flag"), "allow")?;
    ask_until_crewed(&map, ask_service)
}

/// A limit of a cgroup, under which its tasks get no helpers.
struct Limit {
    file: &'static str,
    limited: &'static str,
    usual: &'static str,
    /// The counter of `refused/`.
    why: &'static str,
}

const QUOTA: Limit = Limit {
    file: "cpu.max",
    // Too high to throttle.
    limited: "1000000 100000",
    usual: "max",
    why: "cpu_quota",
};
const LOW_WEIGHT: Limit = Limit {
    file: "cpu.weight",
    limited: "1",
    usual: "100",
    why: "low_weight",
};

/// Checks that tasks get no helpers while their cgroup or an ancestor has the limit.
fn in_group(limit: &Limit, of_ancestor: bool, ask: fn(&Mapping) -> Result<()>) -> Result<()> {
    let mut groups = Groups::new(&["limited"])?;
    groups.set(0, "cgroup.subtree_control", "+cpu")?;
    let inner = groups.make_inside(0, "inner")?;
    groups.add(inner, Pid::this())?;
    let map = list()?;
    crewed(|| ask(&map))?;
    let group = if of_ancestor { 0 } else { inner };
    groups.set(group, limit.file, limit.limited)?;
    let in_vain = ask_in_vain(&map, limit.why, ask);
    groups.set(group, limit.file, limit.usual)?;
    in_vain?;
    crewed(|| ask(&map))
}

/// Checks that a task of low priority gets no helpers. With four threads, nice 3 is a share of two.
fn nice() -> Result<()> {
    let map = list()?;
    for low in [4, 19] {
        renice(Pid::this(), 3)?;
        crewed(|| ask(&map))?;
        renice(Pid::this(), low)?;
        ask_in_vain(&map, LOW_WEIGHT.why, ask)?;
    }
    renice(Pid::this(), 0)?;
    crewed(|| ask(&map))
}

/// Checks that a real-time task, to which no weight applies, gets helpers for its batches.
fn weight_of_real_time() -> Result<()> {
    let groups = Groups::new(&["weight"])?;
    groups.set(0, LOW_WEIGHT.file, LOW_WEIGHT.limited)?;
    groups.add(0, Pid::this())?;
    renice(Pid::this(), 19)?;
    let map = list()?;
    ask_in_vain(&map, LOW_WEIGHT.why, ask)?;
    run_first_in_first_out(1)?;
    let before = (kernel::helped()?, refused(LOW_WEIGHT.why)?);
    repeat_until("idle CPUs help", || {
        ask(&map)?;
        Ok(kernel::helped()? > before.0)
    })?;
    expect("refused/low_weight", refused(LOW_WEIGHT.why)?, before.1)
}

/// Checks that crews of reclaim get a lane with more callers than lanes.
fn lanes_for_reclaim() -> Result<()> {
    const CALLERS: usize = 24;
    let _any = Setting::change(&file("cpus"), "any")?;
    let reclaim = Reclaim::new()?;
    let map = region::filled(FolioSize::Small, 4 * LIST, 1)?;
    let end = AtomicBool::new(false);
    let busy = || kernel::counter("crew_busy");
    scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let map = list()?;
                    while !end.load(Relaxed) {
                        ask(&map)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let demoted = || -> Result<()> {
            let before = busy()?;
            while busy()? == before {
                sleep(Duration::from_millis(10));
            }
            repeat_until("reclaim has a crew", || {
                region::move_all(&map.addrs(PAGE), 0, MF_MOVE)?;
                forget_use()?;
                let ask = || reclaim.ask(map.len() / 2);
                let events = Tracing::new()?.of(&["ferry/ferry_crew"], ask)?;
                Ok(events.iter().any(|e| e.field("reason") == Some("demotion")))
            })?;
            pattern::check(map.words(), 1)
        };
        let demoted = demoted();
        end.store(true, Relaxed);
        for caller in callers {
            join(caller, "a caller")?;
        }
        demoted
    })
}

/// A task of high real-time priority on each CPU except the first. It takes the CPU when told to,
/// and otherwise sleeps. Killed on drop.
struct Hogs {
    children: Vec<Child>,
    go: Mapping,
}

impl Hogs {
    const SLEEP: u64 = 0;
    const SPIN: u64 = 1;

    fn start() -> Result<Self> {
        let mut hogs = Self {
            children: Vec::new(),
            go: Mapping::anon_flags(PAGE, libc::MAP_SHARED)?,
        };
        for cpu in kernel::online_cpus()?.into_iter().skip(1) {
            let Self { children, go } = &mut hogs;
            children.push(Child::start(|| {
                let word = &go.words()[0];
                // The test is killed at its time limit, and the hogs with it.
                prctl::set_pdeathsig(Signal::SIGKILL)?;
                run_on(cpu)?;
                sys::run_first_in_first_out(90)?;
                go.words()[1].fetch_add(1, Relaxed);
                loop {
                    if word.load(Relaxed) == Self::SPIN {
                        std::hint::spin_loop();
                    } else {
                        sleep(Duration::from_millis(1));
                    }
                }
            })?);
        }
        wait_until("each hog runs", || {
            Ok(hogs.go.words()[1].load(Relaxed) >= hogs.children.len() as u64)
        })?;
        Ok(hogs)
    }

    fn set(&self, state: u64) {
        self.go.words()[0].store(state, Relaxed);
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.set(Self::SLEEP);
    }
}

/// Lets real-time tasks keep CPUs from ordinary tasks for good, while the settings live: without
/// throttling, and without the scheduler's servers.
pub fn no_throttling() -> Result<Vec<Setting>> {
    let mut kept = vec![Setting::change(
        "/proc/sys/kernel/sched_rt_runtime_us",
        "-1",
    )?];
    for cpu in kernel::online_cpus()? {
        let server = format!("/sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime");
        if !std::path::Path::new(&server).exists() {
            return Err(skip("debugfs has no fair servers of the scheduler"));
        }
        kept.push(Setting::change(&server, "0")?);
    }
    Ok(kept)
}

/// Real-time tasks take all CPUs but one while a crew is at work, and keep them: the call ends none
/// the less, as its helpers go on where there is a CPU.
fn real_time() -> Result<()> {
    const ROUNDS: u64 = 24;
    const PAGES: usize = 4096;
    if kernel::is_real_time()? {
        // The hogs then also starve interrupt threads, and helpers preempted with a spinlock held.
        return Err(skip(
            "with PREEMPT_RT a preempted holder of a spinlock cannot leave its CPU",
        ));
    }
    // Helpers come whatever else the CPUs do just then.
    let _any = Setting::change(&file("cpus"), "any")?;
    let _unthrottled = no_throttling()?;
    let hogs = Hogs::start()?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let addrs = map.addrs(PAGE);
    crewed(|| {
        for round in 0..ROUNDS {
            let node = 1 - (round % 2) as i32;
            scope(|scope| -> Result<()> {
                let mover = scope.spawn(|| region::move_all(&addrs, node, MF_MOVE));
                // Waits until some pages have moved. Polling without sleep would take a helper's
                // CPU.
                let part = &addrs[..PAGES / 2 * (1 + round as usize % 8) / 8];
                let last = &part[part.len() - 1..];
                while sys::places(0, last)? != [node] && !mover.is_finished() {
                    sleep(Duration::from_millis(1));
                }
                hogs.set(Hogs::SPIN);
                let moved = join(mover, "the moving thread");
                hogs.set(Hogs::SLEEP);
                moved
            })?;
            pattern::check(map.words(), 1)?;
        }
        Ok(())
    })
}

fn move_long(addrs: &[usize]) -> Result<()> {
    region::move_all(addrs, 1, MF_MOVE)
}

fn ask_for_long(addrs: &[usize]) -> Result<()> {
    region::move_all(addrs, 1, MF_MOVE | MF_MOVE_MT)
}

/// All of the process, as one list.
fn migrate_all(addrs: &[usize]) -> Result<()> {
    let left = sys::migrate_pages(0, 1 << 0, 1 << 1);
    ensure!(left.errno == 0, "migrate_pages: {left:?}");
    region::check_on(addrs, 1)
}

/// As [`meanwhile`], by a setting.
fn set_meanwhile(migrate: fn(&[usize]) -> Result<()>, path: &str, value: &str) -> Result<()> {
    let setting = Setting::keep(path)?;
    meanwhile(migrate, |forbid| {
        kernel::write(path, if forbid { value } else { setting.old() })
    })
}

/// As [`meanwhile`], by a limit of the cgroup.
fn limit_meanwhile(
    migrate: fn(&[usize]) -> Result<()>,
    limit: &str,
    value: &str,
    none: &str,
) -> Result<()> {
    let groups = Groups::new(&["meanwhile"])?;
    groups.add(0, Pid::this())?;
    meanwhile(migrate, |forbid| {
        groups.set(0, limit, if forbid { value } else { none })
    })
}

/// `set(true)` forbids help while a helper is at work: it carries no page but those that it has begun.
/// `set(false)` allows help again.
fn meanwhile(migrate: fn(&[usize]) -> Result<()>, set: impl Fn(bool) -> Result<()>) -> Result<()> {
    // One helper, which comes whatever else its CPU does.
    let _any = Setting::change(&file("cpus"), "any")?;
    let _two = Setting::change(WORKING, "2")?;
    let map = region::filled(FolioSize::Small, LONG, 1)?;
    let addrs = map.addrs(PAGE);
    // A longer query would keep the mover, which may have to share a CPU with it, from its helper.
    let sample: Vec<usize> = addrs.iter().copied().step_by(SAMPLED).collect();

    let carried = || kernel::counter("crew_pages_helper");
    repeat_until("help is forbidden early in the work of a crew", || {
        region::move_all(&addrs, 0, MF_MOVE)?;
        let before = carried()?;
        let there = scope(|scope| -> Result<usize> {
            let mover = scope.spawn(|| migrate(&addrs));
            while count_on(&addrs[..1], 1)? == 0 && !mover.is_finished() {
                sleep(Duration::from_millis(1));
            }
            let there = set(true).and_then(|()| count_on(&sample, 1));
            let moved = join(mover, "the mover");
            set(false)?;
            moved?;
            Ok((there? + 1) * SAMPLED)
        })?;
        pattern::check(map.words(), 1)?;
        let helped = (carried()? - before) as usize;
        // No helper came, or the helpers had done all of their part before.
        if helped == 0 || there > LONG / 4 {
            return Ok(false);
        }
        ensure!(
            helped <= there + BEGUN,
            "a helper carried {helped} pages of {LONG}, though {there} at most were there when that was forbidden"
        );
        Ok(true)
    })
}
