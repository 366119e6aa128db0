// SPDX-License-Identifier: GPL-2.0-only
//! CPU time of helpers: it is charged to the cgroup of the task that they help, and to no other.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::cgroup::Groups;
use crate::child::Child;
use crate::harness::Case;
use crate::kernel::{self, Setting};
use crate::patience::{repeat_until, wait_until};
use crate::plan::{Engine, FolioSize};
use crate::sys::MF_MOVE;
use crate::{pattern, region};

const THREADS: u32 = 4;
const SLOW: u32 = 240;

/// Helper time that is large in relation to other activity in a guest.
const ENOUGH: Duration = Duration::from_millis(60);
const QUEUE: &str = "/sys/kernel/mm/ferry/copy/queue";

pub fn cases() -> Vec<Case> {
    let charged = |name: &str, engine, folio, count| {
        Case::new(name, move |_| charged(engine, folio, count)).limit(SLOW)
    };
    vec![
        charged(
            "accounting/crew-4k",
            Engine::On(THREADS),
            FolioSize::Small,
            8192,
        ),
        // With enough CPUs, helpers also copy for the crew's members.
        charged(
            "accounting/crew-2m",
            Engine::On(THREADS),
            FolioSize::Huge,
            12,
        ),
        charged(
            "accounting/engine-2m",
            Engine::CopyOnly(THREADS),
            FolioSize::Huge,
            6,
        ),
        charged(
            "accounting/engine-4k",
            Engine::CopyOnly(THREADS),
            FolioSize::Small,
            2048,
        ),
        Case::new("accounting/off", |_| off()).limit(SLOW),
    ]
}

/// Returns a process that sleeps already: CPU time spent before must not be charged to its group.
fn sleeper() -> Result<Child> {
    let sleeper = Child::sleeping()?;
    let stat = format!("/proc/{}/stat", sleeper.pid());
    wait_until("a process sleeps", || {
        let state = kernel::read(&stat)?;
        Ok(state
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S')))
    })?;
    Ok(sleeper)
}

/// Values of a group's `cpu.stat`, since the group was created.
#[derive(Clone, Copy)]
struct Stat {
    usage: Duration,
    system: Duration,
}

impl Stat {
    fn of(groups: &Groups, group: usize) -> Result<Self> {
        let text = groups.get(group, "cpu.stat")?;
        let row = |name: &str| {
            let rows = text.lines().filter_map(|line| line.split_once(' '));
            let mut found = rows.filter(|(row, _)| *row == name);
            let value = found.next().and_then(|(_, value)| value.parse().ok());
            value.with_context(|| format!("cpu.stat has no {name}"))
        };
        Ok(Self {
            usage: Duration::from_micros(row("usage_usec")?),
            system: Duration::from_micros(row("system_usec")?),
        })
    }
}

/// Returns the kernel's counter of helper time.
fn counted() -> Result<Duration> {
    kernel::counter("helper_usec").map(Duration::from_micros)
}

/// Returns the CPU time of each kernel worker, by the scheduler.
fn workers() -> Result<BTreeMap<i32, Duration>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // A worker that exits now does not matter.
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let clock = clock_getcpuclockid(Pid::from_raw(pid));
        if let (true, Ok(clock)) = (comm.starts_with("kworker/"), clock) {
            all.insert(pid, clock_gettime(clock)?.into());
        }
    }
    Ok(all)
}

/// Three groups, one inside another. This process is in the inner one and a sleeper in the third.
/// The other values are the CPU times when this process was moved there.
struct Watch {
    // Dropped before the groups, which can be removed only without tasks.
    _sleeper: Child,
    groups: Groups,
    counted: Duration,
    /// CPU time of this process before and after it was moved.
    own_before: Duration,
    own_after: Duration,
    workers: BTreeMap<i32, Duration>,
}

/// CPU time spent since.
struct Spent {
    /// Time of helpers, by the counter.
    counted: Duration,
    /// CPU time of this process that its group must and may have been charged. They differ by what
    /// it spends while it is moved and while the group is read, long on a busy host.
    own: Duration,
    own_at_most: Duration,
    /// Time of all kernel workers.
    workers: Duration,
    outer: Stat,
    inner: Stat,
    sibling: Stat,
}

impl Watch {
    const OUTER: usize = 0;
    const SIBLING: usize = 1;
    const INNER: usize = 2;

    fn own() -> Result<Duration> {
        Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
    }

