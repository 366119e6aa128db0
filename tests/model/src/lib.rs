// SPDX-License-Identifier: GPL-2.0-only
//! A model of migration with helpers and deferred TLB flushes, small enough that a checker tries
//! every interleaving of its steps.
//!
//! The loom tests of `rust/logic` check single protocols in the code that runs in the kernel. This
//! model checks rules of docs/migrc.rst together: O1 to O4, O6 and O8, the announcement of a flush
//! by tasks that write-protect, and recalls. It has batches that are deferred or not, their callers
//! and helpers, groups, drains, recalls, write faults, `mprotect(2)`, `munmap(2)`, new mappings, and
//! CPUs with TLBs. It is written by hand from the rules, so it says nothing about the kernel's code.
//!
//! Bounds: two pages, two CPUs, one or two batches, one write by a CPU, at most two drains at a
//! time, and the numbers of changes and recalls that a test gives.
//!
//! Not in it: limits (O10), contexts and starvation (O5, O9, O12), secondary TLBs (O7), disabled
//! retention (O11), files, huge pages, several address spaces, flushes of a part of the CPUs,
//! migrations that fail, swap, and a step finer than a flush of one CPU or a copy of one folio. All
//! CPUs see all steps in the same order; loom and `tests/memory-model` are for the rest.

mod batch;
mod change;
mod flush;
mod memory;
mod system;

pub use system::{NO_STALE_READ, NO_USE_AFTER_FREE, NOTHING_LOST, System, Without};
