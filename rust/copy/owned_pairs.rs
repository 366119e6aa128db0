// SPDX-License-Identifier: GPL-2.0-only

//! Folio pairs for tests and benchmarks: allocated here, locked, and not mapped.

use core::ops::Deref;
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

use super::folio_pair::{
    BatchPairs,
    PairedLists, //
};

use crate::kernel::folio::OwnedFolio;

/// Sources that are filled with a pattern, and empty destinations of the same sizes.
///
/// # Invariants
///
/// All folios are locked, and on no list outside of [`OwnedPairs::with_lists`]. If a destination
/// has other references, a DMA engine that has not answered may still write it, so no task accesses
/// its content.
///
/// # Examples
///
/// ```ignore
/// let mut pairs = OwnedPairs::new(&[1, 0])?; // a pair of order-1 folios, and one of order 0
/// assert_eq!(pairs.pages(), 3);
/// assert!(!pairs.equal(0));
/// pairs.copy_serially()?;
/// assert!(pairs.all_equal() && !pairs.all_marked());
/// ```
///
/// `rust/tests/examples/owned_pairs.rs` runs under KUnit.
pub struct OwnedPairs(KVec<Pair>);

struct Pair {
    dst: Locked,
    src: Locked,
}

impl Pair {
    /// Returns whether no engine can access the destination.
    fn is_ours(&self) -> bool {
        self.dst.ref_count() == 1
    }
}

/// A locked folio that this module owns.
struct Locked(OwnedFolio);

impl Locked {
    fn new(folio: OwnedFolio) -> Result<Self> {
        // SAFETY: `folio` owns the folio, so the pointer is valid.
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
        // SAFETY: `Locked::new` locked the folio, and this is its only unlock.
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
            // INVARIANT: Both folios are locked, and not on a list yet.
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

    /// Calls `f` with the pairs on two lists, as page migration has them.
    pub fn with_lists<R>(&mut self, f: impl FnOnce(BatchPairs<'_>) -> R) -> R {
        let mut dst = bindings::list_head::default();
        let mut src = bindings::list_head::default();
        // SAFETY: Both heads are valid, and do not move until `f` has returned.
        unsafe {
            bindings::INIT_LIST_HEAD(&raw mut dst);
            bindings::INIT_LIST_HEAD(&raw mut src);
        }
        for pair in self.0.iter() {
            // SAFETY: By the type invariant the folios are on no list.
            unsafe {
                bindings::list_add_tail(pair.dst.lru(), &raw mut dst);
                bindings::list_add_tail(pair.src.lru(), &raw mut src);
            }
        }
        // INVARIANT: After `f` the stale links are never followed, so the folios count as on no
        // list.
        // SAFETY: All folios are locked and unmapped; the lists have the same order and equal
        // sizes. `&mut self` excludes every other user.
        let lists = unsafe { PairedLists::from_raw(&raw mut dst, &raw mut src) };
        f(BatchPairs::OnLists(lists))
    }

    /// Copies every folio on this CPU, one after the other, as mainline does.
    pub fn copy_serially(&mut self) -> Result {
        for pair in self.0.iter().filter(|pair| pair.is_ours()) {
            // SAFETY: Both folios exist and have the same size, and `&mut self` excludes every
            // other user.
            let rc = unsafe { bindings::folio_mc_copy(pair.dst.as_raw(), pair.src.as_raw()) };
            kernel::error::to_result(rc)?;
        }
        Ok(())
    }

    /// Takes an extra reference to source `nr`, as a pin does, while `f` runs.
    pub fn with_pinned<R>(&mut self, nr: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let pinned = self.0.get(nr).map(|pair| pair.src.another_reference());
        let result = f(self);
        drop(pinned);
        result
    }

    /// Returns the reference counts of destination and source `nr`.
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

    /// Returns whether destination `nr` has the content of its source.
    pub fn equal(&self, nr: usize) -> bool {
        self.0
            .get(nr)
            .is_some_and(|pair| pair.is_ours() && pair.dst.bytes() == pair.src.bytes())
    }

    /// Returns whether destination `nr` is marked as posted, and clears the mark.
    pub fn take_mark(&mut self, nr: usize) -> bool {
        self.0.get_mut(nr).is_some_and(|pair| {
            // SAFETY: The folio exists, and no other task uses the state in it.
            unsafe { bindings::ferry_folio_take_posted(pair.dst.as_raw()) }
        })
    }

    /// Returns whether every destination has the content of its source.
    pub fn all_equal(&self) -> bool {
        (0..self.0.len()).all(|nr| self.equal(nr))
    }

    /// Returns whether every destination is marked as posted, and clears the marks.
    pub fn all_marked(&mut self) -> bool {
        let nr_pairs = self.0.len();
        let marked = (0..nr_pairs).filter(|&nr| self.take_mark(nr)).count();
        marked == nr_pairs
    }

    /// Returns the number of base pages of all sources.
    pub fn pages(&self) -> usize {
        self.0.iter().map(|pair| pair.src.nr_pages()).sum()
    }
}

/// Fills `bytes` with words that differ between folios, between pages and within a page.
fn fill(bytes: &mut [u8], seed: u64) {
    for (nr, word) in bytes.chunks_exact_mut(8).enumerate() {
        let page = (nr * 8 / PAGE_SIZE) as u64;
        let value = (seed << 48 | page << 32 | nr as u64) ^ 0x9e37_79b9_7f4a_7c15;
        word.copy_from_slice(&value.to_ne_bytes());
    }
}
