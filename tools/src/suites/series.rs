// SPDX-License-Identifier: GPL-2.0-only
//! The patches: each applies, each topic has all files that it names, and all of them build with
//! CONFIG_FERRY and without. In older releases each applies, and mm/ builds with CONFIG_FERRY. Also
//! checks that `make headers` exports the header for user space.
//!
//! The suite `patches` builds after each patch, and for arm64, and checks that without CONFIG_FERRY
//! the series changes the machine code of the objects that it restructures only.

use super::{topics::is_complete, topics::laid, Tally};
use crate::{
    cache::{remove_dir, write_atomic, Key, Stamp},
    context::Context,
    elf, guest,
    kernel::{self, Built, Config, Variant},
    ktap::Outcome,
    overlay::{self, Overlay},
    patches::{self, Patch},
    step::Step,
    topics::{LAST, TOPICS},
    tree::{self, Tree},
};
use anyhow::{bail, Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use walkdir::WalkDir;

/// Objects in mm/ whose code the series may change without CONFIG_FERRY: those of the files that the
/// topics `preparation`, `demotion`, `migrc` and `runs` restructure, and of the callers of functions
/// that they rename.
const RESTRUCTURED: [&str; 10] = [
    "damon/ops-common.o",
    "folio.o",
    "huge_memory.o",
    "memory_hotplug.o",
    "mempolicy.o",
    "migrate.o",
    "migrate_device.o",
    "rmap.o",
    // The folio.o of 7.2.
    "swap.o",
    "vmscan.o",
];

const ARCH: &str = "x86_64";

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let series = applies(context, tally)?;
    for (nr, topic) in TOPICS.iter().enumerate() {
        let complete = laid(context, nr).and_then(|files| is_complete(&files));
        tally.check(&format!("names no missing file: {}", topic.name), complete)?;
    }
    tally.check("builds without CONFIG_FERRY", build_last(context, &series))?;
    let ferry = kernel::build(context, Variant::Ferry);
    let exported = match &ferry {
        Ok(built) => Some(exports_header(context, built)),
        Err(_) => None,
    };
    tally.check("builds with CONFIG_FERRY=y", ferry.map(drop))?;
    if let Some(exported) = exported {
        tally.check("make headers exports linux/page_migrate.h", exported)?;
    }
    older(context, tally)
}

/// Applies the patches to older releases of Linux, and builds mm/ there.
fn older(context: &Context, tally: &mut Tally) -> Result<()> {
    for older in context.older()? {
        let release = match older.source() {
            Ok(source) => source.release.name(),
            missing => {
                tally.check("the source of an older release is there", missing.map(drop))?;
                continue;
            }
        };
        applies(&older, tally)?;
        let name = format!("mm/ with CONFIG_FERRY=y builds in Linux {release}");
        tally.check(&name, kernel::compile(&older, Variant::Ferry, "mm/"))?;
    }
    Ok(())
}

/// Applies the patches one after the other. Returns them.
fn applies(context: &Context, tally: &mut Tally) -> Result<Vec<Patch>> {
    let source = context.source()?;
    let series = patches::load(&context.repo, source.release)?;
    for end in 1..=series.len() {
        let name = format!(
            "applies to {}: {}",
            source.release.name(),
            series[end - 1].name()
        );
        let applied = patches::patched(&source.vanilla(), &series[..end], &source.version);
        tally.check(&name, applied.map(drop))?;
    }
    Ok(series)
}

/// Builds after each patch, compares the code before and after the series, and builds mm/ferry for
/// arm64.
pub fn each(context: &Context, tally: &mut Tally) -> Result<()> {
    let series = patches::load(&context.repo, context.source()?.release)?;
    build_each(context, tally, &series)?;
    tally.check(
        "other mm/*.o without CONFIG_FERRY are vanilla's code",
        same_without_ferry(context, &series),
    )?;
    let arm64 = kernel::compile(context, Variant::Arm64, "mm/ferry/");
    tally.check("mm/ferry builds for arm64", arm64)
}

