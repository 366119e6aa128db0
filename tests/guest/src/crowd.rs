// SPDX-License-Identifier: GPL-2.0-only
//! Processes that migrate at the same time, each its own memory, in a stream of calls.
//!
//! On a busy CPU the scheduler's slices are as long as a call, so the time of a single call
//! measures the scheduler. Therefore a run lasts many slices and counts all bytes over all the
//! time. Contents are checked once at the end of a run, because later moves do not repair lost or
//! stale pages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::pipe;

use crate::bench::Stage;
use crate::cargo::Cargo;
use crate::child::Child;
use crate::plan::{Cell, Plan, Report, Sample, Stuff};
use crate::stats::gbps;
use crate::stressor::Stressor;
use crate::sys::{Mapping, PAGE};
use crate::{kernel, pattern};

/// Time for the scheduler to balance all processes.
const SETTLE: Duration = Duration::from_millis(50);
/// Least duration of the measurement in each process.
const SPAN: Duration = Duration::from_millis(400);
/// Much longer than any run; after this a process has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// Messages of a mover: its memory is ready; all movers have been measured.
const READY: u8 = b'r';
const MEASURED: u8 = b'm';

/// Work of one mover during its measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trip {
    bytes: u64,
    seconds: f64,
    /// Loops of the stressor in the same time.
    loops: u64,
}

/// Memory shared by all movers: a count of measured ones, then a page for each.
struct Board(Mapping);

impl Board {
    fn new(movers: usize) -> Result<Self> {
        Mapping::anon_flags((1 + movers) * PAGE, libc::MAP_SHARED).map(Self)
    }

    fn measured(&self) -> &AtomicU64 {
        &self.0.words()[0]
    }

    fn page(&self, mover: usize) -> &[AtomicU64] {
        &self.0.words()[(1 + mover) * (PAGE / 8)..]
    }

    fn put(&self, mover: usize, trip: Trip) {
        let words = [trip.bytes, trip.seconds.to_bits(), trip.loops];
        for (word, value) in self.page(mover).iter().zip(words) {
            word.store(value, Relaxed);
        }
    }

    fn trip(&self, mover: usize) -> Trip {
        let word = |at: usize| self.page(mover)[at].load(Relaxed);
        Trip {
            bytes: word(0),
            seconds: f64::from_bits(word(1)),
            loops: word(2),
        }
    }
}

/// Movers that have their memory and wait for the start. They are killed on drop.
struct Crowd {
    movers: Vec<Migrator>,
    board: Board,
    /// Closing it starts all movers.
    start: Option<OwnedFd>,
}

struct Migrator {
    child: Child,
    /// The pipe that its messages come from; closed when the process ends.
    said: File,
}

impl Crowd {
    fn gather(cell: Cell, movers: usize, seed: u64, stressor: Option<&Stressor>) -> Result<Self> {
        let (wait, start) = pipe().context("pipe")?;
        let mut wait = File::from(wait);
        let mut crowd = Self {
            movers: Vec::new(),
            board: Board::new(movers)?,
            start: Some(start),
        };
        for index in 0..movers {
            let (said, say) = pipe().context("pipe")?;
            let mut say = File::from(say);
            let Crowd { board, start, .. } = &mut crowd;
            let child = Child::start(|| {
                // Otherwise the child keeps its own start pipe open.
                *start = None;
                let mover = Mover {
                    cell,
                    seed: seed * movers as u64 + index as u64,
                    index,
                    all: movers as u64,
                    board,
                    stressor,
                };
                let done = mover.live(&mut say, &mut wait);
                done.with_context(|| format!("process {index} of {movers}"))
            })?;
            crowd.movers.push(Migrator {
                child,
                said: said.into(),
            });
        }
        crowd.hear(READY)?;
        Ok(crowd)
    }

    /// Waits for this message of all movers.
    fn hear(&mut self, word: u8) -> Result<()> {
        for (index, mover) in self.movers.iter_mut().enumerate() {
            let mut said = [0];
            let heard = mover.said.read_exact(&mut said);
            ensure!(
                heard.is_ok() && said == [word],
                "migrating process {index} failed; its error is above"
            );
        }
        Ok(())
    }

