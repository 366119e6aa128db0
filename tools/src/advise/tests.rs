// SPDX-License-Identifier: GPL-2.0-only
//! Unit tests of the rules, on recordings that are made up.

use super::*;
use recording::Files;

/// Returns text of `/proc/stat` of four CPUs, with these ticks of `system`, `idle` and `steal`.
fn stat(system: u64, idle: u64, steal: u64) -> String {
    format!("cpu  0 0 {system} {idle} 0 0 0 {steal}\ncpu0 0\ncpu1 0\ncpu2 0\ncpu3 0\n")
}

/// Returns text of `/proc/vmstat`.
fn vmstat(success: u64, fail: u64, more: &str) -> String {
    format!("pgmigrate_success {success}\npgmigrate_fail {fail}\n{more}")
}

/// Returns a recording of a machine of two tiers and four CPUs, three of them idle, on which Ferry is
/// on and pages were migrated with helpers.
fn recording() -> Recording {
    let before = Files::from(
        [
            (
                "proc/vmstat",
                &*vmstat(100, 0, "pgdemote_kswapd 0\nnuma_pages_migrated 0\n"),
            ),
            ("proc/stat", &*stat(100, 300, 0)),
            ("proc/interrupts", "TLB: 5 5 TLB shootdowns\n"),
            (
                "proc/zoneinfo",
                "Node 1, zone Normal\n  pages free 90\n        high 10\n",
            ),
            ("proc/sys/vm/mt_page_copy", "1\n"),
            ("proc/sys/vm/limit_mt_num", "4\n"),
            ("proc/sys/kernel/numa_balancing", "2\n"),
            ("sys/kernel/mm/numa/demotion_enabled", "true\n"),
            ("sys/kernel/mm/numa/pagecache_promotion_enabled", "true\n"),
            ("sys/kernel/mm/ferry/stats/batches", "0\n"),
            ("sys/kernel/mm/ferry/stats/pages_caller", "0\n"),
            ("sys/kernel/mm/ferry/stats/serial_alone", "0\n"),
            ("sys/kernel/mm/ferry/stats/serial_small", "0\n"),
            ("sys/kernel/mm/ferry/stats/serial_busy", "0\n"),
            ("sys/kernel/mm/ferry/stats/refused_pinned", "0\n"),
            ("sys/kernel/mm/ferry/stats/crew_pages_helper", "0\n"),
            ("sys/kernel/mm/ferry/copy/threads", "auto\n"),
            ("sys/kernel/mm/ferry/copy/min_kb", "auto\n"),
            (
                "sys/kernel/mm/ferry/copy/method",
                "[auto] serial cpu dma hybrid\n",
            ),
            (
                "sys/kernel/mm/ferry/copy/reasons",
                "compaction syscall demotion\n",
            ),
            ("sys/kernel/mm/ferry/copy/unmapped_us", "4000\n"),
            (
                "sys/kernel/mm/ferry/copy/unmapped_histogram",
                "4096 0\n65536 0\ninf 0\n",
            ),
            ("sys/kernel/mm/ferry/copy/refused/cpu_quota", "0\n"),
            ("sys/kernel/mm/ferry/copy/refused/low_weight", "0\n"),
            ("sys/kernel/mm/ferry/runs/enabled", "[auto] always never\n"),
            ("sys/kernel/mm/ferry/migrc/refused/writable", "0\n"),
            ("sys/kernel/mm/ferry/migrc/deferred_pages", "0\n"),
            (
                "sys/devices/virtual/memory_tiering/memory_tier4/nodelist",
                "0\n",
            ),
            (
                "sys/devices/virtual/memory_tiering/memory_tier90/nodelist",
                "1\n",
            ),
            ("sys/devices/system/node/node1/cpulist", "\n"),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned())),
    );
    let recording = Recording {
        seconds: 10.0,
        page: 4096,
        after: before.clone(),
        before,
    };
    let recording = with(recording, "proc/vmstat", &vmstat(90_100, 5, ""));
    let recording = with(recording, "proc/stat", &stat(200, 600, 0));
    with(
        recording,
        "sys/kernel/mm/ferry/stats/pages_caller",
        "9000\n",
    )
}

/// Returns the recording with another text of a file at its end.
fn with(mut recording: Recording, path: &str, text: &str) -> Recording {
    recording.after.insert(path.to_owned(), text.to_owned());
    recording
}

/// Returns the recording with another text of a file below `/sys/kernel/mm/ferry/`.
fn with_ferry(recording: Recording, name: &str, text: &str) -> Recording {
    with(recording, &format!("sys/kernel/mm/ferry/{name}"), text)
}

fn rules_of(recording: &Recording) -> Vec<&'static str> {
    rules::advice(&Facts(recording))
        .iter()
        .map(|one| one.rule)
        .collect()
}

#[test]
fn well_set_machine_needs_no_advice() {
    assert!(rules_of(&recording()).is_empty());
    assert!(shown(&[]).contains("No rule found"));
}

