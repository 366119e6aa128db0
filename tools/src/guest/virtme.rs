// SPDX-License-Identifier: GPL-2.0-only
//! virtme-ng in an environment of its own. It boots guests on this machine's files.

use crate::{
    cache::{remove_dir, write_atomic, Cache, Stamp},
    step::output,
    toolchain::which,
};
use anyhow::{bail, Context as _, Result};
use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use walkdir::WalkDir;

const VERSION: &str = "1.42";
/// Runs before virtme-ng's init.
const INIT: &str = include_str!("../../guest-init.sh");

/// Returns the program, which is installed at the first call.
pub fn program(cache: &Cache) -> Result<PathBuf> {
    if which("qemu-system-x86_64").is_none() {
        bail!("qemu-system-x86_64 is missing: install the package qemu-system-x86");
    }
    let venv = cache.path(format!("virtme-ng-{VERSION}"));
    let vng = venv.join("bin/vng");
    let ready = Stamp::new(venv.join("ferry.key"));
    let key = format!("{VERSION}\n{INIT}");
    if ready.is(&key) {
        return Ok(vng);
    }
    // Scripts of a Python environment contain its path, so it cannot be built elsewhere and
    // renamed.
    remove_dir(&venv)?;
    let python = Command::new("python3")
        .arg("-m")
        .arg("venv")
        .arg(&venv)
        .output();
    if !python.is_ok_and(|made| made.status.success()) {
        bail!("cannot make a Python environment: install the package python3-venv");
    }
    cache
        .step("installing virtme-ng", "virtme-ng")
        .timeout(Duration::from_secs(600))
        .remedy("check that the network can be reached")
        .run(
            Command::new(venv.join("bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .arg(format!("virtme-ng=={VERSION}")),
        )?;
    output(Command::new(&vng).arg("--version"))?;
    put_before_init(&venv)?;
    ready.set(&key)?;
    Ok(vng)
}

/// Lets [`INIT`] run before virtme-ng's init.
fn put_before_init(venv: &Path) -> Result<()> {
    let init = Path::new("virtme/guest/bin/virtme-ng-init");
    let mut files = WalkDir::new(venv).into_iter().filter_map(Result::ok);
    let init = files
        .find(|file| file.path().ends_with(init))
        .context("virtme-ng has no virtme-ng-init")?
        .into_path();
    fs::rename(&init, init.with_extension("real"))?;
    write_atomic(&init, INIT.as_bytes())?;
    Ok(fs::set_permissions(&init, Permissions::from_mode(0o755))?)
}

/// Returns a command of the program. It starts virtme-run by name.
pub fn command(program: &Path) -> Command {
    let mut vng = Command::new(program);
    let mut path = program
        .parent()
        .unwrap_or(Path::new("/"))
        .as_os_str()
        .to_owned();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    vng.env("PATH", path);
    vng
}
