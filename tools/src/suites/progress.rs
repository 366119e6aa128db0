// SPDX-License-Identifier: GPL-2.0-only
//! Results of a suite of several boots, kept in the cache, so that an interrupted run goes on with the
//! next boot.

use crate::{
    cache::{write_atomic, Key},
    context::Context,
    patches::read_if_there,
};
use anyhow::{Context as _, Result};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Results of boots with one kernel and one program.
pub struct Progress<T> {
    file: PathBuf,
    kept: Kept<T>,
}

/// The contents of the file.
#[derive(Deserialize, Serialize)]
struct Kept<T> {
    /// Made of the kernel and the program.
    key: String,
    #[serde(flatten)]
    results: T,
}

impl<T: Default + DeserializeOwned + Serialize> Progress<T> {
    /// Reads the results of earlier runs. There are none if a file of `inputs` has other contents now.
    pub fn read(context: &Context, name: &str, inputs: &[&Path]) -> Result<Self> {
        let mut key = Key::default();
        for input in inputs {
            key.add(fs::read(input)?);
        }
        Self::of_file(
            context.cache.root().join(format!("{name}.json")),
            key.finish(),
        )
    }

    fn of_file(file: PathBuf, key: String) -> Result<Self> {
        let kept = match read_if_there(&file)? {
            Some(text) => Some(
                serde_json::from_slice::<Kept<T>>(&text)
                    .with_context(|| format!("{} is damaged: remove it", file.display()))?,
            ),
            None => None,
        };
        let kept = kept.filter(|kept| kept.key == key).unwrap_or_else(|| Kept {
            key,
            results: T::default(),
        });
        Ok(Self { file, kept })
    }

    pub fn results(&self) -> &T {
        &self.kept.results
    }

    /// Changes the results, and writes them to the cache.
    pub fn update(&mut self, change: impl FnOnce(&mut T)) -> Result<()> {
        change(&mut self.kept.results);
        write_atomic(&self.file, &serde_json::to_vec(&self.kept)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Deserialize, Serialize)]
    struct Calls {
        calls: u64,
    }

    #[test]
    fn results_are_kept_for_the_same_inputs_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("calls.json");
        let read = |key: &str| Progress::<Calls>::of_file(file.clone(), key.to_owned());
        let add = |results: &mut Calls| results.calls += 3;
        read("one").unwrap().update(add).unwrap();
        assert_eq!(read("one").unwrap().results().calls, 3);
        assert_eq!(read("other").unwrap().results().calls, 0);
        fs::write(&file, "{").unwrap();
        assert!(read("one").is_err());
    }
}
