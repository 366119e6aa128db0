// SPDX-License-Identifier: GPL-2.0
//! An interactive shell inside the booted Ferry kernel.

use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
};
use anyhow::{bail, Result};
use std::{env, io::IsTerminal};

pub fn shell(context: &Context) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("`ferry shell` needs a terminal");
    }
    let kernel = kernel::build(context, Variant::Ferry)?;
    let shape = Shape {
        cpus: 2,
        node_gib: 1,
    };
    let guest = Guest::new(context, &kernel.image, "shell", shape)?;
    guest.bring(&guest::program(context)?)?;
    guest.bring(&env::current_exe()?)?;
    eprintln!(
        "Ferry is off until: sysctl vm.mt_page_copy=1\n\
         What it does: ./ferry top\n\
         {} is here and writable from both sides; leave with `exit`.",
        guest.share().display()
    );
    let mut vng = guest.vng()?;
    if let Some(shell) = env::var_os("SHELL") {
        vng.env("SHELL", shell);
    }
    let status = vng.status()?;
    if !status.success() {
        bail!("the guest ended with {status}");
    }
    Ok(())
}