/// Builds the objects of mm/ that the series changes, without CONFIG_FERRY.
fn build_last(context: &Context, series: &[Patch]) -> Result<()> {
    let config = kernel::of_variant(&context.repo, Variant::Vanilla)?;
    let tree = patched(context, series)?;
    let key = kernel::key(context, &tree, ARCH, &config)?;
    let out = kernel::out_dir(context, "series")?;
    let stamp = Stamp::new(out.join("ferry.key"));
    if !stamp.is(&key) {
        stamp.clear()?;
        kernel::configure(context, &tree, &out, ARCH, &config, "series")?;
        make(
            context,
            &tree,
            &out,
            "without CONFIG_FERRY",
            changed_objects(series),
        )?;
        stamp.set(&key)?;
    }
    Ok(())
}

/// Builds mm/ from the unpatched source and after the last patch, and compares the code.
fn same_without_ferry(context: &Context, series: &[Patch]) -> Result<()> {
    let config = kernel::of_variant(&context.repo, Variant::Vanilla)?;
    let vanilla = tree::vanilla(context)?;
    let vanilla = code(context, &vanilla, &config, "before the series")?;
    let patched = patched(context, series)?;
    let patched = code(context, &patched, &config, "after the series")?;
    same_code(&vanilla, &patched)
}

/// Returns the tree after these patches, with the files of mm/ferry that their topics add and a
/// build without CONFIG_FERRY can read.
fn patched(context: &Context, patches: &[Patch]) -> Result<Tree> {
    let source = context.source()?;
    let mut files = patches::patched(&source.vanilla(), patches, &source.version)?;
    let topic = patches.last().context("there are no patches")?.topic;
    files.extend(read_without_ferry(context, topic)?);
    tree::laid(context, "series", &files)
}

/// Returns the code of a tree's mm/, as digests of each object's executable sections. It is built
/// only if source, options or compilers have changed.
fn code(context: &Context, tree: &Tree, config: &Config, when: &str) -> Result<Code> {
    let key = kernel::key(context, tree, ARCH, config)?;
    let kept = context
        .source()?
        .home
        .join(format!("code-{}.json", when.replace(' ', "-")));
    if let Some(text) = patches::read_if_there(&kept)? {
        let found: BuiltCode = serde_json::from_slice(&text).unwrap_or_default();
        if found.key == key {
            return Ok(found.code);
        }
    }
    let out = kernel::out_dir(context, "patches")?;
    kernel::configure(context, tree, &out, ARCH, config, "patches")?;
    // An earlier series may have left objects that this tree does not have.
    remove_dir(&out.join("mm"))?;
    make(context, tree, &out, when, ["mm/"])?;
    let code = code_below(&out.join("mm"))?;
    if code.is_empty() {
        bail!(
            "the build left no object files in {}",
            out.join("mm").display()
        );
    }
    let found = BuiltCode { key, code };
    write_atomic(&kept, &serde_json::to_vec(&found)?)?;
    Ok(found.code)
}

fn make(
    context: &Context,
    tree: &Tree,
    out: &Path,
    when: &str,
    targets: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    let mut make = context.toolchain()?.make(&tree.dir, out, ARCH);
    Step::new(
        format!("building mm/ {when}"),
        context.cache.log("build-mm"),
    )
    .timeout(Duration::from_secs(3600))
    .run(make.args(targets))
}

/// Exports the headers for user space, compiles a file that includes only Ferry's, and builds the C
/// programs of the service with them.
fn exports_header(context: &Context, built: &Built) -> Result<()> {
    let toolchain = context.toolchain()?;
    let limit = Duration::from_secs(600);
    Step::new(
        "exporting the kernel's headers",
        context.cache.log("series-headers"),
    )
    .timeout(limit)
    .run(
        toolchain
            .make(&built.tree, &built.out, Variant::Ferry.arch())
            .arg("headers"),
    )?;
    let exported = built.out.join("usr/include");
    let mut clang = Command::new("clang");
    toolchain.environment(&mut clang);
    Step::new(
        "compiling linux/page_migrate.h",
        context.cache.log("series-header"),
    )
    .timeout(limit)
    .quiet()
    .run(
        clang
            .args([
                "-std=c90",
                "-Wall",
                "-Werror",
                "-fsyntax-only",
                "-nostdlibinc",
            ])
            .arg("-isystem")
            .arg(&exported)
            .args(["-x", "c"])
            .arg(exported.join("linux/page_migrate.h")),
    )?;
    let programs = built.out.join("usr/ferry-programs");
    guest::build_c(context, guest::HOST_COMPILER, &programs, &exported)
}