    /// Starts all movers, waits until each is measured, and checks their contents.
    fn run(mut self, stressor: Option<&Stressor>) -> Result<Vec<Trip>> {
        stressor.map_or(Ok(()), Stressor::resume)?;
        self.start = None;
        self.hear(MEASURED)?;
        stressor.map_or(Ok(()), Stressor::pause)?;
        let movers = std::mem::take(&mut self.movers);
        let nr = movers.len();
        for (index, mover) in movers.into_iter().enumerate() {
            match mover.child.wait()? {
                WaitStatus::Exited(_, 0) => {}
                other => {
                    bail!("migrating process {index} ended with {other:?}; its error is above")
                }
            }
        }
        Ok((0..nr).map(|i| self.board.trip(i)).collect())
    }
}

/// A mover, in its own process.
struct Mover<'a> {
    cell: Cell,
    seed: u64,
    index: usize,
    all: u64,
    board: &'a Board,
    stressor: Option<&'a Stressor>,
}

impl Mover<'_> {
    fn live(&self, say: &mut File, start: &mut File) -> Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        fastrand::seed(self.seed);
        let mut cargo = Cargo::new(self.cell, Stuff::Written)?;
        pattern::fill(cargo.map().words(), self.seed);
        say.write_all(&[READY])?;
        // Nothing is written to the pipe. It ends for all at the same time.
        start.read_to_end(&mut Vec::new())?;
        self.measure(&mut cargo)?;
        say.write_all(&[MEASURED])?;
        pattern::check(cargo.map().words(), self.seed)?;
        // Split folios would mean that another size was measured.
        kernel::check_folios(cargo.map(), self.cell.folio.bytes())
    }

    /// Moves to and fro, so both directions weigh the same, and continues until the others are
    /// measured too, so that all run in parallel all the time.
    fn measure(&self, cargo: &mut Cargo) -> Result<()> {
        let loops = || self.stressor.map_or(0, Stressor::loops);
        let begin = Instant::now();
        while begin.elapsed() < SETTLE {
            cargo.round_trip()?;
        }
        let (from, loops_from, mut trips) = (Instant::now(), loops(), 0);
        while from.elapsed() < SPAN {
            cargo.round_trip()?;
            trips += 1;
        }
        let trip = Trip {
            seconds: from.elapsed().as_secs_f64(),
            loops: loops() - loops_from,
            bytes: trips * 2 * self.cell.bytes() as u64,
        };
        self.board.put(self.index, trip);
        self.board.measured().fetch_add(1, Relaxed);
        while self.board.measured().load(Relaxed) < self.all {
            cargo.round_trip()?;
            ensure!(
                begin.elapsed() < LIMIT,
                "the other migrating processes did not finish within {LIMIT:?}"
            );
        }
        Ok(())
    }
}

/// Measures a cell with `movers` processes. Each run is a turn, as in `bench::measure`.
pub fn measure(
    plan: &Plan,
    cell: Cell,
    movers: usize,
    stage: &Stage,
    report: &mut Report,
) -> Result<()> {
    let mut case = Case::new(plan, cell, movers);
    for run in 0..plan.runs_of(cell) {
        stage.take()?;
        if run == 0 {
            kernel::compact();
        }
        if let Some(running) = &mut case {
            if let Some(error) = running.one_run(plan, run, stage.stressor.as_ref())? {
                report.give_up(cell, &error.context(format!("in run {run}")));
                case = None;
            }
        }
        stage.pass()?;
    }
    case.into_iter().for_each(|done| done.finish(report));
    Ok(())
}

/// A cell being measured.
struct Case {
    cell: Cell,
    movers: usize,
    samples: Vec<Sample>,
    /// Increase of the engine's counters, by configuration.
    counters: Vec<BTreeMap<String, u64>>,
}

impl Case {
    fn new(plan: &Plan, cell: Cell, movers: usize) -> Option<Self> {
        Some(Self {
            cell,
            movers,
            samples: plan
                .configs
                .iter()
                .map(|config| Sample::new(cell, &config.name))
                .collect(),
            counters: vec![BTreeMap::new(); plan.configs.len()],
        })
    }

