// SPDX-License-Identifier: GPL-2.0-only
//! The text of the repository: phrases that hide the subject of a sentence, licence tags, links,
//! and the list of files that may contain unsafe code.

use anyhow::{bail, ensure, Context as _, Result};
use regex::Regex;
use std::{
    fs,
    path::{Path, PathBuf},
};
use walkdir::WalkDir;

/// Phrases that comments, documents and commit messages avoid, with advice on what to write.
const PHRASES: [(&str, &str); 12] = [
    (r"\b[Ww]hoever\b", "name the task"),
    (r"\b([Ss]ome|[Nn]o|[Aa]ny|[Ee]very)body\b", "name the task"),
    (
        r"\b[Ww]ho (is|was|has|may|must|wants|waits|asks|comes|takes|had|would|will|could|can)\b",
        "name the task",
    ),
    (r"\bby who\b", "name the task"),
    (r"\bof whom\b", "name the task"),
    (r"\bso (many|few|much)\b", "name the number"),
    (r"\b(is|are|was|were) to be\b", "must, may or is"),
    (
        r"(^|[.:;] )What (is|was|are|has|had|may|must|follows|comes|goes|remains|cannot|can|could)\b",
        "name the thing",
    ),
    (r"\bfor want of\b", "without"),
    (
        r"\b[Bb]y the safety requirement",
        "state the fact that makes it safe",
    ),
    (
        r"\b(that|those) of (this|these|the above|whoever)\b",
        "name the thing",
    ),
    (
        r"\bis not let\b|\bare not let\b|\blet in\b",
        "rejected, accepted",
    ),
];

/// Folders that are not the project's own text.
const SKIPPED: [&str; 4] = [".git", "target", "ferry-results", "LICENSE"];

const TAG: &str = "SPDX-License-Identifier: GPL-2.0-only";

pub fn phrases(repo: &Path) -> Result<()> {
    let rules = rules()?;
    let mut hits = Vec::new();
    for (path, content) in texts(repo)? {
        // This file quotes the phrases.
        if path.ends_with("suites/text.rs") {
            continue;
        }
        for (number, line) in prose(&path, &content) {
            for (rule, advice) in &rules {
                if let Some(found) = rule.find(line) {
                    let found = found.as_str().trim();
                    hits.push(format!("{}:{number}: `{found}`: {advice}", path.display()));
                }
            }
        }
    }
    none(hits, "see CONTRIBUTING.md, \"Text\"")
}

fn rules() -> Result<Vec<(Regex, &'static str)>> {
    PHRASES
        .iter()
        .map(|(pattern, advice)| {
            let rule = Regex::new(pattern).with_context(|| format!("phrase {pattern}"))?;
            Ok((rule, *advice))
        })
        .collect()
}

/// Checks that each file states the project's licence in its first lines.
pub fn licences(repo: &Path) -> Result<()> {
    let mut hits = Vec::new();
    for (path, content) in texts(repo)? {
        let extension = path.extension().and_then(|e| e.to_str());
        let is_source = matches!(
            extension,
            Some("rs" | "c" | "h" | "S" | "rst" | "sh" | "toml")
        );
        if !is_source
            && !["Kbuild", "Kconfig", "ferry"]
                .iter()
                .any(|name| path.ends_with(name))
        {
            continue;
        }
        let tag = content
            .lines()
            .take(3)
            .find(|line| line.contains("SPDX-License-Identifier:"));
        match tag {
            Some(line) if line.contains(TAG) => {}
            Some(line) => hits.push(format!("{}: {}", path.display(), line.trim())),
            None => hits.push(format!("{}: no licence tag", path.display())),
        }
    }
    none(hits, TAG)
}

