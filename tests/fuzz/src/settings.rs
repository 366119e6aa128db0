// SPDX-License-Identifier: GPL-2.0-only
//! The settings that programs write.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ferry_numa::files::{self, Setting};

use crate::program::Value;

const OWN: &str = "/sys/kernel/mm/ferry";
/// With a hook disabled here, tasks may read stale contents.
const EXCEPT: &str = "/sys/kernel/mm/ferry/migrc/debug";
const OTHERS: [&str; 6] = [
    "/proc/sys/vm/mt_page_copy",
    "/proc/sys/vm/limit_mt_num",
    "/proc/sys/vm/mt_page_crew",
    "/proc/sys/vm/push_0_pull_1",
    "/sys/kernel/mm/numa/demotion_enabled",
    "/sys/kernel/mm/numa/pagecache_promotion_enabled",
];

/// The values at the start of each program. With these, short lists have crews, runs and deferred
/// flushes.
const USUAL: [(&str, &str); 7] = [
    ("/proc/sys/vm/mt_page_copy", "1"),
    ("/proc/sys/vm/limit_mt_num", "2"),
    ("/proc/sys/vm/mt_page_crew", "1"),
    ("/sys/kernel/mm/ferry/copy/min_kb", "8"),
    ("/sys/kernel/mm/ferry/runs/enabled", "always"),
    ("/sys/kernel/mm/ferry/migrc/enabled", "1"),
    ("/sys/kernel/mm/ferry/migrc/files", "1"),
];

/// A file, and the words that it takes, if it shows them.
struct File {
    path: String,
    words: Vec<String>,
}

/// The files that can be written.
pub struct Settings(Vec<File>);

impl Settings {
    /// Finds the files, and writes the usual values.
    pub fn new() -> Result<Self> {
        let mut found = Vec::new();
        find(Path::new(OWN), &mut found)?;
        found.extend(OTHERS.map(PathBuf::from));
        for (path, value) in USUAL {
            files::write(path, value)?;
        }
        let file = |path: PathBuf| {
            // Some files cannot be read.
            let text = fs::read_to_string(&path).unwrap_or_default();
            File {
                path: path.display().to_string(),
                words: words(&text),
            }
        };
        Ok(Self(found.into_iter().map(file).collect()))
    }

    /// Writes any value to a file, which may refuse it. Dropping the result restores the old value, if
    /// the file can be read.
    pub fn write(&self, number: u8, value: &Value) -> Option<Setting> {
        let file = self.0.get(usize::from(number) % self.0.len())?;
        let kept = Setting::keep(&file.path).ok();
        // The kernel may refuse the value.
        let _ = fs::write(&file.path, file.text(value));
        kept
    }

    /// Fails if a file does not have its usual value.
    pub fn check(&self) -> Result<()> {
        for (path, value) in USUAL {
            let text = files::read(path)?;
            let found = files::chosen(&text);
            ensure!(found == value, "{path}: expected {value}, found {found}");
        }
        Ok(())
    }
}

impl File {
    fn text(&self, value: &Value) -> Vec<u8> {
        match value {
            Value::Small(number) => number.to_string().into_bytes(),
            Value::Number(number) => number.to_string().into_bytes(),
            Value::Word(number) => match self.words.len() {
                0 => "auto".into(),
                words => self.words[usize::from(*number) % words].clone().into(),
            },
            Value::Text(text) => text.clone(),
        }
    }
}

/// Returns the words of a file that shows all of them, one in brackets.
fn words(text: &str) -> Vec<String> {
    if !text.contains('[') {
        return Vec::new();
    }
    let words = text.split_whitespace();
    words
        .map(|word| word.trim_matches(['[', ']']).to_owned())
        .collect()
}

/// Finds the writable files, in a fixed order.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let (path, metadata) = (entry.path(), entry.metadata()?);
        if metadata.is_dir() && path != Path::new(EXCEPT) {
            find(&path, found)?;
        } else if metadata.is_file() && metadata.permissions().mode() & 0o222 != 0 {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_choice() {
        assert_eq!(
            words("never [demotion] always\n"),
            ["never", "demotion", "always"]
        );
        assert!(words("4000\n").is_empty());
    }
}
