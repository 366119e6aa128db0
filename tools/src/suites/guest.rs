// SPDX-License-Identifier: GPL-2.0-only
//! KUnit, and page migration by system call, in booted kernels. The tests must pass in the debug
//! kernel, and in Ferry's every outcome must match the recorded outcome of the vanilla kernel. The
//! suite `guest` runs a few of them in the debug kernel, `debug` all.

use super::{
    kunit,
    outcomes::{check_recorded, compare, digests, RECORDED},
    Tally,
};
use crate::{
    cache::write_atomic,
    context::{jobs, Context},
    guest::{self, Guest, Nodes, Shape},
    kernel::{self, Variant},
    ktap::{self, Outcome},
    platform::Platform,
    source::Release,
    step,
};
use anyhow::{anyhow, ensure, Result};
use ferry_numa::alarms::is_alarm;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
    time::Duration,
};

/// Time limit of a boot: several times what it takes on an idle host, as another guest may run beside it.
pub const LIMIT: Duration = Duration::from_secs(3600);
/// Small enough for most hosts, large enough for huge pages on both nodes.
const NODE_GIB: u32 = 2;
/// The number of CPUs of most guests. More make a guest slow on hosts that have two.
const USUAL_CPUS: u32 = 2;
/// The number of CPUs of guests in which several tasks and helpers run at once.
const MANY_CPUS: u32 = 4;
/// A way to boot the kernel: its name in the results, the kernel arguments, the guest's nodes and its
/// platform.
#[derive(Clone, Copy)]
pub struct Booting {
    pub name: &'static str,
    pub args: &'static str,
    pub nodes: Nodes,
    pub platform: Platform,
}

/// Without the KUnit suites, which run at boot otherwise.
pub const USUAL: Booting = Booting {
    name: "",
    args: "kunit.enable=0",
    nodes: Nodes::Tiers,
    platform: Platform::X86,
};

/// On a machine of two sockets, which the tests `nodes/` need, with a hugetlb folio of 1 GB on two
/// nodes, which `gigantic/` needs. Node 0 has no room for one beside the kernel.
pub const SOCKETS: Booting = Booting {
    name: "-sockets",
    args: "kunit.enable=0 hugepagesz=1G hugepages=1:1,2:1 hugepagesz=2M",
    nodes: Nodes::Sockets,
    platform: Platform::X86,
};

/// With all KUnit suites.
const WITH_KUNIT: Booting = Booting {
    args: "kunit.enable=1",
    ..USUAL
};

/// Tests that need more than two CPUs to be thorough. The suites `debug` and `rt` run them with
/// four, and the other tests with two. Ferry's kernel runs all with two.
const AMONG_MANY: &[&str] = &[
    "crews/",
    "races/",
    "service/race-",
    "dma/",
    "counters/",
    "sysctl/",
    "policy/",
    "accounting/",
    "unplug/",
    "litmus/",
    "migrc/",
];

/// Tests on a machine of two sockets that run by default: each kind of batch and of memory once.
/// The suite `nightly` runs all.
const SOME_OF_SOCKETS: &[&str] = &[
    "gigantic/",
    "nodes/batches-anon-without-cpus",
    "nodes/crews-file-near",
];

