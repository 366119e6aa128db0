// SPDX-License-Identifier: GPL-2.0-only
//! Boots a kernel with virtme-ng under software emulation and runs one script in it as root.

use crate::{
    cache::{read_log, write_atomic},
    cargo::{self, cargo},
    context::Context,
    step::{output, tail, Step},
};
use anyhow::{bail, Context as _, Result};
use std::{
    ffi::OsString,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;
use walkdir::WalkDir;

const VIRTME_NG: &str = "1.42";
/// The first argument disables the comparison of clocksources between CPUs. In about one boot in 70
/// with four CPUs the timer of that comparison waits, with interrupts disabled, for a CPU that waits
/// for it in stop_machine(). Its timeout never expires, because it reads the clock, which is jiffies
/// until the clocksource is chosen.
const KERNEL_ARGS: &str = "tsc=nowatchdog log_buf_len=16M";
/// Emulation runs `rep movs` one element at a time: without this argument copies look six times
/// slower.
const EMULATED_ARGS: &str = "clearcpuid=rep_good,erms,fsrm";
/// Runs before virtme-ng's init.
const INIT: &str = include_str!("../guest-init.sh");
/// The HMAT describes node 1's memory as slower, and so as a lower memory tier. Both are equally
/// fast.
const TIERS: &str = "-machine hmat=on \
    -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=10 \
    -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=10G \
    -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=40 \
    -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=2G";
/// The file with the exit status; the script writes it when the guest's command has ended.
const STATUS: &str = "status";

pub struct Guest {
    vng: PathBuf,
    image: PathBuf,
    name: String,
    console: PathBuf,
    shape: Shape,
    accelerator: Accelerator,
    args: Vec<String>,
    qemu_args: String,
    timeout: Duration,
    /// A folder that both sides can write; gone when this is dropped. It is in the cache, whose path needs
    /// no quotes anywhere.
    share: TempDir,
    /// More such folders in the cache, which the caller keeps.
    folders: Vec<PathBuf>,
}

/// The means by which QEMU runs a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU's translator. It has the same CPU everywhere, and can count instructions.
    Emulation,
    /// This machine's CPUs; see [`crate::kvm`].
    Kvm,
}

impl Accelerator {
    /// Returns the name in results.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Emulation => "qemu-tcg",
            Accelerator::Kvm => "qemu-kvm",
        }
    }
}

/// CPUs and memory. All nodes have the same amount of memory.
#[derive(Clone, Copy)]
pub struct Shape {
    pub cpus: u32,
    pub node_gib: u32,
    pub nodes: Nodes,
}

/// The nodes, and the CPUs that they have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// All CPUs are on node 0. Node 1 is a lower tier.
    Tiers,
    /// Half of the CPUs are on node 0, half on node 1. Node 2 is nearer to node 1 than to node 0.
    Sockets,
}

impl Shape {
    /// All CPUs are on the first of two nodes.
    pub const fn new(cpus: u32, node_gib: u32) -> Self {
        Shape {
            cpus,
            node_gib,
            nodes: Nodes::Tiers,
        }
    }

    fn args(self) -> Vec<String> {
        let Shape {
            cpus,
            node_gib,
            nodes,
        } = self;
        let last = cpus - 1;
        let numa = match nodes {
            Nodes::Tiers => vec![format!(",cpus=0-{last}"), ",initiator=0".to_owned()],
            Nodes::Sockets => {
                let half = cpus / 2;
                let first = format!(",cpus=0-{}", half - 1);
                vec![first, format!(",cpus={half}-{last}"), String::new()]
            }
        };
        let mut args = vec![
            format!("--cpus={cpus}"),
            format!("--memory={}G", self.gib()),
        ];
        args.extend(numa.iter().map(|more| format!("--numa={node_gib}G{more}")));
        args
    }

    /// Returns the memory of all nodes.
    fn gib(self) -> u32 {
        match self.nodes {
            Nodes::Tiers => 2 * self.node_gib,
            Nodes::Sockets => 3 * self.node_gib,
        }
    }

    fn qemu_args(self) -> String {
        match self.nodes {
            Nodes::Tiers => TIERS.to_owned(),
            Nodes::Sockets => format!(
                "-smp {},sockets=2 -numa dist,src=0,dst=1,val=20 \
                 -numa dist,src=0,dst=2,val=20 -numa dist,src=1,dst=2,val=15",
                self.cpus
            ),
        }
    }
}

