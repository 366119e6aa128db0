// SPDX-License-Identifier: GPL-2.0-only
//! A soak: it migrates folios for long, with nearly all features on. *Actors* are processes that own
//! memory or a file, change it, and check all contents that they read. *Movers* migrate their memory.
//! Meanwhile settings change, CPUs and memory go offline, and reclaim demotes and swaps. In the end
//! all contents must be right, and no page may be held or missing.

mod accounts;
mod chaos;
mod file;
mod memory;
mod movers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::bench;
use crate::cases::disk::{Disk, FileSystem, Swap, Tmpfs};
use crate::cases::dma;
use crate::cgroup::Groups;
use crate::child::Child;
use crate::kernel::{self, Setting};
use crate::patience::{self, wait_until};
use crate::sys::{Mapping, PAGE};
use accounts::Accounts;
use chaos::Chaos;
use file::RecordedFile;
use memory::{Memory, MemoryKind, move_to_any_cpu};

/// The actors with anonymous memory.
const KINDS: [MemoryKind; 5] = [
    private("small", libc::MADV_NOHUGEPAGE),
    private("huge", libc::MADV_HUGEPAGE),
    private("as-set", libc::MADV_NORMAL),
    private("merged", libc::MADV_MERGEABLE),
    MemoryKind {
        name: "shared",
        pages: 6144,
        is_shared: true,
        advice: libc::MADV_NORMAL,
    },
];
/// Processes that move the memory of the actors.
const MOVERS: usize = 2;
/// Time between two changes of the machine.
const PAUSE: Duration = Duration::from_millis(300);
/// Time between two lines of progress. Each actor must have done something meanwhile.
const PROGRESS: Duration = Duration::from_secs(60);
/// Time until all processes have ended, and then until the kernel has its memory back.
const END: Duration = Duration::from_secs(300);
/// Bytes of a file system.
const DISK: u64 = 128 << 20;

/// Counters of features that must take part: files of `stats/`, and rows of `/proc/vmstat`.
const TAKE_PART: [&str; 6] = [
    "batches",
    "crews",
    "run_pages",
    "thp_migration_success",
    "pgdemote_proactive",
    "pswpout",
];
/// More of them: files in Ferry's folder.
const FILES: [&str; 2] = ["migrc/deferred_pages", "service/successful"];

/// Returns private memory of 24 MB.
const fn private(name: &'static str, advice: i32) -> MemoryKind {
    MemoryKind {
        name,
        pages: 6144,
        is_shared: false,
        advice,
    }
}

#[derive(clap::Args)]
pub struct Options {
    /// End when this many folios have migrated and each feature has taken part. A folio of 2 MB counts
    /// as one, others by their pages.
    #[arg(long)]
    folios: u64,
    /// End after this many seconds in any case
    #[arg(long)]
    seconds: u64,
    /// The random choices depend on this and on the timing
    #[arg(long)]
    seed: u64,
    /// Write the results here, as JSON; - for standard output
    #[arg(long)]
    out: String,
}

/// The results, which the host adds up.
#[derive(Serialize)]
struct Results {
    seed: u64,
    seconds: f64,
    /// Folios that migrated, as in [`Options::folios`].
    folios: u64,
    /// Base pages that migrated.
    pages: u64,
    /// Operations of each actor, and gains of the counters of features.
    counts: BTreeMap<String, u64>,
}

/// Words that all processes share.
struct SharedWords(Mapping);

impl SharedWords {
    fn new() -> Result<Self> {
        Ok(Self(Mapping::anon_flags(PAGE, libc::MAP_SHARED)?))
    }

    /// Whether the movers, or the actors, go on.
    fn goes_on(&self, stop: usize) -> bool {
        self.0.words()[stop].load(Relaxed) == 0
    }

    fn stop(&self, stop: usize) {
        self.0.words()[stop].store(1, Relaxed);
    }

    /// The operations of an actor.
    fn count(&self, actor: usize) -> &AtomicU64 {
        &self.0.words()[2 + actor]
    }
}

const STOP_MOVERS: usize = 0;
const STOP_ACTORS: usize = 1;

/// An actor or a mover.
struct Process {
    name: String,
    child: Child,
}

impl Process {
    fn start(name: String, body: impl FnOnce() -> Result<()>) -> Result<Self> {
        let child = Child::start(|| {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            body().with_context(|| name.clone())
        })?;
        Ok(Self { name, child })
    }

    fn still_runs(&self) -> Result<()> {
        self.child.still_runs().with_context(|| self.name.clone())
    }

    /// Waits until the process has found all contents right.
    fn finish(self) -> Result<()> {
        wait_until(&format!("{} ends", self.name), || {
            Ok(self.child.still_runs().is_err())
        })?;
        self.child.finish(&format!("{} to exit with 0", self.name))
    }
}

/// File systems, a swap area and cgroups for the processes.
struct Environment {
    groups: Groups,
    folders: Vec<(&'static str, PathBuf)>,
    _disks: Vec<Disk>,
    _tmpfs: Tmpfs,
    _swap: Swap,
}

impl Environment {
    fn new() -> Result<Self> {
        let (mut folders, mut disks) = (Vec::new(), Vec::new());
        for kind in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
            if kind.is_built()? {
                let disk = Disk::of(kind, DISK)?;
                folders.push((kind.name(), disk.path("")));
                disks.push(disk);
            }
        }
        let tmpfs = Tmpfs::new()?;
        folders.push(("tmpfs", tmpfs.dir().to_path_buf()));
        Ok(Self {
            groups: Groups::new(&["a", "b", "c"])?,
            folders,
            _disks: disks,
            _tmpfs: tmpfs,
            _swap: Swap::new()?,
        })
    }
}

