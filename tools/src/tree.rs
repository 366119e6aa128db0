// SPDX-License-Identifier: GPL-2.0-only
//! Kernel trees in the cache: the unpatched source, and copies of it with Ferry laid over.

use crate::{
    cache::Stamp,
    context::Context,
    overlay::{self, Overlay, KSELFTESTS},
    patches,
    step::Step,
};
use anyhow::Result;
use std::{path::PathBuf, process::Command, time::Duration};

pub struct Tree {
    pub dir: PathBuf,
    /// Changes when any file of the tree changes, other than the kernel's selftests of mm/.
    pub key: String,
}

pub fn vanilla(context: &Context) -> Result<Tree> {
    let source = context.source()?;
    Ok(Tree {
        dir: source.vanilla(),
        key: source.key.clone(),
    })
}

/// Returns the source with all patches, and the repository's kernel part in mm/ferry.
pub fn ferry(context: &Context) -> Result<Tree> {
    laid(context, "ferry", &overlay(context)?)
}

/// Returns the files in which that tree differs from the source.
pub fn overlay(context: &Context) -> Result<Overlay> {
    let source = context.source()?;
    let series = patches::load(&context.repo, source.release)?;
    let mut overlay = patches::patched(&source.vanilla(), &series, &source.version)?;
    overlay.extend(overlay::kernel_part(&context.repo, source.release)?);
    Ok(overlay)
}

/// Returns a copy of the source, named `name`, that holds the overlay.
pub fn laid(context: &Context, name: &str, overlay: &Overlay) -> Result<Tree> {
    let source = context.source()?;
    let dir = source.home.join(name);
    let journal = source.home.join(format!("{name}.laid"));
    let base = Stamp::new(source.home.join(format!("{name}.base")));
    if !base.is(&source.key) {
        base.clear()?;
        Stamp::new(journal.clone()).clear()?;
        // Files are hard links, so a tree takes little space. A changed file is replaced, never
        // written in place.
        let mut link_from = std::ffi::OsString::from("--link-dest=");
        link_from.push(source.vanilla());
        Step::new(
            format!("making the tree `{name}`"),
            context.cache.log("tree"),
        )
        .timeout(Duration::from_secs(1800))
        .remedy("check the free space, then try again")
        .run(
            Command::new("rsync")
                .args(["-a", "--delete"])
                .arg(link_from)
                .arg(source.vanilla().join(""))
                .arg(&dir),
        )?;
        base.set(&source.key)?;
    }
    overlay::lay(overlay, &source.vanilla(), &dir, &journal)?;
    // A kernel is not made again for its selftests.
    let mut built = overlay.clone();
    built.retain(|path, _| !path.starts_with(KSELFTESTS));
    Ok(Tree {
        dir,
        key: format!("{}+{}", source.key, overlay::key(&built)),
    })
}
