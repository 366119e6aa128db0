// SPDX-License-Identifier: GPL-2.0-only
//! The topics of the series: the kernel after each builds with all options offered by then, boots,
//! and passes the tests of the topics up to that one.

use super::{
    guest::{boot, ready_image, Booting, CONTROLS, LIMIT, USUAL},
    kunit,
    rt::WITH_KUNIT,
    Tally,
};
use crate::{
    context::Context,
    guest,
    kernel::{self, Config, Variant},
    overlay::{self, Overlay},
    patches,
    topics::{self, TOPICS},
    tree,
};
use anyhow::{bail, ensure, Context as _, Result};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// An option that only adds a benchmark, which takes long in an emulator.
const BENCH: &str = "FERRY_COPY_BENCH";

/// Options that the tests need in addition to Ferry's.
const FOR_TESTS: &str = "CONFIG_RUST=y\nCONFIG_KUNIT=y\nCONFIG_KUNIT_AUTORUN_ENABLED=y\n\
                         CONFIG_DMADEVICES=y\n";

/// Tests the kernel after each of the topics with these names, or after each that changes it.
pub fn run(context: &Context, tally: &mut Tally, names: &[String]) -> Result<()> {
    let chosen = chosen(names)?;
    let program = guest::program(context)?;
    for nr in chosen {
        let topic = &TOPICS[nr];
        let files = laid(context, nr)?;
        let options = offered(&files)?;
        let mut config = kernel::of_variant(&context.repo, Variant::Vanilla)?;
        let has_ferry = !options.is_empty();
        if has_ferry {
            config.extend(FOR_TESTS);
            extend(&mut config, &options);
        }
        let tree = tree::laid(context, "topics", &files)?;
        let kernel = match kernel::build_tree(context, "topics", tree, config) {
            Ok(kernel) => kernel,
            failed => {
                tally.check(&format!("builds after {}", topic.name), failed.map(|_| ()))?;
                continue;
            }
        };
        let (booting, engine): (&Booting, _) = if has_ferry {
            (&WITH_KUNIT, "on")
        } else {
            (&USUAL, "off")
        };
        let name = format!("topics-{}", topic.name);
        let named = (&*name, &*kernel.image);
        // The later kernels have slow checks, and run KUnit first.
        let ready = ready_image(context, &program, named, (2, booting), 2 * LIMIT)?;
        let booted = boot(&ready, engine, &cases(nr))?;
        if has_ferry {
            let (guest, prefix) = &ready;
            kunit::booted(context, tally, guest, prefix)?;
        }
        booted.tell(tally);
    }
    Ok(())
}

/// Returns the numbers of the topics with these names; of all that change the kernel if there is no
/// name.
fn chosen(names: &[String]) -> Result<BTreeSet<usize>> {
    if names.is_empty() {
        let all = TOPICS.iter().enumerate();
        let changing = all.filter(|(_, topic)| topic.changes_kernel());
        return Ok(changing.map(|(nr, _)| nr).collect());
    }
    names.iter().map(|name| topics::find(name)).collect()
}

/// Returns the files that differ from the vanilla source's after topic `nr`.
pub fn laid(context: &Context, nr: usize) -> Result<Overlay> {
    let source = context.source()?;
    let mut series = patches::load(&context.repo, source.release)?;
    series.retain(|patch| patch.topic <= nr);
    let mut files = patches::patched(&source.vanilla(), &series, &source.version)?;
    files.extend(overlay::until(&context.repo, source.release, (nr, true))?);
    Ok(files)
}

fn extend(config: &mut Config, options: &BTreeSet<String>) {
    for option in options.iter().filter(|option| *option != BENCH) {
        config.extend(&format!("CONFIG_{option}=y\n"));
    }
}

/// Returns the arguments that choose the tests of the topics up to `nr`.
fn cases(nr: usize) -> String {
    let later = TOPICS[nr + 1..].iter().flat_map(|topic| topic.tests);
    let except: String = later.map(|test| format!(" --except {test}")).collect();
    format!("--except {CONTROLS}{except}")
}

