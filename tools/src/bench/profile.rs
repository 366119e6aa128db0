// SPDX-License-Identifier: GPL-2.0-only
//! Where a call that migrates pages spends its instructions: perf in guests with one CPU whose
//! clocks count instructions, on both kernels. Functions are summed up by part of the work.

use super::{ask, ensure_cells, save_json, side_by_side, Plan, SIDES};
use crate::{
    cli::ProfileArgs, context::Context, guest, kernel, results::Machine, steal::Steal, table,
    toolchain::which,
};
use anyhow::{bail, Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, slice};

/// As for `bench runs`.
const FERRY: &[&str] = &["ferry-off", "ferry-off@../runs/enabled=always", "ferry-1"];
const REST: &str = "rest";

/// Parts of the work, and their functions; a `*` stands for any end. The first match counts.
const PARTS: &[(&str, &[&str])] = &[
    (
        "copy",
        &[
            "memcpy*",
            "copy_mc*",
            "copy_page*",
            "folio_mc_copy",
            "ferry_copy*",
        ],
    ),
    (
        "mappings: rmap walks, page tables, TLB flush",
        &[
            "page_vma_mapped_walk",
            "check_pte",
            "ttu_*",
            "try_to_migrate*",
            "__try_to_migrate*",
            "remove_migration_pte*",
            "restore_migration_pte*",
            "make_migration_pte*",
            "rmap_walk*",
            "run_install*",
            "run_restore*",
            "run_walk*",
            "run_add_rmap",
            "run_mapped",
            "run_span*",
            "run_stat*",
            "run_migration_entry",
            "run_get_anon_vma",
            "ferry_run_install*",
            "ferry_run_restore*",
            "anon_rmap_tree*",
            "__anon_rmap_tree*",
            "mapping_rmap_tree*",
            "__mapping_rmap_tree*",
            // The names of 7.2.
            "anon_vma_interval_tree*",
            "vma_interval_tree*",
            "folio_add_anon_rmap*",
            "folio_add_file_rmap*",
            "folio_remove_rmap*",
            "__folio_add_anon_rmap",
            "__folio_add_file_rmap",
            "__folio_add_rmap",
            "__folio_remove_rmap",
            "__pte_offset_map*",
            "folio_lock_anon_vma_read",
            "folio_get_anon_vma",
            "folio_anon_vma",
            "folio_not_mapped",
            "invalid_migration_vma",
            "map_pte",
            "pte_*",
            "ptep_*",
            "mm_find_pmd",
            "flush_tlb*",
            "try_to_unmap_flush*",
            "should_defer_flush",
        ],
    ),
    (
        "reclaim",
        &[
            "shrink_*",
            "evict_folios",
            "scan_folios",
            "isolate_lru_folios",
            "move_folios_to_lru",
            "folio_referenced*",
            "folio_check_references",
            "invalid_folio_referenced_vma",
            "demote_*",
        ],
    ),
    (
        "look-up and isolation",
        &[
            "mtree_load",
            "mas_*",
            "folio_walk_start",
            "vm_normal_page",
            "vma_*",
            "do_pages_move",
            "__se_sys_move_pages",
            "kernel_move_pages",
            "add_folio*",
            "__add_folio*",
            "check_folio_for_migration",
            "folio_may_be_in_lru_cache",
            "ferry_isolate*",
            "__ferry_isolate*",
            "isolate_*",
            "move_pages_and_store_status",
            "__get_user*",
            "__put_user*",
            "copy_from_user*",
            "rep_movs_alternative",
        ],
    ),
    (
        "LRU lists, and where interrupts are enabled again",
        &[
            "_raw_spin_unlock_irq*",
            "folio_isolate_lru",
            "folio_add_lru*",
            "folio_batch*",
            "folio_lruvec_*",
            "lru_*",
            "ferry_run_add_lru",
            "__page_cache_release",
        ],
    ),
    (
        "allocation and free",
        &[
            "get_page_from_freelist",
            "__alloc*",
            "alloc_*",
            "__folio_alloc*",
            "__rmqueue*",
            "rmqueue*",
            "prep_new_page",
            "zone_statistics",
            "free_*",
            "__free_*",
            "__folio_put",
            "folios_put*",
            "migrate_folio_done",
            "run_alloc",
        ],
    ),
    (
        "flags and mapping of the folio",
        &[
            "folio_migrate_*",
            "__folio_migrate*",
            "migrate_folio",
            "__migrate_folio*",
            "move_to_new_folio",
            "folio_xchg_last_cpupid",
            "folio_mapping",
            "folio_mark_dirty",
            "folio_unlock",
            "folio_lock*",
        ],
    ),
    (
        "cgroups and statistics",
        &[
            "__mod_*",
            "mod_*",
            "lruvec_stat*",
            "get_migration_objcg",
            "mem_cgroup*",
            "__mem_cgroup*",
            "__css_rstat*",
            "count_*",
        ],
    ),
    (
        "other locks",
        &["_raw_spin*", "__lock_text_start", "down_*", "up_*"],
    ),
    (
        "sort",
        &["__ferry_run_sort", "sort_*", "list_sort", "merge*"],
    ),
    (
        "batches and runs",
        &[
            "migrate_*",
            "run_*",
            "ferry_*",
            "__ferry_run_unmap",
            "__ferry_run_take",
            "__ferry_run_end",
            // Rust
            "_R*",
        ],
    ),
];

