// SPDX-License-Identifier: GPL-2.0-only

//! Folio pairs made up for tests and benchmarks: allocated here, locked, mapped nowhere.

use core::ops::Deref;
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

use super::folio_pair::PairedLists;

use crate::kernel::folio::OwnedFolio;

/// Sources filled with a pattern, and empty destinations of the same sizes.
///
/// # Invariants
///
/// All folios are locked, and on no list outside of [`OwnedPairs::with_lists`]. A destination with
/// references beside ours is an engine's, that did not answer for it: nobody looks at its content.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/owned_pairs.rs")]
/// ```
pub struct OwnedPairs(KVec<Pair>);

struct Pair {
    dst: Locked,
    src: Locked,
}

impl Pair {
    /// Whether no engine may be at the destination.
    fn is_ours(&self) -> bool {
        self.dst.ref_count() == 1
    }
}

/// A folio of our own that is locked.
struct Locked(OwnedFolio);

impl Locked {
    fn new(folio: OwnedFolio) -> Result<Self> {
        // SAFETY: The folio exists.
        if unsafe { bindings::ferry_folio_trylock(folio.as_raw()) } {
            Ok(Self(folio))
        } else {
            Err(EBUSY)
        }
    }
}

impl Deref for Locked {
    type Target = OwnedFolio;

    fn deref(&self) -> &OwnedFolio {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: It was locked by `new`.
        unsafe { bindings::folio_unlock(self.0.as_raw()) };
    }
}

impl OwnedPairs {
    /// Allocates a pair for each order. May sleep.
    pub fn new(orders: &[u32]) -> Result<Self> {
        let mut pairs = KVec::with_capacity(orders.len(), GFP_KERNEL)?;
        for (nr, &order) in orders.iter().enumerate() {
            let mut src = OwnedFolio::new(order)?;
            fill(src.bytes_mut(), nr as u64);
            let dst = OwnedFolio::new(order)?;
            // INVARIANT: They are locked, and on no list yet.
            pairs.push(
                Pair {
                    dst: Locked::new(dst)?,
                    src: Locked::new(src)?,
                },
                GFP_KERNEL,
            )?;
        }
        Ok(Self(pairs))
    }

    /// Gives `f` the pairs as page migration has them.
    pub fn with_lists<R>(&mut self, f: impl FnOnce(PairedLists<'_>) -> R) -> R {
        let mut dst = bindings::list_head::default();
        let mut src = bindings::list_head::default();
        // SAFETY: Both are valid heads, which do not move until the lists are taken apart below.
        unsafe {
            bindings::INIT_LIST_HEAD(&raw mut dst);
            bindings::INIT_LIST_HEAD(&raw mut src);
        }
        for pair in self.0.iter() {
            // SAFETY: By the type invariant they are on no list.
            unsafe {
                bindings::list_add_tail(pair.dst.lru(), &raw mut dst);
                bindings::list_add_tail(pair.src.lru(), &raw mut src);
            }
        }
        // SAFETY: All are locked, mapped nowhere, of equal sizes and in the same order; the
        // exclusive reference keeps everybody else away.
        // INVARIANT: Afterwards nobody looks at the links, which by themselves are no list.
        f(unsafe { PairedLists::from_raw(&raw mut dst, &raw mut src) })
    }

    /// Copies every folio as mainline does, one after the other, by this CPU.
    pub fn copy_serially(&mut self) -> Result {
        for pair in self.0.iter().filter(|pair| pair.is_ours()) {
            // SAFETY: Both exist, have the same size, and nobody else uses them.
            let rc = unsafe { bindings::folio_mc_copy(pair.dst.as_raw(), pair.src.as_raw()) };
            kernel::error::to_result(rc)?;
        }
        Ok(())
    }

    /// Gives the source at `nr` a reference too many, as a pin does, while `f` runs.
    pub fn with_pinned<R>(&mut self, nr: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let pinned = self.0.get(nr).map(|pair| pair.src.another_reference());
        let result = f(self);
        drop(pinned);
        result
    }

    /// How many references there are on the destination and the source at `nr`.
    pub fn ref_counts(&self, nr: usize) -> Option<(i32, i32)> {
        self.0
            .get(nr)
            .map(|pair| (pair.dst.ref_count(), pair.src.ref_count()))
    }

    /// Makes every destination differ from its source.
    pub fn spoil(&mut self) {
        for pair in self.0.iter_mut().filter(|pair| pair.is_ours()) {
            pair.dst.0.bytes_mut().fill(0xff);
        }
    }

    /// Whether the destination at `nr` has the content of its source.
    pub fn equal(&self, nr: usize) -> bool {
        self.0
            .get(nr)
            .is_some_and(|pair| pair.is_ours() && pair.dst.bytes() == pair.src.bytes())
    }

    /// Whether the destination at `nr` is marked as posted; takes the mark away.
    pub fn take_mark(&mut self, nr: usize) -> bool {
        self.0.get_mut(nr).is_some_and(|pair| {
            // SAFETY: The folio exists, and `migrate_info` is ours.
            unsafe { bindings::ferry_folio_take_posted(pair.dst.as_raw()) }
        })
    }

    /// Whether every destination has the content of its source.
    pub fn all_equal(&self) -> bool {
        (0..self.0.len()).all(|nr| self.equal(nr))
    }

    /// Whether every destination is marked as posted; takes the marks away.
    pub fn all_marked(&mut self) -> bool {
        let nr_pairs = self.0.len();
        let marked = (0..nr_pairs).filter(|&nr| self.take_mark(nr)).count();
        marked == nr_pairs
    }

    /// Base pages of all sources.
    pub fn pages(&self) -> usize {
        self.0.iter().map(|pair| pair.src.nr_pages()).sum()
    }
}

/// Writes words that differ from page to page, from folio to folio and within a page.
fn fill(bytes: &mut [u8], seed: u64) {
    for (nr, word) in bytes.chunks_exact_mut(8).enumerate() {
        let page = (nr * 8 / PAGE_SIZE) as u64;
        let value = (seed << 48 | page << 32 | nr as u64) ^ 0x9e37_79b9_7f4a_7c15;
        word.copy_from_slice(&value.to_ne_bytes());
    }
}
