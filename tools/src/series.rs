// SPDX-License-Identifier: GPL-2.0-only
//! `ferry series`: writes Ferry as mails, all topics or one. In each topic the files of mm/ferry
//! come first, because the patches include its headers. A topic's option is offered last, so the
//! tree builds after each patch.

use crate::{
    cache::write_atomic,
    context::Context,
    git,
    overlay::{self, Overlay},
    patches,
    source::Release,
    step::output,
    topics::{self, LAST},
};
use anyhow::{bail, Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Writes the mails of all topics, or of the named one, from the caller's git identity.
pub fn series(context: &Context, topic: Option<&str>, dir: &Path) -> Result<()> {
    let topic = topic.map(topics::find).transpose()?;
    let author = Author::of_caller()?;
    let source = context.source()?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "patch") {
            bail!("{} is there already: name an empty folder", path.display());
        }
    }
    let scratch = tempfile::tempdir()?;
    let files = write(
        &context.repo,
        &source.vanilla(),
        &source.version,
        scratch.path(),
        (topic, &author),
    )?;
    for file in &files {
        let name = file.file_name().context("a patch has a name")?;
        fs::copy(file, dir.join(name))?;
        println!("{}", dir.join(name).display());
    }
    Ok(())
}

/// Writes a cover letter and the patches into `out`: of all topics, or of one, which applies after
/// those before it. Returns their paths, in order.
pub fn write(
    repo: &Path,
    vanilla: &Path,
    version: &str,
    out: &Path,
    (topic, author): (Option<usize>, &Author),
) -> Result<Vec<PathBuf>> {
    let release = Release::of_version(version)
        .with_context(|| format!("there are no patches for Linux {version}"))?;
    let series = patches::load(repo, release)?;
    patches::patched(vanilla, &series, version)?;
    let cover = match topic {
        Some(nr) => topics::text(&topics::folder(repo, nr).join("cover"))?,
        None => topics::text(&topics::home(repo).join("cover"))?,
    };
    let scratch = tempfile::tempdir()?;
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree)?;
    let git = |args: &[&str]| {
        let mut git = git::command(&tree);
        for setting in [
            "commit.gpgsign=false",
            "core.hooksPath=/dev/null",
            "core.autocrlf=false",
        ] {
            git.args(["-c", setting]);
        }
        for role in ["GIT_AUTHOR", "GIT_COMMITTER"] {
            git.env(format!("{role}_NAME"), &author.name);
            git.env(format!("{role}_EMAIL"), &author.email);
        }
        git.args(args);
        git
    };
    // The repository has only the touched files: their blobs have the same names as in a complete
    // one.
    output(&mut git(&["init", "--quiet", "--initial-branch=ferry"]))?;
    patches::copy_touched(vanilla, &series, &tree)?;
    commit_all(&git, &format!("Linux {version}"))?;
    output(&mut git(&["tag", "base"]))?;
    let mut laid = Overlay::new();
    for nr in 0..=topic.unwrap_or(LAST) {
        if topic == Some(nr) {
            output(&mut git(&["tag", "--force", "base"]))?;
        }
        // Commits the files of the topic that are not laid yet, with the text `name`.
        let mut add = |offered: bool, name: &str| -> Result<()> {
            let files = overlay::until(repo, release, (nr, offered))?;
            if files == laid {
                return Ok(());
            }
            let text = topics::text(&topics::folder(repo, nr).join(name))?;
            lay(&files, &tree)?;
            laid = files;
            commit_all(&git, &signed(&text, author))
        };
        add(false, "add")?;
        for patch in series.iter().filter(|patch| patch.topic == nr) {
            let mail = scratch.path().join("mail");
            let text = fs::read_to_string(&patch.path)?;
            let text = from(&text, author)
                .with_context(|| format!("{} has no From: line", patch.path.display()))?;
            fs::write(&mail, text)?;
            output(git(&["am", "--quiet", "--whitespace=nowarn"]).arg(&mail))?;
        }
        add(true, "offer")?;
    }
    output(&mut git(&["config", "branch.ferry.description", &cover]))?;
    let written = output(
        git(&[
            "format-patch",
            "--cover-letter",
            "--cover-from-description=subject",
            "-o",
        ])
        .arg(std::path::absolute(out)?)
        .arg("base..HEAD"),
    )?;
    Ok(written.lines().map(PathBuf::from).collect())
}

/// Writes the files into the tree. A later topic changes files, and removes none.
fn lay(files: &Overlay, tree: &Path) -> Result<()> {
    for (path, content) in files {
        write_atomic(&tree.join(path), content.as_deref().unwrap_or_default())?;
    }
    Ok(())
}

fn commit_all(git: &impl Fn(&[&str]) -> Command, message: &str) -> Result<()> {
    output(&mut git(&["add", "--all", "--force"]))?;
    output(&mut git(&[
        "commit",
        "--quiet",
        "--no-verify",
        "-m",
        message,
    ]))
    .map(drop)
}

fn signed(message: &str, author: &Author) -> String {
    format!("{}\n\n{}\n", message.trim_end(), author.sign_off())
}

/// A name and an address for the From: and Signed-off-by: lines of mails.
#[derive(Debug, PartialEq, Eq)]
pub struct Author {
    name: String,
    email: String,
}

