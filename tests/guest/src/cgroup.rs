// SPDX-License-Identifier: GPL-2.0-only
//! Cgroups of this process's own, removed on drop.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use crate::cases::Tmpfs;
use crate::kernel;

pub struct Groups {
    root: Tmpfs,
    made: Vec<PathBuf>,
}

impl Groups {
    pub fn new(names: &[&str]) -> Result<Self> {
        let mut groups = Self {
            root: Tmpfs::of_type("cgroup2")?,
            made: Vec::new(),
        };
        let root = groups.root.dir();
        kernel::write(root.join("cgroup.subtree_control"), "+cpuset +memory +cpu")?;
        for name in names {
            let dir = root.join(format!("ferry-guest-{name}-{}", std::process::id()));
            std::fs::create_dir(&dir).context("creating a cgroup")?;
            groups.made.push(dir);
        }
        Ok(groups)
    }

    /// Creates one more group, inside another. Returns its index.
    pub fn make_inside(&mut self, outer: usize, name: &str) -> Result<usize> {
        let dir = self.made[outer].join(name);
        std::fs::create_dir(&dir).context("creating a cgroup")?;
        self.made.push(dir);
        Ok(self.made.len() - 1)
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    pub fn add(&self, group: usize, pid: Pid) -> Result<()> {
        self.set(group, "cgroup.procs", &pid.to_string())
    }

    pub fn set(&self, group: usize, file: &str, value: &str) -> Result<()> {
        kernel::write(self.made[group].join(file), value)
    }

    /// Opens a file for writing, also for a task that may not open it later.
    pub fn open(&self, group: usize, file: &str) -> Result<File> {
        let path = self.made[group].join(file);
        let opened = File::options().write(true).open(&path);
        opened.with_context(|| format!("opening {}", path.display()))
    }

    pub fn get(&self, group: usize, file: &str) -> Result<String> {
        kernel::read(self.made[group].join(file))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let own = std::process::id().to_string();
        // This process may be in one of the groups.
        let _ = kernel::write(self.root.dir().join("cgroup.procs"), &own);
        for dir in self.made.iter().rev() {
            // Fails while a child is left in the group; the test reports that case.
            let _ = std::fs::remove_dir(dir);
        }
    }
}