/// The guest program's answer for one configuration.
#[derive(Deserialize)]
struct Answer {
    folio: String,
    count: u32,
    config: String,
    ns: f64,
    samples: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    machine: Machine,
    /// The interface that migrates the pages.
    by: &'static str,
    instructions: Vec<Instructions>,
}

/// Instructions for each base page in one configuration: all, and those of each part.
#[derive(Serialize)]
struct Instructions {
    folio: String,
    count: u32,
    config: String,
    total: f64,
    parts: BTreeMap<String, f64>,
}

pub fn profile(context: &Context, args: &ProfileArgs) -> Result<()> {
    let plan = Plan {
        instructions: true,
        way: args.by.name(),
        vanilla: &["vanilla"],
        ferry: FERRY,
        name: "profile",
        ..Plan::new(&[args.folio], &[args.count], 1, args.runs)
    };
    ensure_cells(slice::from_ref(&plan))?;
    // Steps that can fail early come first.
    if which("perf").is_none() {
        bail!("perf is missing: install the package linux-perf");
    }
    context.source()?;
    let program = guest::program(context)?;
    let mut guests = Vec::new();
    for (side, (_, variant)) in SIDES.into_iter().enumerate() {
        let kernel = kernel::build(context, variant)?;
        guests.push(plan.guest(context, &kernel, &program, (side, 1), None)?);
    }
    let steal = Steal::start();
    let mut answers: Vec<Answer> = Vec::new();
    for text in side_by_side(&guests, |guest, failed| ask(guest, "profile", failed))? {
        let of_one: Vec<Answer> = serde_json::from_slice(&text).context("a guest's answer")?;
        answers.extend(of_one);
    }
    let parts = rows(&answers, part);
    println!(
        "\n{}: instructions for each base page\n{}",
        args.by.title(),
        rendered("part", &answers, &parts)
    );
    if args.functions > 0 {
        let mut functions = rows(&answers, plain_name);
        functions.truncate(args.functions);
        println!("\n{}", rendered("function", &answers, &functions));
    }
    let report = Report {
        kernel: context.source()?.version.clone(),
        machine: Machine::this("qemu-tcg", None, &steal),
        by: args.by.title(),
        instructions: answers
            .iter()
            .enumerate()
            .map(|(at, answer)| Instructions {
                folio: answer.folio.clone(),
                count: answer.count,
                config: answer.config.clone(),
                total: answer.ns,
                parts: parts
                    .iter()
                    .map(|row| (row.name.clone(), row.values[at]))
                    .collect(),
            })
            .collect(),
    };
    save_json(&report, args.output.json.as_deref())
}