/// Digests of executable sections, by object and section.
type Code = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Default, Serialize, Deserialize)]
struct BuiltCode {
    key: String,
    code: Code,
}

/// Builds the objects of mm/ that the series changes after each patch in turn, without
/// CONFIG_FERRY. Starts with the first patch that changed since its last build.
fn build_each(context: &Context, tally: &mut Tally, series: &[Patch]) -> Result<()> {
    let config = kernel::of_variant(&context.repo, Variant::Vanilla)?;
    let out = kernel::out_dir(context, "patches")?;
    let base = kernel::key(context, &tree::vanilla(context)?, ARCH, &config)?;
    let glue = (0..=LAST).map(|topic| Ok(overlay::key(&read_without_ferry(context, topic)?)));
    let glue: Vec<String> = glue.collect::<Result<_>>()?;
    let keys = keys(&base, &glue, series)?;
    let built = out.join("ferry.key");
    let kept = fs::read_to_string(&built).unwrap_or_default();
    let first = (keys.iter().zip(kept.lines()))
        .take_while(|(key, kept)| key == kept)
        .count();
    for patch in &series[..first] {
        tally.case(
            &format!("builds: {} (as before)", patch.name()),
            Outcome::Passed,
        );
    }
    let stamp = Stamp::new(built);
    stamp.set(&keys[..first].join("\n"))?;
    let changed = changed_objects(series);
    for end in first + 1..=series.len() {
        let tree = patched(context, &series[..end])?;
        let name = series[end - 1].name();
        // Configuring takes as long as building a small patch, so it is skipped where possible.
        if end == first + 1 || configures(&series[end - 1]) {
            kernel::configure(context, &tree, &out, ARCH, &config, "patches")?;
        }
        let step = make(context, &tree, &out, &format!("after {name}"), &changed);
        let good = step.is_ok();
        tally.check(&format!("builds: {name}"), step)?;
        if !good {
            break;
        }
        stamp.set(&keys[..end].join("\n"))?;
    }
    Ok(())
}

/// Returns a key for the build after each patch. It covers the patches up to that one, and the
/// files of mm/ferry that the builds read, `glue` by topic.
fn keys(base: &str, glue: &[String], series: &[Patch]) -> Result<Vec<String>> {
    let mut key = Key::default().add(base).finish();
    // Each build makes all these objects.
    for object in &changed_objects(series) {
        key = Key::default().add(key).add(object).finish();
    }
    let mut keys = Vec::new();
    for patch in series {
        key = Key::default()
            .add(key)
            .add(&glue[patch.topic])
            .add(patch.name())
            .add(fs::read(&patch.path)?)
            .finish();
        keys.push(key.clone());
    }
    Ok(keys)
}

fn read_without_ferry(context: &Context, topic: usize) -> Result<Overlay> {
    let release = context.source()?.release;
    let all = overlay::until(&context.repo, release, (topic, false))?;
    Ok(all
        .into_iter()
        .filter(|(path, _)| is_read_without_ferry(path))
        .collect())
}

/// Returns whether a build without CONFIG_FERRY can read a file of mm/ferry: headers, Kconfig,
/// Kbuild.
fn is_read_without_ferry(path: &Path) -> bool {
    let is_source = ["rs", "c", "S", "rst", "md"].map(OsStr::new);
    path.extension()
        .is_none_or(|extension| !is_source.contains(&extension))
}

/// Returns whether a patch changes a Kconfig file.
fn configures(patch: &Patch) -> bool {
    (patch.touches.iter())
        .filter_map(|path| path.file_name())
        .any(|name| name.to_string_lossy().starts_with("Kconfig"))
}

