// SPDX-License-Identifier: GPL-2.0-only
//! The kernels: their variants, their configuration, and building them only when the input changed.

use crate::{
    cache::{read_log, write_atomic, Key, Stamp},
    context::Context,
    platform::Platform,
    step::Step,
    tree::{self, Tree},
};
use anyhow::{bail, Context as _, Result};
use clap::ValueEnum;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use walkdir::WalkDir;

/// A build from scratch takes minutes on two cores; the limit allows for slow machines.
const BUILD_LIMIT: Duration = Duration::from_secs(5400);

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// The unpatched source
    Vanilla,
    /// With Ferry; otherwise the same options
    Ferry,
    /// With Ferry, KUnit, KASAN, lockdep and DEBUG_VM
    Debug,
    /// With Ferry and the options of the suites litmus, tracing, cxl and xfstests, without slow
    /// checks. Suits long runs of fuzz and soak
    Extra,
    /// With Ferry, PREEMPT_RT, KUnit, lockdep and DEBUG_VM
    Rt,
    /// With Ferry, as a user-space program at native speed
    Uml,
    /// With Ferry, for a machine with a DMA engine
    Arm64,
}

impl Variant {
    pub fn name(self) -> &'static str {
        match self {
            Variant::Vanilla => "vanilla",
            Variant::Ferry => "ferry",
            Variant::Debug => "debug",
            Variant::Extra => "extra",
            Variant::Rt => "rt",
            Variant::Uml => "uml",
            Variant::Arm64 => "arm64",
        }
    }

    /// Returns the files with its options on a platform, in order.
    fn fragments(self, platform: Platform) -> Vec<&'static str> {
        const FERRY: &str = "tools/configs/ferry.config";
        let more: &[_] = match (self, platform) {
            (Variant::Vanilla, _) => &[],
            (Variant::Ferry, Platform::X86) => &[FERRY],
            (Variant::Ferry, _) => &[FERRY, "tools/configs/foreign-ferry.config"],
            (Variant::Debug, _) => &[FERRY, "tools/configs/debug.config"],
            (Variant::Extra, _) => &[FERRY, "tools/configs/extra.config"],
            (Variant::Rt, _) => &[FERRY, "tools/configs/rt.config"],
            (Variant::Uml, _) => return vec![".kunitconfig"],
            (Variant::Arm64, _) => return vec!["tools/configs/arm64.config"],
        };
        [platform.fragments(), more].concat()
    }

    pub fn arch(self) -> &'static str {
        match self {
            Variant::Uml => "um",
            Variant::Arm64 => "arm64",
            _ => "x86_64",
        }
    }

    /// Returns the target of the build, and the file that has the kernel then.
    fn image(self) -> (&'static str, &'static str) {
        match self {
            Variant::Uml => ("linux", "linux"),
            Variant::Arm64 => ("Image", "arch/arm64/boot/Image"),
            _ => Platform::X86.image(),
        }
    }

    /// Returns kernel arguments that the variant needs.
    pub fn boot_args(self) -> &'static str {
        match self {
            // With five-level page tables KASAN sometimes reports the first interrupts: the start
            // of its shadow depends on a CPU feature bit, and identify_cpu() clears the bits for a
            // moment.
            Variant::Debug => "no5lvl",
            _ => "",
        }
    }

    fn tree(self, context: &Context) -> Result<Tree> {
        match self {
            Variant::Vanilla => tree::vanilla(context),
            _ => tree::ferry(context),
        }
    }
}

pub struct Built {
    pub image: PathBuf,
    pub out: PathBuf,
    pub tree: PathBuf,
}

/// Builds the kernel unless its input is the same as last time.
pub fn build(context: &Context, variant: Variant) -> Result<Built> {
    Input::of(context, variant)?.build(context, variant.image())
}

/// Builds the kernel for a platform.
pub fn build_on(context: &Context, variant: Variant, platform: Platform) -> Result<Built> {
    if platform == Platform::X86 {
        return build(context, variant);
    }
    if !matches!(variant, Variant::Vanilla | Variant::Ferry) {
        bail!(
            "there is no {} kernel for {}: choose vanilla or ferry",
            variant.name(),
            platform.name()
        );
    }
    let tree = variant.tree(context)?;
    let config = read_options(&context.repo, &variant.fragments(platform))?;
    let name = format!("{}{}", variant.name(), platform.suffix());
    let input = Input::new(context, (&name, platform.arch()), tree, config)?;
    input.build(context, platform.image())
}