/// Checks that every path named by a document or a comment exists.
pub fn links(repo: &Path) -> Result<()> {
    // A relative link in Markdown; a path in the kernel tree; a path in double backquotes.
    let markdown = Regex::new(r"\]\(([^)#:]+)(#[^)]*)?\)")?;
    // Not a path in sysfs.
    let tree = Regex::new(r"(?:^|srctree/|[^/A-Za-z])mm/ferry/([A-Za-z0-9_./-]*[A-Za-z0-9_/-])")?;
    let quoted = Regex::new(r"`((?:rust|c-glue|docs|tools|tests|user)/[A-Za-z0-9_./-]+)`")?;
    let mut hits = Vec::new();
    for (path, content) in texts(repo)? {
        let folder = path.parent().unwrap_or(Path::new(""));
        let is_markdown = path.extension().is_some_and(|e| e == "md");
        let is_patch = path.extension().is_some_and(|e| e == "patch");
        // Tests contain invented paths.
        if is_patch || path.starts_with("tools/src") {
            continue;
        }
        for (number, line) in content.lines().enumerate() {
            let mut named: Vec<PathBuf> = Vec::new();
            if is_markdown {
                named.extend(markdown.captures_iter(line).map(|c| folder.join(&c[1])));
            }
            named.extend(tree.captures_iter(line).map(|c| PathBuf::from(&c[1])));
            named.extend(quoted.captures_iter(line).map(|c| PathBuf::from(&c[1])));
            for target in named {
                // Beside the file, or from the root.
                let mut folders = path.ancestors().skip(1);
                if !folders.any(|folder| repo.join(folder).join(&target).exists()) {
                    let (path, number) = (path.display(), number + 1);
                    hits.push(format!(
                        "{path}:{number}: {} does not exist",
                        target.display()
                    ));
                }
            }
        }
    }
    none(hits, "name the file where it is now")
}

/// Checks that unsafe code of the kernel part is only in `rust/kernel` and in the files that the
/// `mod.rs` of a feature lists as its boundary.
pub fn boundary(repo: &Path) -> Result<()> {
    let code = Regex::new(r"\bunsafe\s*(\{|fn\b|impl\b|extern\b|trait\b)")?;
    let listed = Regex::new(r"`([a-z_/]+\.rs)`")?;
    let mut hits = Vec::new();
    for (path, content) in texts(&repo.join("rust"))? {
        let is_rust = path.extension().is_some_and(|e| e == "rs");
        let mut parts = path.iter().filter_map(|part| part.to_str());
        let (Some(feature), Some(_)) = (parts.next(), parts.next()) else {
            continue;
        };
        let file = path.strip_prefix(feature)?;
        let is_test = file.starts_with("tests") || feature == "tests";
        if !is_rust || is_test || feature == "kernel" {
            continue;
        }
        let has_unsafe = content.lines().any(|line| {
            let line = line.trim_start();
            !line.starts_with("//") && code.is_match(line)
        });
        let head = fs::read_to_string(repo.join("rust").join(feature).join("mod.rs"))
            .with_context(|| format!("rust/{feature} has no mod.rs"))?;
        let boundary: String = head
            .lines()
            .skip_while(|line| !line.starts_with("//! Boundary:"))
            .take_while(|line| line.starts_with("//! "))
            .collect();
        let is_listed = listed
            .captures_iter(&boundary)
            .any(|c| Path::new(&c[1]) == file);
        if has_unsafe != is_listed {
            let what = if has_unsafe {
                "has unsafe code, but is not in"
            } else {
                "has no unsafe code, but is in"
            };
            hits.push(format!(
                "rust/{}: {what} the boundary of its mod.rs",
                path.display()
            ));
        }
    }
    none(
        hits,
        "unsafe code belongs in rust/kernel, or in a file that `//! Boundary:` lists",
    )
}

fn none(hits: Vec<String>, advice: &str) -> Result<()> {
    ensure!(
        hits.is_empty(),
        "{}\n{} in all: {advice}",
        hits.join("\n"),
        hits.len()
    );
    Ok(())
}

/// Returns the text files below a folder, by their relative paths.
fn texts(top: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let wanted = |entry: &walkdir::DirEntry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| !SKIPPED.contains(&name))
    };
    for entry in WalkDir::new(top)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(wanted)
    {
        let entry = entry?;
        if !entry.file_type().is_file() {
            continue;
        }
        if let Ok(content) = fs::read_to_string(entry.path()) {
            found.push((entry.path().strip_prefix(top)?.to_path_buf(), content));
        }
    }
    if found.is_empty() {
        bail!("{} has no text", top.display());
    }
    Ok(found)
}

