// SPDX-License-Identifier: GPL-2.0-only
//! The settings of `/sys/kernel/mm/ferry/copy/`, each compared with the defaults.

use super::{draw, measure_all, of, save_json, tell, Plan};
use crate::{
    chart::Sheet,
    cli::{Folio, RepeatedArgs},
    context::Context,
    results::{distinct, Figure},
};
use anyhow::Result;

/// A setting: name of the figures, configurations, and the cases where it matters.
type Setting = (
    &'static str,
    &'static [&'static str],
    &'static [(Folio, u32)],
);

const UNMAPPED: Setting = (
    "settings_unmapped_us",
    &[
        "ferry-off",
        "ferry-2-copy@unmapped_us=250",
        "ferry-2-copy@unmapped_us=500",
        "ferry-2-copy@unmapped_us=1000",
        "ferry-2-copy@unmapped_us=2000",
        "ferry-2-copy@unmapped_us=4000",
        "ferry-2-copy@unmapped_us=8000",
        "ferry-2-copy@unmapped_us=16000",
    ],
    &[
        (Folio::K4, 16384),
        (Folio::M2, 4),
        (Folio::M2, 16),
        (Folio::M2, 128),
    ],
);
const QUEUE: Setting = (
    "settings_queue",
    &[
        "ferry-off",
        "ferry-2",
        "ferry-2@queue=unbound",
        "ferry-2@queue=highpri",
    ],
    &[
        (Folio::K4, 512),
        (Folio::K4, 16384),
        (Folio::M2, 1),
        (Folio::M2, 16),
    ],
);
const LEAST: Setting = (
    "settings_min_kb",
    &[
        "ferry-off",
        "ferry-2@min_kb=128",
        "ferry-2@min_kb=256",
        "ferry-2@min_kb=512",
        "ferry-2@min_kb=1024",
        "ferry-2@min_kb=4096",
        "ferry-2",
    ],
    &[
        (Folio::K4, 64),
        (Folio::K4, 128),
        (Folio::K4, 256),
        (Folio::K4, 512),
        (Folio::M2, 1),
    ],
);

pub fn settings(context: &Context, args: &RepeatedArgs) -> Result<()> {
    let plans = [UNMAPPED, QUEUE, LEAST].map(|(name, ferry, cells)| Plan {
        cells: cells.to_vec(),
        vanilla: &["vanilla"],
        ferry,
        name,
        ..Plan::new(&[], &[], args.repeat.boots, args.repeat.runs)
    });
    let report = measure_all(context, &plans)?.report;
    tell("GB/s", &report.results);
    let benches = distinct(&report.results, |f| f.bench.clone()).into_iter();
    let all: Vec<(String, Vec<Figure>)> = benches
        .map(|bench| (bench.clone(), of(&report.results, &bench)))
        .collect();
    let sheets: Vec<Sheet> = all
        .iter()
        .map(|(bench, figures)| Sheet::by_count(bench, figures))
        .collect();
    save_json(&report, args.output.json.as_deref())?;
    draw(&sheets, args.output.svg.as_deref())
}
