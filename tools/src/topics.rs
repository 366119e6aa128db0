// SPDX-License-Identifier: GPL-2.0-only
//! The topics of the series. Each applies after those before it, and the kernel builds and works
//! after each.
//!
//! The folder of a topic, such as `c-glue/patches/7.3/2-copy`, has its patches for the newest release
//! of Linux, and these texts:
//!
//! - `cover`: the subject and the text of its cover letter;
//! - `add`: the commit message of the patch that adds its files. It comes first, since the other
//!   patches include headers that it adds;
//! - `offer`: the commit message of the patch that lists the files in Kconfig and Kbuild. It comes
//!   last, so that no step offers an option whose code or hooks are missing.
//!
//! The folder of the same name for an older release, such as `c-glue/patches/7.2/2-copy`, has the
//! patches of that name which differ there.

use crate::source::Release;
use anyhow::{bail, Context as _, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

pub struct Topic {
    /// Its name on the command line; its folder has a number before it.
    pub name: &'static str,
    /// Its subject, for the help text.
    pub about: &'static str,
    /// The files and folders of the repository that it adds to the kernel. The longest path that
    /// fits a file decides; the files that no topic names come with [`COPY`].
    files: &'static [&'static str],
    /// The guest tests that need it, by the beginning of their names. The longest that fits decides;
    /// other tests need no topic.
    pub tests: &'static [&'static str],
}

impl Topic {
    /// Whether it changes the kernel, and not only its selftests.
    pub fn changes_kernel(&self) -> bool {
        self.files != [SELFTESTS]
    }
}

/// The topic that adds the files of mm/ferry that no other topic names.
const COPY: usize = 1;

/// The programs that the kernel has beside its own tests of mm/.
pub const SELFTESTS: &str = "c-glue/selftests";

pub const TOPICS: [Topic; 9] = [
    Topic {
        name: "preparation",
        about: "prepares mm/ in plain C, without Ferry",
        files: &[],
        tests: &[],
    },
    Topic {
        name: "copy",
        about: "the copy engine, DMA engines, and the build of mm/ferry",
        files: &[
            "docs/abi/sysfs-kernel-mm-ferry",
            "docs/admin-guide.rst",
            "docs/design.rst",
            "docs/glossary.rst",
            "docs/settings.rst",
        ],
        tests: &[
            "accounting/",
            "counters/",
            "dma/",
            "gigantic/",
            "nodes/batches-",
            "method/",
            "rights/",
            "unplug/cpus-engine",
            "unplug/memory-engine",
        ],
    },
    Topic {
        name: "crews",
        about: "several tasks migrate a long list",
        files: &[
            "c-glue/crew",
            "c-glue/include/linux/ferry_lru.h",
            "c-glue/isolate",
            "c-glue/tests/migrate_callback.c",
            "rust/crew",
            "rust/kernel/lru_batches.rs",
            "rust/kernel/scoped_share.rs",
            "rust/kernel/task_context.rs",
            "rust/tests/chunks.rs",
            "rust/tests/crew.rs",
            "rust/tests/examples/lru_batches.rs",
            "rust/tests/examples/scoped_share.rs",
            "rust/tests/examples/task_context.rs",
            "rust/tests/examples/user_pages.rs",
        ],
        tests: &[
            "accounting/crew",
            "counters/crew",
            "counters/rows",
            "crews/",
            "faults/",
            "killed/",
            "limits/",
            "nodes/crews-",
            "settings/",
            "sysctl/",
            "unplug/cpus-crew",
            "unplug/memory-crew",
        ],
    },
    Topic {
        name: "demotion",
        about: "demotes the folios of an lruvec together",
        files: &[],
        tests: &["method/demotion", "method/reclaim", "tiers/"],
    },
    Topic {
        name: "promotion",
        about: "promotion of page cache",
        files: &[
            "c-glue/include/linux/ferry_promotion.h",
            "c-glue/promotion",
            "docs/promotion.rst",
            "rust/kernel/mem_hotplug.rs",
            "rust/promotion",
            "rust/tests/examples/promotion.rs",
        ],
        tests: &["promotion/"],
    },
    Topic {
        name: "migrc",
        about: "deferred TLB flushes",
        files: &[
            "c-glue/include/linux/ferry_group.h",
            "c-glue/include/linux/ferry_migrc.h",
            "c-glue/migrc",
            "c-glue/tests/migrc_group.c",
            "docs/migrc.rst",
            "rust/migrc",
            "rust/tests/migrc.rs",
        ],
        tests: &["litmus/", "migrc/"],
    },
    Topic {
        name: "runs",
        about: "small folios are unmapped and remapped in runs",
        files: &[
            "c-glue/include/linux/ferry_run.h",
            "c-glue/runs",
            "c-glue/tests/run_flush.c",
        ],
        tests: &["runs/"],
    },
    Topic {
        name: "service",
        about: "/dev/page_migrate and MPOL_MF_MOVE_MT",
        files: &[
            "README.md",
            "c-glue/include/linux/ferry_service.h",
            "c-glue/include/uapi",
            "c-glue/service",
            "docs",
            "rust/kernel/extensible.rs",
            "rust/kernel/misc_device.rs",
            "rust/service",
            "rust/tests/examples/page_frame.rs",
            "rust/tests/examples/target.rs",
        ],
        tests: &[
            "crews/asked-for",
            "faults/asked",
            "faults/service-",
            "killed/move-pages-asked",
            "killed/service-",
            "limits/flag-",
            "limits/key-off-again",
            "limits/lanes-for-reclaim",
            "limits/nice",
            "limits/quota",
            "limits/service-",
            "limits/weight",
            "programs/",
            "seed/",
            "service/",
            "sysctl/reasons-hold",
        ],
    },
    Topic {
        name: "selftests",
        about: "kernel selftests",
        files: &[SELFTESTS],
        tests: &[],
    },
];

