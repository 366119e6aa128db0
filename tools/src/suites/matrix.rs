// SPDX-License-Identifier: GPL-2.0-only
//! mm/ with Ferry in configurations that no other suite builds, and by other compilers and
//! checkers. A warning in mm/ferry is a failure, and so is one in another file of mm/ that the
//! unpatched source does not have.

use super::Tally;
use crate::{
    cache::remove_dir,
    context::Context,
    kernel::{self, Variant},
    step::Step,
    tree::{self, Tree},
};
use anyhow::{ensure, Context as _, Result};
use std::{collections::BTreeSet, fs, path::Path, time::Duration};

const LIMIT: Duration = Duration::from_secs(3600);

/// One build: what differs from the configuration of Ferry's kernel, and from its `make` command.
struct Build {
    name: &'static str,
    options: &'static str,
    make: &'static [&'static str],
}

/// What only `sparse` and `W=1` warn of is in the unpatched source, too.
const CHECKED: Build = Build {
    name: "sparse and W=1",
    options: "",
    make: &["W=1", "C=1", "CHECK=sparse"],
};

const BUILDS: &[Build] = &[
    Build {
        name: "GCC",
        options: "",
        make: &["LLVM="],
    },
    Build {
        name: "modules, with versions of symbols",
        options: "CONFIG_MODULES=y\nCONFIG_MODVERSIONS=y\nCONFIG_GENDWARFKSYMS=y\n\
                  CONFIG_DEBUG_INFO_NONE=n\nCONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y\n",
        make: &[],
    },
    Build {
        name: "8192 CPUs",
        options: "CONFIG_MAXSMP=y\nCONFIG_NR_CPUS=8192\n",
        make: &[],
    },
    Build {
        name: "without swap",
        options: "CONFIG_SWAP=n\n",
        make: &[],
    },
    Build {
        name: "without memory cgroups",
        options: "CONFIG_MEMCG=n\n",
        make: &[],
    },
    Build {
        name: "without NUMA balancing",
        options: "CONFIG_NUMA_BALANCING=n\nCONFIG_FERRY_PAGECACHE_PROMOTION=n\n",
        make: &[],
    },
    Build {
        name: "without huge pages",
        options: "CONFIG_TRANSPARENT_HUGEPAGE=n\nCONFIG_TRANSPARENT_HUGEPAGE_MADVISE=n\n",
        make: &[],
    },
    Build {
        name: "without Ferry's optional features",
        options: "CONFIG_FERRY_CREW=n\nCONFIG_FERRY_MIGRC=n\n\
                  CONFIG_FERRY_PAGECACHE_PROMOTION=n\nCONFIG_FERRY_SERVICE=n\n",
        make: &[],
    },
];

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let ferry = tree::ferry(context)?;
    for build in BUILDS {
        let built = warnings(context, &ferry, Variant::Ferry, build)
            .and_then(|found| none_but(&found, &BTreeSet::new()));
        tally.check(build.name, built)?;
    }
    tally.check(CHECKED.name, checked(context, &ferry))
}

fn checked(context: &Context, ferry: &Tree) -> Result<()> {
    let vanilla = tree::vanilla(context)?;
    let theirs = warnings(context, &vanilla, Variant::Vanilla, &CHECKED)?;
    none_but(
        &warnings(context, ferry, Variant::Ferry, &CHECKED)?,
        &theirs,
    )
}

/// Builds mm/ from nothing, and returns the warnings.
fn warnings(
    context: &Context,
    tree: &Tree,
    variant: Variant,
    build: &Build,
) -> Result<BTreeSet<String>> {
    let mut config = kernel::fragments(&context.repo, variant)?;
    config.extend(build.options);
    let out = kernel::out_dir(context, "matrix")?;
    let arch = variant.arch();
    kernel::configure(context, tree, &out, arch, &config, "matrix")?;
    remove_dir(&out.join("mm"))?;
    let log = context.cache.log("matrix");
    let mut make = context.toolchain()?.make(&tree.dir, &out, arch);
    Step::new(
        format!("building mm/ of {}: {}", variant.name(), build.name),
        log.clone(),
    )
    .timeout(LIMIT)
    .run(make.args(build.make).arg("mm/"))?;
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(found(&String::from_utf8_lossy(&text), &tree.dir))
}

/// Returns the warnings of a build log about files in mm/, without the numbers of their lines.
fn found(log: &str, tree: &Path) -> BTreeSet<String> {
    let tree = format!("{}/", tree.display());
    let is_alarm = |line: &&str| line.contains("warning:") || line.contains("error:");
    log.lines()
        .filter(is_alarm)
        .map(|line| line.trim_start_matches("../").replace(&tree, ""))
        .filter(|line| line.starts_with("mm/"))
        .map(|line| {
            let is_text = |part: &&str| part.parse::<u32>().is_err();
            let parts: Vec<&str> = line.split(':').filter(is_text).collect();
            parts.join(":")
        })
        .collect()
}

/// Fails if there is a warning that is not one of `theirs`.
fn none_but(found: &BTreeSet<String>, theirs: &BTreeSet<String>) -> Result<()> {
    let new: Vec<&str> = found.difference(theirs).map(String::as_str).collect();
    ensure!(new.is_empty(), "warnings: {}", new.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_warnings_count() {
        let tree = Path::new("/k");
        let theirs = found(
            "/k/mm/vmscan.c:10:5: warning: x is unused\n  CC mm/y.o\n",
            tree,
        );
        assert_eq!(theirs.len(), 1);
        let moved = found("/k/mm/vmscan.c:99:5: warning: x is unused\n", tree);
        none_but(&moved, &theirs).unwrap();
        let headers = found("/k/include/linux/mm.h:1:1: warning: z\n", tree);
        none_but(&headers, &theirs).unwrap();
        let ours = found("mm/ferry/c-glue/crew/crew.c:3:1: error: y\n", tree);
        let error = none_but(&ours, &theirs).unwrap_err().to_string();
        assert!(error.contains("crew.c"), "{error}");
    }
}
