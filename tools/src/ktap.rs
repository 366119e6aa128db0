// SPDX-License-Identifier: GPL-2.0-only
//! Parses test results: KUnit's by the kernel's own parser, and plain TAP.

use crate::step::Step;
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

pub type Case = (String, Outcome);

#[derive(Deserialize)]
struct Group {
    name: String,
    #[serde(default)]
    sub_groups: Vec<Group>,
    #[serde(default)]
    test_cases: Vec<Leaf>,
}

#[derive(Deserialize)]
struct Leaf {
    name: String,
    status: String,
}

/// Returns the KUnit cases in a kernel log, parsed by the kernel tree's `kunit.py`.
pub fn kunit(tree: &Path, log: &Path, parser_log: PathBuf) -> Result<Vec<Case>> {
    let json = tempfile::NamedTempFile::new()?;
    let mut json_arg = std::ffi::OsString::from("--json=");
    json_arg.push(json.path());
    // kunit.py fails if a test failed; the file has the results in any case.
    Step::new("reading KUnit's results", parser_log)
        .timeout(Duration::from_secs(120))
        .quiet()
        .run_any(
            Command::new("python3")
                .arg("-B")
                .arg(tree.join("tools/testing/kunit/kunit.py"))
                .arg("parse")
                .arg(json_arg)
                .arg(log),
        )?;
    let text = fs::read_to_string(json.path())?;
    parse_json(&text).with_context(|| format!("cannot parse KUnit's results in {}", log.display()))
}

fn parse_json(text: &str) -> Result<Vec<Case>> {
    let top: Group = serde_json::from_str(text)?;
    let mut cases = Vec::new();
    flatten(&top, "", &mut cases);
    Ok(cases)
}

fn flatten(group: &Group, prefix: &str, cases: &mut Vec<Case>) {
    for leaf in &group.test_cases {
        let outcome = match leaf.status.as_str() {
            "PASS" => Outcome::Passed,
            "SKIP" => Outcome::Skipped(String::new()),
            status => Outcome::Failed(status.to_lowercase()),
        };
        cases.push((format!("{prefix}{}", leaf.name), outcome));
    }
    for sub in &group.sub_groups {
        flatten(sub, &format!("{prefix}{}.", sub.name), cases);
    }
}

/// Returns the cases of a TAP stream. Cases that the plan announces but that are missing have
/// failed.
pub fn tap(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut planned = None;
    for line in text.lines() {
        if let Some(case) = tap_line(line) {
            cases.push(case);
        } else if let Some(count) = line.strip_prefix("1..") {
            planned = count
                .split_whitespace()
                .next()
                .and_then(|n| n.parse::<usize>().ok());
        }
    }
    match planned {
        None => cases.push((
            "plan".to_owned(),
            Outcome::Failed("no TAP plan in the output".to_owned()),
        )),
        Some(planned) => {
            for number in cases.len() + 1..=planned {
                let why = Outcome::Failed("in the plan, but not in the output".to_owned());
                cases.push((format!("case {number}"), why));
            }
        }
    }
    cases
}

/// Parses `ok 3 - name # SKIP why`, with or without the hyphen and the note.
pub fn tap_line(line: &str) -> Option<Case> {
    let line = line.trim_end();
    let (good, rest) = match line.strip_prefix("ok ") {
        Some(rest) => (true, rest),
        None => (false, line.strip_prefix("not ok ")?),
    };
    let (number, rest) = rest.split_once(' ')?;
    number.parse::<u32>().ok()?;
    let rest = rest.trim_start_matches("- ").trim();
    let (name, note) = rest.split_once('#').unwrap_or((rest, ""));
    let (name, note) = (name.trim().to_owned(), note.trim().to_owned());
    let outcome = if !good {
        Outcome::Failed(note)
    } else if let Some(why) = note.strip_prefix("SKIP") {
        Outcome::Skipped(why.trim().to_owned())
    } else {
        Outcome::Passed
    };
    Some((name, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_variants() {
        let text = "TAP version 13\n1..4\n# note\nok 1 a.b\nok 2 - c # SKIP no memory\n\
                    not ok 3 - d e # went wrong\n";
        assert_eq!(
            tap(text),
            [
                ("a.b".to_owned(), Outcome::Passed),
                ("c".to_owned(), Outcome::Skipped("no memory".to_owned())),
                ("d e".to_owned(), Outcome::Failed("went wrong".to_owned())),
                (
                    "case 4".to_owned(),
                    Outcome::Failed("in the plan, but not in the output".to_owned())
                ),
            ]
        );
    }

    #[test]
    fn output_without_a_plan_failed() {
        assert!(matches!(
            tap("ok 1 a\n").pop(),
            Some((_, Outcome::Failed(_)))
        ));
        assert!(matches!(tap("").pop(), Some((_, Outcome::Failed(_)))));
        assert_eq!(tap_line("ok then"), None);
    }

    #[test]
    fn kunit_groups_become_dotted_names() {
        let text = r#"{"name":"KUnit Test Group","test_cases":[],"misc":{},"sub_groups":[
            {"name":"ferry_copy","sub_groups":[{"name":"orders","sub_groups":[],
               "test_cases":[{"name":"order 0","status":"PASS"}]}],
             "test_cases":[{"name":"late","status":"FAIL"},{"name":"hw","status":"SKIP"}]}]}"#;
        assert_eq!(
            parse_json(text).unwrap(),
            [
                (
                    "ferry_copy.late".to_owned(),
                    Outcome::Failed("fail".to_owned())
                ),
                ("ferry_copy.hw".to_owned(), Outcome::Skipped(String::new())),
                ("ferry_copy.orders.order 0".to_owned(), Outcome::Passed),
            ]
        );
    }
}
