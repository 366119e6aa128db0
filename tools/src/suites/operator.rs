// SPDX-License-Identifier: GPL-2.0-only
//! The programs for operators in a booted kernel, while pages are migrated there: `ferry top`,
//! `ferry advise` and `ferry bench local`.

use super::{guest::clean_log, Tally};
use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
};
use anyhow::{ensure, Context as _, Result};
use serde_json::Value;
use std::{fs, path::Path, time::Duration};

const SHAPE: Shape = Shape::new(2, 2);

/// Migrates pages while `top` and `advise` watch, then runs the benchmark, which must restore the
/// settings.
const SCRIPT: &str = r#"
(./ferry top --once --json --interval 10 >top.json; echo $? >ended) &
./ferry advise --seconds 10 --record advice.record --json >advice.json || exit 1 &
advise=$!
until [ -s ended ]; do
	./ferry-guest test counters/huge-pages counters/crew --engine on || exit 1
done
wait $advise || exit 1
[ $(cat ended) = 0 ] || exit 1
./ferry top --once --interval 0.1 || exit 1
./ferry top --prometheus >metrics.prom || exit 1
./ferry advise --from advice.record || exit 1

thp=/sys/kernel/mm/transparent_hugepage
settings() {
	pools=$(find $thp /sys/devices/system/node/ -name enabled -o -name nr_hugepages)
	for file in /proc/sys/vm/mt_page_copy /proc/sys/vm/limit_mt_num \
			/proc/sys/vm/min_free_kbytes $pools; do
		echo "$file:$(cat "$file")"
	done
}
echo 0 >/proc/sys/vm/mt_page_copy
echo 7 >/proc/sys/vm/limit_mt_num
echo never >$thp/enabled
# A file system whose page cache has large folios.
truncate -s 64M /run/image && disk=$(losetup --find --show /run/image) || exit 1
mkfs.ext4 -q $disk && mkdir /run/disk && mount $disk /run/disk || exit 1
settings >before
./ferry bench local --counts 1,64 --threads 2 --runs 3 --share 20 \
	--kinds 4K,64K,2M,hugetlb,file --dir /run/disk \
	--json local.json --html local.html || exit 1
settings >after
./ferry bench compare local.json local.json || exit 1
cp ferry /run
(cd /run && setpriv --reuid=65534 --regid=65534 --clear-groups \
	./ferry bench local --counts 16 --runs 1 --kinds 4K) >other-user || exit 1
"#;

/// Boots the guest, and checks the output of each program.
pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    let kernel = kernel::build(context, Variant::Ferry)?;
    let guest = Guest::new(context, &kernel.image, "test-operator", SHAPE)?
        .kernel_args("kunit.enable=0")
        .timeout(Duration::from_secs(1200));
    guest.bring(&program)?;
    guest.bring_ferry()?;
    let status = guest.run(SCRIPT)?;
    let log = guest.console().display();
    ensure!(status == 0, "exit status {status}; log: {log}");
    let share = guest.share();
    for (name, checked) in [
        ("top reports the migrated pages", top(share)),
        ("top writes metrics", metrics(share)),
        ("advise sees the migrated pages", advice(share)),
        ("bench local measures all kinds", local(share)),
        ("bench local puts the settings back", settings(share)),
        ("bench local works without root", other_user(share)),
    ] {
        tally.check(name, checked)?;
    }
    tally.case("kernel log", clean_log(&guest.dmesg()?));
    Ok(())
}

fn read(share: &Path, name: &str) -> Result<String> {
    fs::read_to_string(share.join(name)).with_context(|| format!("the guest left no {name}"))
}

fn top(share: &Path) -> Result<()> {
    let text = read(share, "top.json")?;
    let seen: Value = serde_json::from_str(&text)?;
    for place in [
        "/batches_per_s",
        "/crews_per_s",
        "/gb_per_s/migrated/all",
        "/gb_per_s/copied_together/all",
        "/counters/batches/gained",
    ] {
        let number = seen.pointer(place).and_then(Value::as_f64);
        ensure!(number > Some(0.0), "no {place} in {text}");
    }
    for place in ["/settings/limit_mt_num", "/parts/service", "/nodes/1/tier"] {
        ensure!(seen.pointer(place).is_some(), "no {place} in {text}");
    }
    Ok(())
}

fn metrics(share: &Path) -> Result<()> {
    let text = read(share, "metrics.prom")?;
    for start in [
        "ferry_events_total{event=\"batches\"}",
        "ferry_unmapped_seconds_bucket{le=\"+Inf\"}",
        "ferry_node_free_bytes{node=\"1\"",
    ] {
        let line = text.lines().find(|line| line.starts_with(start));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        ensure!(value > Some(0), "no {start} in {text}");
    }
    Ok(())
}

fn advice(share: &Path) -> Result<()> {
    let text = read(share, "advice.json")?;
    let advice: Vec<Value> = serde_json::from_str(&text)?;
    let has = |rule: &str| advice.iter().any(|one| one["rule"] == rule);
    // The guest has two tiers, and demotion is off after boot.
    ensure!(
        has("demotion-off"),
        "expected advice about demotion: {text}"
    );
    ensure!(!has("idle"), "expected migrated pages: {text}");
    Ok(())
}

fn local(share: &Path) -> Result<()> {
    let text = read(share, "local.json")?;
    let report: Value = serde_json::from_str(&text)?;
    let figures = report["results"].as_array().context("no results")?;
    for folio in ["4K", "64K", "2M", "hugetlb", "file"] {
        for config in ["ferry-off", "ferry-2"] {
            let is_it = |figure: &&Value| figure["folio"] == folio && figure["config"] == config;
            let cases = figures.iter().filter(is_it);
            let counts: Vec<_> = cases
                .filter_map(|figure| figure["count"].as_u64())
                .collect();
            ensure!(counts == [1, 64], "{folio}, {config}: {counts:?} in {text}");
        }
    }
    ensure!(
        read(share, "local.html")?.contains("<svg"),
        "the page has no chart"
    );
    Ok(())
}

fn settings(share: &Path) -> Result<()> {
    let (before, after) = (read(share, "before")?, read(share, "after")?);
    for name in [
        "mt_page_copy:0",
        "limit_mt_num:7",
        "nr_hugepages:",
        "min_free_kbytes:",
    ] {
        ensure!(before.contains(name), "no {name} in {before}");
    }
    ensure!(before == after, "before:\n{before}after:\n{after}");
    Ok(())
}

fn other_user(share: &Path) -> Result<()> {
    let text = read(share, "other-user")?;
    ensure!(
        text.contains("as-set"),
        "expected figures with the settings as they are: {text}"
    );
    Ok(())
}