/// Builds an x86-64 kernel of another tree or with other options, in the output folder `name`,
/// unless its input is the same as last time.
pub fn build_tree(context: &Context, name: &str, tree: Tree, config: Config) -> Result<Built> {
    let like = Platform::X86;
    let input = Input::new(context, (name, like.arch()), tree, config)?;
    input.build(context, like.image())
}

/// Compiles only a folder, unless it or the whole kernel is up to date.
pub fn compile(context: &Context, variant: Variant, folder: &str) -> Result<()> {
    let input = Input::of(context, variant)?;
    let stamp = Stamp::new(input.out.join("ferry.part.key"));
    let key = format!("{} {folder}", input.key);
    if stamp.is(&key) || input.stamp().is(&input.key) {
        return Ok(());
    }
    stamp.clear()?;
    input.make(context, folder, &format!("{folder} of the kernel"))?;
    stamp.set(&key)
}

/// The sources and options of a kernel, and the folders of its build.
struct Input {
    name: String,
    arch: &'static str,
    tree: Tree,
    config: Config,
    key: String,
    out: PathBuf,
}

impl Input {
    fn of(context: &Context, variant: Variant) -> Result<Self> {
        let tree = variant.tree(context)?;
        let config = of_variant(&context.repo, variant)?;
        Self::new(context, (variant.name(), variant.arch()), tree, config)
    }