/// Returns the lines of a file that are prose, with their numbers: all of a document, the message
/// of a patch, the comments of a program.
fn prose<'a>(path: &Path, content: &'a str) -> Vec<(usize, &'a str)> {
    let numbered = content
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line));
    match path.extension().and_then(|e| e.to_str()) {
        Some("patch") => {
            let is_code = |line: &str| line == "---" || line.starts_with("diff --git ");
            numbered.take_while(|(_, line)| !is_code(line)).collect()
        }
        Some("rs") => numbered
            .filter_map(|(n, line)| Some((n, rust_comment(line)?)))
            .collect(),
        Some("c" | "h" | "S") => {
            let mut inside = false;
            numbered
                .filter_map(|(n, line)| Some((n, c_comment(line, &mut inside)?)))
                .collect()
        }
        Some("rst" | "md") | None => numbered.collect(),
        _ => Vec::new(),
    }
}

fn rust_comment(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    // A URL in a string.
    (at == 0 || !line[..at].ends_with(':')).then(|| line[at..].trim_start_matches(['/', '!', ' ']))
}

/// Returns the comment on a line of C. `inside` tells whether the line begins inside a comment, and
/// is updated.
fn c_comment<'a>(line: &'a str, inside: &mut bool) -> Option<&'a str> {
    let begins = line.find("/*").filter(|_| !*inside);
    let text = match begins {
        Some(at) => &line[at + 2..],
        None if *inside => line,
        None => line.split_once("// ")?.1,
    };
    *inside = (*inside || begins.is_some()) && !text.contains("*/");
    Some(
        text.trim_start_matches([' ', '\t', '*'])
            .trim_end_matches("*/"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(line: &str) -> usize {
        rules()
            .unwrap()
            .iter()
            .filter(|(rule, _)| rule.is_match(line))
            .count()
    }

    #[test]
    fn phrases_are_found() {
        for line in [
            "Whoever is running takes it",
            "nobody copies it",
            "a number of so many pages",
            "the task who waits for it",
            "the list is to be migrated",
            "What is left goes to the caller",
            "SAFETY: By the safety requirement.",
        ] {
            assert!(hits(line) > 0, "{line}");
        }
        for line in [
            "Users who slice their calls",
            "for as long as the lock is held",
            "What it costs is measured",
            "The caller guarantees that `batch` is valid.",
        ] {
            assert_eq!(hits(line), 0, "{line}");
        }
    }

    #[test]
    fn prose_of_a_program_is_its_comments() {
        let c = "/* One. */\nint nobody; /* Two */\n/*\n * Three.\n */\nint x;\n";
        let lines: Vec<_> = prose(Path::new("a.c"), c)
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        assert_eq!(lines, [1, 2, 3, 4, 5]);
        let rust = "/// One.\nlet a = \"http://x\"; // Two.\nlet nobody = 1;\n";
        let lines = prose(Path::new("a.rs"), rust);
        assert_eq!(lines.first(), Some(&(1, "One.")));
        assert!(lines.iter().all(|(n, _)| *n != 3));
        let patch = "Subject: a\n\nBody.\n---\n a.c\n";
        assert_eq!(prose(Path::new("a.patch"), patch).len(), 3);
        assert!(prose(Path::new("a.patch"), "diff --git a/a b/a\n").is_empty());
    }

    #[test]
    fn unsafe_code_outside_of_the_boundary_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = temp.path().join("rust").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "crew/mod.rs",
            "//! Crews.\n//!\n//! Boundary: `hooks.rs`.\n",
        );
        write("crew/hooks.rs", "pub unsafe fn f() {}\n");
        write("crew/list.rs", "// unsafe { only said }\n");
        boundary(temp.path()).unwrap();
        write("crew/list.rs", "fn g() { unsafe { f() } }\n");
        assert!(boundary(temp.path()).is_err());
        write("crew/list.rs", "");
        write("crew/hooks.rs", "");
        assert!(boundary(temp.path()).is_err());
    }

    #[test]
    fn links_lead_somewhere() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(
            temp.path().join("README.md"),
            "[a](docs/a.rst) `rust/b.rs`\n",
        )
        .unwrap();
        assert!(links(temp.path()).is_err());
        for path in ["docs/a.rst", "rust/b.rs"] {
            let path = temp.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        links(temp.path()).unwrap();
    }
}
