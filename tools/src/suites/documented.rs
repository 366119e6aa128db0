// SPDX-License-Identifier: GPL-2.0-only
//! Extracts the commands of a documentation page, so that suites run them unchanged.

use anyhow::{ensure, Context as _, Result};
use std::{fs, path::Path};

/// A documentation page.
pub struct Page {
    name: String,
    text: String,
}

impl Page {
    /// Reads the page `docs/NAME` of a repository.
    pub fn read(repo: &Path, name: &str) -> Result<Self> {
        let path = repo.join("docs").join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = name.to_owned();
        Ok(Page { name, text })
    }

    /// Returns the literal blocks of a section, without their indentation.
    pub fn commands(&self, section: &str) -> Result<Vec<String>> {
        let lines: Vec<&str> = self.text.lines().collect();
        let is_rule = |nr: usize| {
            let line: &str = lines.get(nr).copied().unwrap_or_default();
            line.len() > 2 && line.bytes().all(|byte| byte == b'=')
        };
        let titles = (0..lines.len()).filter(|&nr| !lines[nr].is_empty() && is_rule(nr + 1));
        let mut titles = titles.skip_while(|&nr| lines[nr] != section);
        let start = titles
            .next()
            .with_context(|| format!("docs/{} has no section `{section}`", self.name))?;
        let end = titles.next().unwrap_or(lines.len());
        let blocks = blocks(&lines[start..end]);
        ensure!(
            !blocks.is_empty(),
            "the section `{section}` of docs/{} has no commands",
            self.name
        );
        Ok(blocks)
    }
}

/// Returns the text of each literal block, which is indented and follows a line that ends in `::`.
fn blocks(lines: &[&str]) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut rest = lines.iter();
    while rest.any(|line| line.ends_with("::")) {
        let block = rest
            .clone()
            .take_while(|line| line.is_empty() || line.starts_with(char::is_whitespace));
        let indented: Vec<_> = block.copied().collect();
        let of_line = |line: &&&str| !line.is_empty();
        let depth = |line: &&str| line.len() - line.trim_start().len();
        let least = indented.iter().filter(of_line).map(depth).min();
        let text: Vec<_> = indented
            .iter()
            .map(|line| line.get(least.unwrap_or(0)..).unwrap_or_default())
            .collect();
        blocks.push(text.join("\n").trim_matches('\n').to_owned() + "\n");
        rest.by_ref().take(indented.len()).for_each(drop);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "=====\nTitle\n=====\n\nOne\n===\n\nText::\n\n        a 'b\n                c'\n\n        x\n\n\
                        More text.\n\n::\n\n        e\n\nTwo\n===\n\n::\n\n        f\n\nThree\n=====\n\nText.\n";

    #[test]
    fn blocks_of_one_section() {
        let page = Page {
            name: "page.rst".to_owned(),
            text: TEXT.to_owned(),
        };
        let found = page.commands("One").unwrap();
        assert_eq!(found, ["a 'b\n        c'\n\nx\n", "e\n"]);
        assert_eq!(page.commands("Two").unwrap(), ["f\n"]);
        for (section, why) in [("Four", "no section"), ("Three", "no commands")] {
            let error = page.commands(section).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
