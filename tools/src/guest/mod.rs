// SPDX-License-Identifier: GPL-2.0-only
//! Boots a kernel under software emulation and runs one script in it as root: with virtme-ng on this
//! machine's files, or, for another architecture, on a root of the distribution's packages.

mod foreign;
mod programs;
mod virtme;

pub use programs::{build_c, fuzzer, logic_fuzzer, program, program_in, program_on, HOST_COMPILER};

use crate::{
    cache::{read_log, write_atomic},
    context::Context,
    platform::{Foreign, Platform},
    step::{tail, Step},
};
use anyhow::{bail, Context as _, Result};
use programs::SERVICE_PROGRAMS;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// Emulation runs `rep movs` one element at a time: without this argument copies look six times
/// slower.
const EMULATED_ARGS: &str = "clearcpuid=rep_good,erms,fsrm";
/// The HMAT describes node 1's memory as slower, and so as a lower memory tier. Both are equally
/// fast.
const TIERS: &str = "-machine hmat=on \
    -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=10 \
    -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=10G \
    -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=40 \
    -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=2G";
/// A CXL memory device behind its own root port, and its fixed memory window. QEMU emulates each
/// access to the device separately, so it is far slower than other memory.
const CXL: &str = "-machine cxl=on,cxl-fmw.0.targets.0=cxl,cxl-fmw.0.size=1G \
    -object memory-backend-ram,id=cxl-memory,size=1G \
    -device pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl \
    -device cxl-rp,port=0,bus=cxl,id=cxl-port,chassis=0,slot=2 \
    -device cxl-type3,bus=cxl-port,volatile-memdev=cxl-memory,id=cxl-device";
/// The file with the exit status; the script writes it when the guest's command has ended.
const STATUS: &str = "status";

pub struct Guest {
    launcher: Launcher,
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

/// The program that starts QEMU, and the files that a guest has.
enum Launcher {
    /// This program of virtme-ng, on this machine's files.
    VirtmeNg(PathBuf),
    /// QEMU itself, with this folder as the guest's root.
    Foreign(&'static Foreign, PathBuf),
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

/// CPUs and memory. All nodes have `node_gib` GiB of memory, except that of a CXL device, which has
/// 1 GiB.
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
    /// All CPUs are on node 0. Node 1 gets the memory of a CXL device, once the guest has made a
    /// region of it.
    Cxl,
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
            Nodes::Cxl => vec![format!(",cpus=0-{last}")],
        };
        let mut args = vec![
            format!("--cpus={cpus}"),
            format!("--memory={}G", numa.len() as u32 * node_gib),
        ];
        args.extend(numa.iter().map(|more| format!("--numa={node_gib}G{more}")));
        args
    }

    /// Returns the memory of all nodes and devices.
    fn gib(self) -> u32 {
        match self.nodes {
            Nodes::Tiers => 2 * self.node_gib,
            Nodes::Sockets => 3 * self.node_gib,
            Nodes::Cxl => self.node_gib + 1,
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
            Nodes::Cxl => CXL.to_owned(),
        }
    }
}

impl Guest {
    pub fn new(context: &Context, image: &Path, name: &str, shape: Shape) -> Result<Self> {
        Self::on(context, Platform::X86, (image, name), shape)
    }

    /// As `new`, on a platform.
    pub fn on(
        context: &Context,
        platform: Platform,
        (image, name): (&Path, &str),
        shape: Shape,
    ) -> Result<Self> {
        let guests = context.cache.dir("guests")?;
        let share = tempfile::Builder::new()
            .prefix("guest-")
            .tempdir_in(&guests)?;
        let (launcher, qemu_args) = match platform.foreign() {
            None => {
                let vng = virtme::program(&context.cache)?;
                (Launcher::VirtmeNg(vng), shape.qemu_args())
            }
            Some(foreign) => {
                let root = foreign::root(&context.cache, foreign, &guests)?;
                (Launcher::Foreign(foreign, root), String::new())
            }
        };
        Ok(Guest {
            launcher,
            image: image.to_path_buf(),
            name: name.to_owned(),
            console: context.cache.log(&format!("guest-{name}")),
            shape,
            accelerator: Accelerator::Emulation,
            args: vec![platform.kernel_args().to_owned()],
            qemu_args,
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
        let mut command = match &self.launcher {
            Launcher::VirtmeNg(program) => {
                let mut vng = self.vng(program);
                vng.arg("--verbose")
                    .arg("--")
                    .arg(format!("sh {share}/run.sh"));
                vng
            }
            Launcher::Foreign(foreign, root) => self.qemu(foreign, root)?,
        };
        let exit = step.run_any(&mut command)?;
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

    /// Returns the command that runs a program in the guest, in the terminal of this one.
    pub fn interactive(&self, program: &Path) -> Result<Command> {
        let Launcher::VirtmeNg(vng) = &self.launcher else {
            bail!("guests of other architectures have no terminal");
        };
        let mut vng = self.vng(vng);
        vng.arg("--shell").arg(program);
        Ok(vng)
    }

    /// Returns the command that boots the guest with virtme-ng, without the program to run there.
    fn vng(&self, program: &Path) -> Command {
        let mut vng = virtme::command(program);
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

    /// Returns the command that boots a guest of another architecture, which runs its script.
    fn qemu(&self, foreign: &Foreign, root: &Path) -> Result<Command> {
        let mut qemu = foreign::command(foreign, root, self.shape, (self.share(), &self.folders))?;
        let own = foreign::kernel_args(self.share(), &self.folders);
        qemu.args(self.qemu_args.split_whitespace())
            .arg("-append")
            .arg(format!("{own} {}", self.args.join(" ")))
            .arg("-kernel")
            .arg(&self.image);
        Ok(qemu)
    }
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
