// SPDX-License-Identifier: GPL-2.0
//! The machine code of object files, to tell whether two are the same.

use crate::{step::output, toolchain::Toolchain};
use anyhow::{Context as _, Result};
use object::{Object, ObjectSection, SectionFlags};
use std::{collections::BTreeMap, fs, path::Path, process::Command};

/// Content of each executable section, by name.
pub fn code(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    code_of(&data).with_context(|| format!("{} is no object file", path.display()))
}

fn code_of(data: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = object::File::parse(data)?;
    let mut sections = BTreeMap::new();
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
            continue;
        };
        if sh_flags.contains(object::elf::SHF_EXECINSTR) {
            // Sections of one name are told apart by their order.
            let name = format!("{}#{}", section.name()?, sections.len());
            sections.insert(name, section.data()?.to_vec());
        }
    }
    Ok(sections)
}

/// The instructions of functions, by name.
pub type Functions = BTreeMap<String, Vec<String>>;

/// What each function does, wherever it is in the file.
pub fn functions(toolchain: &Toolchain, path: &Path) -> Result<Functions> {
    let mut objdump = Command::new("llvm-objdump");
    toolchain.environment(&mut objdump);
    let args = ["-dr", "--no-show-raw-insn", "--no-leading-addr"];
    Ok(by_function(&output(objdump.args(args).arg(path))?))
}

fn by_function(listing: &str) -> Functions {
    let mut all = Functions::new();
    let mut current = String::new();
    for line in listing.lines() {
        let header = line.strip_prefix('<').and_then(|l| l.strip_suffix(">:"));
        if let Some(name) = header {
            current = name.to_owned();
        } else if !current.is_empty() && !line.trim().is_empty() {
            all.entry(current.clone())
                .or_default()
                .push(placeless(line));
        }
    }
    all
}

/// A line of the listing without addresses of the file: those that stand before `<function+offset>`, and
/// in relocations that name a section.
fn placeless(line: &str) -> String {
    let words = line.split_whitespace();
    let mut kept: Vec<&str> = Vec::new();
    for word in words {
        if word.starts_with('<') && kept.last().is_some_and(|last| last.starts_with("0x")) {
            kept.pop();
        }
        let section = word.starts_with('.').then(|| word.split_once("+0x"));
        kept.push(section.flatten().map_or(word, |(section, _)| section));
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_the_same_wherever_they_are() {
        let one = "<f>:\n  \tjmp\t0x10 <f+0x8>\n\t\tR_X86_64_PC32\t.text+0x10\n\n<g>:\n  \tretq\n";
        let other =
            "<g>:\n  \tretq\n\n<f>:\n  \tjmp\t0x20 <f+0x8>\n\t\tR_X86_64_PC32\t.text+0x20\n";
        assert_eq!(by_function(one), by_function(other));
        let changed = other.replace("<f+0x8>", "<f+0x9>");
        assert_ne!(by_function(one), by_function(&changed));
        let changed = other.replace("retq", "nop");
        assert_ne!(by_function(one), by_function(&changed));
    }

    #[test]
    fn this_program_has_code() {
        let found = code(&std::env::current_exe().unwrap()).unwrap();
        assert!(found.keys().any(|name| name.starts_with(".text#")));
        assert!(found.values().any(|code| !code.is_empty()));
    }

    #[test]
    fn what_is_no_object_file_is_refused() {
        assert!(code_of(b"text").is_err());
    }
}
