// SPDX-License-Identifier: GPL-2.0-only
//! Runs the arm64 kernel on an emulated machine with a ZynqMP DMA engine of eight channels, which
//! mainline's driver drives. Its init is tests/arm64/dma_guest.c.

use crate::{
    cache::write_atomic,
    context::Context,
    kernel::{self, Built, Variant},
    step::Step,
};
use anyhow::{Context as _, Result};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const KERNEL_ARGS: &str = "console=ttyAMA0 numa=fake=2 panic=-1 loglevel=6";
const QEMU: &str = "qemu-system-aarch64";
/// The guest boots in seconds, and moves pages for some minutes.
const LIMIT: Duration = Duration::from_secs(1200);

/// The unit of the guest's clock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Time,
    /// A microsecond is a thousand instructions. The checks of DMA API use are off.
    Instructions,
}

/// Boots and moves pages by every method. Returns the console log, which has TAP lines and figures.
pub fn run(context: &Context, clock: Clock) -> Result<PathBuf> {
    let kernel = kernel::build(context, Variant::Arm64)?;
    let scratch = tempfile::tempdir_in(context.cache.dir("guests")?)?;
    let initrd = initrd(context, &kernel, scratch.path())?;
    let (name, qemu, kernel_args) = match clock {
        Clock::Time => ("guest-arm64", &[][..], ""),
        Clock::Instructions => (
            "guest-arm64-instructions",
            &["-icount", "shift=0,sleep=off"][..],
            " dma_debug=off",
        ),
    };
    let log = context.cache.log(name);
    // QEMU's exit status says nothing about the tests; the console does.
    Step::new(format!("in the guest: {name}"), log.clone())
        .timeout(LIMIT)
        .remedy("read the end of the log, which is the guest's console")
        .run_any(
            Command::new(QEMU)
                .args([
                    "-M",
                    "xlnx-versal-virt",
                    "-m",
                    "2G",
                    "-nographic",
                    "-no-reboot",
                ])
                .args(qemu)
                .arg("-append")
                .arg(format!("{KERNEL_ARGS}{kernel_args}"))
                .arg("-kernel")
                .arg(&kernel.image)
                .arg("-initrd")
                .arg(&initrd),
        )?;
    Ok(log)
}

/// Writes the guest's root: its init and a console.
fn initrd(context: &Context, kernel: &Built, scratch: &Path) -> Result<PathBuf> {
    let init = init(context, kernel, scratch)?;
    let list = scratch.join("list");
    let text = format!(
        "dir /dev 0755 0 0\nnod /dev/console 0600 0 0 c 5 1\nfile /init {} 0755 0 0\n",
        init.display()
    );
    write_atomic(&list, text.as_bytes())?;
    let initrd = scratch.join("initrd");
    // gen_init_cpio belongs to the kernel, which built it too.
    let status = Command::new(kernel.out.join("usr/gen_init_cpio"))
        .arg(&list)
        .stdout(File::create(&initrd)?)
        .status()
        .context("cannot run usr/gen_init_cpio of the kernel's build")?;
    anyhow::ensure!(status.success(), "gen_init_cpio: {status}");
    Ok(initrd)
}

/// Builds the init against the kernel's nolibc, so LLVM is the only cross compiler needed.
fn init(context: &Context, kernel: &Built, scratch: &Path) -> Result<PathBuf> {
    let toolchain = context.toolchain()?;
    context
        .cache
        .step("the arm64 kernel's headers", "headers-arm64")
        .timeout(Duration::from_secs(600))
        .quiet()
        .run(
            toolchain
                .make(&kernel.tree, &kernel.out, "arm64")
                .arg("headers"),
        )?;
    let init = scratch.join("init");
    let mut clang = Command::new("clang");
    toolchain.environment(&mut clang);
    context
        .cache
        .step("building the arm64 guest's init", "build-arm64-init")
        .timeout(Duration::from_secs(600))
        .quiet()
        .run(
            clang
                .args([
                    "--target=aarch64-linux-gnu",
                    "-Os",
                    "-Wall",
                    "-Werror",
                    "-static",
                ])
                .args([
                    "-ffreestanding",
                    "-nostdlib",
                    "-nostdlibinc",
                    "-fno-stack-protector",
                    "-fuse-ld=lld",
                ])
                .arg("-I")
                .arg(kernel.tree.join("tools/include/nolibc"))
                .arg("-isystem")
                .arg(kernel.out.join("usr/include"))
                .arg(context.repo.join("tests/arm64/dma_guest.c"))
                .arg("-o")
                .arg(&init),
        )?;
    Ok(init)
}