/// Returns the objects of all mm/*.c files that the series changes.
fn changed_objects(series: &[Patch]) -> BTreeSet<String> {
    let files = series.iter().flat_map(|patch| &patch.touches);
    let sources =
        files.filter(|path| path.starts_with("mm") && path.extension() == Some("c".as_ref()));
    sources
        .map(|path| path.with_extension("o").display().to_string())
        .collect()
}

/// Fails unless both have the same objects with the same executable sections, but for those that
/// the series restructures.
fn same_code(vanilla: &Code, patched: &Code) -> Result<()> {
    let objects = vanilla.keys().chain(patched.keys());
    for object in objects.filter(|object| !RESTRUCTURED.contains(&object.as_str())) {
        let (Some(a), Some(b)) = (vanilla.get(object), patched.get(object)) else {
            bail!("{object} is in one build only");
        };
        if let Some(section) = (a.keys().chain(b.keys())).find(|name| a.get(*name) != b.get(*name))
        {
            bail!("{object}: section {section} differs");
        }
    }
    Ok(())
}

/// Returns the code of all objects below a folder.
fn code_below(dir: &Path) -> Result<Code> {
    let digests = |object: PathBuf| {
        let sections = elf::code(&dir.join(&object))?.into_iter();
        let sections = sections.map(|(name, code)| (name, Key::default().add(code).finish()));
        Ok((object.display().to_string(), sections.collect()))
    };
    objects(dir)?.into_iter().map(digests).collect()
}

/// Returns the object files below a folder.
fn objects(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in WalkDir::new(dir) {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "o") {
            found.insert(path.strip_prefix(dir)?.to_path_buf());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_object_and_other_code_are_failures() {
        let temp = tempfile::tempdir().unwrap();
        let none = code_below(temp.path()).unwrap();
        fs::copy(std::env::current_exe().unwrap(), temp.path().join("x.o")).unwrap();
        let one = code_below(temp.path()).unwrap();
        same_code(&one, &one).unwrap();
        let error = same_code(&one, &none).unwrap_err().to_string();
        assert!(error.contains("x.o is in one build only"), "{error}");
        let mut other = one.clone();
        let sections = other.get_mut("x.o").unwrap();
        let (name, _) = sections.pop_first().unwrap();
        sections.insert(name.clone(), String::new());
        let error = same_code(&one, &other).unwrap_err().to_string();
        assert!(error.contains(&name), "{error}");
        let migrate = |code: &Code| Code::from([("migrate.o".to_owned(), code["x.o"].clone())]);
        same_code(&migrate(&one), &migrate(&other)).unwrap();
    }

    #[test]
    fn a_changed_patch_changes_its_key_and_those_after_it() {
        let temp = tempfile::tempdir().unwrap();
        let series = ["1.patch", "2.patch", "3.patch"].map(|name| {
            let path = temp.path().join(name);
            fs::write(&path, name).unwrap();
            let touches = BTreeSet::from([PathBuf::from("mm/a.c")]);
            let topic = usize::from(name != "1.patch");
            Patch {
                path,
                topic,
                touches,
            }
        });
        let glue = ["none", "glue"].map(str::to_owned);
        let before = keys("base", &glue, &series).unwrap();
        fs::write(&series[1].path, "changed").unwrap();
        let after = keys("base", &glue, &series).unwrap();
        assert_eq!(before[0], after[0]);
        assert!(before[1] != after[1] && before[2] != after[2]);
        let other = ["none", "other"].map(str::to_owned);
        let others = keys("base", &other, &series).unwrap();
        assert!(others[0] == after[0] && others[1] != after[1]);
    }

    #[test]
    fn only_headers_and_options_are_read_without_ferry() {
        for path in [
            "mm/ferry/Kconfig",
            "mm/ferry/Kbuild",
            "mm/ferry/c-glue/include/x.h",
        ] {
            assert!(is_read_without_ferry(Path::new(path)), "{path}");
        }
        for path in ["mm/ferry/rust/ferry.rs", "mm/ferry/c-glue/helpers/glue.c"] {
            assert!(!is_read_without_ferry(Path::new(path)), "{path}");
        }
    }
}
