// SPDX-License-Identifier: GPL-2.0-only
//! libFuzzer with `tests/fuzz`: programs of calls, in successive boots of one kernel, until it has
//! made enough calls; then cases for `rust/logic`, on this machine. The inputs that reach
//! new code, and those that failed, are kept in the cache for all later runs.

use super::{guest::clean_log, progress::Progress, Tally};
use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
    ktap::Outcome,
    step::{was_interrupted, Step},
};
use anyhow::{bail, ensure, Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Default number of calls.
pub const CALLS: u64 = 100_000;
/// Seconds that the fuzzer runs in one boot. The calls of a failed boot are not counted.
const BOOT_SECONDS: u64 = 1200;
/// Time limit of a boot.
const LIMIT: Duration = Duration::from_secs(3600);
const CPUS: u32 = 2;
const NODE_GIB: u32 = 2;
/// Seconds for the cases for `rust/logic`.
const LOGIC_SECONDS: u64 = 120;

/// Bytes of the longest input.
const LONGEST: u32 = 1024;
/// Seconds after which an input has failed.
const SLOW: u32 = 300;

/// The folders of inputs.
struct Inputs {
    /// Those that reach new code.
    corpus: PathBuf,
    /// Those that failed.
    failed: PathBuf,
}

#[derive(Default, Deserialize, Serialize)]
struct Totals {
    boots: u64,
    calls: u64,
}

/// Runs the fuzzer in the kernel `variant`, which must have KCOV, until it has made `wanted` calls.
pub fn run(context: &Context, tally: &mut Tally, variant: Variant, wanted: u64) -> Result<()> {
    ensure!(
        kernel::of_variant(&context.repo, variant)?.is_set("CONFIG_KCOV"),
        "the {} kernel has no KCOV\n  what to do: use --kernel debug or --kernel extra",
        variant.name()
    );
    let program = guest::fuzzer(context)?;
    let kernel = kernel::build(context, variant)?;
    let inputs = Inputs {
        corpus: context.cache.dir("fuzz-corpus")?,
        failed: context.cache.dir("fuzz-failed")?,
    };
    let kept = format!("fuzz-{}", variant.name());
    let mut progress = Progress::<Totals>::read(context, &kept, &[&kernel.image, &program])?;
    while progress.results().calls < wanted {
        let Totals { boots, calls } = progress.results();
        let (seed, rest) = (boots + 1, wanted - calls);
        let name = format!("{}: boot {seed}", variant.name());
        match boot(
            context,
            (&program, variant, &kernel.image),
            &inputs,
            seed,
            rest,
        ) {
            Ok(calls) => {
                progress.update(|totals| {
                    totals.boots += 1;
                    totals.calls += calls;
                })?;
                let all = progress.results().calls;
                let done = format!("{name}: seed {seed}, {calls} calls, {all} of {wanted} in all");
                tally.case(&done, Outcome::Passed);
            }
            Err(error) => {
                // It must not hide an error in rust/logic.
                tally.check(&name, Err(error))?;
                break;
            }
        }
    }
    let Totals { boots, calls } = progress.results();
    if *calls >= wanted {
        let kept = fs::read_dir(&inputs.corpus)?.count();
        let done = format!("{calls} calls in {boots} boots; {kept} inputs reach new code");
        tally.case(&done, Outcome::Passed);
    }
    tally.check("rust/logic", logic(context))
}

/// Runs the cases for `rust/logic`.
fn logic(context: &Context) -> Result<()> {
    let program = guest::logic_fuzzer(context)?;
    let corpus = context.cache.dir("fuzz-logic")?;
    let mut command = Command::new(program);
    command
        .current_dir(&corpus)
        .arg(&corpus)
        .arg(format!("-max_total_time={LOGIC_SECONDS}"))
        .arg("-print_final_stats=1");
    Step::new("fuzzing rust/logic", context.cache.log("fuzz-logic"))
        .timeout(LIMIT)
        .remedy("read the log, which names the file with the input")
        .run(&mut command)
}

/// Runs the fuzzer in one boot. Returns the number of calls.
fn boot(
    context: &Context,
    (program, variant, image): (&Path, Variant, &Path),
    inputs: &Inputs,
    seed: u64,
    calls: u64,
) -> Result<u64> {
    // The kernel log must keep its first lines until the end.
    let guest = Guest::new(
        context,
        image,
        &format!("fuzz-{}", variant.name()),
        Shape::new(CPUS, NODE_GIB),
    )?
    .kernel_args("kunit.enable=0 log_buf_len=16M")
    .kernel_args(variant.boot_args())
    .folder(&inputs.corpus)
    .folder(&inputs.failed)
    .timeout(LIMIT);
    guest.bring(program)?;
    let done = guest
        .run(&script(inputs, seed, calls))
        .and_then(|status| judge(&guest, status));
    done.map_err(|error| match was_interrupted(&error) {
        true => error,
        false => error.context(advice(&guest, inputs, seed)),
    })
}

/// Keeps the input of a run that failed, and says how to go on.
fn advice(guest: &Guest, inputs: &Inputs, seed: u64) -> String {
    let failed = &inputs.failed;
    let input = keep_input((guest.name(), guest.share()), failed, seed);
    format!(
        "{}; log: {}\n  what to do: read the end of the log; the next run begins with the inputs in {}",
        input.unwrap_or_else(|error| format!("no input is known: {error:#}")),
        guest.console().display(),
        failed.display()
    )
}

/// Returns the number of calls of a run that ended well.
fn judge(guest: &Guest, status: i32) -> Result<u64> {
    match clean_log(&guest.dmesg()?) {
        Outcome::Passed => {}
        other => bail!("kernel log: {other:?}"),
    }
    ensure!(status == 0, "exit status {status}");
    let calls = fs::read_to_string(guest.share().join("calls")).context("no calls are reported")?;
    let calls = calls.trim().parse().context("the number of calls")?;
    ensure!(calls > 0, "no calls");
    Ok(calls)
}

/// Keeps the last input of a run that failed: if the kernel stopped, libFuzzer could not. Returns a
/// message that names the file.
fn keep_input((name, share): (&str, &Path), failed: &Path, seed: u64) -> Result<String> {
    let file = fs::read(share.join("input"))?;
    let (length, input) = file.split_first_chunk().context("it is empty")?;
    let length = u32::from_le_bytes(*length) as usize;
    let input = input.get(..length).context("it is cut off")?;
    let kept = failed.join(format!("last-of-{name}-seed-{seed}"));
    fs::write(&kept, input)?;
    Ok(format!("last input: {}", kept.display()))
}

/// Returns the commands for the guest: the fuzzer, then a wait until no page is isolated.
fn script(inputs: &Inputs, seed: u64, calls: u64) -> String {
    let [corpus, failed] = [&inputs.corpus, &inputs.failed].map(|folder| folder.display());
    format!(
        "FERRY_FUZZ_CALLS=calls FERRY_FUZZ_INPUT=input FERRY_FUZZ_UNTIL={calls} \
         ./ferry-fuzz {corpus} {failed} -seed={seed} -max_total_time={BOOT_SECONDS} \
         -max_len={LONGEST} -len_control=0 -timeout={SLOW} -report_slow_units={SLOW} -reload=0 \
         -rss_limit_mb=0 -print_final_stats=1 -artifact_prefix={failed}/ || exit\n\
         for second in $(seq 60); do\n\
         echo 1 >/proc/sys/vm/stat_refresh\n\
         awk '/^nr_isolated/ {{ sum += $2 }} END {{ exit sum != 0 }}' /proc/vmstat && exit\n\
         sleep 1\n\
         done\n\
         grep nr_isolated /proc/vmstat\n\
         exit 1\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_input_is_kept_without_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let keep = |file: &[u8]| {
            fs::write(dir.path().join("input"), file).unwrap();
            keep_input(("fuzz", dir.path()), dir.path(), 7)
        };
        // An earlier input was longer.
        assert!(keep(b"\x02\0\0\0abcd")
            .unwrap()
            .ends_with("last-of-fuzz-seed-7"));
        assert_eq!(
            fs::read(dir.path().join("last-of-fuzz-seed-7")).unwrap(),
            b"ab"
        );
        for cut in [&b""[..], b"\x02\0", b"\x02\0\0\0a"] {
            assert!(keep(cut).is_err());
        }
    }
}
