// SPDX-License-Identifier: GPL-2.0-only

//! KUnit suites: `ferry_doctests`, the examples of the abstractions, and `ferry_copy`, the engine
//! on real folios.

mod doctests;
mod engine;
