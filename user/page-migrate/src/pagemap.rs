// SPDX-License-Identifier: GPL-2.0-only
//! Where pages are in physical memory, by `/proc/self/pagemap`.

use crate::page_size;
use std::{fmt, fs::File, io, ops::Range, os::unix::fs::FileExt};

/// Entries of 8 bytes to read in one call.
const AT_ONCE: usize = 1 << 16;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// A physical address; any within a page names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

impl PhysAddr {
    /// The first address of a page frame; `None` where that has none.
    pub fn of_frame(frame: u64) -> Option<Self> {
        frame.checked_mul(page_size()).map(Self)
    }

    /// The number of the page frame it is in.
    pub fn frame(self) -> u64 {
        self.0 / page_size()
    }
}

impl fmt::LowerHex for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The physical address of each page of a range of this process's addresses; `None` where no page is.
///
/// They are a moment's: the kernel may move a page at any time. Without `CAP_SYS_ADMIN` in the initial
/// user namespace the kernel does not tell them, and this fails with `PermissionDenied`.
pub fn physical_addresses(range: Range<u64>) -> io::Result<Vec<Option<PhysAddr>>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let first = range.start / page_size();
    let pages = range.end.div_ceil(page_size()) - first;
    let mut found = Vec::new();
    // Ends with an error where addresses end, before memory does.
    for at in (first..first + pages).step_by(AT_ONCE) {
        let some = (first + pages - at).min(AT_ONCE as u64);
        let mut bytes = vec![0; some as usize * 8];
        pagemap.read_exact_at(&mut bytes, at * 8)?;
        for entry in bytes.chunks_exact(8) {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            found.push(decode(entry)?);
        }
    }
    Ok(found)
}

fn decode(entry: u64) -> io::Result<Option<PhysAddr>> {
    match (entry & PRESENT != 0, entry & FRAME) {
        (false, _) => Ok(None),
        // What is shown instead of a frame: none is the kernel's first.
        (true, 0) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "physical addresses are told to root alone",
        )),
        (true, frame) => Ok(PhysAddr::of_frame(frame)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        assert_eq!(decode(0).unwrap(), None);
        // Swapped out: bits that are no frame.
        assert_eq!(decode(1 << 62 | 77).unwrap(), None);
        let there = decode(PRESENT | 1 << 55 | 77).unwrap().unwrap();
        assert_eq!((there.0, there.frame()), (77 * page_size(), 77));
        let hidden = decode(PRESENT).unwrap_err();
        assert_eq!(hidden.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn part_of_a_page_counts() {
        let there = [1u8; 1];
        let at = there.as_ptr().addr() as u64;
        match physical_addresses(at..at + 1) {
            Ok(found) => assert!(found.len() == 1 && found[0].is_some()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert!(physical_addresses(at..at - 1).unwrap().is_empty());
    }
}
