// SPDX-License-Identifier: GPL-2.0-only
//! Whether guests can run on this machine's CPUs, by KVM. The device may exist and still be unable
//! to run a kernel, as in some nested virtual machines, so a guest is booted to find out.

use crate::{
    cache::Stamp,
    context::Context,
    guest::{Accelerator, Guest, Shape},
    step::was_interrupted,
};
use anyhow::{Context as _, Result};
use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

const DEVICE: &str = "/dev/kvm";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// A guest takes a few seconds on a machine that can run it.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns KVM if it runs this kernel, else emulation, and says which. Boots a guest once for each
/// kernel and boot of this machine.
pub fn find(context: &Context, image: &Path) -> Result<Accelerator> {
    if let Err(error) = File::options().read(true).write(true).open(DEVICE) {
        eprintln!("the guests are emulated: cannot open {DEVICE}: {error}");
        return Ok(Accelerator::Emulation);
    }
    let found = Stamp::new(context.cache.path("kvm"));
    let key = key(image)?;
    let [works, fails] = ["works", "fails"].map(|end| format!("{key}{end}"));
    if !found.is(&works) && !found.is(&fails) {
        let guest = Guest::new(context, image, "kvm", Shape::new(2, 1))?
            .kernel_args("kunit.enable=0")
            .accelerator(Accelerator::Kvm)
            .timeout(LIMIT);
        match guest.run("true") {
            Err(error) if was_interrupted(&error) => return Err(error),
            Ok(0) => found.set(&works)?,
            _ => found.set(&fails)?,
        }
    }
    if found.is(&works) {
        eprintln!("the guests run on this machine's CPUs, by KVM");
        return Ok(Accelerator::Kvm);
    }
    eprintln!(
        "the guests are emulated: by KVM this kernel did not boot within {} s",
        LIMIT.as_secs()
    );
    Ok(Accelerator::Emulation)
}

/// Returns text that differs for each boot of this machine and each kernel.
fn key(image: &Path) -> Result<String> {
    let boot = fs::read_to_string(BOOT).with_context(|| format!("cannot read {BOOT}"))?;
    let built = fs::metadata(image)?.modified()?;
    Ok(format!("{boot}{image:?} {built:?}\n"))
}
