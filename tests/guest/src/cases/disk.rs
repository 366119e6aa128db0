// SPDX-License-Identifier: GPL-2.0-only
//! File systems for a test in the guest: a tmpfs, and an ext4, an XFS, a btrfs or a swap area on a loop
//! device whose image is there.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::harness::skip;
use crate::sys::{self, PAGE};

/// A tmpfs mounted on a new directory.
pub struct Tmpfs {
    dir: PathBuf,
}

impl Tmpfs {
    pub fn new() -> Result<Self> {
        Self::of_type("tmpfs")
    }

    /// Mounts a file system that needs no device on a new directory.
    pub fn of_type(kind: &str) -> Result<Self> {
        Self::with_options(kind, None)
    }

    pub fn with_options(kind: &str, options: Option<&str>) -> Result<Self> {
        let dir = nix::unistd::mkdtemp("/run/ferry-guest-XXXXXX").context("mkdtemp")?;
        mount(Some("none"), &dir, Some(kind), MsFlags::empty(), options)
            .with_context(|| format!("mounting {kind}"))?;
        Ok(Self { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn create(&self, name: &str) -> Result<File> {
        create(&self.dir.join(name))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // The guest is discarded after the tests, so errors do not matter.
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.dir);
    }
}

fn create(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    output_of(Command::new(program).args(args))
}

fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = match command.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(skip(format!("the guest has no {program}")));
        }
        out => out.with_context(|| program.clone())?,
    };
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{command:?}: {}", said.trim());
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// A loop device whose image is a file.
pub struct Loop {
    pub device: String,
    _tmpfs: Option<Tmpfs>,
}

impl Loop {
    /// Attaches a new image on a tmpfs.
    pub fn new(len: u64) -> Result<Self> {
        let tmpfs = Tmpfs::new()?;
        Ok(Self {
            device: attach(&tmpfs.dir().join("image"), len)?,
            _tmpfs: Some(tmpfs),
        })
    }
}

/// Attaches a new image to a loop device, and returns the device's name.
fn attach(image: &Path, len: u64) -> Result<String> {
    create(image)?.set_len(len)?;
    output("losetup", &["--find", "--show", utf8(image)?])
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{}: not UTF-8", path.display()))
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = output("losetup", &["--detach", &self.device]);
    }
}

/// The type of a file system with blocks of 4 KB.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// Its page cache has buffer heads.
    Ext4,
    Xfs,
    /// Not all kernels here have it.
    Btrfs,
}

impl FileSystem {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Returns whether this kernel has it.
    pub fn is_built(self) -> Result<bool> {
        let types = fs::read_to_string("/proc/filesystems")?;
        Ok(types.split_whitespace().any(|name| name == self.name()))
    }

    fn make_on(self, device: &str) -> Result<()> {
        let mut make = Command::new(format!("mkfs.{}", self.name()));
        match self {
            Self::Ext4 => make.args(["-q", "-b", "4096"]),
            // mkfs.xfs refuses less than 300 MB, unless fstests seems to call it.
            Self::Xfs => make
                .args(["-q", "-f"])
                .envs(["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"].map(|name| (name, "1"))),
            Self::Btrfs => make.args(["-q", "-f"]),
        };
        output_of(make.arg(device)).map(drop)
    }
}

/// A file system on a loop device.
pub struct Disk {
    kind: FileSystem,
    dir: PathBuf,
    device: Loop,
}

impl Disk {
    pub fn ext4() -> Result<Self> {
        Self::new(FileSystem::Ext4)
    }

    /// Creates a small file system.
    pub fn new(kind: FileSystem) -> Result<Self> {
        Self::of(kind, 64 << 20)
    }

    /// Creates a file system of `len` bytes, including its own data.
    pub fn of(kind: FileSystem, len: u64) -> Result<Self> {
        if !kind.is_built()? {
            return Err(skip(format!("this kernel has no {}", kind.name())));
        }
        Self::on(kind, Loop::new(len)?)
    }

    /// Creates a file system of `len` bytes whose image is a file of this one.
    pub fn inside(&self, len: u64) -> Result<Self> {
        let device = Loop {
            device: attach(&self.path("image"), len)?,
            _tmpfs: None,
        };
        Self::on(self.kind, device)
    }

    fn on(kind: FileSystem, device: Loop) -> Result<Self> {
        kind.make_on(&device.device)?;
        let dir = nix::unistd::mkdtemp("/run/ferry-guest-XXXXXX").context("mkdtemp")?;
        let disk = Self { kind, dir, device };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        mount(
            Some(self.device.device.as_str()),
            &self.dir,
            Some(self.kind.name()),
            MsFlags::MS_NOATIME,
            None::<&str>,
        )
        .with_context(|| format!("mounting {}", self.kind.name()))
    }

    /// Unmounts and mounts again. No file may be open.
    pub fn remount(&mut self) -> Result<()> {
        umount2(&self.dir, MntFlags::empty()).context("unmounting")?;
        self.mount()
    }

    /// Freezes the file system: writes wait.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        output("fsfreeze", &["--freeze", utf8(&self.dir)?])?;
        Ok(Frozen(&self.dir))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.path(name)).context("unlinking")
    }

    pub fn create(&self, name: &str) -> Result<File> {
        create(&self.path(name))
    }

    /// Opens a file for reading and writing.
    pub fn open(&self, name: &str) -> Result<File> {
        let options = &mut OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(self.path(name))
            .context("opening")
    }

    /// Truncates a file by its path, without opening it.
    pub fn truncate(&self, name: &str, len: i64) -> Result<()> {
        nix::unistd::truncate(&self.path(name), len).context("truncate")
    }

    pub fn open_to_read(&self, name: &str) -> Result<File> {
        File::open(self.path(name)).context("opening")
    }

    /// Opens a file for reads with O_DIRECT.
    pub fn open_direct(&self, name: &str) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(self.path(name))
            .context("opening with O_DIRECT")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.dir, MntFlags::empty());
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A frozen file system; thawed on drop.
pub struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // Fails only if it is not frozen.
        let _ = utf8(self.0).and_then(|dir| output("fsfreeze", &["--unfreeze", dir]));
    }
}

/// An active swap area; disabled on drop.
pub struct Swap(Loop);

impl Swap {
    pub fn new() -> Result<Self> {
        const LEN: u64 = 32 << 20;
        let device = Loop::new(LEN)?;
        let mut header = vec![0u8; PAGE];
        header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
        header[1028..1032].copy_from_slice(&(LEN as u32 / PAGE as u32 - 1).to_ne_bytes());
        header[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
        let file = File::options().write(true).open(&device.device)?;
        file.write_all_at(&header, 0)?;
        file.sync_all()?;
        sys::swap_on(&device.device)?;
        Ok(Self(device))
    }

    /// Returns the file by which requests to the device can fail, in a kernel that injects such
    /// faults.
    pub fn fault_switch(&self) -> String {
        let name = self.0.device.trim_start_matches("/dev/");
        format!("/sys/block/{name}/make-it-fail")
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // Fails only if the device is gone, and the swap area with it.
        let _ = sys::swap_off(&self.0.device);
    }
}
