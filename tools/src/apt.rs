// SPDX-License-Identifier: GPL-2.0-only
//! Packages of the distribution, fetched with an apt root in the cache; the system's own stays
//! unchanged.

use crate::{
    cache::Cache,
    step::{output, Step},
};
use anyhow::{Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt root for one suite of the distribution.
pub struct Apt<'a> {
    cache: &'a Cache,
    root: PathBuf,
    architecture: Option<&'static str>,
    /// The remedy to print if a step fails.
    remedy: String,
}

impl<'a> Apt<'a> {
    /// Makes the root in the folder `name` of the cache. Without an architecture it is this
    /// machine's. Errors end in `alternative`.
    pub fn new(
        cache: &'a Cache,
        name: &str,
        suite: &str,
        architecture: Option<&'static str>,
        alternative: &str,
    ) -> Result<Self> {
        let root = cache.dir(name)?;
        for sub in ["lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(root.join(sub))?;
        }
        // No package is installed.
        fs::write(root.join("status"), "")?;
        let signed = match Path::new(KEYRING).exists() {
            true => format!("[signed-by={KEYRING}] "),
            false => String::new(),
        };
        let mirror = mirror(alternative)?;
        let list = format!("deb {signed}{mirror} {suite} main\n");
        fs::write(root.join("sources.list"), list)?;
        let remedy = "check that the network and the distribution's mirror can be reached";
        Ok(Apt {
            cache,
            root,
            architecture,
            remedy: format!("{remedy}{alternative}"),
        })
    }

    fn command(&self) -> Command {
        let mut apt = Command::new("apt-get");
        for (name, file) in [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::State::Lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ] {
            let path = self.root.join(file);
            apt.arg("-o").arg(format!("{name}={}", path.display()));
        }
        for name in ["Architecture", "Architectures"] {
            if let Some(architecture) = self.architecture {
                apt.arg("-o").arg(format!("APT::{name}={architecture}"));
            }
        }
        apt.args([
            "-o",
            "Dir::Etc::SourceParts=-",
            "-o",
            "APT::Sandbox::User=root",
        ])
        .args([
            "-o",
            "Acquire::Retries=2",
            "-o",
            "Acquire::http::Timeout=30",
        ])
        .args(["-o", "APT::Update::Error-Mode=any"])
        .current_dir(self.root.join("packages"));
        apt
    }

    fn step(&self, title: &str, log: &str, minutes: u64) -> Step<'static> {
        self.cache
            .step(title, log)
            .timeout(Duration::from_secs(60 * minutes))
            .remedy(self.remedy.clone())
    }

    /// Reads the lists of packages.
    pub fn update(&self) -> Result<()> {
        self.step("reading the package lists", "apt-update", 10)
            .run(self.command().arg("update"))
    }

    /// Downloads a package. Returns all packages that were ever downloaded.
    pub fn download(&self, title: &str, package: &str) -> Result<Vec<PathBuf>> {
        self.step(title, "apt-download", 60)
            .run(self.command().args(["download", package]))?;
        packages(&self.root.join("packages"))
    }

    /// Downloads packages and all that they need. Returns these, and those of earlier calls.
    pub fn download_whole(&self, title: &str, names: &[&str]) -> Result<Vec<PathBuf>> {
        self.step(title, "apt-download", 60).run(
            self.command()
                .args([
                    "install",
                    "-y",
                    "--no-install-recommends",
                    "--download-only",
                ])
                .args(names),
        )?;
        packages(&self.root.join("cache/archives"))
    }
}

/// Returns the packages in a folder.
fn packages(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    found.retain(|path| path.extension().is_some_and(|ext| ext == "deb"));
    Ok(found)
}

/// Returns the mirror that this machine's apt uses.
fn mirror(alternative: &str) -> Result<String> {
    let targets = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(REPO_URI) $(COMPONENT)",
        "Identifier: Packages",
    ]))?;
    pick_mirror(&targets).with_context(|| {
        format!(
            "apt knows no distribution mirror on this machine: run `apt-get update`{alternative}"
        )
    })
}

fn pick_mirror(targets: &str) -> Option<String> {
    targets
        .lines()
        .filter_map(|line| line.strip_prefix("Debian ")?.split_once(' '))
        .find(|(uri, component)| *component == "main" && !uri.contains("security"))
        .map(|(uri, _)| uri.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_the_distribution_s_main() {
        let targets = "Other http://o/ main\nDebian http://m/debian-security/ main\n\
             Debian http://m/debian/ contrib\nDebian http://m/debian/ main\n";
        assert_eq!(pick_mirror(targets).unwrap(), "http://m/debian/");
        assert_eq!(pick_mirror(""), None);
    }
}
