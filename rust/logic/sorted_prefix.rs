// SPDX-License-Identifier: GPL-2.0-only

//! Addresses that ascend: what makes it safe to migrate the first pages of a `move_pages(2)` while
//! later ones are still looked up.
//!
//! Mainline isolates all pages of a run before it migrates the first. A page that is named twice is
//! then found isolated, and reported with `-EBUSY`; if it had been migrated meanwhile it would be
//! reported to be where it is to go. While addresses ascend, no page is named twice. When they no
//! longer do, those before are searched.

/// Bits of an address that say which page: without the offset.
const PAGE_SHIFT: u32 = 12;

/// Addresses from here on may be tagged, so that two name one page (RISC-V has 16 bits for tags,
/// others fewer).
pub const TAGGED: usize = 1 << 48;

/// The addresses of a run so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct SortedPrefix {
    /// The page of the last that ascended.
    last: Option<usize>,
    /// How many did.
    len: usize,
    broken: bool,
}

impl SortedPrefix {
    /// How many of `pages`, which come next, ascend from what was before, and from each other.
    ///
    /// ```
    /// use ferry_logic::sorted_prefix::SortedPrefix;
    ///
    /// let mut run = SortedPrefix::default();
    /// assert_eq!(run.climbs(&[0x1000, 0x2000, 0x2fff, 0x3000]), 2);
    /// ```
    pub fn climbs(&self, pages: &[usize]) -> usize {
        if self.broken {
            return 0;
        }
        let mut last = self.last;
        pages
            .iter()
            .take_while(|&&addr| {
                let page = addr >> PAGE_SHIFT;
                let climbs = addr < TAGGED && last.is_none_or(|last| page > last);
                last = Some(page);
                climbs
            })
            .count()
    }

    /// Adds addresses that ascend, as [`SortedPrefix::climbs`] has found.
    pub fn add(&mut self, pages: &[usize]) {
        if let Some(addr) = pages.last() {
            self.last = Some(addr >> PAGE_SHIFT);
        }
        self.len += pages.len();
    }

    /// Adds one that does not: from now on none does.
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    /// Whether all addresses so far ascend.
    pub fn is_unbroken(&self) -> bool {
        !self.broken
    }

    /// Whether the page at `addr`, which has no tag, is one of those that ascended; `nth` says
    /// which those were, or [`None`] if that cannot be said any longer.
    ///
    /// ```
    /// use ferry_logic::sorted_prefix::SortedPrefix;
    ///
    /// let pages = [0x1000, 0x3000, 0x7000];
    /// let mut run = SortedPrefix::default();
    /// run.add(&pages);
    /// assert!(run.has(0x3abc, |at| pages.get(at).copied()));
    /// assert!(!run.has(0x4000, |at| pages.get(at).copied()));
    /// ```
    pub fn has(&self, addr: usize, nth: impl Fn(usize) -> Option<usize>) -> bool {
        let page = addr >> PAGE_SHIFT;
        if self.last.is_none_or(|last| page > last) {
            return false;
        }
        let (mut from, mut to) = (0, self.len);
        while from < to {
            let mid = from + (to - from) / 2;
            let Some(at_mid) = nth(mid).map(|addr| addr >> PAGE_SHIFT) else {
                return false;
            };
            match at_mid.cmp(&page) {
                core::cmp::Ordering::Equal => return true,
                core::cmp::Ordering::Less => from = mid + 1,
                core::cmp::Ordering::Greater => to = mid,
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_ascends_climbs() {
        let mut run = SortedPrefix::default();
        run.add(&[0x1000, 0x5000]);
        assert_eq!(run.climbs(&[0x6000, 0x7000]), 2);
        assert_eq!(run.climbs(&[0x5fff, 0x7000]), 0);
        assert_eq!(run.climbs(&[0x6000, TAGGED | 0x7000]), 1);
        run.break_off();
        assert_eq!(run.climbs(&[0x6000]), 0);
        assert!(!run.is_unbroken());
    }

    #[test]
    fn each_that_ascended_is_found_and_no_other() {
        for len in 0..40 {
            let pages: Vec<usize> = (0..len).map(|i| (2 * i + 1) << PAGE_SHIFT).collect();
            let mut run = SortedPrefix::default();
            let (a, b) = pages.split_at(len / 3);
            run.add(a);
            run.add(b);
            for page in 0..2 * len + 2 {
                let found = run.has(page << PAGE_SHIFT | 0x123, |at| pages.get(at).copied());
                assert_eq!(found, page % 2 == 1 && page < 2 * len);
            }
        }
    }

    #[test]
    fn what_cannot_be_read_again_is_not_found() {
        let mut run = SortedPrefix::default();
        run.add(&[0x1000, 0x2000]);
        assert!(!run.has(0x1000, |_| None));
    }
}