/// Runs until enough folios have migrated or the time is over, and writes the results.
pub fn run(options: &Options) -> Result<()> {
    ensure!(kernel::has_engine(), "this kernel has no Ferry");
    kernel::check_machine()?;
    let kept: Vec<Setting> = chaos::settings()
        .map(Setting::keep)
        .collect::<Result<_>>()?;
    let accounts = Accounts::open()?;
    let environment = Environment::new()?;
    let results = soak(options, &environment)?;
    drop(environment);
    // Puts the settings back.
    drop(kept);
    patience::allow(END);
    accounts.check()?;
    bench::put(&options.out, &serde_json::to_string(&results)?)
}

/// Starts all processes, watches them until the end, and lets each check all of its contents.
fn soak(options: &Options, environment: &Environment) -> Result<Results> {
    let (shared, mut rng) = (SharedWords::new()?, Rng::with_seed(options.seed));
    let actors = start_actors(&shared, environment, &mut rng)?;
    let pids = actors.iter().map(|actor| actor.child.pid().as_raw());
    let pids: Vec<i32> = pids.collect();
    let mut movers = Vec::new();
    for nr in 0..MOVERS {
        let mut rng = rng.fork();
        movers.push(Process::start(format!("mover {nr}"), || {
            movers::run(&pids, &mut rng, || shared.goes_on(STOP_MOVERS))
        })?);
    }
    let mut chaos = Chaos::start(&environment.groups, &pids, rng);
    let (start, before) = (Instant::now(), Counts::now()?);
    let mut seen = (start, vec![0; actors.len()]);
    let moved = loop {
        for process in actors.iter().chain(&movers) {
            process.still_runs()?;
        }
        chaos.change()?;
        let moved = Counts::now()?.since(&before);
        let (took, folios) = (start.elapsed(), moved.folios());
        if seen.0.elapsed() >= PROGRESS {
            println!("# soak: {folios} folios in {:.0} s", took.as_secs_f64());
            for (nr, actor) in actors.iter().enumerate() {
                let done = shared.count(nr).load(Relaxed);
                ensure!(done > seen.1[nr], "{} did nothing for a minute", actor.name);
                seen.1[nr] = done;
            }
            seen.0 = Instant::now();
        }
        let all_took_part = moved.taking_part().is_ok() && chaos.made().is_ok();
        let is_enough = folios >= options.folios && all_took_part;
        if is_enough || took.as_secs() >= options.seconds {
            break moved;
        }
        sleep(PAUSE);
    };
    let mut counts = moved.taking_part()?;
    counts.extend(chaos.made()?);
    for (nr, actor) in actors.iter().enumerate() {
        counts.insert(actor.name.clone(), shared.count(nr).load(Relaxed));
    }
    patience::allow(END);
    for (stop, processes) in [(STOP_MOVERS, movers), (STOP_ACTORS, actors)] {
        shared.stop(stop);
        processes.into_iter().try_for_each(Process::finish)?;
    }
    Ok(Results {
        seed: options.seed,
        seconds: start.elapsed().as_secs_f64(),
        folios: moved.folios(),
        pages: moved.of("pgmigrate_success"),
        counts,
    })
}

fn start_actors(
    shared: &SharedWords,
    environment: &Environment,
    rng: &mut Rng,
) -> Result<Vec<Process>> {
    let mut actors = Vec::new();
    for kind in KINDS {
        let (nr, rng) = (actors.len(), rng.fork());
        actors.push(Process::start(kind.name.to_owned(), || {
            let mut memory = Memory::new(kind)?;
            act(shared, nr, rng, |rng| memory.step(rng))?;
            memory.check()
        })?);
    }
    for (name, folder) in &environment.folders {
        let (nr, rng) = (actors.len(), rng.fork());
        actors.push(Process::start((*name).to_owned(), || {
            of_file(shared, nr, folder, rng)
        })?);
    }
    Ok(actors)
}

fn of_file(shared: &SharedWords, nr: usize, folder: &Path, rng: Rng) -> Result<()> {
    let mut file = RecordedFile::new(folder, "file")?;
    act(shared, nr, rng, |rng| file.step(rng))?;
    file.check()
}

/// Does one operation after the other until the actors are stopped.
fn act(
    shared: &SharedWords,
    nr: usize,
    mut rng: Rng,
    mut step: impl FnMut(&mut Rng) -> Result<()>,
) -> Result<()> {
    while shared.goes_on(STOP_ACTORS) {
        if rng.u32(..8) == 0 {
            move_to_any_cpu(&mut rng);
        }
        step(&mut rng)?;
        shared.count(nr).fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Counters since boot, or their gains.
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn now() -> Result<Self> {
        let mut counts = kernel::all_counters()?;
        for file in FILES {
            let count = kernel::number(format!("/sys/kernel/mm/ferry/{file}"))?;
            counts.insert(file.to_owned(), count);
        }
        Ok(Self(counts))
    }

    fn since(mut self, before: &Self) -> Self {
        for (name, count) in &mut self.0 {
            *count = count.saturating_sub(before.of(name));
        }
        self
    }

    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Returns the folios that have migrated.
    fn folios(&self) -> u64 {
        let in_huge = self.of("thp_migration_success") * ((2 << 20) / PAGE as u64 - 1);
        self.of("pgmigrate_success").saturating_sub(in_huge)
    }

    /// Returns the gains of the features that must take part, each of which must have some.
    fn taking_part(&self) -> Result<BTreeMap<String, u64>> {
        let mut counts = BTreeMap::new();
        let by_dma = dma::has_engine().then_some("pages_dma");
        for name in TAKE_PART.into_iter().chain(FILES).chain(by_dma) {
            ensure!(self.of(name) > 0, "{name} did not grow");
            counts.insert(name.to_owned(), self.of(name));
        }
        Ok(counts)
    }
}
