// SPDX-License-Identifier: GPL-2.0-only

//! Retained folios and a CPU whose TLB entries are tagged with address spaces (PCID on x86) and
//! outlive a context switch. Emulators drop such entries, so this is a model of a CPU and of
//! `arch/x86/mm/tlb.c`, around the kernel's [`Coverage`].
//!
//! The CPU has a slot for an address space, with one TLB entry and the generation up to which the
//! slot is flushed. It runs this address space or another, or is lazy: it runs a kernel thread and
//! keeps the address space loaded. An interrupt flushes only what it runs. When the CPU runs the
//! address space again, it compares generations. Of a CPU with `INVLPGB` the model has the broadcast
//! that flushes all address spaces, and address spaces whose flushes are always broadcast, which have
//! no generation.
//!
//! Left out: reuse of slots, flushes of parts of an address space, page table isolation, a change from
//! generations to broadcasts, groups of several address spaces, and hotplug.

use std::sync::atomic::AtomicBool as Witness;
use std::sync::Arc;

use ferry_logic::coverage::{Coverage, Moment, Word};
use loom::sync::atomic::{fence, AtomicBool, AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc as Shared, Mutex};
use loom::thread;

use super::{model, seen};

/// Bits of CPU masks: the modelled CPU, and the one that migrates.
const CPU: usize = 0b01;
const MIGRATING: usize = 0b10;

/// A mapped folio.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folio {
    Old = 1,
    New = 2,
}

/// How CPUs flush the address space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tags {
    /// Interrupts, and generations for a CPU that does not run it.
    Interrupt,
    /// The same, but the flush of a batch is broadcast.
    BatchBroadcast,
    /// Broadcasts; it has no generation.
    Global,
}

/// A step that the model omits, for a control.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Clearing PTEs raises the generation.
    Raise,
    /// A CPU that runs the address space again compares generations.
    Compare,
    /// The barrier between raising the generation and reading the mask.
    Barrier,
    /// A flush counts only for groups that were retained before it.
    Order,
    /// A broadcast reaches CPUs that run another address space.
    Reach,
}

/// The state of the modelled CPU at the start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// It runs the address space, and has read the old folio.
    Runs,
    /// It runs another, has read the old folio before, and is not in the mask any more.
    Trimmed,
}

/// A pause of the CPU between two reads of the folio.
#[derive(Clone, Copy)]
enum Pause {
    /// It runs another address space.
    Leave,
    /// It is lazy.
    Rest,
}

/// A flush after which the old folio is reused, if it counts for its group.
#[derive(Clone, Copy)]
enum Flush {
    /// Of another batch, with this mask.
    Batch(usize),
    /// Of the address space.
    Space,
    /// The group's own.
    Own,
}

/// The CPU's state. A step holds the lock, so an interrupt comes between steps.
struct Cpu {
    /// Whether it runs the address space of the folio, or is lazy with it.
    runs: bool,
    entry: Option<Folio>,
    /// Generation up to which the slot is flushed.
    generation: u64,
}

struct Machine {
    tags: Tags,
    without: Without,
    cpu: Mutex<Cpu>,
    lazy: AtomicBool,
    /// The PTE of the folio; the generation of the address space; the CPUs that may have entries.
    mapped: AtomicUsize,
    generation: AtomicU64,
    cpus: AtomicUsize,
    coverage: Coverage<Vec<Word>>,
    /// The group that retains the old folio, and its CPUs.
    group: Mutex<Option<(Moment, usize)>>,
    reused: AtomicBool,
    /// The CPU has dropped its entry after the folio was reused, when it ran the address space again.
    dropped: Arc<Witness>,
}

impl Machine {
    fn new(tags: Tags, without: Without, start: Start, dropped: &Arc<Witness>) -> Shared<Self> {
        let words = |n| (0..n).map(|_| Word::default()).collect::<Vec<_>>();
        let runs = start == Start::Runs;
        Shared::new(Self {
            tags,
            without,
            cpu: Mutex::new(Cpu {
                runs,
                entry: Some(Folio::Old),
                generation: 1,
            }),
            lazy: AtomicBool::new(false),
            mapped: AtomicUsize::new(Folio::Old as usize),
            generation: AtomicU64::new(1),
            cpus: AtomicUsize::new(MIGRATING | if runs { CPU } else { 0 }),
            coverage: Coverage::new(words(1), words(2), words(2)),
            group: Mutex::new(None),
            reused: AtomicBool::new(false),
            dropped: dropped.clone(),
        })
    }

    /// The CPU reads the folio.
    fn read(&self) {
        let mut cpu = self.cpu.lock().unwrap();
        if !cpu.runs {
            return;
        }
        let walk = || match self.mapped.load(Ordering::Relaxed) {
            1 => Folio::Old,
            _ => Folio::New,
        };
        if *cpu.entry.get_or_insert_with(walk) == Folio::Old {
            let reused = self.reused.load(Ordering::Relaxed);
            assert!(!reused, "a CPU reads a folio that was reused");
        }
    }

