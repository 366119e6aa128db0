// SPDX-License-Identifier: GPL-2.0-only
//! Random inputs: programs of calls that migrate pages, guided by the kernel code that they reach, and
//! cases for `rust/logic` ([`logic`]).
//!
//! A [`Program`] works on the memory of a [`World`]. It fails if memory has other contents afterwards
//! than the program left there, or if the kernel log has a report of an error. Calls may fail in any
//! way.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod coverage;
mod log;
pub mod logic;
mod program;
mod settings;
#[allow(unsafe_code)]
mod sys;
mod world;

pub use program::Program;
pub use world::World;
