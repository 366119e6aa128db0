// SPDX-License-Identifier: GPL-2.0-only
//! Rules that find limits of migration, and the settings that lift them. Each looks at the facts and
//! gives one piece of advice, or none.

use super::facts::Facts;
use serde::Serialize;

/// Smallest share of the pages, or of the calls, that a finding reports.
const MUCH: f64 = 0.25;
/// Below this average, no CPU counts as idle.
const HARDLY_ANY: f64 = 0.5;
/// Smallest rate, in pages or interrupts a second, that a finding about cost needs.
const MANY_PER_S: f64 = 1000.0;
/// A larger share of CPU time that the host took away makes helpers harmful.
const STOLEN: f64 = 0.03;
/// Pages of a batch of mainline.
const BATCH: u64 = 512;

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// A name for scripts and tests.
    pub rule: &'static str,
    /// The limit of migration.
    pub limit: String,
    /// The measured facts that show it.
    pub because: String,
    /// The command that lifts the limit.
    pub command: Option<String>,
    /// Advice that is no command.
    pub hint: Option<String>,
    /// The cost of the command, or of following the hint.
    pub cost: Option<String>,
}

impl Advice {
    fn new(rule: &'static str, limit: impl Into<String>, because: impl Into<String>) -> Self {
        Advice {
            rule,
            limit: limit.into(),
            because: because.into(),
            command: None,
            hint: None,
            cost: None,
        }
    }

    fn command(self, command: impl Into<String>) -> Self {
        Advice {
            command: Some(command.into()),
            ..self
        }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Advice {
            hint: Some(hint.into()),
            ..self
        }
    }

    fn cost(self, cost: impl Into<String>) -> Self {
        Advice {
            cost: Some(cost.into()),
            ..self
        }
    }
}

type Rule = fn(&Facts) -> Option<Advice>;

/// Rules about pages that were migrated, the most important first.
const OF_PAGES: [Rule; 13] = [
    off,
    one_thread,
    no_demotion_help,
    quota,
    low_weight,
    all_busy,
    serial,
    short_lists,
    crowded,
    pinned,
    failed,
    long_unmapped,
    deferral,
];
/// Rules about settings that may be the reason why no page was migrated.
const OF_SETTINGS: [Rule; 3] = [demotion_off, balancing_off, promotion_off];

/// Returns all advice for a recording.
pub fn advice(facts: &Facts) -> Vec<Advice> {
    let all = |rules: &[Rule]| -> Vec<Advice> { rules.iter().filter_map(|r| r(facts)).collect() };
    let mut found = all(&OF_PAGES);
    if succeeded(facts) + facts.vmstat("pgmigrate_fail") == 0 {
        let seconds = format!("{:.0} seconds were recorded", facts.seconds());
        let limit = "No page was migrated, so only settings can be judged.";
        found = vec![Advice::new("idle", limit, seconds)
            .hint("run the workload meanwhile, or watch for longer: --seconds N")];
    }
    found.extend(all(&OF_SETTINGS));
    found
}

fn succeeded(facts: &Facts) -> u64 {
    facts.vmstat("pgmigrate_success")
}

fn is_on(facts: &Facts) -> bool {
    facts.setting("proc/sys/vm/mt_page_copy") == Some("1")
}

/// Returns the share of the pages of batches that the engine looked at, if Ferry is on and the share
/// is large.
fn share(facts: &Facts, pages: u64) -> Option<f64> {
    // Pages of crews are counted here as well, when they are copied.
    const KINDS: [&str; 12] = [
        "pages_caller",
        "pages_helper",
        "pages_dma",
        "serial_small",
        "serial_alone",
        "serial_busy",
        "refused_pinned",
        "refused_private",
        "refused_mapping",
        "refused_movable_ops",
        "refused_full",
        "copy_failed",
    ];
    let seen: u64 = KINDS.iter().map(|name| facts.stat(name)).sum();
    let share = pages as f64 / seen.max(1) as f64;
    (is_on(facts) && seen > 0 && share >= MUCH).then_some(share)
}