    /// The CPU runs another address space. The entry stays, and the CPU stays in the mask.
    fn leave(&self) {
        self.cpu.lock().unwrap().runs = false;
    }

    /// The CPU runs the address space.
    fn enter(&self) {
        let mut cpu = self.cpu.lock().unwrap();
        cpu.runs = true;
        self.cpus.fetch_or(CPU, Ordering::Relaxed);
        self.compare(&mut cpu);
    }

    fn rest(&self) {
        let cpu = self.cpu.lock().unwrap();
        self.lazy.store(cpu.runs, Ordering::Relaxed);
    }

    /// The CPU runs the address space, which it may have kept loaded.
    fn resume(&self) {
        let mut cpu = self.cpu.lock().unwrap();
        if !cpu.runs {
            drop(cpu);
            return self.enter();
        }
        self.lazy.store(false, Ordering::Relaxed);
        self.compare(&mut cpu);
    }

    /// Drops the entry if the slot is behind. Pairs with the barrier of `raise()`.
    fn compare(&self, cpu: &mut Cpu) {
        fence(Ordering::SeqCst);
        if self.tags != Tags::Global && self.without != Without::Compare && self.catch_up(cpu) {
            seen(&self.dropped, self.reused.load(Ordering::Relaxed));
        }
    }

    /// Flushes the slot if it is behind. A CPU that flushes or loads CR3 then sees the changes of
    /// PTEs that raised the generation, as these instructions are serializing.
    fn catch_up(&self, cpu: &mut Cpu) -> bool {
        let now = self.generation.load(Ordering::Acquire);
        let behind = cpu.generation < now;
        if behind {
            cpu.entry = None;
            cpu.generation = now;
        }
        behind
    }

    /// Raises the generation. Returns the CPUs that may have entries.
    fn raise(&self) -> usize {
        self.generation.fetch_add(1, Ordering::AcqRel);
        if self.without != Without::Barrier {
            fence(Ordering::SeqCst);
        }
        self.cpus.load(Ordering::Relaxed)
    }

    /// Migrates the folio with a deferred flush.
    fn migrate(&self) {
        self.mapped.store(Folio::New as usize, Ordering::Relaxed);
        let cpus = match self.without {
            Without::Raise => self.cpus.load(Ordering::Relaxed),
            _ => self.raise(),
        };
        let group = self.coverage.retain(&[cpus]);
        *self.group.lock().unwrap() = Some((group, cpus));
    }

    /// Flushes all address spaces of the CPU.
    fn broadcast(&self) {
        let mut cpu = self.cpu.lock().unwrap();
        if cpu.runs || self.without != Without::Reach {
            cpu.entry = None;
        }
    }

    /// Flushes the CPUs of a batch. A lazy one is not interrupted.
    fn flush_cpus(&self, cpus: usize) {
        if self.tags != Tags::Interrupt {
            return self.broadcast();
        }
        if cpus & CPU == 0 || self.lazy.load(Ordering::Relaxed) {
            return;
        }
        let mut cpu = self.cpu.lock().unwrap();
        if cpu.runs {
            self.catch_up(&mut cpu);
        }
    }

    /// Flushes the address space. A CPU that runs another leaves the mask, and a lazy one loads the
    /// kernel's own.
    fn flush_space(&self) {
        let cpus = self.raise();
        if self.tags == Tags::Global {
            return self.broadcast();
        }
        if cpus & CPU == 0 {
            return;
        }
        let mut cpu = self.cpu.lock().unwrap();
        if !cpu.runs {
            self.cpus.fetch_and(!CPU, Ordering::Relaxed);
        } else if self.lazy.load(Ordering::Relaxed) {
            self.lazy.store(false, Ordering::Relaxed);
            cpu.runs = false;
        } else {
            self.catch_up(&mut cpu);
        }
    }

    /// Flushes, and then reuses the old folio if the flush counts for its group. Returns whether it
    /// does.
    fn flush(&self, flush: Flush) -> bool {
        let counts = match flush {
            Flush::Batch(cpus) => {
                let moment = self.coverage.begin(&[cpus]);
                self.flush_cpus(cpus);
                if let Some(moment) = moment {
                    self.coverage.complete(moment);
                }
                self.group()
                    .is_some_and(|(group, cpus)| self.coverage.covers(&[cpus], group))
            }
            Flush::Space => {
                let before = self.coverage.now();
                self.flush_space();
                let any = self.without == Without::Order;
                self.group().is_some_and(|(group, _)| any || group < before)
            }
            Flush::Own => match self.group() {
                None => false,
                Some((_, cpus)) => {
                    self.flush_cpus(cpus);
                    true
                }
            },
        };
        self.reused.fetch_or(counts, Ordering::Relaxed);
        counts
    }

    fn group(&self) -> Option<(Moment, usize)> {
        *self.group.lock().unwrap()
    }
}