/// Returns the part of the work that a function belongs to.
fn part(function: &str) -> &str {
    let is = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => function.starts_with(start),
        None => *pattern == plain_name(function),
    };
    PARTS
        .iter()
        .find(|(_, patterns)| patterns.iter().any(is))
        .map_or(REST, |(part, _)| part)
}

/// Returns the name of a function without what the compiler has added.
fn plain_name(function: &str) -> &str {
    function.split_once('.').map_or(function, |(name, _)| name)
}

/// A row of the table: instructions for each page, one value for each answer.
struct Row {
    name: String,
    values: Vec<f64>,
}

/// Sums up the functions that `name` gives the same name. The row with the most instructions is
/// first.
fn rows(answers: &[Answer], name: impl Fn(&str) -> &str) -> Vec<Row> {
    let mut rows: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (at, answer) in answers.iter().enumerate() {
        let all: u64 = answer.samples.values().sum();
        for (function, samples) in &answer.samples {
            let values = rows
                .entry(name(function))
                .or_insert_with(|| vec![0.0; answers.len()]);
            values[at] += answer.ns * *samples as f64 / all as f64;
        }
    }
    let most = |row: &Row| row.values.iter().copied().fold(0.0, f64::max);
    let mut rows: Vec<Row> = rows
        .into_iter()
        .map(|(name, values)| Row {
            name: name.to_owned(),
            values,
        })
        .collect();
    rows.sort_by(|a, b| most(b).total_cmp(&most(a)));
    rows
}

fn rendered(title: &str, answers: &[Answer], rows: &[Row]) -> String {
    let configs = answers.iter().map(|answer| answer.config.clone());
    let mut table = table::plain(
        &[title.to_owned()]
            .into_iter()
            .chain(configs)
            .collect::<Vec<_>>(),
    );
    let number = |value: f64| format!("{value:.0}");
    for row in rows {
        let values = row.values.iter().map(|&value| number(value));
        table.add_row([row.name.clone()].into_iter().chain(values));
    }
    let totals = answers.iter().map(|answer| number(answer.ns));
    table.add_row(["all".to_owned()].into_iter().chain(totals));
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(config: &str, ns: f64, samples: &[(&str, u64)]) -> Answer {
        Answer {
            folio: "4K".to_owned(),
            count: 16,
            config: config.to_owned(),
            ns,
            samples: samples
                .iter()
                .map(|&(name, nr)| (name.to_owned(), nr))
                .collect(),
        }
    }

    #[test]
    fn each_function_is_in_one_part() {
        assert_eq!(part("memcpy_orig"), "copy");
        assert_eq!(part("run_install_pte.isra.0"), part("try_to_migrate_one"));
        assert_eq!(part("run_unmap"), part("migrate_pages_batch"));
        assert_eq!(part("map_pte"), part("rmap_walk_anon"));
        assert_eq!(part("map_pte_other"), REST);
    }

    #[test]
    fn functions_share_the_instructions_by_samples() {
        let answers = [
            answer(
                "vanilla",
                1000.0,
                &[("memcpy_orig", 1), ("copy_mc", 2), ("other", 1)],
            ),
            answer("ferry-1", 600.0, &[("memcpy_orig", 3)]),
        ];
        let rows = rows(&answers, part);
        let found: Vec<_> = rows.iter().map(|row| (&*row.name, &*row.values)).collect();
        assert_eq!(
            found,
            [("copy", &[750.0, 600.0][..]), (REST, &[250.0, 0.0][..])]
        );
        let text = rendered("part", &answers, &rows);
        assert!(text.contains("vanilla") && text.contains("1000"), "{text}");
    }
}