/// Returns whether the refused calls for helpers are a large share.
fn is_often(facts: &Facts, refused: u64) -> bool {
    let calls: u64 = ["batches", "crews", "crew_alone"]
        .map(|name| facts.stat(name))
        .iter()
        .sum();
    refused as f64 >= MUCH * (calls + refused) as f64 && refused > 0
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn off(facts: &Facts) -> Option<Advice> {
    let per_s = succeeded(facts) as f64 / facts.seconds();
    if is_on(facts) || per_s < MANY_PER_S {
        return None;
    }
    let (idle, stolen) = (facts.idle_cpus()?, facts.stolen()?);
    let because = format!(
        "{:.2} GB/s were migrated, {idle:.1} CPUs were idle on average, and the host took {} of the \
         CPU time",
        facts.gbps(succeeded(facts)),
        percent(stolen)
    );
    if idle >= HARDLY_ANY && stolen < STOLEN {
        let limit = "Ferry is off: idle CPUs take part only in calls that ask for it.";
        return Some(
            Advice::new("off", limit, because)
                .command("sysctl vm.mt_page_copy=1")
                .cost(
                    "helpers use CPU time, about as much as the copies take; it is charged to the \
                       cgroup of the migrating task",
                ),
        );
    }
    if facts.ferry_setting("runs/enabled")? != "auto" {
        return None;
    }
    let limit = "Ferry is off, and helpers would not gain here. Runs need no idle CPU.";
    Some(
        Advice::new("runs", limit, because)
            .command("echo always > /sys/kernel/mm/ferry/runs/enabled")
            .cost("vm.mt_page_copy=0 no longer switches all of Ferry off"),
    )
}

fn one_thread(facts: &Facts) -> Option<Advice> {
    let limit = facts.setting("proc/sys/vm/limit_mt_num")?;
    let threads = facts.ferry_setting("copy/threads")?;
    let idle = facts.idle_cpus()?;
    if !is_on(facts) || limit != "1" && threads != "1" || idle < HARDLY_ANY {
        return None;
    }
    let because = format!(
        "vm.limit_mt_num is {limit}, copy/threads is {threads}, and {idle:.1} CPUs were idle"
    );
    let command = match limit {
        "1" => "sysctl vm.limit_mt_num=4",
        _ => "echo auto > /sys/kernel/mm/ferry/copy/threads",
    };
    Some(
        Advice::new("one-thread", "A call may use one thread only.", because)
            .command(command)
            .cost("helpers use CPU time"),
    )
}

fn no_demotion_help(facts: &Facts) -> Option<Advice> {
    const ROWS: [&str; 4] = [
        "pgdemote_kswapd",
        "pgdemote_direct",
        "pgdemote_khugepaged",
        "pgdemote_proactive",
    ];
    let reasons = facts.ferry_setting("copy/reasons")?;
    let demoted: u64 = ROWS.iter().map(|row| facts.vmstat(row)).sum();
    let has_it = reasons
        .split_whitespace()
        .any(|reason| reason == "demotion");
    if !is_on(facts) || has_it || demoted as f64 / facts.seconds() < MANY_PER_S {
        return None;
    }
    let all = match reasons {
        "none" => "demotion".to_owned(),
        some => format!("{some} demotion"),
    };
    let limit = "Demotion gets no helpers, because copy/reasons does not name it.";
    Some(
        Advice::new(
            "reasons",
            limit,
            format!("{:.2} GB/s were demoted", facts.gbps(demoted)),
        )
        .command(format!("echo '{all}' > /sys/kernel/mm/ferry/copy/reasons"))
        .cost("helpers of kswapd use CPU time while CPUs are idle"),
    )
}

fn quota(facts: &Facts) -> Option<Advice> {
    let refused = facts.ferry("copy/refused/cpu_quota");
    if !is_often(facts, refused) {
        return None;
    }
    let because = match &facts.with_quota()[..] {
        [] => format!("{refused} times a caller had a quota"),
        some => format!(
            "{refused} times; cgroups with a quota that ran: {}",
            some.join(", ")
        ),
    };
    Some(
        Advice::new("quota", "Callers with a CPU quota get no helpers.", because)
            .hint("let a task outside the cgroup migrate its memory, by move_pages(2) with its process; or, \
                   if the quota is not needed, remove it where it is set and use cpu.weight of 50 or more")
            .cost("without its quota the cgroup may use all CPUs"),
    )
}

fn low_weight(facts: &Facts) -> Option<Advice> {
    let refused = facts.ferry("copy/refused/low_weight");
    is_often(facts, refused).then(|| {
        let because =
            format!("{refused} times the nice value or cpu.weight left fewer than two threads");
        Advice::new("low-weight", "Callers of low priority get no helpers, as intended.", because)
            .hint("only if such a caller should migrate faster: nice 3 or lower, and cpu.weight of 50 or \
                   more")
            .cost("the caller competes with other tasks as they do")
    })
}

fn all_busy(facts: &Facts) -> Option<Advice> {
    let share = share(facts, facts.stat("serial_alone"))?;
    let idle = facts.idle_cpus()?;
    // Members of a crew copy alone as well, while they keep the CPUs busy.
    if idle >= HARDLY_ANY || facts.stat("crew_pages_helper") > 0 {
        return None;
    }
    let limit = "No CPU is idle to help. Each caller migrates alone, and runs still apply.";
    let because = format!(
        "{} of the pages were left to the caller, and {idle:.1} CPUs were idle",
        percent(share)
    );
    Some(Advice::new("busy", limit, because).hint("migrate at another time, or leave CPUs idle"))
}

fn serial(facts: &Facts) -> Option<Advice> {
    let share = share(facts, facts.stat("serial_alone"))?;
    if facts.ferry_setting("copy/method")? != "serial" {
        return None;
    }
    let because = format!("{} of the pages were left to the caller", percent(share));
    Some(
        Advice::new(
            "serial",
            "copy/method is serial, so callers copy alone.",
            because,
        )
        .command("echo auto > /sys/kernel/mm/ferry/copy/method")
        .cost("helpers use CPU time"),
    )
}

fn short_lists(facts: &Facts) -> Option<Advice> {
    const USUAL_KB: u64 = 512;
    // NUMA balancing moves one folio at a time.
    let balanced = facts.vmstat("numa_pages_migrated");
    let share = share(facts, facts.stat("serial_small").saturating_sub(balanced))?;
    let min_kb = facts.ferry_setting("copy/min_kb")?;
    let because = format!("{} of the pages; copy/min_kb is {min_kb}", percent(share));
    let advice = Advice::new(
        "short",
        "Many pages are in batches that are too small to share.",
        because,
    );
    Some(match min_kb.parse::<u64>() {
        Ok(kb) if kb > USUAL_KB => advice
            .command("echo auto > /sys/kernel/mm/ferry/copy/min_kb")
            .cost("helpers are called for less work"),
        _ => advice
            .hint("if a program migrates, let it pass at least 512 KB to each call; compaction and NUMA \
                   balancing have short lists by nature")
            .cost("each call takes longer"),
    })
}

fn crowded(facts: &Facts) -> Option<Advice> {
    let share = share(facts, facts.stat("serial_busy"))?;
    let limit = "More tasks migrate at once than the engine has lanes.";
    let because = format!(
        "{} of the pages were left to callers for that",
        percent(share)
    );
    Some(Advice::new("crowded", limit, because))
}

fn pinned(facts: &Facts) -> Option<Advice> {
    let share = share(facts, facts.stat("refused_pinned"))?;
    let limit = "Many folios have extra references. Most of them cannot be migrated.";
    Some(
        Advice::new("pinned", limit, format!("{} of the pages", percent(share))).hint(
            "find the holders: nr_foll_pin_acquired minus nr_foll_pin_released in /proc/vmstat counts \
             pins (VFIO, RDMA, io_uring buffers, direct I/O in flight)",
        ),
    )
}

fn failed(facts: &Facts) -> Option<Advice> {
    let (good, bad) = (succeeded(facts), facts.vmstat("pgmigrate_fail"));
    let share = bad as f64 / (good + bad).max(1) as f64;
    if share < MUCH {
        return None;
    }
    let full = facts.full_nodes();
    Some(match &full[..] {
        [] => {
            let because = format!("{} failed, and every node has free memory", percent(share));
            Advice::new("failed", "Many pages cannot be migrated.", because).hint(
                "enable the tracepoint migrate:mm_migrate_pages to see which calls fail; refused_pinned in \
                 stats/ counts folios with extra references",
            )
        }
        full => {
            let nodes: Vec<String> = full.iter().map(u32::to_string).collect();
            let limit =
                "Many pages cannot be migrated, and a node has no more free memory than its \
                         watermarks.";
            let because = format!("{} failed; node {}", percent(share), nodes.join(", "));
            Advice::new("full", limit, because).hint(
                "migrate less to that node, or free memory there; vm.watermark_scale_factor raises the \
                 free memory of every zone of every node",
            )
        }
    })
}

fn long_unmapped(facts: &Facts) -> Option<Advice> {
    let asked: u64 = facts.ferry_setting("copy/unmapped_us")?.parse().ok()?;
    let slowest = facts.unmapped()?.percentile(990)?;
    if slowest.from_us < 4 * asked {
        return None;
    }
    let limit = "Folios stay unmapped for longer than asked, and tasks that touch them wait.";
    let because = format!(
        "1 % of the batches or more took {} us or more; copy/unmapped_us is {asked}",
        slowest.from_us
    );
    Some(Advice::new("unmapped", limit, because).hint(
        "a lower copy/unmapped_us does not help: look for steal time in /proc/stat, for real-time tasks, \
         and for folios of 2 MB, which cannot be divided",
    ))
}

/// Advice about deferred TLB flushes.
fn deferral(facts: &Facts) -> Option<Advice> {
    let enabled = facts.ferry_setting("migrc/enabled")?;
    let (moved, shootdowns) = (succeeded(facts), facts.shootdowns()?);
    let per_s = shootdowns as f64 / facts.seconds();
    if moved as f64 / facts.seconds() < MANY_PER_S || per_s < MANY_PER_S {
        return None;
    }
    if enabled == "0" {
        let limit =
            "TLB flushes of migration are not deferred. Only memory that is mapped read-only can \
                     gain.";
        let because = format!("{per_s:.0} TLB shootdowns a second, of all causes");
        return Some(
            Advice::new("migrc-off", limit, because)
                .command("echo 1 > /sys/kernel/mm/ferry/migrc/enabled")
                .cost(
                    "each node retains up to the smaller of max_pages and max_node_percent for \
                       max_age_ms",
                ),
        );
    }
    let (refused, most) = facts.most_of("migrc/refused");
    let (most, deferred) = (most?, facts.ferry("migrc/deferred_pages"));
    if refused < moved / BATCH || deferred as f64 >= MUCH * moved as f64 {
        return None;
    }
    let because = format!(
        "{refused} refusals were counted, most often for `{most}`; {deferred} of {moved} pages were \
         deferred"
    );
    let advice = Advice::new("migrc-refused", "migrc defers few flushes.", because);
    Some(match most.as_str() {
        "writable" => advice.hint(
            "the migrated memory is mapped writable, so deferral cannot help: migrc may as well be off",
        ),
        "file" if facts.ferry_setting("migrc/files") == Some("0") => {
            advice.command("echo 1 > /sys/kernel/mm/ferry/migrc/files")
        }
        _ => advice,
    })
}

fn demotes(facts: &Facts) -> Option<bool> {
    let enabled = facts.setting("sys/kernel/mm/numa/demotion_enabled")?;
    Some(["true", "1"].contains(&enabled))
}

const TIERING: u32 = 2;

fn balancing(facts: &Facts) -> Option<u32> {
    facts
        .setting("proc/sys/kernel/numa_balancing")?
        .parse()
        .ok()
}

fn demotion_off(facts: &Facts) -> Option<Advice> {
    if facts.tiers() < 2 || demotes(facts)? {
        return None;
    }
    let mode = balancing(facts)? | TIERING;
    let limit = "There are memory tiers, but reclaim does not demote to them.";
    let because = format!("{} tiers, and demotion_enabled is false", facts.tiers());
    Some(
        Advice::new("demotion-off", limit, because)
            .command(format!(
                "echo 1 > /sys/kernel/mm/numa/demotion_enabled; sysctl kernel.numa_balancing={mode}"
            ))
            .cost("access to demoted memory is slower until it is promoted; shared memory may be demoted \
                   outside a cgroup's cpuset.mems"),
    )
}

fn balancing_off(facts: &Facts) -> Option<Advice> {
    let mode = balancing(facts)?;
    if facts.tiers() < 2 || mode & TIERING != 0 || !demotes(facts)? {
        return None;
    }
    let limit = match mode {
        0 => "NUMA balancing does not promote demoted memory.",
        _ => "NUMA balancing promotes demoted memory only while the top tier has free memory.",
    };
    Some(
        Advice::new(
            "balancing-off",
            limit,
            format!("kernel.numa_balancing is {mode}"),
        )
        .command(format!("sysctl kernel.numa_balancing={}", mode | TIERING))
        .cost("hint page faults in the memory of the lower tiers"),
    )
}

fn promotion_off(facts: &Facts) -> Option<Advice> {
    let enabled = facts.setting("sys/kernel/mm/numa/pagecache_promotion_enabled")?;
    if facts.tiers() < 2 || !demotes(facts)? || ["true", "1"].contains(&enabled) {
        return None;
    }
    let limit = "Page cache that programs read with read(2) from slow memory is not promoted.";
    let because = format!(
        "{} tiers, and pagecache_promotion_enabled is false",
        facts.tiers()
    );
    Some(
        Advice::new("promotion-off", limit, because)
            .command("echo 1 > /sys/kernel/mm/numa/pagecache_promotion_enabled")
            .cost(
                "0.2 % more instructions for a read, 1.5 % during promotion, and up to \
                   promotion/rate_mbps of copies",
            ),
    )
}
