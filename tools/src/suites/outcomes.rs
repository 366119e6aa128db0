// SPDX-License-Identifier: GPL-2.0-only
//! The outcomes of system calls in the tests of the suite guest: compared with those recorded of
//! the vanilla kernel, or in detail between two kernels.

use crate::{cache::Key, context::Context, ktap::Outcome, source::Release};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{collections::BTreeMap, fs};

/// Digests of each test's outcomes in the vanilla kernel. The suite `nightly` checks that they are
/// current.
pub const RECORDED: &str = "tests/data/vanilla-outcomes.json";

/// Digests by the name of the test.
pub type Digests = BTreeMap<String, String>;

/// Compares the outcomes of the tests that `is_due` names with the recorded ones, which are of the
/// newest release.
pub fn check_recorded(
    context: &Context,
    found: &Digests,
    is_due: impl Fn(&str) -> bool,
) -> Result<Outcome> {
    if context.source()?.release != Release::NEWEST {
        let why = "outcomes are recorded of the newest release";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    let mut recorded = recorded(context)?;
    recorded.retain(|test, _| is_due(test));
    Ok(as_recorded(&recorded, found))
}

fn recorded(context: &Context) -> Result<Digests> {
    let path = context.repo.join(RECORDED);
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is malformed", path.display()))
}

pub fn digests(outcomes: Option<&Value>) -> Digests {
    let tests = outcomes.and_then(Value::as_object).into_iter().flatten();
    tests
        .map(|(test, outcome)| {
            let digest = Key::default().add(outcome.to_string()).finish();
            (test.clone(), digest)
        })
        .collect()
}

/// Compares the digests of a kernel's outcomes with the recorded ones.
fn as_recorded(recorded: &Digests, found: &Digests) -> Outcome {
    if recorded.is_empty() {
        return Outcome::Failed(format!("{RECORDED} has no outcomes"));
    }
    let mut tests = recorded.keys().chain(found.keys());
    match tests.find(|&test| recorded.get(test) != found.get(test)) {
        None => Outcome::Passed,
        Some(test) => Outcome::Failed(format!(
            "{test} differs from the record. To see vanilla's outcome, run it with `--kernel vanilla`"
        )),
    }
}

/// Compares the outcomes of two kernels in detail.
pub fn compare(vanilla: Option<Value>, ferry: Option<Value>) -> Outcome {
    let (Some(vanilla), Some(ferry)) = (vanilla, ferry) else {
        return Outcome::Failed("one of the kernels wrote no outcomes to compare".to_owned());
    };
    if vanilla
        .as_object()
        .is_none_or(|outcomes| outcomes.is_empty())
    {
        return Outcome::Failed("the vanilla kernel recorded no outcomes".to_owned());
    }
    match difference("", &vanilla, &ferry) {
        None => Outcome::Passed,
        Some(where_) => Outcome::Failed(where_),
    }
}

/// Returns the first difference between two documents.
fn difference(path: &str, a: &Value, b: &Value) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            names.into_iter().find_map(|name| {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(name).cloned().unwrap_or(Value::Null)
                };
                difference(&format!("{path}/{name}"), &of(a), &of(b))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(index, (a, b))| difference(&format!("{path}/{index}"), a, b)),
        _ if a == b => None,
        _ => Some(format!("{path}: vanilla {a}, Ferry {b}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn first_difference_is_named() {
        let vanilla = json!({"move": [{"ret": 0, "status": [1, -2]}]});
        let ferry = json!({"move": [{"ret": 0, "status": [1, 1]}]});
        assert_eq!(
            compare(Some(vanilla.clone()), Some(vanilla.clone())),
            Outcome::Passed
        );
        assert_eq!(
            compare(Some(vanilla.clone()), Some(ferry)),
            Outcome::Failed("/move/0/status/1: vanilla -2, Ferry 1".to_owned())
        );
        assert!(matches!(
            compare(Some(vanilla.clone()), None),
            Outcome::Failed(_)
        ));
        assert!(matches!(
            compare(Some(vanilla), Some(json!({}))),
            Outcome::Failed(_)
        ));
        assert!(matches!(
            compare(Some(json!({})), Some(json!({}))),
            Outcome::Failed(_)
        ));
    }

    #[test]
    fn other_outcomes_than_the_recorded_are_named() {
        let vanilla = json!({"a": [1, -2], "b": []});
        let recorded = digests(Some(&vanilla));
        assert_eq!(as_recorded(&recorded, &recorded), Outcome::Passed);
        for found in [json!({"a": [1, 1], "b": []}), json!({"b": []})] {
            match as_recorded(&recorded, &digests(Some(&found))) {
                Outcome::Failed(why) => assert!(why.starts_with("a differs"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            as_recorded(&digests(None), &recorded),
            Outcome::Failed(_)
        ));
    }
}
