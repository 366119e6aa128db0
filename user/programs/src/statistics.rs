// SPDX-License-Identifier: GPL-2.0-only
//! The figures of `migstat`: all counters of the service, and the difference to an earlier time.
//!
//! The kernel's counters never go back, because several programs may read them. So a reset stores
//! the counters in a file of the user, which later calls subtract.

use crate::{Failure, While};
use nix::unistd::getuid;
use page_migrate::Service;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    env, fs, io,
    path::PathBuf,
    process,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Descriptions of the counters, by name. The others are named after a reason or an error number.
const MEANINGS: [(&str, &str); 14] = [
    ("phys_calls", "accepted calls by physical address"),
    ("phys_entries", "physical addresses in these calls"),
    (
        "phys_ignored",
        "addresses skipped: not the process's page, or already there",
    ),
    ("range_calls", "accepted calls for ranges"),
    ("successful", "pages migrated"),
    ("failed", "pages that could not be migrated"),
    ("refused", "rejected calls"),
    ("aborted", "accepted calls that ended with an error"),
    ("phys_usec", "microseconds in calls by physical address"),
    ("range_usec", "microseconds in calls for ranges"),
    ("failures/shared", "pages that unrelated processes map too"),
    (
        "failures/unmovable",
        "pages that are pinned, poisoned or inaccessible",
    ),
    ("failures/busy", "pages that another task has isolated"),
    (
        "failures/move",
        "pages in use, locked, or without room on the node",
    ),
];

/// All figures at one time, or the difference between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The counters, in the kernel's order.
    counters: Vec<(String, u64)>,
    /// Pages migrated, by pair of nodes: from, to.
    moved: BTreeMap<(usize, usize), u64>,
}

impl Statistics {
    /// Reads the figures since boot.
    pub fn now(service: &Service) -> Result<Self, Failure> {
        let counters = service.counters()?;
        let named = counters.named().into_iter();
        Ok(Self {
            counters: named.map(|(name, nr)| (name.to_owned(), nr)).collect(),
            moved: (service.moved()?.pairs())
                .map(|(from, to, pages)| ((from, to), pages))
                .collect(),
        })
    }

    /// Returns the difference to `base`. A figure that `base` does not have began at 0.
    pub fn since(&self, base: &Self) -> Self {
        let before: BTreeMap<_, _> = base.counters.iter().cloned().collect();
        let gain = |now: u64, then: Option<&u64>| now.saturating_sub(then.copied().unwrap_or(0));
        Self {
            counters: (self.counters.iter())
                .map(|(name, nr)| (name.clone(), gain(*nr, before.get(name))))
                .collect(),
            moved: (self.moved.iter())
                .map(|(&pair, &pages)| (pair, gain(pages, base.moved.get(&pair))))
                .collect(),
        }
    }

    /// Returns the value of a counter, 0 if there is none of this name.
    fn counter(&self, name: &str) -> u64 {
        let mut all = self.counters.iter();
        all.find(|(found, _)| found == name)
            .map_or(0, |&(_, nr)| nr)
    }

    /// Returns the figures for people, with the increase since `before`. Reasons and errors that
    /// never occurred are left out.
    pub fn table(&self, before: Option<&Self>) -> String {
        let mut text = String::new();
        for (name, now) in &self.counters {
            if *now == 0 && name.contains('/') {
                continue;
            }
            let meaning = match MEANINGS.iter().find(|(of, _)| of == name) {
                Some((_, meaning)) => *meaning,
                None => "calls that ended with this error",
            };
            let gain = before.map(|before| format!("{:>+10}", signed(*now, before.counter(name))));
            let gain = gain.unwrap_or_default();
            text += &format!("{name:<19}{now:>12}{gain}  {meaning}\n");
        }
        for (calls, usec, what) in [
            ("phys_calls", "phys_usec", "a call by physical address"),
            ("range_calls", "range_usec", "a call for a range"),
        ] {
            let (calls, usec) = (self.counter(calls), self.counter(usec));
            if let Some(mean) = usec.checked_div(calls) {
                text += &format!(
                    "{:<19}{mean:>12}  microseconds for {what}, on average\n",
                    ""
                );
            }
        }
        text + &self.matrix()
    }