impl Author {
    pub fn new(name: &str, email: &str) -> Self {
        Author {
            name: name.to_owned(),
            email: email.to_owned(),
        }
    }

    /// Returns the caller's identity as git knows it, from its configuration or from the variables
    /// `GIT_AUTHOR_NAME` and `GIT_AUTHOR_EMAIL`.
    pub fn of_caller() -> Result<Self> {
        let mut git = git::command(Path::new("."));
        // Without this, git makes up an address from the names of the user and of the machine.
        git.args(["-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"]);
        let out = git
            .output()
            .context("cannot start git; install it if it is missing")?;
        let said = String::from_utf8_lossy(&out.stdout);
        let known = Self::parse(&said).filter(|_| out.status.success());
        known.context(
            "the mails need your name and address for From: and Signed-off-by:\n  \
             what to do: git config --global user.name 'YOUR NAME'\n              \
             git config --global user.email YOU@EXAMPLE.ORG",
        )
    }

    /// Returns the author of the patches in the repository.
    pub fn of_patches(repo: &Path) -> Result<Self> {
        let series = patches::load(repo, Release::NEWEST)?;
        let first = &series.first().context("there are no patches")?.path;
        Self::of_mail(&fs::read_to_string(first)?)
            .with_context(|| format!("{} has no From: line", first.display()))
    }

    fn of_mail(mail: &str) -> Option<Self> {
        let from = mail.lines().find_map(|line| line.strip_prefix("From: "))?;
        Self::parse(from)
    }

    /// Parses `NAME <ADDRESS>`, and ignores the rest.
    fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once('<')?;
        let (email, _) = rest.split_once('>')?;
        let name = name.trim().trim_matches('"').to_owned();
        (!name.is_empty() && !email.is_empty()).then(|| Author {
            name,
            email: email.to_owned(),
        })
    }

    fn sign_off(&self) -> String {
        format!("Signed-off-by: {} <{}>", self.name, self.email)
    }
}

/// Returns a mail with `author` in the places of its own author.
fn from(mail: &str, author: &Author) -> Option<String> {
    let own = Author::of_mail(mail)?;
    let (mut in_message, mut text) = (true, String::new());
    for line in mail.lines() {
        in_message &= line != "---";
        if in_message && line.starts_with("From: ") {
            text.push_str(&format!("From: {} <{}>", author.name, author.email));
        } else if in_message && line == own.sign_off() {
            text.push_str(&author.sign_off());
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn author_of_a_mail() {
        let mail = "From 123 Mon Sep 17\nFrom: A B <a@b.c>\nSubject: [PATCH] x\n";
        assert_eq!(Author::of_mail(mail).unwrap(), Author::new("A B", "a@b.c"));
        assert_eq!(Author::of_mail("Subject: x\n"), None);
        let ident = "C D <c@d.e> 1700000000 +0000\n";
        assert_eq!(Author::parse(ident).unwrap(), Author::new("C D", "c@d.e"));
        assert_eq!(Author::parse(" <c@d.e> 1 +0000"), None);
    }

    #[test]
    fn sender_takes_the_place_of_the_author_alone() {
        let mail = "From 1 Mon Sep 17\nFrom: A B <a@b.c>\nSubject: [PATCH] x\n\nBy E F.\n\n\
                    Signed-off-by: E F <e@f.g>\nSigned-off-by: A B <a@b.c>\n---\n\
                    +Signed-off-by: A B <a@b.c>\n";
        let text = from(mail, &Author::new("C D", "c@d.e")).unwrap();
        assert_eq!(
            text,
            "From 1 Mon Sep 17\nFrom: C D <c@d.e>\nSubject: [PATCH] x\n\nBy E F.\n\n\
             Signed-off-by: E F <e@f.g>\nSigned-off-by: C D <c@d.e>\n---\n\
             +Signed-off-by: A B <a@b.c>\n"
        );
    }

    #[test]
    fn texts_are_mail_subjects() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.parent().unwrap();
        let mut found = vec![topics::home(repo).join("cover")];
        for nr in 0..=LAST {
            let folder = topics::folder(repo, nr);
            assert!(folder.join("cover").exists(), "{}", folder.display());
            let texts = ["cover", "add", "offer"].map(|name| folder.join(name));
            found.extend(texts.into_iter().filter(|path| path.exists()));
        }
        for path in found {
            let text = topics::text(&path).unwrap();
            assert!(text.lines().next().unwrap().len() <= 72, "{text}");
            assert!(text.lines().all(|line| line.len() <= 75), "{text}");
        }
    }

    #[test]
    fn each_step_has_its_text() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.parent().unwrap();
        let mut laid = Overlay::new();
        for nr in 0..=LAST {
            for (offered, name) in [(false, "add"), (true, "offer")] {
                let files = overlay::until(repo, Release::NEWEST, (nr, offered)).unwrap();
                let text = topics::folder(repo, nr).join(name);
                assert_eq!(text.exists(), files != laid, "{}", text.display());
                laid = files;
            }
        }
        assert!(laid == overlay::kernel_part(repo, Release::NEWEST).unwrap());
    }
}