/// Tests that the debug kernel runs by default: each kind of memory, of race and of failure once. A
/// name stands for all tests whose names contain it. The suite `debug` runs all tests there. By
/// default Ferry's kernel runs nearly all, except tests that need a software DMA engine, fault
/// injection or `CONFIG_FERRY_MIGRC_DEBUG`.
const IN_DEBUG: &[&str] = &[
    "/move_pages",
    "accounting/crew-2m",
    "balancing/tiering-2m",
    "counters/hugetlb-shared",
    "crews/callers-4",
    "crews/confined-by-cpuset",
    "crews/frozen",
    "crews/killed",
    "crews/same-huge-page",
    "differential/0",
    "dma/driver-goes",
    "dma/hugetlb",
    "dma/late",
    "faults/helpers",
    "faults/move-pages",
    "faults/service-range",
    "generated/0",
    "killed/move-pages-crew",
    "large/discarded-meanwhile",
    "large/whole",
    "limits/switched-off-meanwhile",
    "litmus/file-truncated",
    "litmus/force",
    "litmus/protect",
    "litmus/replace",
    "litmus/secondary",
    "litmus/write",
    "lru-caches/locked-meanwhile",
    "migrc/atomic",
    "migrc/freed-by",
    "migrc/node-share",
    "migrc/owner-gone",
    "migrc/poisoned",
    "migrc/refused",
    "migrc/soft-offlined",
    "pinned/io_uring-64k",
    "policy/",
    "promotion/small",
    "races/forked-2m",
    "races/split",
    "races/unmapped",
    "runs/large-discarded-meanwhile",
    "runs/locked-meanwhile",
    "runs/notifications",
    "runs/truncated-while-sorted",
    "service/hugetlb-crew",
    "service/offline",
    "service/poisoned",
    "service/race-exiting",
    "service/race-unmapped",
    "service/race-written",
    "settings/queue",
    "sysctl/reasons",
    "tiers/proactive-generations",
    "unplug/cpus-crew",
];

/// Tests that Ferry's kernel skips by default, because they take long or differ from others in the
/// LRU or the file system alone. The suite `debug` runs them in the debug kernel, and `nightly` in
/// both.
const NOT_IN_FERRY: &[&str] = &[
    "litmus/file-xfs-punched",
    "litmus/nested",
    "litmus/probes",
    "litmus/replace",
    "promotion/crowded-generations",
    "promotion/races-generations",
    "service/fuzz",
    "tiers/full-generations",
    "tiers/in-use-generations",
    "tiers/kswapd-generations",
    "unplug/",
];

/// Litmus tests that disable a hook of migrc and must observe the failure that the hook prevents,
/// which shows that the tests can fail. They take long, so only the suites `nightly` and `litmus`
/// run them.
pub const CONTROLS: &str = "without-";

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    let ferry = ready(
        context,
        &program,
        Variant::Ferry,
        (USUAL_CPUS, &USUAL),
        LIMIT,
    )?;
    let cases = format!("{}{}", IN_DEBUG.join(" "), without(&[CONTROLS]));
    let debug = (MANY_CPUS, &WITH_KUNIT);
    let debug = ready(context, &program, Variant::Debug, debug, 2 * LIMIT)?;
    let booted = boot(&debug, "on", &cases)?;
    kunit::booted(context, tally, &debug.0, &debug.1)?;
    tally.case("each name in the list has a test", booted.has_all(IN_DEBUG));
    booted.tell(tally);
    let sockets = (MANY_CPUS, &SOCKETS);
    let sockets = ready(context, &program, Variant::Ferry, sockets, LIMIT)?;
    boot(&sockets, "on", &SOME_OF_SOCKETS.join(" "))?.tell(tally);
    let ferry = boot(&ferry, "on", &without(NOT_IN_FERRY))?.tell(tally);
    tally.case(
        "same outcomes with Ferry as recorded of vanilla",
        check_recorded(context, &digests(ferry.as_ref()), |_| true)?,
    );
    Ok(())
}

/// Runs KUnit, and all tests but [`CONTROLS`], in the debug kernel.
pub fn debug(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    let [few, many] = divided();
    let ready = |cpus, booting| {
        let variant = Variant::Debug;
        ready(context, &program, variant, (cpus, booting), 2 * LIMIT)
    };
    let (with_few, with_many) = (ready(few.0, &WITH_KUNIT)?, ready(many.0, &USUAL)?);
    let (few, many) = both(
        few.0 + many.0,
        || boot(&with_few, "on", &few.1),
        || boot(&with_many, "on", &many.1),
    )?;
    let (guest, prefix) = &with_few;
    kunit::booted(context, tally, guest, prefix)?;
    few.tell(tally);
    many.tell(tally);
    Ok(())
}

