// SPDX-License-Identifier: GPL-2.0-only
//! Physical addresses of the caller's pages, from `/proc/self/pagemap`.

use crate::page_size;
use std::{fmt, fs::File, io, ops::Range, os::unix::fs::FileExt};

/// Number of 8-byte entries to read in one call.
const AT_ONCE: usize = 1 << 16;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// A physical address. Any address within a page names the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

impl PhysAddr {
    /// Returns the first address of a page frame, or `None` if it exceeds 64 bits.
    pub fn of_frame(frame: u64) -> Option<Self> {
        frame.checked_mul(page_size()).map(Self)
    }

    /// Returns the number of the page frame that contains the address.
    pub fn frame(self) -> u64 {
        self.0 / page_size()
    }
}

impl fmt::LowerHex for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the physical address of each page of a range in this process; `None` where no page is
/// present.
///
/// The kernel may move a page at any time, so the result can be out of date. Without
/// `CAP_SYS_ADMIN` in the initial user namespace the kernel hides the addresses, and this fails
/// with `PermissionDenied`.
pub fn physical_addresses(range: Range<u64>) -> io::Result<Vec<Option<PhysAddr>>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let first = range.start / page_size();
    let pages = range.end.div_ceil(page_size()) - first;
    let mut found = Vec::new();
    // Reading fails beyond the end of the address space, before the list uses too much memory.
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
        // The kernel shows 0 instead of a hidden frame number; frame 0 itself is never mapped.
        (true, 0) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the kernel shows physical addresses only to root",
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
        // A swapped-out page has other bits in place of the frame number.
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