    /// Returns the pages by pair of nodes, or nothing if none was migrated.
    fn matrix(&self) -> String {
        let pairs = || self.moved.iter().filter(|&(_, &pages)| pages > 0);
        let mut nodes: Vec<usize> = pairs().flat_map(|(&(from, to), _)| [from, to]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() {
            return String::new();
        }
        let mut text = format!("\n{:<19}", "pages");
        nodes
            .iter()
            .for_each(|to| text += &format!("{:>12}", format!("to node {to}")));
        for &from in &nodes {
            text += &format!("\n{:<19}", format!("from node {from}"));
            for &to in &nodes {
                let pages = self.moved.get(&(from, to)).copied().unwrap_or(0);
                text += &match from == to {
                    true => format!("{:>12}", "-"),
                    false => format!("{pages:>12}"),
                };
            }
        }
        text + "\n"
    }

    /// Returns the figures for programs: an object of all counters, and `moved`, an array of
    /// objects with `from`, `to` and `pages`.
    pub fn json(&self) -> Value {
        let counters = self.counters.iter();
        let mut all: Map<_, _> = counters
            .map(|(name, nr)| (name.clone(), (*nr).into()))
            .collect();
        let pairs = self.moved.iter();
        let pairs =
            pairs.map(|(&(from, to), &pages)| json!({ "from": from, "to": to, "pages": pages }));
        all.insert("moved".to_owned(), pairs.collect());
        Value::Object(all)
    }

    /// Parses the result of [`Statistics::json`].
    fn parse(value: &Value) -> Option<Self> {
        let all = value.as_object()?;
        let mut found = Self::default();
        for (name, value) in all.iter().filter(|(name, _)| *name != "moved") {
            found.counters.push((name.clone(), value.as_u64()?));
        }
        for pair in all.get("moved")?.as_array()? {
            let member = |name: &str| pair.get(name)?.as_u64();
            let node = |name: &str| usize::try_from(member(name)?).ok();
            let nodes = (node("from")?, node("to")?);
            found.moved.insert(nodes, member("pages")?);
        }
        Some(found)
    }
}

/// Returns the difference of two numbers; a gain is positive.
fn signed(now: u64, before: u64) -> i128 {
    i128::from(now) - i128::from(before)
}

/// The figures at the last reset.
#[derive(Debug)]
pub struct Reset {
    /// The figures.
    pub statistics: Statistics,
    at: SystemTime,
}

impl Reset {
    /// Returns the time since the reset, 0 if the clock was set back.
    pub fn age(&self) -> Duration {
        self.at.elapsed().unwrap_or_default()
    }
}

/// Returns the file of the last reset. It is gone after a boot, like the counters.
fn file() -> PathBuf {
    let set = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime_folder(set, getuid().as_raw()).join("migstat.json")
}

/// Returns the runtime folder of a user: the one that is `set`, if that is an absolute path.
fn runtime_folder(set: Option<PathBuf>, uid: u32) -> PathBuf {
    match (set.filter(|path| path.is_absolute()), uid) {
        (Some(path), _) => path,
        (None, 0) => "/run".into(),
        (None, uid) => format!("/run/user/{uid}").into(),
    }
}

/// Returns an identifier of this boot.
fn boot() -> Result<String, Failure> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Ok(id
        .doing("reading the identifier of this boot")?
        .trim()
        .to_owned())
}

/// Stores the figures of a reset.
pub fn save(now: &Statistics, at: SystemTime) -> Result<(), Failure> {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = json!({ "boot": boot()?, "at": seconds, "statistics": now.json() }).to_string();
    let path = file();
    // A reader sees the whole file, or the one before.
    let new = path.with_extension(process::id().to_string());
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
    written.map_err(|error| {
        Failure::new(
            format!("writing {}: {error}", path.display()),
            "set XDG_RUNTIME_DIR to a folder that you may write",
        )
    })
}

/// Returns the figures of the last reset since boot.
pub fn saved() -> Result<Option<Reset>, Failure> {
    let path = file();
    let advice = "remove it, or use --boot";
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let what = format!("reading {}: {error}", path.display());
            return Err(Failure::new(what, advice));
        }
        Ok(text) => text,
    };
    let what = || format!("{} is not a valid file of migstat", path.display());
    parse(&text, &boot()?).ok_or_else(|| Failure::new(what(), advice))
}

