// SPDX-License-Identifier: GPL-2.0-only

//! The protocols under loom, which tries each order of steps and each value that the memory model
//! lets a load return. Run with `RUSTFLAGS="--cfg loom" cargo test --release --test loom`.
//!
//! With two threads each order is tried; with three, each order with at most two or three
//! preemptions, which keeps the run time in seconds. Each known way to break these protocols needs
//! one thread to be delayed at one place, so one preemption exposes it.
#![cfg(loom)]

mod claim;
mod coverage;
mod flight;
mod folio_progress;
mod leftover;
mod members;
mod numa_scan;
mod ring;
mod scoped_share;
mod tagged_tlb;
mod thread_choice;

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use loom::model::Builder;

/// Runs a test in all orders of steps, or in those with at most `preemptions` preemptions.
fn model(preemptions: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(test);
}

/// Records that an order of steps occurred. A model in which it never occurs proves nothing.
fn seen(witness: &Witness, now: bool) {
    witness.fetch_or(now, Ordering::Relaxed);
}