    /// Runs each configuration once, starting with a different one each time. Returns `Some` error
    /// if the cell cannot be measured.
    fn one_run(
        &mut self,
        plan: &Plan,
        run: usize,
        stressor: Option<&Stressor>,
    ) -> Result<Option<anyhow::Error>> {
        let all = plan.configs.len();
        for i in (0..all).map(|i| (i + run) % all) {
            let config = &plan.configs[i];
            let name = || format!("{}, {}, run {run}", self.cell, config.name);
            kernel::set_engine(config.engine)?;
            stressor.map_or(Ok(()), Stressor::pause)?;
            let crowd = match Crowd::gather(self.cell, self.movers, 1 + run as u64, stressor) {
                Ok(crowd) => crowd,
                Err(e) => return Ok(Some(e)),
            };
            let before = kernel::counters()?;
            let trips = crowd.run(stressor).with_context(name)?;
            for (row, n) in kernel::gained(&before, &kernel::counters()?) {
                *self.counters[i].entry(row).or_default() += n;
            }
            self.samples[i].add(&trips, stressor.is_some());
        }
        Ok(None)
    }

    fn finish(self, report: &mut Report) {
        for (sample, counters) in self.samples.iter().zip(&self.counters) {
            let rows = counters.iter().filter(|(_, n)| **n > 0);
            let said: Vec<String> = rows.map(|(row, n)| format!("{row} {n}")).collect();
            if !said.is_empty() {
                eprintln!("{}, {}: {}", sample.cell, sample.config, said.join(", "));
            }
        }
        report.add(self.samples);
    }
}

impl Sample {
    /// Adds a run: the sum of throughputs, the stressor's speed, and the ratio of the slowest to
    /// the fastest.
    fn add(&mut self, trips: &[Trip], stressed: bool) {
        let speeds: Vec<f64> = trips
            .iter()
            .map(|trip| gbps(trip.bytes as usize, trip.seconds))
            .collect();
        self.gbps.push(speeds.iter().sum());
        if stressed {
            let rates = trips.iter().map(|trip| trip.loops as f64 / trip.seconds);
            self.loops_per_second
                .push(rates.sum::<f64>() / trips.len() as f64);
        }
        if trips.len() > 1 {
            let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
            let fastest = speeds.iter().copied().fold(0.0, f64::max);
            self.fairness.push(slowest / fastest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::FolioSize;

    const CELL: Cell = Cell {
        folio: FolioSize::Small,
        count: 16,
        processes: Some(2),
    };

    fn trip(bytes: u64, seconds: f64, loops: u64) -> Trip {
        Trip {
            bytes,
            seconds,
            loops,
        }
    }

    #[test]
    fn a_run_is_the_sum_of_all_and_tells_how_even_they_were() {
        let mut sample = Sample::new(CELL, "vanilla");
        sample.add(
            &[trip(1_000_000_000, 0.5, 10), trip(1_000_000_000, 1.0, 30)],
            true,
        );
        assert_eq!(sample.gbps, [3.0]);
        assert_eq!(sample.fairness, [0.5]);
        assert_eq!(sample.loops_per_second, [25.0]);
        sample.add(&[trip(4_000_000_000, 2.0, 0)], false);
        assert_eq!(sample.gbps, [3.0, 2.0]);
        assert_eq!(
            (sample.fairness.len(), sample.loops_per_second.len()),
            (1, 1),
            "expected no fairness of one process, and no loops without a stressor"
        );
    }

    #[test]
    fn without_memory_for_all_nobody_is_left_waiting() {
        let cell = Cell {
            count: 1 << 36,
            ..CELL
        };
        let gathered = Crowd::gather(cell, 2, 1, None);
        let error = gathered
            .err()
            .expect("expected no memory for 256 TB")
            .to_string();
        assert!(error.contains("process 0"), "{error}");
    }

    #[test]
    fn each_has_a_place_of_its_own_on_the_board() {
        let board = Board::new(2).unwrap();
        let trips = [trip(1, 0.25, 2), trip(3, 0.5, 4)];
        for (mover, &trip) in trips.iter().enumerate() {
            board.put(mover, trip);
        }
        board.measured().store(2, Relaxed);
        assert_eq!([board.trip(0), board.trip(1)], trips);
    }
}