/// Numbers of CPUs of guests that only the suite `cpus` has. The host usually has fewer CPUs, so
/// these guests show nothing about speed.
const MORE_CPUS: [u32; 2] = [8, 16];

/// Runs the tests of several tasks and CPUs with more CPUs than other suites.
pub fn on_more_cpus(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    let [_, (_, cases)] = divided();
    for cpus in MORE_CPUS {
        let limit = LIMIT * cpus / USUAL_CPUS;
        let guest = ready(context, &program, Variant::Ferry, (cpus, &USUAL), limit)?;
        boot(&guest, "on", &cases)?.tell(tally);
    }
    Ok(())
}

/// Runs two guests at the same time if the host has the `cpus` CPUs of both, and otherwise one after
/// the other. Each CPU of a guest often waits for another one, which the host may not run:
/// `promotion/races` took four times as long in one of two guests with six CPUs on a host with two.
fn both<A: Send, B>(
    cpus: u32,
    one: impl FnOnce() -> Result<A> + Send,
    other: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    if jobs() < cpus as usize {
        return Ok((one()?, other()?));
    }
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join(), other)
    });
    let one = one.map_err(|_| anyhow!("a guest's thread panicked"))?;
    Ok((one?, other?))
}

/// Returns the options that leave out tests.
fn without(tests: &[&str]) -> String {
    let options = tests.iter().map(|test| format!(" --except {test}"));
    options.collect()
}

/// Returns all tests but [`CONTROLS`], for a kernel with many checks: numbers of CPUs, and the
/// tests to run with each.
pub fn divided() -> [(u32, String); 2] {
    let many = format!("{}{}", AMONG_MANY.join(" "), without(&[CONTROLS]));
    [(USUAL_CPUS, without(AMONG_MANY)), (MANY_CPUS, many)]
}

/// Runs all tests in the vanilla and the Ferry kernel. The tests must pass in both, and the
/// outcomes must be the same, and match the recorded ones, which are of the newest release.
pub fn beside_vanilla(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    let ready = |variant| ready(context, &program, variant, (USUAL_CPUS, &USUAL), LIMIT);
    let (vanilla, ferry) = (ready(Variant::Vanilla)?, ready(Variant::Ferry)?);
    let (vanilla, ferry) = both(
        2 * USUAL_CPUS,
        || boot(&vanilla, "off", ""),
        || boot(&ferry, "on", ""),
    )?;
    let (vanilla, ferry) = (vanilla.tell(tally), ferry.tell(tally));
    let found = digests(vanilla.as_ref());
    tally.case(
        "same outcomes with Ferry as without",
        compare(vanilla, ferry),
    );
    let outcome = match check_recorded(context, &found, |_| true)? {
        Outcome::Failed(why) => {
            let kept = context.cache.log("vanilla-outcomes").with_extension("json");
            let mut text = serde_json::to_vec_pretty(&found)?;
            text.push(b'\n');
            write_atomic(&kept, &text)?;
            let kept = kept.display();
            Outcome::Failed(format!(
                "{why}; if the kernel or a test has changed, copy {kept} to {RECORDED}"
            ))
        }
        other => other,
    };
    tally.case("the recorded outcomes match vanilla's", outcome);
    Ok(())
}

/// Runs all tests in both kernels of older releases.
pub fn in_older_releases(context: &Context, tally: &mut Tally) -> Result<()> {
    let all = context.older()?;
    if all.is_empty() {
        let why = "a kernel was named".to_owned();
        tally.case("older releases", Outcome::Skipped(why));
    }
    all.iter()
        .try_for_each(|older| beside_vanilla(older, tally))
}

