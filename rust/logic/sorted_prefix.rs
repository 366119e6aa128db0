// SPDX-License-Identifier: GPL-2.0-only

//! Ascending addresses: the first pages of a `move_pages(2)` may be migrated before the later ones
//! are looked up.
//!
//! Mainline isolates all pages of a run before it migrates the first. A page that is named twice is
//! found isolated the second time, and reported with `-EBUSY`. If it had been migrated by then it
//! would be reported as already on its target node. No page is named twice while addresses ascend.
//! Once they do not, the addresses before are searched for each further page.

use super::page::PAGE_SHIFT;

/// Addresses from here on may carry a tag, so that two addresses name one page. RISC-V has the most
/// bits for tags, 16.
pub const TAGGED: usize = 1 << 48;

/// The ascending addresses at the start of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SortedPrefix {
    /// The page of the last address that ascended.
    last: Option<usize>,
    /// The number of addresses that ascended.
    len: usize,
    /// Whether an address did not ascend.
    broken: bool,
}

impl SortedPrefix {
    /// Returns how many of `pages`, the next addresses, continue the ascending order.
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
                let ascends = addr < TAGGED && last.is_none_or(|last| page > last);
                last = Some(page);
                ascends
            })
            .count()
    }

    /// Adds addresses that ascend according to [`SortedPrefix::climbs`].
    pub fn add(&mut self, pages: &[usize]) {
        if let Some(addr) = pages.last() {
            self.last = Some(addr >> PAGE_SHIFT);
        }
        self.len += pages.len();
    }

    /// Records an address that does not ascend. From then on [`SortedPrefix::climbs`] returns 0.
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    /// Returns whether all addresses up to now ascend.
    pub fn is_unbroken(&self) -> bool {
        !self.broken
    }

    /// Returns whether the page at `addr`, which has no tag, is one of those that ascended. `nth`
    /// returns their addresses by index, or [`None`] if an address cannot be read again.
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
