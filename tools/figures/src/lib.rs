// SPDX-License-Identifier: GPL-2.0-only
//! Figures of benchmarks: their medians and JSON format, tables and charts, and the time that was
//! stolen from this machine meanwhile.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod chart;
pub mod results;
pub mod steal;
pub mod table;
