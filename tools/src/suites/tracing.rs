// SPDX-License-Identifier: GPL-2.0-only
//! The commands for perf and bpftrace in `docs/admin-guide.rst`, while pages are migrated.

use super::{documented::Page, guest::clean_log, Tally};
use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Built, Variant},
    step::output,
    toolchain::which,
};
use anyhow::{bail, ensure, Context as _, Result};
use std::{ffi::OsString, fs, path::Path, process::Command, time::Duration};

const SHAPE: Shape = Shape::new(2, 2);
const LIMIT: Duration = Duration::from_secs(1800);
const SECTION: &str = "With perf and bpftrace";

/// A part of each command, and words that its output must have.
const OUTPUT: [(&str, &[&str]); 7] = [
    ("perf trace -s", &["move_pages", "max"]),
    ("@us = hist", &["@us:", "|@"]),
    ("@helped[comm]", &["@pages[", "@helped["]),
    ("@unmapped_us", &["@unmapped_us:", "|@"]),
    ("@mb_per_s", &["@mb_per_s[", "average"]),
    ("@error[comm", &["@failed[", "@error["]),
    ("'ferry:*'", &["ferry:ferry_batch", "ferry:ferry_crew"]),
];

/// Boots the guest, and checks the output of each command.
pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    for (program, package) in [
        ("perf", "linux-perf"),
        ("bpftrace", "bpftrace"),
        ("pahole", "pahole"),
    ] {
        ensure!(
            which(program).is_some(),
            "there is no {program} in PATH\n  what to do: install the package {package}"
        );
    }
    let commands = Page::read(&context.repo, "admin-guide.rst")?.commands(SECTION)?;
    let program = guest::program(context)?;
    let kernel = kernel::build(context, Variant::Extra)?;
    let guest = Guest::new(context, &kernel.image, "test-tracing", SHAPE)?
        .kernel_args("kunit.enable=0")
        .timeout(LIMIT);
    guest.bring(&program)?;
    types(context, &kernel, guest.share())?;
    for (nr, command) in commands.iter().enumerate() {
        fs::write(guest.share().join(format!("command-{nr}")), command)?;
    }
    let status = guest.run(SCRIPT)?;
    let log = guest.console().display();
    ensure!(status == 0, "exit status {status}; log: {log}");
    for (nr, command) in commands.iter().enumerate() {
        let output = checked(guest.share(), nr, command);
        tally.check(
            words(command).map_or("another command", |row| row.0),
            output,
        )?;
    }
    tally.case("kernel log", clean_log(&guest.dmesg()?));
    Ok(())
}

/// Runs each command while another process migrates pages with crews, and pages that cannot move.
const SCRIPT: &str = "
    export BPFTRACE_BTF=$PWD/types.btf
    for command in command-*; do
        (until [ -e ended ]; do
            ./ferry-guest test counters/huge-pages counters/crew pinned/vmsplice-4k \
                errors/bad-node --engine on || touch failed
        done) >load 2>&1 &
        timeout 300 sh ./$command >output-${command#command-} 2>&1
        echo $? >status-${command#command-}
        touch ended
        wait
        rm ended
        [ -e failed ] && cat load && exit 1
    done
    exit 0";

/// Writes the types of the kernel that its trace events use, in the form that bpftrace reads: those
/// of one object. A kernel with all of its types takes long to build.
fn types(context: &Context, kernel: &Built, to: &Path) -> Result<()> {
    const SAVED: &str = "mm/.migrate.o.cmd";
    const OUT: &str = " -o mm/migrate.o ";
    let file = kernel.out.join(SAVED);
    let saved =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let compile = saved
        .lines()
        .next()
        .and_then(|line| line.split_once(" := "));
    let (compile, _) = compile
        .and_then(|(_, line)| line.split_once(" ; "))
        .filter(|(compile, _)| compile.contains(OUT))
        .with_context(|| format!("{SAVED} has no command"))?;
    let object = to.join("types.o");
    let compile = compile.replace(OUT, &format!(" -g -o {} ", object.display()));
    // The list of included files is of no use.
    let words = compile
        .split(' ')
        .filter(|word| !word.starts_with("-Wp,-MMD,"));
    let compile = words.collect::<Vec<_>>().join(" ");
    let mut command = Command::new("sh");
    context.toolchain()?.environment(&mut command);
    output(command.current_dir(&kernel.out).args(["-c", &compile]))?;
    let mut btf = OsString::from("--btf_encode_detached=");
    btf.push(to.join("types.btf"));
    output(Command::new("pahole").arg("-J").arg(btf).arg(object))?;
    Ok(())
}

/// Returns the row of a command.
fn words(command: &str) -> Option<&'static (&'static str, &'static [&'static str])> {
    OUTPUT.iter().find(|(part, _)| command.contains(part))
}

/// Checks the status of a command and its output.
fn checked(share: &Path, nr: usize, command: &str) -> Result<()> {
    let read = |name: &str| {
        let file = share.join(format!("{name}-{nr}"));
        fs::read_to_string(file).with_context(|| format!("the guest left no {name}-{nr}"))
    };
    let (_, words) = words(command)
        .context("OUTPUT in tools/src/suites/tracing.rs has no row for the command")?;
    let (status, text) = (read("status")?, read("output")?);
    ensure!(status.trim() == "0", "exit status {status}: {text}");
    match words.iter().find(|word| !text.contains(**word)) {
        None => Ok(()),
        Some(word) => bail!("the output lacks `{word}`: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_its_words() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let page = Page::read(tools.parent().unwrap(), "admin-guide.rst").unwrap();
        let commands = page.commands(SECTION).unwrap();
        assert_eq!(commands.len(), OUTPUT.len());
        for (part, _) in OUTPUT {
            let found = commands.iter().filter(|command| command.contains(part));
            assert_eq!(found.count(), 1, "{part}");
        }
    }
}
