// SPDX-License-Identifier: GPL-2.0-only
//! Kernel trees that `ferry apply` and `ferry series` accept, change or reject. The trees are fakes
//! with only the files that the patches touch.

use super::*;

/// A tree with a Makefile and the files that the patches touch.
pub(super) fn fake_tree(context: &Context) -> Result<TempDir> {
    let vanilla = context.source()?.vanilla();
    let temp = tempfile::tempdir()?;
    patches::copy_file(&vanilla, Path::new("Makefile"), temp.path())?;
    patches::copy_touched(&vanilla, &patches::load(&context.repo)?, temp.path())?;
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
    let source = context.source()?;
    let series = patches::load(&context.repo)?;
    let mut wanted = patches::patched(&source.vanilla(), &series, &source.version)?;
    wanted.extend(overlay::kernel_part(&context.repo)?);
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

pub(super) fn commits(tree: &Path) -> Result<usize> {
    Ok(git(tree, &["log", "--oneline"])?.lines().count())
}

pub(super) fn apply_git(context: &Context) -> Result<()> {
    let tree = git_tree(context)?;
    let out = apply(context, tree.path())?;
    applied(context, tree.path(), &out)?;
    let expected = 2 + patches::load(&context.repo)?.len();
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
    apply_refused(context, tree.path(), &["6.12.9", SERIES])
}

pub(super) fn partly_applied(context: &Context) -> Result<()> {
    let tree = fake_tree(context)?;
    let first = patches::load(&context.repo)?.remove(0);
    output(patches::git_apply(tree.path()).arg(&first.path))?;
    apply_refused(context, tree.path(), &["already"])
}

pub(super) fn does_not_fit(context: &Context) -> Result<()> {
    let tree = fake_tree(context)?;
    // The last patch does not apply; the patches before it must not stay in the tree.
    let last = patches::load(&context.repo)?.pop().context("no patches")?;
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

pub(super) fn series_applies(context: &Context) -> Result<()> {
    let tree = git_tree(context)?;
    let source = context.source()?;
    let dir = tempfile::tempdir()?;
    let files = crate::series::write(
        &context.repo,
        &source.vanilla(),
        &source.version,
        dir.path(),
    )?;
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
    for file in files.iter().skip(1) {
        let name = file.to_string_lossy();
        git(
            tree.path(),
            &["am", "--quiet", "--whitespace=nowarn", &name],
        )?;
    }
    let expected = 2 + patches::load(&context.repo)?.len();
    let found = commits(tree.path())?;
    ensure!(
        found == expected,
        "expected {expected} commits, found {found}"
    );
    Ok(())
}

pub(super) fn wrong_kdir(context: &Context) -> Result<()> {
    let tree = other_version(context)?;
    let cache = tempfile::tempdir()?;
    let out = ferry(context, cache.path())?
        .env("KDIR", tree.path())
        .args(["run", "--quick"])
        .output()?;
    refused(&out, &["6.12.9", SERIES])?;
    ensure!(
        !cache.path().join("src").exists(),
        "the program put files into the cache although it rejected the tree"
    );
    Ok(())
}