/// Checks that the files name no file that is missing: in Kconfig, in Kbuild and in Rust modules,
/// as far as the offered options build them, and headers of Ferry in the patched files. Each Rust
/// file must be built by an option that is offered, since others are never compiled.
pub fn is_complete(files: &Overlay) -> Result<()> {
    let options = offered(files)?;
    let tree = Tree { files, options };
    for (path, content) in files {
        if content.is_some() && !path.starts_with(HOME) {
            tree.has_headers(path)?;
        }
    }
    if !tree.has(&home("Kbuild")) {
        return Ok(());
    }
    let mut built = BTreeSet::new();
    tree.has_objects(&mut built)?;
    let rust = files
        .keys()
        .filter(|path| path.starts_with(home("rust")) && path.extension() == Some("rs".as_ref()));
    for path in rust {
        ensure!(
            built.contains(path) || tree.is_example(path),
            "{} is in no module that the offered options build",
            path.display()
        );
    }
    Ok(())
}

const HOME: &str = "mm/ferry";

fn home(path: impl AsRef<Path>) -> PathBuf {
    Path::new(HOME).join(path)
}

/// Returns the options of Ferry that the Kconfig files offer, starting from the kernel's.
fn offered(files: &Overlay) -> Result<BTreeSet<String>> {
    let mut options = BTreeSet::new();
    let mut waiting = vec![PathBuf::from("mm/Kconfig")];
    while let Some(path) = waiting.pop() {
        let text = match files.get(&path).and_then(Option::as_ref) {
            Some(content) => String::from_utf8_lossy(content),
            // No patch has changed it.
            None if path == Path::new("mm/Kconfig") => continue,
            None => bail!("{} is sourced, but missing", path.display()),
        };
        if path.starts_with(HOME) {
            options.extend(overlay::options(&text));
        }
        let sourced = text
            .lines()
            .filter_map(|line| line.strip_prefix("source \"")?.strip_suffix('"'));
        waiting.extend(
            sourced
                .filter(|path| path.starts_with(HOME))
                .map(PathBuf::from),
        );
    }
    Ok(options)
}

/// The files of a tree that differ from the vanilla source's, and Ferry's options.
struct Tree<'a> {
    files: &'a Overlay,
    options: BTreeSet<String>,
}

