// SPDX-License-Identifier: GPL-2.0-only
//! Man pages and completions for shells, of `ferry` and `ferry-bench`.

use crate::cli::Cli;
use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::{
    fs,
    path::{Path, PathBuf},
};

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes them into the folders `man1`, `man8` and `completions` of `dir`.
///
/// The pages of `ferry-bench` are in another section, because `ferry bench` has a page of that name.
pub fn write(dir: &Path) -> Result<()> {
    for (mut command, section) in [(Cli::command(), "1"), (ferry_bench::Cli::command(), "8")] {
        let completions = folder(dir.join("completions"))?;
        let name = command.get_name().to_owned();
        for shell in SHELLS {
            clap_complete::generate_to(shell, &mut command, &name, &completions)?;
        }
        let pages = folder(dir.join(format!("man{section}")))?;
        command.build();
        write_pages(command, section, &pages)?;
    }
    println!("man pages and completions: {}", dir.display());
    Ok(())
}

fn folder(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Writes a page for a command and for each of its subcommands.
fn write_pages(command: Command, section: &str, dir: &Path) -> Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand.clone(), section, dir)?;
    }
    Man::new(command).section(section).generate_to(dir)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path()).unwrap();
        for file in [
            "man1/ferry.1",
            "man1/ferry-advise.1",
            "man1/ferry-bench.1",
            "man8/ferry-bench.8",
            "man8/ferry-bench-measure.8",
            "completions/ferry.bash",
            "completions/_ferry-bench",
        ] {
            let text = fs::read_to_string(temp.path().join(file)).unwrap();
            assert!(!text.is_empty(), "{file}");
        }
    }
}