#[test]
fn each_limit_is_named_once() {
    let on = || recording();
    let off = || with(recording(), "proc/sys/vm/mt_page_copy", "0\n");
    let busy = |recording| with(recording, "proc/stat", &stat(900, 300, 0));
    let failing = || with(on(), "proc/vmstat", &vmstat(200, 9000, ""));
    let flushing = || with(on(), "proc/interrupts", "TLB: 50005 5\n");
    for (recording, rule) in [
        (with(on(), "proc/vmstat", &vmstat(100, 0, "")), "idle"),
        (off(), "off"),
        (busy(off()), "runs"),
        (with(off(), "proc/stat", &stat(200, 600, 50)), "runs"),
        (with(on(), "proc/sys/vm/limit_mt_num", "1\n"), "one-thread"),
        (with_ferry(on(), "copy/threads", "1\n"), "one-thread"),
        (
            with(
                with_ferry(on(), "copy/reasons", "syscall\n"),
                "proc/vmstat",
                &vmstat(90_100, 0, "pgdemote_kswapd 90000\n"),
            ),
            "reasons",
        ),
        (with_ferry(on(), "copy/refused/cpu_quota", "7\n"), "quota"),
        (
            with_ferry(on(), "copy/refused/low_weight", "7\n"),
            "low-weight",
        ),
        (
            busy(with_ferry(on(), "stats/serial_alone", "9000\n")),
            "busy",
        ),
        (
            with_ferry(
                with_ferry(on(), "stats/serial_alone", "9000\n"),
                "copy/method",
                "auto [serial] cpu\n",
            ),
            "serial",
        ),
        (with_ferry(on(), "stats/serial_small", "9000\n"), "short"),
        (with_ferry(on(), "stats/serial_busy", "9000\n"), "crowded"),
        (with_ferry(on(), "stats/refused_pinned", "9000\n"), "pinned"),
        (failing(), "failed"),
        (
            with(
                failing(),
                "proc/zoneinfo",
                "Node 1, zone Normal\n  pages free 9\n        high 10\n",
            ),
            "full",
        ),
        (
            with_ferry(on(), "copy/unmapped_histogram", "4096 3\n65536 3\ninf 9\n"),
            "unmapped",
        ),
        (with_ferry(flushing(), "migrc/enabled", "0\n"), "migrc-off"),
        (
            with_ferry(
                with_ferry(flushing(), "migrc/enabled", "1\n"),
                "migrc/refused/writable",
                "500\n",
            ),
            "migrc-refused",
        ),
        (
            with(on(), "sys/kernel/mm/numa/demotion_enabled", "false\n"),
            "demotion-off",
        ),
        (
            with(on(), "proc/sys/kernel/numa_balancing", "0\n"),
            "balancing-off",
        ),
        (
            with(
                on(),
                "sys/kernel/mm/numa/pagecache_promotion_enabled",
                "false\n",
            ),
            "promotion-off",
        ),
    ] {
        assert_eq!(rules_of(&recording), [rule]);
    }
}

#[test]
fn few_events_are_no_limit() {
    let busy_crew = with_ferry(recording(), "stats/serial_alone", "9000\n");
    let busy_crew = with(busy_crew, "proc/stat", &stat(900, 300, 0));
    let one_in_many = with_ferry(recording(), "stats/batches", "900\n");
    for recording in [
        // The members of a crew keep the CPUs busy.
        with_ferry(busy_crew, "stats/crew_pages_helper", "9000\n"),
        with_ferry(one_in_many, "copy/refused/low_weight", "7\n"),
        // NUMA balancing moves folios one by one.
        with(
            with_ferry(recording(), "stats/serial_small", "9000\n"),
            "proc/vmstat",
            &vmstat(90_100, 5, "numa_pages_migrated 8900\n"),
        ),
        // Most flushes are deferred.
        with_ferry(
            with_ferry(
                with(recording(), "proc/interrupts", "TLB: 50005 5\n"),
                "migrc/refused/writable",
                "500\n",
            ),
            "migrc/deferred_pages",
            "80000\n",
        ),
    ] {
        assert!(
            rules_of(&recording).is_empty(),
            "{:?}",
            rules_of(&recording)
        );
    }
}

#[test]
fn settings_are_judged_when_nothing_moves() {
    let recording = with(recording(), "proc/vmstat", &vmstat(100, 0, ""));
    let recording = with(recording, "sys/kernel/mm/numa/demotion_enabled", "false\n");
    assert_eq!(rules_of(&recording), ["idle", "demotion-off"]);
}

#[test]
fn commands_and_costs_are_shown() {
    let recording = with(recording(), "proc/sys/vm/mt_page_copy", "0\n");
    let text = shown(&rules::advice(&Facts(&recording)));
    for words in [
        "1. Ferry is off",
        "change: sysctl vm.mt_page_copy=1",
        "cost:   helpers",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
}

#[test]
fn idle_cpus_are_those_of_the_interval() {
    let recording = recording();
    assert_eq!(Facts(&recording).idle_cpus(), Some(3.0));
}

#[test]
fn recording_can_be_read_again() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("recording");
    write_result(&path, recording().save().unwrap().as_bytes()).unwrap();
    assert_eq!(Recording::read(&path).unwrap().after, recording().after);
    assert!(Recording::read(temp.path()).is_err());
}

#[test]
fn kernel_without_ferry_is_told_what_to_do() {
    let temp = tempfile::tempdir().unwrap();
    let error = format!("{:#}", files(temp.path()).unwrap_err());
    assert!(error.contains("CONFIG_FERRY=y"), "{error}");
}
