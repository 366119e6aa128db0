// SPDX-License-Identifier: GPL-2.0-only
//! Memory barriers of the kernel part as litmus tests for the kernel's memory model, in
//! `tests/memory-model/`. No state that a test names may be reachable. The same test with a barrier
//! left out, `NAME-without-BARRIER`, must reach it.

use super::Tally;
use crate::{cache::read_log, context::Context, ktap::Outcome, step::Step, toolchain::which, tree};
use anyhow::{ensure, Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const HERD: &str = "herd7";
const WITHOUT: &str = "-without-";

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let herd = which(HERD).with_context(|| {
        format!(
            "no {HERD} in PATH: install version 7.58 or later, by `opam install herdtools7`, and \
             try again"
        )
    })?;
    let model = tree::vanilla(context)?.dir.join("tools/memory-model");
    let tests = tests(&context.repo.join("tests/memory-model"))?;
    for (name, test) in &tests {
        let log = context.cache.log(&format!("memory-model-{name}"));
        let mut command = Command::new(&herd);
        command
            .current_dir(&model)
            .args(["-conf", "linux-kernel.cfg"])
            .arg(test);
        let done = Step::new(format!("memory model: {name}"), log.clone())
            .timeout(Duration::from_secs(600))
            .run(&mut command);
        tally.check(name, done.and_then(|()| judge(&read_log(&log)?, name)))?;
    }
    tally.case("each test can fail", controlled(&tests));
    Ok(())
}

/// Returns the tests of a folder and their files.
fn tests(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut tests = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "litmus")
        {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            tests.push((name.into_owned(), path));
        }
    }
    tests.sort();
    Ok(tests)
}

/// Returns whether each test has one with a barrier left out.
fn controlled(tests: &[(String, PathBuf)]) -> Outcome {
    let has_control = |name: &str| {
        let prefix = format!("{name}{WITHOUT}");
        tests.iter().any(|(other, _)| other.starts_with(&prefix))
    };
    let names = tests.iter().map(|(name, _)| name);
    let mut names = names.filter(|name| !name.contains(WITHOUT));
    match names.find(|name| !has_control(name)) {
        None if tests.is_empty() => Outcome::Failed("no tests".to_owned()),
        None => Outcome::Passed,
        Some(name) => Outcome::Failed(format!("{name} has no test {name}{WITHOUT}...")),
    }
}

/// Checks what the test reached.
fn judge(log: &str, name: &str) -> Result<()> {
    let wanted = if name.contains(WITHOUT) {
        "Sometimes"
    } else {
        "Never"
    };
    let found = log.lines().find_map(|line| {
        let (test, found) = line.strip_prefix("Observation ")?.split_once(' ')?;
        (test == name).then(|| found.split(' ').next().unwrap_or_default())
    });
    let found = found.with_context(|| format!("{HERD} gave no result"))?;
    ensure!(found == wanted, "reached: {found}; expected: {wanted}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_outcome() {
        let never = |name| format!("Negative: 3\nObservation {name} Never 0 3\n");
        assert!(judge(&never("a"), "a").is_ok());
        let control = "a-without-b";
        assert!(judge(&never(control), control).is_err());
        assert!(judge("Observation a-without-b Sometimes 1 3\n", control).is_ok());
        assert!(judge("", "a").is_err());
    }

    #[test]
    fn a_test_without_a_control_is_found() {
        let named = |names: &[&str]| {
            let tests = names
                .iter()
                .map(|name| ((*name).to_owned(), PathBuf::new()));
            controlled(&tests.collect::<Vec<_>>())
        };
        assert_eq!(named(&["a", "a-without-b"]), Outcome::Passed);
        assert!(matches!(named(&["a", "ab-without-b"]), Outcome::Failed(_)));
        assert!(matches!(named(&[]), Outcome::Failed(_)));
    }
}