impl Guest {
    pub fn new(context: &Context, image: &Path, name: &str, shape: Shape) -> Result<Self> {
        let share = tempfile::Builder::new()
            .prefix("guest-")
            .tempdir_in(context.cache.dir("guests")?)?;
        Ok(Guest {
            vng: virtme_ng(context)?,
            image: image.to_path_buf(),
            name: name.to_owned(),
            console: context.cache.log(&format!("guest-{name}")),
            shape,
            accelerator: Accelerator::Emulation,
            args: vec![KERNEL_ARGS.to_owned()],
            qemu_args: shape.qemu_args(),
            timeout: Duration::from_secs(1800),
            share,
            folders: Vec::new(),
        })
    }

    /// Lets the guest write one more folder, which it shares with the host and other guests.
    pub fn folder(mut self, dir: &Path) -> Self {
        self.folders.push(dir.to_path_buf());
        self
    }

    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Chooses what runs the guest; by default emulation does.
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.accelerator = accelerator;
        self
    }

    /// Adds arguments to the kernel's command line.
    pub fn kernel_args(mut self, args: &str) -> Self {
        self.args.push(args.to_owned());
        self
    }

    /// Adds arguments to the emulator's command line.
    pub fn qemu_args(mut self, args: &str) -> Self {
        self.qemu_args = format!("{} {args}", self.qemu_args);
        self
    }

    /// Returns the shared folder. Its path in the guest is the same.
    pub fn share(&self) -> &Path {
        self.share.path()
    }

    /// Copies the guest's program and those of the service into the shared folder; those in C into
    /// its folder `c`.
    pub fn bring_programs(&self, program: &Path) -> Result<()> {
        self.bring(program)?;
        let (built, folder) = (program.with_file_name("c"), self.share().join("c"));
        fs::create_dir_all(&folder)?;
        for name in SERVICE_PROGRAMS {
            self.bring(&program.with_file_name(name))?;
            fs::copy(built.join(name), folder.join(name))
                .with_context(|| format!("cannot copy {name} of {}", built.display()))?;
        }
        Ok(())
    }

    /// Copies a program or another file into the shared folder.
    pub fn bring(&self, file: &Path) -> Result<PathBuf> {
        let name = file.file_name().context("not a file")?;
        let to = self.share().join(name);
        fs::copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(to)
    }

    /// Copies this program into the shared folder, as `ferry`. A build may have replaced its file
    /// since it was started.
    pub fn bring_ferry(&self) -> Result<()> {
        fs::copy("/proc/self/exe", self.share().join("ferry")).context("cannot copy ferry")?;
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Boots, runs the shell script in the shared folder and powers off. Returns the script's exit
    /// status, or an error if the guest went down before the script ended. Afterwards the folder's
    /// `dmesg` has the kernel log.
    pub fn run(&self, script: &str) -> Result<i32> {
        self.run_unless(script, || false)
    }

    /// As `run`, but stops the guest and fails once `unwanted` returns true.
    pub fn run_unless(&self, script: &str, unwanted: impl Fn() -> bool) -> Result<i32> {
        let share = self.share().display();
        let wrapper = format!(
            "#!/bin/sh\ncd {share} || exit 1\n\
             trap '' HUP\n\
             sh ./command.sh\nstatus=$?\n\
             dmesg >dmesg\necho $status >{STATUS}.new\nsync\nmv {STATUS}.new {STATUS}\n"
        );
        write_atomic(&self.share().join("command.sh"), script.as_bytes())?;
        write_atomic(&self.share().join("run.sh"), wrapper.as_bytes())?;
        let step = Step::new(format!("in the guest: {}", self.name), self.console.clone())
            .timeout(self.timeout)
            .remedy("read the end of the log, which is the guest's console")
            .stop_when(unwanted);
        let mut vng = self.vng();
        vng.arg("--verbose")
            .arg("--")
            .arg(format!("sh {share}/run.sh"));
        let exit = step.run_any(&mut vng)?;
        let status = fs::read_to_string(self.share().join(STATUS)).unwrap_or_default();
        status.trim().parse().map_err(|_| {
            anyhow::anyhow!(
                "in the guest: {}: the guest ended before its command ({exit})\n  | {}\n  log: {}\n  \
                 what to do: read the end of the log; if it is empty, check that this machine has {} GiB \
                 of free memory for each guest",
                self.name,
                tail(&self.console, 15).join("\n  | "),
                self.console.display(),
                self.shape.gib()
            )
        })
    }

    /// Returns the kernel log of `run`.
    pub fn dmesg(&self) -> Result<String> {
        read_log(&self.share().join("dmesg"))
    }

    /// `vng` ready for what it shall run.
    pub fn vng(&self) -> Command {
        let program = &self.vng;
        let mut vng = Command::new(program);
        // vng starts virtme-run by name.
        let mut path = program
            .parent()
            .unwrap_or(Path::new("/"))
            .as_os_str()
            .to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let folders = [self.share()]
            .into_iter()
            .chain(self.folders.iter().map(PathBuf::as_path))
            .map(|dir| format!("--rwdir={}", dir.display()));
        // virtme-ng would emulate if it cannot use KVM.
        let (emulated, required) = match self.accelerator {
            Accelerator::Emulation => (true, ""),
            Accelerator::Kvm => (false, " -machine accel=kvm"),
        };
        let args = emulated.then_some(EMULATED_ARGS).into_iter();
        let args: Vec<&str> = args.chain(self.args.iter().map(String::as_str)).collect();
        vng.current_dir(self.share())
            .env("PATH", path)
            .env("TMPDIR", self.share())
            .args(emulated.then_some("--disable-kvm"))
            .args(["--force-9p", "--user=root"])
            .args(self.shape.args())
            .args(folders)
            .arg(format!("--append={}", args.join(" ")))
            .arg(format!("--qemu-opts={}{required}", self.qemu_args))
            .arg("--run")
            .arg(&self.image);
        vng
    }
}

