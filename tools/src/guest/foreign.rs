// SPDX-License-Identifier: GPL-2.0-only
//! Guests of another architecture than the host's: QEMU boots them on a root of the distribution's
//! packages for that architecture.

use super::{Nodes, Shape};
use crate::{
    apt::Apt,
    cache::{write_atomic, Cache},
    platform::Foreign,
    toolchain::which,
};
use anyhow::{bail, ensure, Context as _, Result};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{symlink, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The suite of the distribution whose packages are the root.
const SUITE: &str = "trixie";
/// The programs that tests call, and a shell.
const PACKAGES: [&str; 5] = ["busybox-static", "libc6", "mount", "e2fsprogs", "xfsprogs"];
/// The first program of a guest.
const INIT: &str = include_str!("../../guest-foreign-init.sh");

/// Returns a folder with the guests' root, made of packages at the first call. `guests` is the folder
/// of the guests in the cache.
pub fn root(cache: &Cache, foreign: &Foreign, guests: &Path) -> Result<PathBuf> {
    if which(foreign.qemu).is_none() {
        bail!("{} is missing: install {}", foreign.qemu, foreign.packages);
    }
    let architecture = foreign.debian;
    let root = cache.whole_dir(format!("root-{architecture}-{SUITE}"), |root| {
        let name = format!("apt-{architecture}");
        let apt = Apt::new(cache, &name, SUITE, Some(architecture), "")?;
        apt.update()?;
        let title = format!("downloading packages for guests of {architecture}");
        let packages = apt.download_whole(&title, &PACKAGES)?;
        unpack(cache, &packages, root)
    })?;
    let init = root.join("ferry-init");
    write_atomic(&init, INIT.as_bytes())?;
    fs::set_permissions(&init, Permissions::from_mode(0o755))?;
    let inside = guests.strip_prefix("/").context("not an absolute path")?;
    fs::create_dir_all(root.join(inside))?;
    Ok(root)
}

/// Unpacks packages without running their scripts.
fn unpack(cache: &Cache, packages: &[PathBuf], root: &Path) -> Result<()> {
    for name in ["bin", "sbin", "lib"] {
        fs::create_dir_all(root.join("usr").join(name))?;
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    for name in ["dev", "proc", "sys", "run", "tmp", "root"] {
        fs::create_dir(root.join(name))?;
    }
    for package in packages {
        cache
            .step("unpacking a package of the guest's root", "unpack-root")
            .timeout(Duration::from_secs(300))
            .quiet()
            .run(Command::new("dpkg-deb").arg("-x").arg(package).arg(root))?;
    }
    Ok(())
}

/// Returns the command that boots a guest, without its kernel's arguments.
///
/// `share` and `folders` are the folders that both sides can write.
pub fn command(
    foreign: &Foreign,
    root: &Path,
    shape: Shape,
    (share, folders): (&Path, &[PathBuf]),
) -> Result<Command> {
    ensure!(
        shape.nodes == Nodes::Tiers,
        "guests of {} cannot have other nodes than the usual two",
        foreign.debian
    );
    let mut qemu = Command::new(foreign.qemu);
    qemu.args(foreign.machine)
        .args(["-accel", "tcg,thread=multi", "-nographic", "-no-reboot"])
        .arg("-smp")
        .arg(shape.cpus.to_string())
        .arg("-m")
        .arg(format!("{}G", shape.gib()));
    // Without them the kernel's arguments divide its memory.
    let nodes = if foreign.empty_nodes { 2 } else { 0 };
    for node in 0..nodes {
        let cpus = match node {
            0 => format!(",cpus=0-{}", shape.cpus - 1),
            _ => String::new(),
        };
        let memory = format!("memory-backend-ram,id=m{node},size={}G", shape.node_gib);
        let node = format!("node,nodeid={node},memdev=m{node}{cpus}");
        qemu.args(["-object", &memory, "-numa", &node]);
    }
    let shared = |path: &Path, tag: &str, more: &str| {
        let path = path.display();
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")
    };
    qemu.arg("-virtfs")
        .arg(shared(root, "root", ",readonly=on"));
    let all = [share]
        .into_iter()
        .chain(folders.iter().map(PathBuf::as_path));
    for (nr, folder) in all.enumerate() {
        qemu.arg("-virtfs")
            .arg(shared(folder, &format!("ferry{nr}"), ""));
    }
    Ok(qemu)
}

/// Returns the kernel's arguments by which it finds its root and its first program.
pub fn kernel_args(share: &Path, folders: &[PathBuf]) -> String {
    let folders: Vec<_> = folders
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    format!(
        "root=root rootfstype=9p rootflags=trans=virtio,version=9p2000.L,cache=loose ro \
         init=/ferry-init panic=-1 ferry_share={} ferry_folders={}",
        share.display(),
        folders.join(",")
    )
}