    fn start(sleeper: Child) -> Result<Self> {
        let mut groups = Groups::new(&["outer", "sibling"])?;
        groups.make_inside(Self::OUTER, "inner")?;
        groups.add(Self::SIBLING, sleeper.pid())?;
        let (workers, counted) = (workers()?, counted()?);
        let own_before = Self::own()?;
        groups.add(Self::INNER, Pid::this())?;
        Ok(Self {
            groups,
            _sleeper: sleeper,
            counted,
            own_before,
            own_after: Self::own()?,
            workers,
        })
    }

    fn helped(&self) -> Result<Duration> {
        Ok(counted()? - self.counted)
    }

    fn spent(&self) -> Result<Spent> {
        // Reading the process's own time updates its group's.
        let own = Self::own()? - self.own_after;
        let stat = |group| Stat::of(&self.groups, group);
        let gained = |(pid, after): (i32, Duration)| {
            after.saturating_sub(self.workers.get(&pid).copied().unwrap_or_default())
        };
        let (inner, outer) = (stat(Self::INNER)?, stat(Self::OUTER)?);
        Ok(Spent {
            own,
            own_at_most: Self::own()? - self.own_before,
            inner,
            outer,
            sibling: stat(Self::SIBLING)?,
            counted: self.helped()?,
            workers: workers()?.into_iter().map(gained).sum(),
        })
    }
}

impl std::fmt::Display for Spent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let group = |stat: Stat| format!("{:.3?} (kernel {:.3?})", stat.usage, stat.system);
        write!(
            f,
            "counted {:.1?}, own {:.3?} to {:.3?}, workers {:.1?}, inner {}, outer {}, sibling {}",
            self.counted,
            self.own,
            self.own_at_most,
            self.workers,
            group(self.inner),
            group(self.outer),
            group(self.sibling)
        )
    }
}

/// Checks that helper time is charged to the helped task's group and its ancestors, with every
/// queue that calls helpers.
fn charged(engine: Engine, folio: FolioSize, count: usize) -> Result<()> {
    kernel::set_engine(engine)?;
    for queue in ["bound", "highpri"] {
        let _queue = Setting::change(QUEUE, queue)?;
        charged_by(folio, count).context(queue)?;
    }
    Ok(())
}

fn charged_by(folio: FolioSize, count: usize) -> Result<()> {
    // Forked before the memory exists, which it would share.
    let sleeper = sleeper()?;
    let map = region::filled(folio, count, 1)?;
    let addrs = map.addrs(folio.bytes());
    let watch = Watch::start(sleeper)?;
    let mut node = 0;
    // On a busy host, most helpers arrive when no work is left.
    repeat_until("helpers have worked for long enough", || {
        node = 1 - node;
        region::move_all(&addrs, node, MF_MOVE)?;
        Ok(watch.helped()? >= ENOUGH)
    })?;
    let spent = watch.spent()?;
    pattern::check(map.words(), 1)?;

    let helped = spent.counted;
    for group in [spent.inner, spent.outer] {
        ensure!(
            group.usage >= spent.own + helped / 2 && group.system >= helped / 2,
            "expected at least half of the helper time in the group's usage: {spent}"
        );
        ensure!(
            group.usage <= spent.own_at_most + helped * 3 / 2,
            "expected at most 1.5 times the helper time in the group's usage: {spent}"
        );
    }
    ensure!(
        spent.sibling.usage <= helped / 10,
        "expected no helper time in the sibling group: {spent}"
    );
    // There is no lower bound: workers also drain the LRU caches for each call, and arrive too late
    // more often on a busy host.
    ensure!(
        helped <= spent.workers * 5 / 4,
        "expected the counter below the workers' time: {spent}"
    );
    Ok(())
}

/// Without helpers, each group is charged only its own time.
fn off() -> Result<()> {
    kernel::set_engine(Engine::Off)?;
    let sleeper = sleeper()?;
    let (map, addrs) = region::large(12, 1)?;
    let watch = Watch::start(sleeper)?;
    for round in 0..20 {
        region::move_all(&addrs, 1 - round % 2, MF_MOVE)?;
    }
    let spent = watch.spent()?;
    pattern::check(map.words(), 1)?;
    ensure!(
        spent.counted.is_zero(),
        "expected no helper time with the engine off: {spent}"
    );
    ensure!(
        spent.inner.usage <= spent.own_at_most * 5 / 4 + ENOUGH / 4,
        "expected only the process's own time in its group: {spent}"
    );
    Ok(())
}
