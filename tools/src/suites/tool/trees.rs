// SPDX-License-Identifier: GPL-2.0-only
//! Kernel trees that `ferry apply` and `ferry series` accept, change or reject. The trees are fakes
//! with only the files that the patches touch.

use super::*;
use crate::{
    patches::Patch,
    series::Author,
    source::Release,
    topics::{self, TOPICS},
};

/// A tree with a Makefile and the files that the patches touch.
pub(super) fn fake_tree(context: &Context) -> Result<TempDir> {
    let vanilla = context.source()?.vanilla();
    let temp = tempfile::tempdir()?;
    patches::copy_file(&vanilla, Path::new("Makefile"), temp.path())?;
    patches::copy_touched(&vanilla, &series(context)?, temp.path())?;
    Ok(temp)
}

/// Returns the content of all files in a tree except .git, for comparing.
pub(super) fn snapshot(tree: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    let walk = WalkDir::new(tree).sort_by_file_name().into_iter();
    for entry in walk.filter_entry(|entry| entry.file_name() != ".git") {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.push((entry.path().to_path_buf(), fs::read(entry.path())?));
        }
    }
    Ok(files)
}

pub(super) fn apply(context: &Context, tree: &Path) -> Result<Output> {
    let cache = tempfile::tempdir()?;
    Ok(ferry(context, cache.path())?
        .arg("apply")
        .arg(tree)
        .output()?)
}

/// Checks that `apply` rejects the tree with these words, and leaves it unchanged.
pub(super) fn apply_refused(context: &Context, tree: &Path, words: &[&str]) -> Result<()> {
    let before = snapshot(tree)?;
    refused(&apply(context, tree)?, words)?;
    ensure!(snapshot(tree)? == before, "the tree was changed");
    Ok(())
}

/// Checks that `apply` succeeded and wrote the same files as the builds use.
pub(super) fn applied(context: &Context, tree: &Path, out: &Output) -> Result<()> {
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "`apply` failed: {said}");
    has_all_files(context, tree)
}

/// Checks that a tree has the same files as the builds use.
fn has_all_files(context: &Context, tree: &Path) -> Result<()> {
    let source = context.source()?;
    let mut wanted = patches::patched(&source.vanilla(), &series(context)?, &source.version)?;
    wanted.extend(overlay::kernel_part(&context.repo, source.release)?);
    for (path, content) in wanted {
        let found = patches::read_if_there(&tree.join(&path))?;
        ensure!(
            found == content,
            "{} differs from the file that the builds use",
            path.display()
        );
    }
    Ok(())
}

pub(super) fn apply_plain(context: &Context) -> Result<()> {
    let tree = fake_tree(context)?;
    let out = apply(context, tree.path())?;
    applied(context, tree.path(), &out)?;
    apply_refused(context, tree.path(), &["already"])
}

pub(super) fn git(tree: &Path, args: &[&str]) -> Result<String> {
    let mut git = crate::git::command(tree);
    for setting in [
        "user.name=Test",
        "user.email=test@localhost",
        "commit.gpgsign=false",
    ] {
        git.args(["-c", setting]);
    }
    output(git.args(args))
}

pub(super) fn git_tree(context: &Context) -> Result<TempDir> {
    let tree = fake_tree(context)?;
    git(tree.path(), &["init", "--quiet"])?;
    // `git am` in the program under test needs an identity too.
    git(tree.path(), &["config", "user.name", "Test"])?;
    git(tree.path(), &["config", "user.email", "test@localhost"])?;
    git(tree.path(), &["add", "--all", "--force"])?;
    git(tree.path(), &["commit", "--quiet", "-m", "base"])?;
    Ok(tree)
}

fn series(context: &Context) -> Result<Vec<Patch>> {
    patches::load(&context.repo, context.source()?.release)
}

pub(super) fn commits(tree: &Path) -> Result<usize> {
    Ok(git(tree, &["log", "--oneline"])?.lines().count())
}

/// Returns the number of patches that the topics are mailed as.
fn mails(context: &Context) -> Result<usize> {
    let folders = (0..TOPICS.len()).map(|nr| topics::folder(&context.repo, nr));
    let texts = folders.flat_map(|folder| ["add", "offer"].map(|name| folder.join(name)));
    let texts = texts.filter(|text| text.exists()).count();
    Ok(series(context)?.len() + texts)
}

pub(super) fn apply_git(context: &Context) -> Result<()> {
    let tree = git_tree(context)?;
    let out = apply(context, tree.path())?;
    applied(context, tree.path(), &out)?;
    let expected = 1 + mails(context)?;
    let found = commits(tree.path())?;
    ensure!(
        found == expected,
        "expected {expected} commits, found {found}"
    );
    apply_refused(context, tree.path(), &["already"])
}

pub(super) fn other_version(context: &Context) -> Result<TempDir> {
    let tree = fake_tree(context)?;
    fs::write(
        tree.path().join("Makefile"),
        "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 9\n",
    )?;
    Ok(tree)
}

pub(super) fn wrong_version(context: &Context) -> Result<()> {
    let tree = other_version(context)?;
    apply_refused(context, tree.path(), &["6.12.9", Release::NEWEST.name()])
}

