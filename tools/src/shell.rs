// SPDX-License-Identifier: GPL-2.0-only
//! An interactive shell inside the booted Ferry kernel.

use crate::{
    context::Context,
    guest::{self, Guest, Shape},
    kernel::{self, Variant},
};
use anyhow::{bail, Result};
use std::{
    env,
    fs::{self, Permissions},
    io::IsTerminal,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

pub fn shell(context: &Context) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("`ferry shell` needs a terminal");
    }
    let kernel = kernel::build(context, Variant::Ferry)?;
    let shape = Shape::new(2, 1);
    let guest = Guest::new(context, &kernel.image, "shell", shape)?;
    guest.bring_programs(&guest::program(context)?)?;
    guest.bring_ferry()?;
    let login = guest.share().join("shell");
    fs::write(&login, script(&user_shell(), guest.share()))?;
    fs::set_permissions(&login, Permissions::from_mode(0o755))?;
    eprintln!(
        "Ferry is off; to turn it on: sysctl vm.mt_page_copy=1\n\
         To watch it: ferry top\n\
         Programs of the page migration service: ph, v, victim and vmig, migstat\n\
         {} is shared with the host and writable from both sides; leave with `exit`.",
        guest.share().display()
    );
    let status = guest.interactive(&login)?.status()?;
    if !status.success() {
        bail!("the guest ended with {status}");
    }
    Ok(())
}

/// Returns the user's own shell, which exists in the guest too: it runs on this machine's files.
fn user_shell() -> PathBuf {
    env::var_os("SHELL")
        .map(PathBuf::from)
        .filter(|shell| shell.is_file())
        .unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

/// Returns the script that the guest starts as its shell: it runs the user's, with the shared
/// folder in PATH.
fn script(shell: &Path, folder: &Path) -> String {
    format!(
        "#!/bin/sh\nPATH='{folder}':$PATH\nSHELL='{shell}'\nexport PATH SHELL\nexec '{shell}' \"$@\"\n",
        folder = folder.display(),
        shell = shell.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_was_brought_is_found_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = temp.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            path
        };
        put("ph", "#!/bin/sh\necho found $1\n");
        let login = put("shell", &script(Path::new("/bin/sh"), temp.path()));
        // The file is run by a shell: a file just written may still be open for writing in a child
        // of another test.
        let run = Command::new("/bin/sh")
            .arg(login)
            .args(["-c", "ph $SHELL"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout), "found /bin/sh\n");
    }
}
