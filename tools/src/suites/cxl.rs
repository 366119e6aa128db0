// SPDX-License-Identifier: GPL-2.0-only
//! Runs the commands of `docs/tiering.rst` on a CXL device that QEMU emulates. They online the device
//! as node 1, turn demotion and promotion on, and remove the device after the tests.

use super::{
    documented::Page,
    guest::{boot_between, ready, Booting, LIMIT, USUAL},
    Tally,
};
use crate::{
    context::Context,
    guest::{self, Nodes},
    kernel::Variant,
    step::output,
    toolchain::which,
};
use anyhow::{ensure, Context as _, Result};
use std::process::Command;

/// The first version of `cxl` that creates regions of volatile memory.
const CXL_PROGRAM: u32 = 77;
/// The first version of QEMU that can run code and walk page tables in CXL memory under emulation.
const QEMU: u32 = 9;
const CPUS: u32 = 2;
/// Sections whose commands run before the tests.
const BEFORE: [&str; 4] = [
    "From the device to a node",
    "Nodes and tiers",
    "Demotion",
    "Promotion",
];
const AFTER: &str = "Taking a device away";

/// Each kind of migration to the device and from it.
const CASES: [&str; 6] = [
    "tiers/proactive",
    "promotion/small",
    "promotion/large",
    "balancing/tiering-4k",
    "crews/same-anon-vma",
    "unplug/memory-engine",
];
/// The tests whose names contain these differ in the LRU or in the size of folios alone.
const EXCEPT: &str = "--except generations --except huge";

const NODES: &str = "/sys/devices/system/node";
const GROUPS: &str = "/sys/fs/cgroup";

const CXL: Booting = Booting {
    name: "-cxl",
    nodes: Nodes::Cxl,
    ..USUAL
};

/// Boots the guest, and runs the commands and the tests there.
pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    for program in ["cxl", "daxctl"] {
        ensure!(
            which(program).is_some(),
            "there is no {program} in PATH\n  what to do: install ndctl {CXL_PROGRAM} or later"
        );
    }
    for (program, least) in [("qemu-system-x86_64", QEMU), ("cxl", CXL_PROGRAM)] {
        let version = output(Command::new(program).arg("--version"))?;
        let version = version.lines().next().unwrap_or_default();
        ensure!(
            major(version) >= Some(least),
            "{program} is too old: {version}\n  what to do: install version {least} or later, or put its \
             folder first in PATH"
        );
    }
    let [before, after] = scripts(&Page::read(&context.repo, "tiering.rst")?)?;
    let program = guest::program(context)?;
    let ready = ready(context, &program, Variant::Extra, (CPUS, &CXL), LIMIT)?;
    let cases = format!("{} {EXCEPT}", CASES.join(" "));
    let booted = boot_between(&ready, "on", &cases, [&before, &after])?;
    tally.case("each name in the list has a test", booted.has_all(&CASES));
    booted.tell(tally);
    Ok(())
}

/// Returns the first number in a text.
fn major(version: &str) -> Option<u32> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    numbers.find(|word| !word.is_empty())?.parse().ok()
}

/// Returns the commands before the tests and after them, with checks of their effect. The tests need
/// helpers for all reasons. A file in memory of the device must keep its contents when the device goes
/// away.
fn scripts(page: &Page) -> Result<[String; 2]> {
    let commands = |section: &str| page.commands(section).map(|blocks| blocks.concat());
    let sections = BEFORE.map(commands);
    let before = sections.into_iter().collect::<Result<String>>()?;
    // The kernel adds the device a moment after the region.
    let wait = "until [ -e /sys/bus/dax/devices/dax0.0 ]; do sleep 0.1; done\ndaxctl list";
    let before = before.replacen("daxctl list", wait, 1);
    let after = commands(AFTER).context("the end of the page")?;
    Ok([
        format!(
            "{before}\
             echo all >/sys/kernel/mm/ferry/copy/reasons\n\
             echo 0 >/proc/sys/kernel/numa_balancing\n\
             [ $(cat {NODES}/has_memory) = 0-1 ]\n\
             [ $(ls -d /sys/devices/virtual/memory_tiering/memory_tier* | wc -l) = 2 ]\n"
        ),
        format!(
            "echo +cpuset >{GROUPS}/cgroup.subtree_control\n\
             mkdir {GROUPS}/device\n\
             echo 1 >{GROUPS}/device/cpuset.mems\n\
             sh -c 'echo $$ >{GROUPS}/device/cgroup.procs && head -c 64M /dev/urandom >/run/kept'\n\
             [ $(sed -n 's/.*Node 1 Shmem: *\\([0-9]*\\) kB/\\1/p' {NODES}/node1/meminfo) -ge 65536 ]\n\
             sha256sum /run/kept >/run/sum\n\
             {after}\
             [ $(cat {NODES}/has_memory) = 0 ]\n\
             sha256sum --check /run/sum\n"
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright\n";
        assert_eq!(major(debian), Some(7));
        assert_eq!(major("QEMU emulator version 10.0.2\n"), Some(10));
        assert_eq!(major("76.1\n"), Some(76));
        assert_eq!(major("qemu"), None);
    }

    #[test]
    fn the_page_has_all_sections() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.join("..");
        let [before, after] = scripts(&Page::read(&repo, "tiering.rst").unwrap()).unwrap();
        assert!(before.contains("cxl create-region"), "{before}");
        assert!(after.contains("daxctl offline-memory"), "{after}");
    }
}
