// SPDX-License-Identifier: GPL-2.0-only
//! Files that tasks without privileges can read and write, and cpusets that they cannot leave: tasks
//! of an ordinary user, root of that user's namespace, and root whose capabilities are in its own
//! namespace alone. docs/security.rst has the whole table; the tests of `/dev/page_migrate` are in
//! `service/`, those of system calls in `policy/`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libc::{EACCES, EINVAL, ENODEV, EPERM};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid};

use crate::cgroup::Groups;
use crate::child::Child;
use crate::harness::{Case, expect};
use crate::plan::FolioSize;
use crate::sys::service::{Call, Service};
use crate::sys::{self, MF_MOVE, Mapping, PAGE, Ret};
use crate::trace::Tracing;
use crate::{kernel, pattern, region};

pub const NOBODY: Uid = Uid::from_raw(65534);
const FERRY: &str = "/sys/kernel/mm/ferry";
/// The file of promotion that is not among [`FERRY`]'s.
const PROMOTION: &str = "/sys/kernel/mm/numa/pagecache_promotion_enabled";
/// Files that cannot be read by everyone, below [`FERRY`].
const UNREADABLE: [&str; 4] = [
    "copy/dma_status",
    "migrc/drain",
    "migrc/debug/take_atomic",
    "migrc/debug/take_contig",
];
const PAGES: usize = 64;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, identity) in [
        ("user", Identity::User),
        ("namespace", Identity::RootOfUsers),
        ("inside", Identity::RootInside),
    ] {
        cases.push(Case::new(format!("rights/files-{name}"), move |_| {
            files(identity)
        }));
        cases.push(Case::new(format!("rights/confined-{name}"), move |_| {
            confined(identity)
        }));
    }
    cases
}

/// A task without privileges in the initial user namespace.
#[derive(Clone, Copy)]
pub enum Identity {
    /// An ordinary user.
    User,
    /// Root of a namespace that an ordinary user made.
    RootOfUsers,
    /// Root, with all capabilities but those outside a namespace of its own.
    RootInside,
}

impl Identity {
    /// Gives up the privileges of this process.
    pub fn assume(self) -> Result<()> {
        if !matches!(self, Self::RootInside) {
            setgroups(&[]).context("setgroups")?;
            setgid(Gid::from_raw(NOBODY.as_raw())).context("setgid")?;
            setuid(NOBODY).context("setuid")?;
        }
        let outside = match self {
            Self::User => return Ok(()),
            Self::RootOfUsers => NOBODY,
            Self::RootInside => Uid::from_raw(0),
        };
        // Files in /proc/self belong to root after setuid(2) unless the process is dumpable.
        set_dumpable(true).context("prctl")?;
        unshare(CloneFlags::CLONE_NEWUSER).context("unshare")?;
        kernel::write("/proc/self/uid_map", &format!("0 {outside} 1"))?;
        ensure!(
            Uid::effective().is_root(),
            "expected to be root of the namespace"
        );
        Ok(())
    }
}

/// Appends all files below `dir`.
fn add_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            add_files(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Checks whether an access was allowed or refused.
fn check(what: &str, result: io::Result<impl Sized>, is_allowed: bool) -> Result<()> {
    let errno = result.err().map_or(0, |e| e.raw_os_error().unwrap_or(-1));
    expect(what, errno, if is_allowed { 0 } else { EACCES })
}

/// Checks which files of Ferry can be opened for writing, and which for reading. Root of the machine
/// owns them, whatever its capabilities.
fn files(identity: Identity) -> Result<()> {
    let mut files: Vec<_> = kernel::KNOBS.into_iter().map(PathBuf::from).collect();
    files.push(PathBuf::from(PROMOTION));
    add_files(Path::new(FERRY), &mut files)?;
    files.retain(|path| path.exists());
    ensure!(files.iter().any(|path| path == Path::new(kernel::SWITCH)));
    let is_owner = matches!(identity, Identity::RootInside);
    let tracing = Tracing::new()?;
    let events = tracing.dir().join("events/ferry");
    fs::read_dir(&events).context("reading the events as root")?;
    Child::start(|| {
        identity.assume()?;
        for path in &files {
            let (name, mode) = (path.display(), fs::metadata(path)?.mode());
            let write = OpenOptions::new().write(true).open(path);
            let what = format!("error of opening {name} for writing");
            check(&what, write, is_owner && mode & 0o200 != 0)?;
            let below = path.strip_prefix(FERRY).unwrap_or(path);
            let is_unreadable = UNREADABLE.iter().any(|file| Path::new(file) == below);
            let is_readable = if is_owner {
                mode & 0o400 != 0
            } else {
                !is_unreadable
            };
            let what = format!("error of opening {name}");
            check(&what, File::open(path), is_readable)?;
        }
        check(
            "error of reading the trace events",
            fs::read_dir(&events),
            is_owner,
        )
    })?
    .finish("the child to exit with 0")
}

fn refused(what: &str, ret: Ret, errno: i32) -> Result<()> {
    expect(what, ret, Ret::failed(errno))
}

/// Checks that a task can migrate its pages by all calls within its cpuset, and by none to a node
/// outside.
fn confined(identity: Identity) -> Result<()> {
    let groups = Groups::new(&["confined"])?;
    groups.set(0, "cpuset.mems", "0-1")?;
    let mut nodes = groups.open(0, "cpuset.mems")?;
    let map = region::filled(FolioSize::Small, PAGES, 1)?;
    let addresses = kernel::addresses_of(std::process::id() as i32, &map)?;
    Child::start(|| {
        groups.add(0, Pid::this())?;
        identity.assume()?;
        // The memory is inherited; writing makes the pages this process's own.
        pattern::fill(map.words(), 2);
        for node in [1, 0] {
            region::move_map(&map, node)?;
        }
        nodes.write_all(b"0").context("confining the task")?;
        stays(&map, &addresses)?;
        pattern::check(map.words(), 2)
    })?
    .finish("the child to exit with 0")?;
    pattern::check(map.words(), 1)
}

/// Checks that no call moves the pages of a task that is confined to node 0 to node 1.
fn stays(map: &Mapping, addresses: &[u64]) -> Result<()> {
    let addrs = map.addrs(PAGE);
    let whole = |node| Call::range(map.addr(), map.len(), node);
    let (ret, _) = sys::move_to(0, &addrs, 1, MF_MOVE);
    refused("move_pages", ret, EACCES)?;
    let ret = sys::mbind(map.addr(), map.len(), 1, MF_MOVE);
    refused("mbind", ret, EINVAL)?;
    refused("migrate_pages", sys::migrate_pages(0, 1, 2), EPERM)?;
    if kernel::has_service() {
        let service = Service::open()?;
        expect("range", service.range(whole(1)).errno, ENODEV)?;
        let by_address = service.phys(addresses, Call::to(1));
        expect("physical addresses", by_address.errno, EPERM)?;
    }
    region::check_on(&addrs, 0)
}