impl Tree<'_> {
    fn has(&self, path: &Path) -> bool {
        self.files.get(path).is_some_and(Option::is_some)
    }

    fn text(&self, path: &Path) -> Result<String> {
        let content = self.files.get(path).and_then(Option::as_ref);
        let content = content.with_context(|| format!("{} is missing", path.display()))?;
        Ok(String::from_utf8_lossy(content).into_owned())
    }

    /// Returns whether an option may be set: it is offered, or is not Ferry's.
    fn may_be_set(&self, option: &str) -> bool {
        let name = option.strip_prefix("CONFIG_").unwrap_or(option);
        !name.starts_with("FERRY") || self.options.contains(name)
    }

    /// Checks the headers of Ferry that a file includes.
    fn has_headers(&self, path: &Path) -> Result<()> {
        for line in self.text(path)?.lines() {
            let Some(name) = line.strip_prefix("#include <linux/ferry") else {
                continue;
            };
            let name = name.split('>').next().unwrap_or_default();
            let header = home(format!("c-glue/include/linux/ferry{name}"));
            ensure!(
                self.has(&header),
                "{} includes {}, which is missing",
                path.display(),
                header.display()
            );
        }
        Ok(())
    }

    /// Returns whether a Rust file is an example that the doctests include.
    fn is_example(&self, path: &Path) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = path.file_stem().and_then(|name| name.to_str());
        let doctests = self.text(&home("rust/tests/doctests.rs"));
        path.starts_with(home("rust/tests/examples"))
            && doctests.is_ok_and(|text| text.split(|c| !is_part(c)).any(|word| Some(word) == name))
    }

    /// Checks the sources of the objects in Kbuild. Adds the Rust files to `built`.
    fn has_objects(&self, built: &mut BTreeSet<PathBuf>) -> Result<()> {
        let kbuild = self.text(&home("Kbuild"))?;
        for line in kbuild.lines() {
            let Some((condition, objects)) = line
                .strip_prefix("obj-")
                .and_then(|line| line.split_once("+="))
            else {
                continue;
            };
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let mut words = condition.split(|c| !is_part(c));
            if !words.all(|word| self.may_be_set(word)) {
                continue;
            }
            for object in objects.split_whitespace() {
                let object = home(object);
                let sources = ["c", "S", "rs"].map(|end| object.with_extension(end));
                let source = sources.iter().find(|source| self.has(source));
                let source =
                    source.with_context(|| format!("{} has no source file", object.display()))?;
                match source.extension().and_then(|end| end.to_str()) {
                    Some("rs") => self.has_modules(source, built)?,
                    _ => self.has_headers(source)?,
                }
            }
        }
        Ok(())
    }

    /// Checks the files of the modules that a Rust file declares, and those of their modules. Adds
    /// all of them to `built`.
    fn has_modules(&self, file: &Path, built: &mut BTreeSet<PathBuf>) -> Result<()> {
        let text = self.text(file)?;
        built.insert(file.to_path_buf());
        let (mut is_built, mut named) = (true, None);
        for line in text.lines().map(str::trim) {
            if let Some(condition) = inside(line, "#[cfg(", ")]") {
                is_built &= self.can_be(condition, true);
                continue;
            }
            if let Some(path) = inside(line, "#[path = \"", "\"]") {
                named = Some(path.to_owned());
                continue;
            }
            let line = line.strip_prefix("pub ").unwrap_or(line);
            let module = inside(line, "mod ", ";").filter(|_| is_built);
            if let Some(module) = module {
                let folder = folder_of(file);
                let places = match &named {
                    Some(path) => vec![file.with_file_name(path)],
                    None => vec![
                        folder.join(format!("{module}.rs")),
                        folder.join(module).join("mod.rs"),
                    ],
                };
                let place = places.iter().find(|place| self.has(place));
                let place = place.with_context(|| {
                    format!("{} has no file of the module {module}", file.display())
                })?;
                self.has_modules(place, built)?;
            }
            (is_built, named) = (true, None);
        }
        Ok(())
    }

    /// Returns whether a `cfg` condition can have this value, with some setting of the options.
    fn can_be(&self, condition: &str, value: bool) -> bool {
        let condition = condition.trim();
        if let Some(condition) = inside(condition, "not(", ")") {
            return self.can_be(condition, !value);
        }
        for (name, of_all) in [("all(", true), ("any(", false)] {
            if let Some(list) = inside(condition, name, ")") {
                let mut parts = split(list).into_iter();
                return if of_all == value {
                    parts.all(|part| self.can_be(part, value))
                } else {
                    parts.any(|part| self.can_be(part, value))
                };
            }
        }
        !value || self.may_be_set(condition)
    }
}

/// Returns the folder of the modules that a Rust file declares.
fn folder_of(file: &Path) -> PathBuf {
    let is_root = file.ends_with("mod.rs") || file.ends_with("ferry.rs");
    match file.parent() {
        Some(folder) if is_root => folder.to_path_buf(),
        _ => file.with_extension(""),
    }
}

/// Returns the text between a beginning and an end.
fn inside<'a>(text: &'a str, beginning: &str, end: &str) -> Option<&'a str> {
    text.strip_prefix(beginning)?.strip_suffix(end)
}

