// SPDX-License-Identifier: GPL-2.0-only
//! Reads the machine code of object files, to compare two builds, and whether a program is static.

use anyhow::{Context as _, Result};
use object::{
    read::elf::{ElfFile64, ProgramHeader},
    Endianness, Object, ObjectSection, SectionFlags,
};
use std::{collections::BTreeMap, fs, path::Path};

/// Returns the content of each executable section, by name.
pub fn code(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    code_of(&data).with_context(|| format!("{} is not an object file", path.display()))
}

/// Returns whether a program of this machine runs without any other file: it names no loader.
pub fn is_static(program: &Path) -> Result<bool> {
    let data = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let file = ElfFile64::<Endianness>::parse(&*data)
        .with_context(|| format!("{} is not a program", program.display()))?;
    let mut headers = file.elf_program_headers().iter();
    Ok(headers.all(|header| header.p_type(file.endian()) != object::elf::PT_INTERP))
}

fn code_of(data: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = object::File::parse(data)?;
    let mut sections = BTreeMap::new();
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
            continue;
        };
        if sh_flags.contains(object::elf::SHF_EXECINSTR) {
            // Sections with the same name get different numbers.
            let name = format!("{}#{}", section.name()?, sections.len());
            sections.insert(name, section.data()?.to_vec());
        }
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_a_loader() {
        assert!(!is_static(&std::env::current_exe().unwrap()).unwrap());
        assert!(is_static(Path::new("/dev/null")).is_err());
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
