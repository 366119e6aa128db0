// SPDX-License-Identifier: GPL-2.0-only
//! Machines on which this program cannot work: no space, no home, no way to install packages.

use super::*;

/// Runs a shell's lines as root of a mount namespace, with this program as $1 and a cache as $2.
pub(super) fn mounting(context: &Context, lines: &str) -> Result<Output> {
    let cache = tempfile::tempdir()?;
    let inner = ferry(context, cache.path())?;
    let mut outer = Command::new("unshare");
    outer
        .args(["-rm", "sh", "-ec", lines, "sh"])
        .arg(inner.get_program())
        .arg(cache.path());
    hand_on_env(&inner, &mut outer);
    Ok(outer.output()?)
}

/// A cache on a file system of 8 MB.
pub(super) fn no_space(context: &Context) -> Result<()> {
    let lines = "mount -t tmpfs -o size=8m none \"$2\"\nexec \"$1\" series \"$2/out\"";
    refused(
        &mounting(context, lines)?,
        &["not enough space", "FERRY_CACHE"],
    )
}

pub(super) fn read_only(context: &Context) -> Result<()> {
    let lines = "mount -t tmpfs none \"$2\"\nmkdir \"$2/logs\" \"$2/cargo-tools\"\n\
                 mount -o remount,ro \"$2\"\nexec \"$FERRY_REPO/ferry\" --version";
    refused(
        &mounting(context, lines)?,
        &["cannot write to", "FERRY_CACHE"],
    )
}

/// The script that users call.
pub(super) fn script(context: &Context) -> Command {
    let mut script = Command::new(context.repo.join("ferry"));
    script.arg("--version").stdin(Stdio::null());
    script
}

pub(super) fn no_home(context: &Context) -> Result<()> {
    let mut script = script(context);
    for name in ["FERRY_CACHE", "XDG_CACHE_HOME", "HOME"] {
        script.env_remove(name);
    }
    refused(&script.output()?, &["HOME is not set", "set FERRY_CACHE"])
}

/// The script where no package is installed, with these fakes.
pub(super) fn bare(context: &Context, fakes: &[(&str, &str)]) -> Result<Output> {
    let (cache, bin) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fake(bin.path(), "dpkg-query", "exit 1\n")?;
    for (name, lines) in fakes {
        fake(bin.path(), name, lines)?;
    }
    let mut script = script(context);
    script.env("FERRY_CACHE", cache.path());
    Ok(with_fakes(&mut script, bin.path())?.output()?)
}

pub(super) fn apt_in_use(context: &Context) -> Result<()> {
    let apt = "[ $2 = update ] || { echo \"E: Could not get lock, by $*\"; exit 100; }\n";
    let out = bare(context, &[("id", "echo 0\n"), ("apt-get", apt)])?;
    refused(
        &out,
        &["Could not get lock", "DPkg::Lock::Timeout=600", "log:"],
    )
}

pub(super) fn no_terminal(context: &Context) -> Result<()> {
    let out = bare(context, &[("id", "echo 1000\n"), ("sudo", "exit 1\n")])?;
    refused(&out, &["as root, install:", "qemu-system-x86"])?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(!said.contains("==> installing"), "it went on: {said}");
    Ok(())
}