/// The number of the last topic.
pub const LAST: usize = TOPICS.len() - 1;

/// Returns the folder with the texts of all topics, and their patches for the newest release.
pub fn home(repo: &Path) -> PathBuf {
    home_of(repo, Release::NEWEST)
}

/// Returns the folder with the patches of all topics for a release.
pub fn home_of(repo: &Path, release: Release) -> PathBuf {
    repo.join("c-glue/patches").join(release.name())
}

/// Returns the number of a topic, counted from 0.
pub fn find(name: &str) -> Result<usize> {
    let found = TOPICS.iter().position(|topic| topic.name == name);
    found.with_context(|| {
        let names = TOPICS.map(|topic| topic.name).join(", ");
        format!("there is no topic `{name}`; the topics are {names}")
    })
}

/// Returns the folder of topic `nr`.
pub fn folder(repo: &Path, nr: usize) -> PathBuf {
    home(repo).join(folder_name(nr))
}

/// Returns the name of the folder of topic `nr`.
pub fn folder_name(nr: usize) -> String {
    format!("{}-{}", nr + 1, TOPICS[nr].name)
}

/// Returns a text of the series: a subject line, an empty line and a body.
pub fn text(path: &Path) -> Result<String> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = text.lines();
    let subject = lines.next().unwrap_or_default();
    if subject.is_empty() || lines.next() != Some("") {
        bail!(
            "{} must begin with a subject and an empty line",
            path.display()
        );
    }
    Ok(text)
}

/// Returns the number of the topic that adds a file of the repository.
pub fn of_file(path: &Path) -> usize {
    let all = TOPICS.iter().enumerate();
    let fits = all.flat_map(|(nr, topic)| {
        let files = topic.files.iter().filter(|file| path.starts_with(file));
        files.map(move |file| (file.len(), nr))
    });
    fits.max().map_or(COPY, |(_, nr)| nr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_of_a_file() {
        for (path, name) in [
            ("Kconfig", "copy"),
            ("rust/kernel/folio.rs", "copy"),
            ("rust/kernel/misc_device.rs", "service"),
            ("rust/crew/mod.rs", "crews"),
            ("docs/faq.rst", "service"),
            ("docs/design.rst", "copy"),
            ("docs/migrc.rst", "migrc"),
        ] {
            assert_eq!(TOPICS[of_file(Path::new(path))].name, name, "{path}");
        }
    }

    #[test]
    fn named_files_exist() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.parent().unwrap();
        for file in TOPICS.iter().flat_map(|topic| topic.files) {
            assert!(repo.join(file).exists(), "{file}");
        }
        for (nr, topic) in TOPICS.iter().enumerate() {
            assert!(folder(repo, nr).is_dir(), "{}", topic.name);
        }
    }

    #[test]
    fn the_table_of_upstream_md_has_each_patch() {
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let repo = tools.parent().unwrap();
        let text = fs::read_to_string(repo.join("docs/upstream.md")).unwrap();
        let lines = text
            .lines()
            .skip_while(|line| !line.starts_with("| topic | patch |"));
        let (mut topic, mut listed) = (String::new(), Vec::new());
        for line in lines.take_while(|line| line.starts_with('|')).skip(2) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if !cells[1].is_empty() {
                topic = cells[1].replace(' ', "-");
            }
            // `add` and `offer` are not patches of their own.
            if cells[2].parse::<u32>().is_ok() {
                listed.push(format!("{topic}/{}", cells[2]));
            }
        }
        let mut there = Vec::new();
        for nr in 0..TOPICS.len() {
            let folder = folder(repo, nr);
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            for entry in fs::read_dir(&folder).unwrap() {
                let file = entry.unwrap().file_name().into_string().unwrap();
                if file.ends_with(".patch") {
                    there.push(format!("{name}/{}", &file[..4]));
                }
            }
        }
        there.sort();
        assert_eq!(listed, there);
    }

    #[test]
    fn excluded_tests_exclude_no_test_of_an_earlier_topic() {
        let all = TOPICS.iter().enumerate();
        let all: Vec<(usize, &str)> = all
            .flat_map(|(nr, topic)| topic.tests.iter().map(move |test| (nr, *test)))
            .collect();
        for (nr, test) in &all {
            for (longer, other) in &all {
                assert!(!other.starts_with(test) || longer >= nr, "{test}, {other}");
            }
        }
    }

    #[test]
    fn unknown_topic_is_told_the_list() {
        assert_eq!(find("crews").unwrap(), 2);
        let error = find("crew").unwrap_err().to_string();
        assert!(
            error.contains("preparation, copy") && error.contains("service"),
            "{error}"
        );
    }
}
