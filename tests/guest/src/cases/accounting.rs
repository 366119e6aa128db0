// SPDX-License-Identifier: GPL-2.0-only
//! The CPU time of helpers: the cgroup of who is helped pays for it, and no other.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, pause};

use crate::cgroup::Groups;
use crate::harness::Case;
use crate::kernel::{self, Setting};
use crate::patience::{repeat_until, wait_until};
use crate::plan::{Engine, FolioSize};
use crate::sys::{MF_MOVE, fork_child};
use crate::{pattern, region};

const THREADS: u32 = 4;
const SLOW: u32 = 240;

/// Time of helpers that is long beside whatever else happens in a guest.
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
        // Where there are CPUs enough the members of the crew are helped in turn.
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

/// A process that does nothing; killed in the end.
struct Sleeper(Pid);

impl Sleeper {
    fn start() -> Result<Self> {
        let sleeper = Self(fork_child(|| {
            loop {
                pause();
            }
        })?);
        // The CPU time that it takes to get there must not be charged to its group.
        let stat = format!("/proc/{}/stat", sleeper.0);
        wait_until("a process sleeps", || {
            let state = kernel::read(&stat)?;
            Ok(state
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('S')))
        })?;
        Ok(sleeper)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // The harness kills what is left.
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// What `cpu.stat` says of a group, since the group was made.
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
            value.with_context(|| format!("no {name} in cpu.stat"))
        };
        Ok(Self {
            usage: Duration::from_micros(row("usage_usec")?),
            system: Duration::from_micros(row("system_usec")?),
        })
    }
}

/// The counter of helpers' time.
fn counted() -> Result<Duration> {
    const ROW: &str = "ferry_helper_usec";
    let rows = kernel::counters()?;
    let usec = rows.get(ROW).with_context(|| format!("no {ROW}"))?;
    Ok(Duration::from_micros(*usec))
}

/// Returns how long each worker of the kernel has run, by the scheduler.
fn workers() -> Result<BTreeMap<i32, Duration>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // One that goes meanwhile is no longer of interest.
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let clock = clock_getcpuclockid(Pid::from_raw(pid));
        if let (true, Ok(clock)) = (comm.starts_with("kworker/"), clock) {
            all.insert(pid, clock_gettime(clock)?.into());
        }
    }
    Ok(all)
}

/// Three groups, one in another, this process in the inner one and a sleeper in the third; and what was
/// spent when it went there.
struct Watch {
    // Ends before the groups, which are removed only if they have no tasks.
    _sleeper: Sleeper,
    groups: Groups,
    counted: Duration,
    own: Duration,
    workers: BTreeMap<i32, Duration>,
}

/// What was spent since.
struct Spent {
    /// By helpers, as the counter says.
    counted: Duration,
    /// The CPU time of this process itself, before and after its group was asked.
    own: Duration,
    own_by_then: Duration,
    /// By all workers of the kernel.
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

    fn start(sleeper: Sleeper) -> Result<Self> {
        let mut groups = Groups::new(&["outer", "sibling"])?;
        groups.make_inside(Self::OUTER, "inner")?;
        groups.add(Self::SIBLING, sleeper.0)?;
        let (workers, counted) = (workers()?, counted()?);
        groups.add(Self::INNER, Pid::this())?;
        Ok(Self {
            groups,
            _sleeper: sleeper,
            counted,
            own: Self::own()?,
            workers,
        })
    }

    fn helped(&self) -> Result<Duration> {
        Ok(counted()? - self.counted)
    }

    fn spent(&self) -> Result<Spent> {
        // Asking for its own time brings that of its group up to date.
        let own = Self::own()? - self.own;
        let stat = |group| Stat::of(&self.groups, group);
        let gained = |(pid, after): (i32, Duration)| {
            after.saturating_sub(self.workers.get(&pid).copied().unwrap_or_default())
        };
        let (inner, outer) = (stat(Self::INNER)?, stat(Self::OUTER)?);
        Ok(Spent {
            own,
            own_by_then: Self::own()? - self.own,
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
        let group = |stat: Stat| format!("{:.1?} (kernel {:.1?})", stat.usage, stat.system);
        write!(
            f,
            "counted {:.1?}, own {:.1?}, workers {:.1?}, inner {}, outer {}, sibling {}",
            self.counted,
            self.own,
            self.workers,
            group(self.inner),
            group(self.outer),
            group(self.sibling)
        )
    }
}

/// The task that is helped pays: its group, and the group's ancestors, with every queue that calls helpers.
fn charged(engine: Engine, folio: FolioSize, count: usize) -> Result<()> {
    kernel::set_engine(engine)?;
    for queue in ["bound", "highpri"] {
        let _queue = Setting::change(QUEUE, queue)?;
        charged_by(folio, count).context(queue)?;
    }
    Ok(())
}

fn charged_by(folio: FolioSize, count: usize) -> Result<()> {
    // Before there is memory that it would share.
    let sleeper = Sleeper::start()?;
    let map = region::anon(folio, count)?;
    pattern::fill(map.words(), 1);
    let addrs = map.addrs(folio.bytes());
    let watch = Watch::start(sleeper)?;
    let mut node = 0;
    // On a busy host most helpers come when there is nothing left to do.
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
            "helpers were not charged: {spent}"
        );
        ensure!(
            group.usage <= spent.own_by_then + helped * 3 / 2,
            "more was charged than helpers took: {spent}"
        );
    }
    ensure!(
        spent.sibling.usage <= helped / 10,
        "who was not helped was charged: {spent}"
    );
    // There is no lower bound: workers drain the LRU caches for each call, and come in vain, the longer the
    // busier the host is.
    ensure!(
        helped <= spent.workers * 5 / 4,
        "more was counted than workers took: {spent}"
    );
    Ok(())
}

/// Without help everybody pays for what he does.
fn off() -> Result<()> {
    kernel::set_engine(Engine::Off)?;
    let sleeper = Sleeper::start()?;
    let (map, addrs) = region::large(12)?;
    pattern::fill(map.words(), 1);
    let watch = Watch::start(sleeper)?;
    for round in 0..20 {
        region::move_all(&addrs, 1 - round % 2, MF_MOVE)?;
    }
    let spent = watch.spent()?;
    pattern::check(map.words(), 1)?;
    ensure!(
        spent.counted.is_zero(),
        "off, but helpers were counted: {spent}"
    );
    ensure!(
        spent.inner.usage <= spent.own_by_then * 5 / 4 + ENOUGH / 4,
        "more was charged than was spent: {spent}"
    );
    Ok(())
}