pub(super) fn partly_applied(context: &Context) -> Result<()> {
    let tree = fake_tree(context)?;
    let first = series(context)?.remove(0);
    output(patches::git_apply(tree.path()).arg(&first.path))?;
    apply_refused(context, tree.path(), &["already"])
}

pub(super) fn does_not_fit(context: &Context) -> Result<()> {
    let tree = fake_tree(context)?;
    // The last patch does not apply; the patches before it must not stay in the tree.
    let last = series(context)?.pop().context("no patches")?;
    let victim = last
        .touches
        .iter()
        .map(|path| tree.path().join(path))
        .find(|path| path.is_file())
        .context("the last patch only adds files")?;
    fs::write(victim, "/* nothing as expected */\n")?;
    apply_refused(
        context,
        tree.path(),
        &["does not apply", "nothing was changed"],
    )
}

/// Writes the mails of all topics, or of one, and checks that they are the caller's.
fn written(context: &Context, dir: &Path, topic: Option<&str>) -> Result<Vec<PathBuf>> {
    let source = context.source()?;
    let author = Author::new(CALLER[0].1, CALLER[1].1);
    let files = crate::series::write(
        &context.repo,
        &source.vanilla(),
        &source.version,
        dir,
        (topic.map(topics::find).transpose()?, &author),
    )?;
    let sender = format!("{} <{}>", CALLER[0].1, CALLER[1].1);
    for file in &files {
        let mail = fs::read_to_string(file)?;
        let shown = file.display();
        ensure!(
            mail.contains(&format!("\nFrom: \"{}\" <{}>\n", CALLER[0].1, CALLER[1].1))
                || mail.contains(&format!("\nFrom: {sender}\n")),
            "{shown} is not from {sender}"
        );
        let is_cover = Some(file) == files.first();
        ensure!(
            is_cover || mail.contains(&format!("\nSigned-off-by: {sender}\n")),
            "{shown} is not signed by {sender}"
        );
    }
    Ok(files)
}

/// Applies mails after the cover letter with `git am`.
fn am(tree: &Path, mails: &[PathBuf]) -> Result<()> {
    for mail in mails.iter().skip(1) {
        let name = mail.to_string_lossy();
        git(tree, &["am", "--quiet", "--whitespace=nowarn", &name])?;
    }
    Ok(())
}

pub(super) fn series_applies(context: &Context) -> Result<()> {
    let tree = git_tree(context)?;
    let dir = tempfile::tempdir()?;
    let files = written(context, dir.path(), None)?;
    let cover = fs::read_to_string(files.first().context("no files")?)?;
    ensure!(
        // The number has two digits if there are ten or more patches.
        ["0/", "00/"]
            .iter()
            .any(|nr| cover.contains(&format!("Subject: [PATCH {nr}"))),
        "the first file is not a cover letter"
    );
    ensure!(
        !cover.contains("*** "),
        "the cover letter still has placeholders"
    );
    am(tree.path(), &files)?;
    is_whole(context, tree.path())
}

/// Applies the topics one by one.
pub(super) fn topics_apply(context: &Context) -> Result<()> {
    let tree = git_tree(context)?;
    for topic in TOPICS {
        let dir = tempfile::tempdir()?;
        am(
            tree.path(),
            &written(context, dir.path(), Some(topic.name))?,
        )?;
    }
    is_whole(context, tree.path())
}

/// Checks that a tree has the commits and the files of all topics.
fn is_whole(context: &Context, tree: &Path) -> Result<()> {
    let expected = 1 + mails(context)?;
    let found = commits(tree)?;
    ensure!(
        found == expected,
        "expected {expected} commits, found {found}"
    );
    has_all_files(context, tree)
}

pub(super) fn unknown_topic(context: &Context) -> Result<()> {
    let temp = tempfile::tempdir()?;
    let cache = temp.path().join("cache");
    let out = ferry(context, &cache)?
        .args(["series", "--topic", "crew"])
        .arg(temp.path().join("out"))
        .output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.code() == Some(2), "it ended with {}", out.status);
    for topic in TOPICS {
        ensure!(said.contains(topic.name), "no {} in: {said}", topic.name);
    }
    ensure!(!cache.exists(), "it made a cache");
    Ok(())
}

pub(super) fn no_author(context: &Context) -> Result<()> {
    let temp = tempfile::tempdir()?;
    let mut ferry = ferry(context, temp.path())?;
    for (name, _) in CALLER {
        ferry.env_remove(name);
    }
    // No configuration of this machine, and no address from the environment.
    let out = ferry
        .envs([
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
        ])
        .env_remove("EMAIL")
        .current_dir(temp.path())
        .arg("series")
        .arg(temp.path().join("out"))
        .output()?;
    refused(&out, &["name and address", "user.name", "user.email"])?;
    ensure!(out.status.code() == Some(2), "it ended with {}", out.status);
    ensure!(!temp.path().join("src").exists(), "it fetched something");
    Ok(())
}

pub(super) fn wrong_kdir(context: &Context) -> Result<()> {
    let tree = other_version(context)?;
    let cache = tempfile::tempdir()?;
    let out = ferry(context, cache.path())?
        .env("KDIR", tree.path())
        .args(["run", "--quick"])
        .output()?;
    refused(&out, &["6.12.9", Release::NEWEST.name()])?;
    ensure!(
        !cache.path().join("src").exists(),
        "the program put files into the cache although it rejected the tree"
    );
    Ok(())
}