    fn new(
        context: &Context,
        (name, arch): (&str, &'static str),
        tree: Tree,
        config: Config,
    ) -> Result<Self> {
        Ok(Input {
            key: key(context, &tree, arch, &config)?,
            out: out_dir(context, name)?,
            name: name.to_owned(),
            arch,
            tree,
            config,
        })
    }

    fn build(self, context: &Context, (target, image): (&str, &str)) -> Result<Built> {
        let image = self.out.join(image);
        let stamp = self.stamp();
        if !stamp.is(&self.key) || !image.is_file() {
            stamp.clear()?;
            self.make(context, target, "kernel")?;
            if !image.is_file() {
                bail!("the build succeeded but did not write {}", image.display());
            }
            stamp.set(&self.key)?;
        }
        Ok(Built {
            image,
            out: self.out,
            tree: self.tree.dir,
        })
    }

    /// Returns the stamp of the whole kernel.
    fn stamp(&self) -> Stamp {
        Stamp::new(self.out.join("ferry.key"))
    }

    /// Configures the kernel and builds the target. Warnings of a patched kernel are errors.
    fn make(&self, context: &Context, target: &str, what: &str) -> Result<()> {
        let name = &self.name;
        let log = context.cache.log(&format!("build-{name}"));
        configure(
            context,
            &self.tree,
            &self.out,
            self.arch,
            &self.config,
            name,
        )?;
        let mut make = context
            .toolchain()?
            .make(&self.tree.dir, &self.out, self.arch);
        let release = context.source()?.release.name();
        Step::new(
            format!("building {what} {name}, Linux {release}"),
            log.clone(),
        )
        .timeout(BUILD_LIMIT)
        .remedy("read the log from the first `error`; another run continues the build")
        .run(make.arg(target))?;
        if !name.starts_with(Variant::Vanilla.name()) {
            no_warnings(&log, &self.out)?;
        }
        Ok(())
    }
}

/// Fails if the compiler or objtool warned. Then removes Ferry's objects, so that the next build
/// compiles them again and repeats the warning.
fn no_warnings(log: &Path, out: &Path) -> Result<()> {
    let Some(warning) = warning(&read_log(log)?) else {
        return Ok(());
    };
    let ferry = out.join("mm/ferry");
    for entry in WalkDir::new(&ferry).into_iter().filter(|_| ferry.exists()) {
        let entry = entry?;
        if entry.path().extension().is_some_and(|ext| ext == "o") {
            fs::remove_file(entry.path())?;
        }
    }
    bail!(
        "the build has a warning: {warning}\n  what to do: see {}",
        log.display()
    )
}

/// Returns the first warning in a build log. It ignores warnings that the unpatched kernel has too:
/// by the linker, of unused options, and of a header where UML's I/O ports add to a null pointer.
fn warning(log: &str) -> Option<String> {
    let is_theirs = |line: &str| {
        line.contains("ld: warning:")
            || line.starts_with("clang: warning:")
            || line.contains("include/asm-generic/io.h:")
    };
    let is_one = |line: &&str| line.contains("warning:") && !is_theirs(line);
    log.lines().find(is_one).map(str::to_owned)
}

/// Returns the output folder `name` for builds of this source.
pub fn out_dir(context: &Context, name: &str) -> Result<PathBuf> {
    let out = context.source()?.home.join("build").join(name);
    fs::create_dir_all(&out)?;
    Ok(out)
}

pub fn key(context: &Context, tree: &Tree, arch: &str, config: &Config) -> Result<String> {
    let mut key = Key::default();
    key.add(&tree.key)
        .add(arch)
        .add(config.text())
        .add(&context.toolchain()?.key);
    Ok(key.finish())
}

/// Writes `.config` in `out` from the fragments alone, and checks that it has all their options.
pub fn configure(
    context: &Context,
    tree: &Tree,
    out: &Path,
    arch: &str,
    config: &Config,
    name: &str,
) -> Result<()> {
    let fragment = out.join("ferry.fragment");
    write_atomic(&fragment, config.text().as_bytes())?;
    context
        .cache
        .step(
            format!("configuring the {name} kernel"),
            &format!("configure-{name}"),
        )
        .timeout(Duration::from_secs(600))
        .quiet()
        .run(
            context
                .toolchain()?
                .make(&tree.dir, out, arch)
                .arg("allnoconfig")
                .env("KCONFIG_ALLCONFIG", &fragment),
        )?;
    let result = fs::read_to_string(out.join(".config"))?;
    let missing = config.missing(&result);
    if !missing.is_empty() {
        bail!(
            "the {name} kernel's configuration lacks {}\n  what to do: this kernel does not meet their \
             dependencies; see {}",
            missing.join(", "),
            out.join(".config").display()
        );
    }
    Ok(())
}

/// Returns the options of a variant on its usual platform.
pub fn of_variant(repo: &Path, variant: Variant) -> Result<Config> {
    read_options(repo, &variant.fragments(Platform::X86))
}

/// Reads files with options; a later one overrides an earlier one.
pub fn read_options(repo: &Path, files: &[&str]) -> Result<Config> {
    let mut config = Config::default();
    for name in files {
        let path = repo.join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        config.extend(&text);
    }
    Ok(config)
}

/// Options by name; a later fragment overrides an earlier one.
#[derive(Clone, Default)]
pub struct Config(BTreeMap<String, String>);

impl Config {
    pub fn extend(&mut self, text: &str) {
        for line in text.lines() {
            if let Some((name, value)) = option(line) {
                self.0.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    pub fn text(&self) -> String {
        self.0
            .iter()
            .map(|(name, value)| match value.as_str() {
                "n" => format!("# {name} is not set\n"),
                value => format!("{name}={value}\n"),
            })
            .collect()
    }

    /// Returns whether an option is built in.
    pub fn is_set(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == "y")
    }

    /// Returns the options whose value in the finished `.config` differs.
    pub fn missing(&self, finished: &str) -> Vec<String> {
        let mut found = Config::default();
        found.extend(finished);
        self.0
            .iter()
            .filter(|(name, value)| found.0.get(*name).map_or("n", String::as_str) != *value)
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }
}

/// Parses `CONFIG_X=value`, or `# CONFIG_X is not set` as `n`.
fn option(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if let Some(rest) = line.strip_prefix("# ") {
        let name = rest.strip_suffix(" is not set")?;
        return name.starts_with("CONFIG_").then_some((name, "n"));
    }
    let (name, value) = line.split_once('=')?;
    name.starts_with("CONFIG_").then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let mut config = Config::default();
        config.extend(text);
        config
    }

    #[test]
    fn a_warning_is_found() {
        let log = "  CC      mm/ferry/c-glue/crew/crew.o\n/usr/bin/ld: warning: RWX permissions\n\
                   clang: warning: argument unused during compilation: '-mno-3dnow'\n";
        assert_eq!(warning(log), None);
        let objtool = "mm/ferry/rust/ferry.o: warning: objtool: f() falls through";
        let found = warning(&format!("{log}{objtool}\n  LD      vmlinux\n"));
        assert_eq!(found.as_deref(), Some(objtool));
    }

    #[test]
    fn later_fragment_wins() {
        let mut both = config("CONFIG_A=y\n# comment = x\nCONFIG_B=n\n");
        both.extend("# CONFIG_A is not set\nCONFIG_C=\"x=y\"\n");
        assert_eq!(
            both.text(),
            "# CONFIG_A is not set\n# CONFIG_B is not set\nCONFIG_C=\"x=y\"\n"
        );
    }

    #[test]
    fn option_that_was_dropped_is_named() {
        let asked = config("CONFIG_A=y\nCONFIG_B=n\nCONFIG_N=64\n");
        assert!(asked.missing("CONFIG_A=y\nCONFIG_N=64\n").is_empty());
        assert_eq!(
            asked.missing("# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_N=64\n"),
            ["CONFIG_A=y", "CONFIG_B=n"]
        );
    }
}