/// Runs the named tests in one kernel.
pub fn some(
    context: &Context,
    tally: &mut Tally,
    tests: &[String],
    (variant, cpus, booting): (Variant, u32, &Booting),
) -> Result<()> {
    ensure!(
        !matches!(variant, Variant::Uml | Variant::Arm64),
        "the {} kernel cannot run these tests: choose another with --kernel",
        variant.name()
    );
    let cases = tests.iter().map(|test| shell_word(test));
    let cases = cases.collect::<Result<Vec<_>>>()?.join(" ");
    let engine = match variant {
        Variant::Vanilla => "off",
        _ => "on",
    };
    let program = guest::program_on(context, booting.platform)?;
    let guest = ready(context, &program, variant, (cpus, booting), LIMIT)?;
    boot(&guest, engine, &cases)?.tell(tally);
    Ok(())
}

/// Returns the pattern of a test's name, quoted for the guest's shell.
fn shell_word(test: &str) -> Result<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_*".contains(c);
    ensure!(
        !test.starts_with('-') && test.chars().all(is_plain),
        "no test has a name like `{test}`"
    );
    Ok(format!("'{test}'"))
}

/// The names of all tests of a guest's program.
pub fn names(program: &Path) -> Result<Vec<String>> {
    let text = step::output(Command::new(program).args(["test", "--list"]))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The results of the tests in one kernel.
pub struct Booted {
    prefix: String,
    cases: Vec<(String, Outcome)>,
    /// The program's exit, if it is worth reporting, and the kernel log.
    program: Option<Outcome>,
    log: Outcome,
    parity: Option<Value>,
    /// Number of iterations of each test that counts them.
    pub counts: BTreeMap<String, u64>,
}

impl Booted {
    /// Fails if one of the names stands for no test that was run.
    pub fn has_all(&self, names: &[&str]) -> Outcome {
        let lacks = |name: &&&str| !self.cases.iter().any(|(case, _)| case.contains(**name));
        match names.iter().find(lacks) {
            Some(name) => Outcome::Failed(format!("no test `{name}`")),
            None => Outcome::Passed,
        }
    }

    /// Returns the names of the tests that were skipped.
    pub fn skipped(&self) -> BTreeSet<String> {
        let skipped = self
            .cases
            .iter()
            .filter(|case| matches!(case.1, Outcome::Skipped(_)));
        skipped.map(|case| case.0.clone()).collect()
    }

    /// Reports the results. Returns the outcomes to compare, if the guest left any.
    pub fn tell(self, tally: &mut Tally) -> Option<Value> {
        let prefix = self.prefix;
        tally.cases(&prefix, self.cases);
        if let Some(program) = self.program {
            tally.case(&format!("{prefix}the program"), program);
        }
        tally.case(&format!("{prefix}kernel log"), self.log);
        self.parity
    }
}

/// Returns a guest that has the kernel and the programs, and the prefix of its results.
pub fn ready(
    context: &Context,
    program: &Path,
    variant: Variant,
    (cpus, booting): (u32, &Booting),
    limit: Duration,
) -> Result<(Guest, String)> {
    let kernel = kernel::build_on(context, variant, booting.platform)?;
    let named = (variant.name(), &*kernel.image);
    let (guest, prefix) = ready_image(context, program, named, (cpus, booting), limit)?;
    Ok((guest.kernel_args(variant.boot_args()), prefix))
}

/// Like [`ready`], with the image of a kernel and its name in the results.
pub fn ready_image(
    context: &Context,
    program: &Path,
    (name, image): (&str, &Path),
    (cpus, booting): (u32, &Booting),
    limit: Duration,
) -> Result<(Guest, String)> {
    let shape = Shape {
        nodes: booting.nodes,
        ..Shape::new(cpus, NODE_GIB)
    };
    let release = match context.source()?.release {
        Release::NEWEST => String::new(),
        older => format!("-{}", older.name()),
    };
    let end = format!("{}{}{release}", booting.platform.suffix(), booting.name);
    let booted = format!("test-{name}-{cpus}cpu{end}");
    let guest = Guest::on(context, booting.platform, (image, &booted), shape)?
        .kernel_args(booting.args)
        .timeout(limit);
    guest.bring_programs(program)?;
    let prefix = format!("{name}{end}, {cpus} CPUs: ");
    Ok((guest, prefix))
}

/// Runs the tests in one kernel: those that match `cases`, or all if it is empty.
pub fn boot(ready: &(Guest, String), engine: &str, cases: &str) -> Result<Booted> {
    boot_between(ready, engine, cases, ["", ""])
}

/// Runs the shell commands `before`, the tests, and the commands `after`. Stops at the first failure,
/// and reports the boot as failed.
pub fn boot_between(
    (guest, prefix): &(Guest, String),
    engine: &str,
    cases: &str,
    [before, after]: [&str; 2],
) -> Result<Booted> {
    // The results also go to a file, because kernel messages can interleave on the console.
    let script = format!(
        "sh -ex before.sh || exit 1\n\
         ./ferry-guest test {cases} --engine {engine} --parity parity.json --counts counts.json \
         >tap 2>notes\n\
         status=$?\ncat tap notes\n[ $status = 0 ] || exit $status\nsh -ex after.sh\n"
    );
    for (name, commands) in [("before.sh", before), ("after.sh", after)] {
        write_atomic(&guest.share().join(name), commands.as_bytes())?;
    }
    let ended = match guest.run(&script) {
        Err(error) if step::was_interrupted(&error) => return Err(error),
        ended => ended,
    };
    let text = fs::read(guest.share().join("tap")).unwrap_or_default();
    let cases = ktap::tap(&String::from_utf8_lossy(&text));
    let failed = cases
        .iter()
        .any(|case| matches!(case.1, Outcome::Failed(_)));
    let program = match ended {
        Ok(0) => None,
        Ok(_) if failed => None,
        Ok(status) => {
            let log = guest.console().display();
            Some(Outcome::Failed(format!("exit status {status}; log: {log}")))
        }
        // The cases that ended before the error are reported too.
        Err(error) => Some(Outcome::Failed(format!("{error:#}"))),
    };
    let log = match &program {
        None => guest.dmesg()?,
        Some(_) => guest.dmesg().unwrap_or_default(),
    };
    let left = |name| fs::read(guest.share().join(name)).unwrap_or_default();
    Ok(Booted {
        prefix: prefix.clone(),
        cases,
        program,
        log: clean_log(&log),
        parity: serde_json::from_slice(&left("parity.json")).ok(),
        counts: serde_json::from_slice(&left("counts.json")).unwrap_or_default(),
    })
}

/// Fails if the kernel log has a report of a bug.
pub fn clean_log(log: &str) -> Outcome {
    // A kernel without a root device ends in this after its tests, as KUnit's does by design. The
    // guest's init warns of programs that the distribution lacks.
    let expected = |line: &str| {
        line.contains("Kernel panic") && line.contains("root fs")
            || line.contains("virtme-ng-init:")
    };
    let alarm = log.lines().find(|line| is_alarm(line) && !expected(line));
    match alarm {
        None => Outcome::Passed,
        Some(line) => Outcome::Failed(line.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_change_are_refused() {
        assert_eq!(shell_word("crews/*").unwrap(), "'crews/*'");
        for wrong in ["--except", "a'b", "a b", "$(x)"] {
            assert!(shell_word(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn kernel_alarms_are_found() {
        assert_eq!(
            clean_log("[ 1.0] Linux version\n[ 2.0] debug: ok\n"),
            Outcome::Passed
        );
        let init = "[ 8.0] virtme-ng-init: WARNING: failed to run: \"systemd-tmpfiles\"";
        assert_eq!(clean_log(init), Outcome::Passed);
        for line in [
            "[ 3.0] WARNING: CPU: 0 at mm/x.c:3",
            "[ 4.0] BUG: unable to handle",
        ] {
            assert_eq!(clean_log(line), Outcome::Failed(line.to_owned()));
        }
    }
}