/// virtme-ng in an environment of its own.
fn virtme_ng(context: &Context) -> Result<PathBuf> {
    if crate::toolchain::which("qemu-system-x86_64").is_none() {
        bail!("qemu-system-x86_64 is missing: install the package qemu-system-x86");
    }
    let cache = &context.cache;
    let venv = cache.path(format!("virtme-ng-{VIRTME_NG}"));
    let vng = venv.join("bin/vng");
    let ready = crate::cache::Stamp::new(venv.join("ferry.key"));
    let key = format!("{VIRTME_NG}\n{INIT}");
    if ready.is(&key) {
        return Ok(vng);
    }
    // Scripts of a Python environment contain its path, so it cannot be built elsewhere and
    // renamed.
    crate::cache::remove_dir(&venv)?;
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
                .arg(format!("virtme-ng=={VIRTME_NG}")),
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

/// The programs of the page migration service, in Rust in the same folder as the guest's own, and in
/// C in a folder `c` there.
const SERVICE_PROGRAMS: [&str; 5] = ["ph", "v", "vmig", "victim", "migstat"];

/// Returns where the guest's program is in a cache, if it is built.
pub fn program_in(cache: &Path) -> PathBuf {
    cargo::folder(cache, "guest").join("release/ferry-guest")
}

/// The guest's program and those of the service beside it, built for this machine: the guest runs on its
/// files. Before that, whether a guest can be had here at all.
pub fn program(context: &Context) -> Result<PathBuf> {
    virtme_ng(context)?;
    context
        .cache
        .step("building the guest's programs", "cargo-guest")
        .timeout(Duration::from_secs(1800))
        .quiet()
        .remedy("check that the network can be reached, then read the log")
        .run(
            cargo(context, "guest")?
                .args(["build", "--release", "--locked", "--package", "ferry-guest"])
                .args(["--package", "page-migrate-programs"]),
        )?;
    let program = program_in(context.cache.root());
    build_c(
        context,
        &program.with_file_name("c"),
        &context.repo.join("c-glue/include/uapi"),
    )?;
    let mode = fs::metadata(&program)?.permissions().mode();
    if mode & 0o111 == 0 {
        bail!("{} cannot be run", program.display());
    }
    Ok(program)
}

/// Builds the programs of the service in C into `out`, with the kernel's headers in `uapi`.
pub fn build_c(context: &Context, out: &Path, uapi: &Path) -> Result<()> {
    let assigned = |name: &str, path: &Path| {
        let mut word = OsString::from(format!("{name}="));
        word.push(path);
        word
    };
    context
        .cache
        .step("building the service's programs in C", "user-c")
        .timeout(Duration::from_secs(300))
        .quiet()
        .run(
            Command::new("make")
                .arg("-C")
                .arg(context.repo.join("user/c"))
                .arg(assigned("OUT", out))
                .arg(assigned("UAPI", uapi))
                .arg("CFLAGS=-O2 -g -Wall -Wextra -Werror"),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_on_two_of_three_nodes() {
        let shape = Shape {
            nodes: Nodes::Sockets,
            ..Shape::new(4, 1)
        };
        assert_eq!(
            shape.args(),
            [
                "--cpus=4",
                "--memory=3G",
                "--numa=1G,cpus=0-1",
                "--numa=1G,cpus=2-3",
                "--numa=1G"
            ]
        );
        // QEMU wants the distance of each pair, or none.
        assert_eq!(shape.qemu_args().matches("dist,").count(), 3);
    }

    #[test]
    fn every_cpu_is_on_the_first_node() {
        let shape = Shape::new(4, 1);
        assert_eq!(
            shape.args(),
            [
                "--cpus=4",
                "--memory=2G",
                "--numa=1G,cpus=0-3",
                "--numa=1G,initiator=0"
            ]
        );
    }
}
