// SPDX-License-Identifier: GPL-2.0-only
//! The dependencies of a kernel option, as its Kconfig file has them, with the value of each option in
//! them: for errors that say why an option is not available.

use anyhow::{Context as _, Result};
use std::{fs, path::Path};
use walkdir::WalkDir;

/// Folders whose Kconfig files define the options that Ferry needs.
const FOLDERS: [&str; 2] = ["mm", "init"];

/// Returns the lines of an option's dependencies. `finished` is the configuration.
pub fn dependencies(tree: &Path, option: &str, finished: &str) -> Result<Vec<String>> {
    let name = option.trim_start_matches("CONFIG_");
    for folder in FOLDERS {
        for entry in WalkDir::new(tree.join(folder)).sort_by_file_name() {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with("Kconfig") {
                continue;
            }
            let path = entry.path();
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            if let Some(lines) = of_option(&text, name) {
                return Ok(lines
                    .iter()
                    .map(|line| with_values(line, finished))
                    .collect());
            }
        }
    }
    Ok(vec![format!("(no Kconfig file defines {name})")])
}

/// Returns the expressions after `depends on` in the definition of an option.
fn of_option(kconfig: &str, name: &str) -> Option<Vec<String>> {
    let is_head = |line: &&str| {
        let words = line.split_once(' ');
        words.is_some_and(|(kind, option)| {
            ["config", "menuconfig"].contains(&kind) && option == name
        })
    };
    let mut lines = kconfig.lines().skip_while(|line| !is_head(line));
    lines.next()?;
    let body = lines.take_while(|line| line.is_empty() || line.starts_with(char::is_whitespace));
    let depends = body.filter_map(|line| line.trim().strip_prefix("depends on "));
    Some(depends.map(str::to_owned).collect())
}

/// Adds its value to each option in an expression.
fn with_values(expression: &str, finished: &str) -> String {
    let value = |name: &str| {
        let set = format!("CONFIG_{name}=");
        finished
            .lines()
            .find_map(|line| line.strip_prefix(set.as_str()))
            .unwrap_or("n")
    };
    let is_name = |word: &str| word.len() > 1 && word.starts_with(|c: char| c.is_ascii_uppercase());
    let mut text = String::new();
    let mut word = String::new();
    for c in expression.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        text.push_str(&word);
        if is_name(&word) {
            text.push_str(&format!("={}", value(&word)));
        }
        word.clear();
        text.push(c);
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KCONFIG: &str = "config OTHER\n\tbool\n\tdepends on NOT_THIS\n\nconfig RUST\n\tbool \"Rust\"\n\
                           \tdepends on HAVE_RUST\n\n\tdepends on !MODVERSIONS || GENDWARFKSYMS\n\thelp\n\
                           \t  text\n\nconfig LAST\n\tdepends on NOT_THIS\n";

    #[test]
    fn dependencies_of_one_option() {
        let wanted = ["HAVE_RUST", "!MODVERSIONS || GENDWARFKSYMS"];
        assert_eq!(of_option(KCONFIG, "RUST").unwrap(), wanted);
        assert_eq!(of_option(KCONFIG, "RUS"), None);
    }

    #[test]
    fn options_are_shown_with_their_values() {
        let finished = "CONFIG_MODVERSIONS=y\n# CONFIG_GENDWARFKSYMS is not set\n";
        assert_eq!(
            with_values("!MODVERSIONS || (GENDWARFKSYMS && !LTO)", finished),
            "!MODVERSIONS=y || (GENDWARFKSYMS=n && !LTO=n)"
        );
    }
}