/// Splits a list at the commas that are not inside parentheses.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Release;

    fn files(files: &[(&str, &str)]) -> Overlay {
        let owned =
            |(path, text): &(&str, &str)| (PathBuf::from(path), Some(text.as_bytes().to_vec()));
        files.iter().map(owned).collect()
    }

    const WHOLE: [(&str, &str); 8] = [
        ("mm/Kconfig", "source \"mm/ferry/Kconfig\"\n"),
        ("mm/migrate.c", "#include <linux/ferry.h>\n"),
        (
            "mm/ferry/Kconfig",
            "config FERRY\nsource \"mm/ferry/c-glue/crew/Kconfig\"\n",
        ),
        ("mm/ferry/c-glue/crew/Kconfig", "config FERRY_CREW\n"),
        (
            "mm/ferry/Kbuild",
            "obj-$(CONFIG_FERRY) += rust/ferry.o\nobj-$(CONFIG_FERRY_MIGRC) += none.o\n",
        ),
        (
            "mm/ferry/rust/ferry.rs",
            "#[cfg(CONFIG_FERRY_CREW)]\npub mod crew;\n\
             #[cfg(all(CONFIG_FERRY_MIGRC, CONFIG_NUMA))]\nmod none;\n\
             #[cfg(not(any(CONFIG_FERRY, CONFIG_FERRY_MIGRC)))]\n#[path = \"x.rs\"]\nmod none;\n",
        ),
        ("mm/ferry/rust/crew/mod.rs", "mod inner {\n}\n"),
        ("mm/ferry/c-glue/include/linux/ferry.h", ""),
    ];

    #[test]
    fn topics_are_chosen_by_name() {
        // The selftests do not change the kernel.
        assert_eq!(chosen(&[]).unwrap().len(), TOPICS.len() - 1);
        let names = ["runs", "copy"].map(str::to_owned);
        assert_eq!(chosen(&names).unwrap(), [1, 6].into());
        assert!(chosen(&["run".to_owned()]).is_err());
    }

    #[test]
    fn missing_file_is_named() {
        let x = ("mm/ferry/rust/x.rs", "");
        let whole = [&WHOLE[..], &[x]].concat();
        is_complete(&files(&whole)).unwrap();
        for (nr, (path, _)) in whole.iter().enumerate().skip(3) {
            // Without the list there are no objects.
            if path.ends_with("Kbuild") {
                continue;
            }
            let mut part = whole.clone();
            part.remove(nr);
            assert!(is_complete(&files(&part)).is_err(), "{path}");
        }
        // Without the option its files are not needed.
        let part = [WHOLE[1], WHOLE[4], WHOLE[7]];
        is_complete(&files(&part)).unwrap();
        let none = ("mm/ferry/rust/none.rs", "");
        let error = is_complete(&files(&[&whole[..], &[none]].concat())).unwrap_err();
        assert!(error.to_string().contains("rust/none.rs"), "{error}");
    }

    #[test]
    fn each_topic_of_this_repository_is_complete() {
        // Cargo sets the folder at run time: another clone may have built this program.
        let tools = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let sourced = files(&[WHOLE[0]]);
        for (nr, topic) in TOPICS.iter().enumerate().skip(1) {
            let mut files =
                overlay::until(tools.parent().unwrap(), Release::NEWEST, (nr, true)).unwrap();
            files.extend(sourced.clone());
            is_complete(&files).unwrap_or_else(|error| panic!("{}: {error}", topic.name));
        }
    }

    #[test]
    fn conditions() {
        let files = Overlay::new();
        let options = BTreeSet::from(["FERRY".to_owned()]);
        let tree = Tree {
            files: &files,
            options,
        };
        for (condition, can) in [
            ("CONFIG_FERRY", true),
            ("CONFIG_FERRY_CREW", false),
            ("not(CONFIG_FERRY)", true),
            ("not(not(CONFIG_FERRY_CREW))", false),
            ("any(CONFIG_FERRY_CREW, CONFIG_NUMA)", true),
            ("all(CONFIG_FERRY_CREW, not(CONFIG_UML))", false),
            (
                "all(CONFIG_FERRY, any(CONFIG_FERRY_A, CONFIG_FERRY_B))",
                false,
            ),
        ] {
            assert_eq!(tree.can_be(condition, true), can, "{condition}");
        }
    }

    #[test]
    fn tests_of_later_topics_are_left_out() {
        let first = cases(0);
        assert!(first.contains("--except crews/ ") && first.contains("--except service/"));
        assert_eq!(cases(TOPICS.len() - 1), "--except without-");
    }
}