/// Parses a file of [`save`]. The inner value is `None` if it is from another boot.
fn parse(text: &[u8], boot: &str) -> Option<Option<Reset>> {
    let value: Value = serde_json::from_slice(text).ok()?;
    if value.get("boot")?.as_str()? != boot {
        return Some(None);
    }
    Some(Some(Reset {
        statistics: Statistics::parse(value.get("statistics")?)?,
        at: UNIX_EPOCH.checked_add(Duration::from_secs(value.get("at")?.as_u64()?))?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(list: &[(&str, u64)], moved: &[((usize, usize), u64)]) -> Statistics {
        Statistics {
            counters: list
                .iter()
                .map(|&(name, nr)| (name.to_owned(), nr))
                .collect(),
            moved: moved.iter().copied().collect(),
        }
    }

    /// Returns the words of the line that begins with a word.
    fn words<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
        let mut lines = text.lines().map(|line| line.split_whitespace());
        let line = lines.find(|line| line.clone().next() == Some(first));
        line.into_iter().flatten().collect()
    }

    #[test]
    fn lines_have_name_number_and_gain() {
        let before = figures(&[("successful", 40), ("failures/busy", 2)], &[]);
        let now = figures(&[("successful", 48), ("failures/busy", 2)], &[]);
        let text = now.table(Some(&before));
        assert_eq!(words(&text, "successful")[..3], ["successful", "48", "+8"]);
        assert_eq!(words(&text, "failures/busy")[1..3], ["2", "+0"]);
    }

    #[test]
    fn errors_and_reasons_that_never_occurred_are_left_out() {
        let text = figures(
            &[("failed", 0), ("errors/esrch", 0), ("errors/eperm", 1)],
            &[],
        );
        let text = text.table(None);
        assert_eq!(words(&text, "failed")[1], "0");
        assert_eq!(words(&text, "errors/eperm")[1], "1");
        assert!(words(&text, "errors/esrch").is_empty());
    }

    #[test]
    fn mean_time_of_the_calls_that_were_made() {
        let list = [
            ("phys_calls", 0),
            ("range_calls", 4),
            ("phys_usec", 0),
            ("range_usec", 50),
        ];
        let text = figures(&list, &[]).table(None);
        assert_eq!(
            words(&text, "12")[..5],
            ["12", "microseconds", "for", "a", "call"]
        );
        assert_eq!(text.matches("on average").count(), 1);
    }

    #[test]
    fn nodes_that_gave_or_got_pages() {
        let moved = [((0, 1), 64), ((0, 3), 5), ((1, 0), 0)];
        let text = figures(&[], &moved).table(None);
        let rows: Vec<Vec<_>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[2], ["from", "node", "0", "-", "64", "5"]);
        assert_eq!(rows[3], ["from", "node", "1", "0", "-", "0"]);
        assert_eq!(rows.len(), 5);
        assert_eq!(figures(&[], &[]).table(None), "");
    }

    #[test]
    fn a_reset_is_subtracted() {
        let then = figures(&[("failed", 3)], &[((0, 1), 60)]);
        let now = figures(&[("failed", 5), ("new", 1)], &[((0, 1), 64), ((1, 0), 2)]);
        let expected = figures(&[("failed", 2), ("new", 1)], &[((0, 1), 4), ((1, 0), 2)]);
        assert_eq!(now.since(&then), expected);
        assert_eq!(now.since(&Statistics::default()), now);
    }

    #[test]
    fn a_reset_of_another_boot_or_program_does_not_count() {
        let then = figures(&[("failed", 3)], &[((0, 1), 60)]);
        let file = |at: u64| {
            let value = json!({ "boot": "a", "at": at, "statistics": then.json() });
            value.to_string().into_bytes()
        };
        assert_eq!(parse(&file(5), "a").unwrap().unwrap().statistics, then);
        assert!(parse(&file(5), "b").unwrap().is_none());
        for invalid in [&b"{}"[..], b"", b"\xff", &file(u64::MAX)] {
            assert!(parse(invalid, "a").is_none());
        }
    }

    #[test]
    fn each_user_has_a_folder() {
        let of = |set: Option<&str>, uid| runtime_folder(set.map(PathBuf::from), uid);
        assert_eq!(of(Some("/tmp/x"), 7), PathBuf::from("/tmp/x"));
        for set in [None, Some(""), Some("here")] {
            assert_eq!(of(set, 0), PathBuf::from("/run"));
            assert_eq!(of(set, 7), PathBuf::from("/run/user/7"));
        }
    }
}
