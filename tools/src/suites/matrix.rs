// SPDX-License-Identifier: GPL-2.0-only
//! mm/ with Ferry in configurations that no other suite builds, and by other compilers and
//! checkers. A warning in mm/ferry is a failure, and so is one in another file of mm/ that the
//! unpatched source does not have. PREEMPT_RT has a suite of its own.

use super::Tally;
use crate::{
    cache::{read_log, remove_dir},
    context::Context,
    kernel::{self, Variant},
    ktap::Outcome,
    step,
    tree::{self, Tree},
};
use anyhow::{ensure, Result};
use std::{collections::BTreeSet, path::Path, process::Command, time::Duration};

const LIMIT: Duration = Duration::from_secs(3600);

/// One build: what differs from the configuration of Ferry's kernel, and from its `make` command.
struct Build {
    name: &'static str,
    options: &'static str,
    make: &'static [&'static str],
}

/// Sparse 0.6.4 does not know the first word, without which the kernel's makefile does not take it.
const SPARSE: &str = "CHECK=sparse -D__typeof_unqual__=__typeof__";

/// The unpatched source has warnings of these checkers, too.
const CHECKED: [Build; 2] = [
    Build {
        name: "W=1",
        options: "",
        make: &["W=1"],
    },
    Build {
        name: "sparse",
        options: "",
        make: &["C=1", SPARSE],
    },
];

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
        name: "without migration",
        options: "CONFIG_MIGRATION=n\nCONFIG_COMPACTION=n\nCONFIG_NUMA_MIGRATION=n\n\
                  CONFIG_NUMA_BALANCING=n\nCONFIG_CMA=n\nCONFIG_CMA_DEBUGFS=n\n\
                  CONFIG_MEMORY_HOTREMOVE=n\nCONFIG_TRANSPARENT_HUGEPAGE=n\n\
                  CONFIG_TRANSPARENT_HUGEPAGE_MADVISE=n\nCONFIG_FERRY=n\nCONFIG_FERRY_CREW=n\n\
                  CONFIG_FERRY_MIGRC=n\nCONFIG_FERRY_PAGECACHE_PROMOTION=n\n\
                  CONFIG_FERRY_SERVICE=n\n",
        make: &[],
    },
    Build {
        name: "without crews",
        options: "CONFIG_FERRY_CREW=n\nCONFIG_FERRY_SERVICE=n\n",
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
    for build in &CHECKED {
        // The kernel's makefile would warn, and then build without the checker.
        if build.make.contains(&SPARSE)
            && step::output(Command::new("sparse").arg("--version")).is_err()
        {
            tally.case(
                build.name,
                Outcome::Skipped("sparse is not installed".to_owned()),
            );
            continue;
        }
        tally.check(build.name, checked(context, &ferry, build))?;
    }
    Ok(())
}

fn checked(context: &Context, ferry: &Tree, build: &Build) -> Result<()> {
    let vanilla = tree::vanilla(context)?;
    let theirs = warnings(context, &vanilla, Variant::Vanilla, build)?;
    none_but(&warnings(context, ferry, Variant::Ferry, build)?, &theirs)
}

/// Builds mm/ from nothing, and returns the warnings.
fn warnings(
    context: &Context,
    tree: &Tree,
    variant: Variant,
    build: &Build,
) -> Result<BTreeSet<String>> {
    let mut config = kernel::of_variant(&context.repo, variant)?;
    config.extend(build.options);
    let out = kernel::out_dir(context, "matrix")?;
    let arch = variant.arch();
    kernel::configure(context, tree, &out, arch, &config, "matrix")?;
    remove_dir(&out.join("mm"))?;
    let mut make = context.toolchain()?.make(&tree.dir, &out, arch);
    let title = format!("building mm/ of {}: {}", variant.name(), build.name);
    context
        .cache
        .step(title, "matrix")
        .timeout(LIMIT)
        .run(make.args(build.make).arg("mm/"))?;
    // Another compiler can change which options are offered.
    ensure!(
        variant == Variant::Vanilla || out.join("mm/ferry/rust/ferry.o").exists(),
        "the build left out mm/ferry"
    );
    Ok(found(&read_log(&context.cache.log("matrix"))?, &tree.dir))
}

/// Returns the warnings of a build log about files in mm/, without the numbers of their lines.
fn found(log: &str, tree: &Path) -> BTreeSet<String> {
    let tree = format!("{}/", tree.display());
    // Sparse goes on after what it calls an error.
    let is_alarm = |line: &str| line.contains("warning:") || line.contains("error:");
    let next = log.lines().skip(1).chain([""]);
    log.lines()
        .zip(next)
        .filter(|(line, _)| is_alarm(line))
        // rustc names the file in the line after its message.
        .map(
            |(line, next)| match next.trim_start().strip_prefix("--> ") {
                Some(place) => format!("{place}: {line}"),
                None => line.to_owned(),
            },
        )
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
        let rust = "warning: method `x` is never used\n  --> /k/mm/ferry/rust/a.rs:7:1\n   |\n";
        let error = none_but(&found(rust, tree), &theirs)
            .unwrap_err()
            .to_string();
        assert!(error.contains("a.rs") && error.contains("`x`"), "{error}");
    }
}