/// The CPU pauses and comes back, while the folio is migrated and another task flushes twice.
/// Returns whether the CPU then found that its entry had to go.
fn play(tags: Tags, without: Without, start: Start, pause: Pause, flushes: [Flush; 2]) -> bool {
    let (reused, dropped) = (Arc::new(Witness::new(false)), Arc::new(Witness::new(false)));
    let witnesses = (reused.clone(), dropped.clone());
    model(Some(2), move || {
        let machine = Machine::new(tags, without, start, &witnesses.1);
        let cpu = {
            let machine = machine.clone();
            thread::spawn(move || {
                machine.read();
                match pause {
                    Pause::Leave => {
                        machine.leave();
                        machine.enter();
                    }
                    Pause::Rest => {
                        machine.rest();
                        machine.resume();
                    }
                }
                machine.read();
            })
        };
        let other = {
            let machine = machine.clone();
            thread::spawn(move || flushes.map(|flush| machine.flush(flush)))
        };
        machine.migrate();
        let counted = other.join().unwrap();
        seen(&witnesses.0, counted.contains(&true));
        cpu.join().unwrap();
    });
    let is = |witness: &Witness| witness.load(std::sync::atomic::Ordering::Relaxed);
    assert!(is(&reused), "no flush counted for the group");
    is(&dropped)
}

const BOTH: usize = CPU | MIGRATING;
const FLUSHES: [[Flush; 2]; 3] = [
    [Flush::Batch(BOTH), Flush::Own],
    [Flush::Space, Flush::Batch(BOTH)],
    [Flush::Batch(MIGRATING), Flush::Batch(CPU)],
];

/// No CPU reads an old folio that was reused, whatever it runs when the flush comes.
#[test]
fn a_switch_drops_entries_that_a_flush_has_left() {
    let mut dropped = false;
    for flushes in FLUSHES {
        for start in [Start::Runs, Start::Trimmed] {
            dropped |= play(
                Tags::Interrupt,
                Without::Nothing,
                start,
                Pause::Leave,
                flushes,
            );
        }
    }
    assert!(dropped, "no switch came after the folio was reused");
}

/// The same for a CPU that is lazy when the flush comes.
#[test]
fn a_lazy_cpu_drops_entries_that_a_flush_has_left() {
    let mut dropped = false;
    for flushes in FLUSHES {
        dropped |= play(
            Tags::Interrupt,
            Without::Nothing,
            Start::Runs,
            Pause::Rest,
            flushes,
        );
    }
    assert!(dropped, "no lazy CPU came back after the folio was reused");
}

#[test]
fn broadcasts_reach_entries_of_another_address_space() {
    for tags in [Tags::BatchBroadcast, Tags::Global] {
        for flushes in FLUSHES {
            play(tags, Without::Nothing, Start::Runs, Pause::Leave, flushes);
        }
    }
}

#[test]
#[should_panic(expected = "reads a folio that was reused")]
fn without_a_raised_generation_a_flush_keeps_the_entry() {
    let flushes = [Flush::Batch(BOTH), Flush::Own];
    play(
        Tags::Interrupt,
        Without::Raise,
        Start::Runs,
        Pause::Leave,
        flushes,
    );
}

#[test]
#[should_panic(expected = "reads a folio that was reused")]
fn without_a_comparison_a_switch_keeps_the_entry() {
    let flushes = [Flush::Batch(BOTH), Flush::Own];
    play(
        Tags::Interrupt,
        Without::Compare,
        Start::Runs,
        Pause::Leave,
        flushes,
    );
}

#[test]
#[should_panic(expected = "reads a folio that was reused")]
fn without_a_comparison_a_lazy_cpu_keeps_the_entry() {
    let flushes = [Flush::Batch(BOTH), Flush::Own];
    play(
        Tags::Interrupt,
        Without::Compare,
        Start::Runs,
        Pause::Rest,
        flushes,
    );
}

#[test]
#[should_panic(expected = "reads a folio that was reused")]
fn without_a_barrier_a_cpu_that_enters_is_missed() {
    let flushes = [Flush::Own, Flush::Own];
    play(
        Tags::Interrupt,
        Without::Barrier,
        Start::Trimmed,
        Pause::Leave,
        flushes,
    );
}

#[test]
#[should_panic(expected = "reads a folio that was reused")]
fn without_order_a_flush_counts_that_began_too_early() {
    let flushes = [Flush::Space, Flush::Space];
    play(
        Tags::Interrupt,
        Without::Order,
        Start::Runs,
        Pause::Leave,
        flushes,
    );
}

#[test]
#[should_panic(expected = "reads a folio that was reused")]
fn without_reach_a_broadcast_keeps_the_entry() {
    let flushes = [Flush::Own, Flush::Own];
    play(
        Tags::Global,
        Without::Reach,
        Start::Runs,
        Pause::Leave,
        flushes,
    );
}
