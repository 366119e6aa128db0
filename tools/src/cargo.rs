// SPDX-License-Identifier: GPL-2.0-only
//! Cargo commands for this checkout, which build in the cache.

use crate::{cache::Stamp, context::Context, step::output};
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The part of the output of `cargo metadata` that is used.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// Returns a cargo command that works on this checkout, and builds in the folder `cargo-NAME` of the
/// cache.
///
/// Cargo compares times of files, and knows the packages of a workspace by their paths in it. In a
/// folder that another checkout has built in since, it would miss older changes of this one. So the
/// packages that another checkout has built are removed.
pub fn cargo(context: &Context, name: &str) -> Result<Command> {
    command(&context.repo, &folder(context.cache.root(), name))
}

/// Returns a cargo command for a checkout, which builds in `target`.
fn command(checkout: &Path, target: &Path) -> Result<Command> {
    let new = || {
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(checkout)
            .env("CARGO_TARGET_DIR", target)
            .env_remove("RUSTFLAGS");
        cargo
    };
    let name = checkout.to_string_lossy();
    let built = Stamp::new(target.join("checkout"));
    if !built.is(&name) {
        if target.exists() {
            remove_packages(new).context("cannot remove what another checkout has built")?;
        }
        fs::create_dir_all(target)?;
        built.set(&name)?;
    }
    Ok(new())
}

/// Returns the folder of a cache in which [`cargo`] builds.
pub fn folder(cache: &Path, name: &str) -> PathBuf {
    cache.join(format!("cargo-{name}"))
}

/// Removes the build artifacts of the workspace's packages.
fn remove_packages(cargo: impl Fn() -> Command) -> Result<()> {
    let metadata = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Metadata =
        serde_json::from_str(&metadata).context("cannot parse the output of cargo metadata")?;
    for profile in ["dev", "release"] {
        let mut clean = cargo();
        clean.args(["clean", "--locked", "--profile", profile]);
        for package in &metadata.packages {
            clean.args(["--package", &package.name]);
        }
        output(&mut clean)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(checkout: &Path, says: &str) {
        let program = format!("fn main() {{ print!(\"{says}\"); }}");
        fs::create_dir_all(checkout.join("src")).unwrap();
        fs::write(checkout.join("src/main.rs"), program).unwrap();
    }

    fn run(checkout: &Path, target: &Path) -> String {
        output(command(checkout, target).unwrap().args(["run", "--quiet"])).unwrap()
    }

    #[test]
    fn changes_are_seen_that_are_older_than_a_build_of_another_checkout() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other, target] = ["one", "other", "target"].map(|name| dir.path().join(name));
        for (checkout, says) in [(&one, "one"), (&other, "other")] {
            write(checkout, says);
            let manifest = "[package]\nname = \"says\"\nedition = \"2021\"\n";
            fs::write(checkout.join("Cargo.toml"), manifest).unwrap();
            let lock = "version = 4\n\n[[package]]\nname = \"says\"\nversion = \"0.0.0\"\n";
            fs::write(checkout.join("Cargo.lock"), lock).unwrap();
        }
        assert_eq!(run(&one, &target), "one");
        write(&one, "changed");
        assert_eq!(run(&other, &target), "other");
        assert_eq!(run(&one, &target), "changed");
    }
}
