// SPDX-License-Identifier: GPL-2.0-only

//! The protocols under loom, which tries every order of steps and every value that the memory
//! model lets a load return. Run with `RUSTFLAGS="--cfg loom" cargo test --release --test loom`.
//!
//! With two threads every order is tried. With three threads only orders with at most two or three
//! preemptions are tried, so that the tests take seconds. Each known way to break these protocols
//! needs one thread delayed at one place, so one preemption shows it.
#![cfg(loom)]

mod claim;
mod coverage;
mod flight;
mod folio_progress;
mod leftover;
mod members;
mod ring;
mod scoped_share;
mod thread_choice;

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use loom::model::Builder;

/// Tries the orders of steps of a test, all of them or those with few preemptions.
fn model(preemptions: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(test);
}

/// Notes that loom tried an order of steps that the test is about: a model that never tries it
/// proves nothing.
fn seen(witness: &Witness, now: bool) {
    witness.fetch_or(now, Ordering::Relaxed);
}
