// SPDX-License-Identifier: GPL-2.0-only

//! Folios: what migration asks of them, and what it may ask only of a locked one.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/page-flags.h`](srctree/include/linux/page-flags.h)

use core::{
    mem::offset_of,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    types::Opaque, //
};

use super::sched::NodeId;

/// Where a folio has its link.
pub(crate) const LRU: usize = offset_of!(
    bindings::folio,
    __bindgen_anon_1.__bindgen_anon_1.__bindgen_anon_1.lru
);

/// A folio: a power of two of pages, together.
///
/// # Invariants
///
/// A reference to it implies a reference count on it, so that it is neither freed nor split.
///
/// # Examples
///
/// ```ignore
#[doc = include_str!("../tests/examples/folio.rs")]
/// ```
#[repr(transparent)]
pub struct Folio(Opaque<bindings::folio>);

// SAFETY: What can be done with a shared reference is atomic, or reads what the reference count
// keeps as it is.
unsafe impl Send for Folio {}
// SAFETY: As above.
unsafe impl Sync for Folio {}

impl Folio {
    /// The C folio.
    pub fn as_raw(&self) -> *mut bindings::folio {
        self.0.get()
    }

    /// How many base pages it has.
    pub fn nr_pages(&self) -> usize {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_nr_pages(self.as_raw()) }
    }

    /// Its place in its mapping, in base pages; of a folio that nobody locked, a hint.
    pub fn index(&self) -> u64 {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_index(self.as_raw()) as u64 }
    }

    /// Its link in the list that it is on.
    pub(crate) fn lru(&self) -> *mut bindings::list_head {
        self.as_raw().wrapping_byte_add(LRU).cast()
    }

    /// The memory node it is on.
    pub fn nid(&self) -> NodeId {
        // SAFETY: By the type invariant the folio exists.
        NodeId(unsafe { bindings::ferry_folio_nid(self.as_raw()) })
    }

    /// Whether all there is to these pages of it are their bytes, and readable: no tags, nothing
    /// that a sanitizer keeps of them, no poison. An engine copies no more than that.
    pub fn is_bytes(&self, first_page: u32, nr_pages: u32) -> bool {
        let (first, nr) = (first_page as usize, nr_pages as usize);
        // SAFETY: By the type invariant the folio exists; others than its pages are not looked at.
        first + nr <= self.nr_pages()
            && unsafe { bindings::ferry_dma_reaches(self.as_raw(), first, nr) }
    }

    /// How many references there are now.
    pub fn ref_count(&self) -> i32 {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_ref_count(self.as_raw()) }
    }
}

/// A folio that the bearer holds the lock of.
///
/// # Invariants
///
/// The folio's lock is held for `'a`.
#[derive(Clone, Copy)]
pub struct LockedFolio<'a>(&'a Folio);

impl<'a> LockedFolio<'a> {
    /// Says that `folio` is locked.
    ///
    /// # Safety
    ///
    /// The lock must be held for `'a`, on behalf of the caller.
    pub unsafe fn new(folio: &'a Folio) -> Self {
        // INVARIANT: By the safety requirement.
        Self(folio)
    }

    /// The references that page cache, swap cache, private data and page tables account for.
    ///
    /// Stable if it is not mapped. The caller adds what it holds itself.
    pub fn expected_ref_count(self) -> i32 {
        // SAFETY: By the type invariants the folio exists and is locked.
        unsafe { bindings::ferry_folio_expected_ref_count(self.as_raw()) }
    }

    /// Whether private data, such as buffer heads, hangs on it.
    pub fn has_private(self) -> bool {
        // SAFETY: By the type invariants the folio exists and is locked.
        unsafe { bindings::ferry_folio_test_private(self.as_raw()) }
    }

    /// Whether it is a driver's page, which the driver itself migrates.
    pub fn has_movable_ops(self) -> bool {
        // SAFETY: By the type invariants the folio exists and is locked.
        unsafe { bindings::ferry_folio_has_movable_ops(self.as_raw()) }
    }

    /// Whether to migrate it means just: copy the content, then switch the mapping.
    ///
    /// So it does for anonymous memory, for folios without a mapping, and for regular files (and
    /// tmpfs) which use one of mm's own functions. All others may need more; of some, like
    /// `memfd_secret(2)` and guest memory, the content may not even be read. Directories and what
    /// else a file system keeps in a page cache it may write without the folio's lock.
    pub fn migrates_by_copy(self) -> bool {
        // SAFETY: By the type invariants the folio exists and is locked.
        if unsafe { bindings::ferry_folio_test_anon(self.as_raw()) } {
            return true;
        }
        // SAFETY: As above; the lock keeps the mapping.
        let mapping = unsafe { bindings::folio_mapping(self.as_raw()) };
        if mapping.is_null() {
            return true;
        }
        // SAFETY: The folio's lock keeps the mapping, and the mapping its inode.
        unsafe {
            bindings::ferry_mapping_is_regular(mapping)
                && copies(bindings::ferry_mapping_migrate_op(mapping) as usize)
        }
    }
}

impl core::ops::Deref for LockedFolio<'_> {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        self.0
    }
}

/// Whether a `migrate_folio` operation copies and switches, if there is no private data.
fn copies(op: usize) -> bool {
    #[cfg(CONFIG_BUFFER_HEAD)]
    let buffers = [
        bindings::buffer_migrate_folio as *const () as usize,
        bindings::buffer_migrate_folio_norefs as *const () as usize,
    ];
    #[cfg(not(CONFIG_BUFFER_HEAD))]
    let buffers: [usize; 0] = [];

    let plain = [
        bindings::migrate_folio as *const () as usize,
        bindings::filemap_migrate_folio as *const () as usize,
    ];
    plain.contains(&op) || buffers.contains(&op)
}

/// A folio of one's own, mapped nowhere; freed when dropped.
///
/// # Invariants
///
/// `0` points to a folio, the only reference to which is this one but for [`FolioRef`]s.
pub struct OwnedFolio(NonNull<bindings::folio>);

// SAFETY: A folio may be used and freed by any task.
unsafe impl Send for OwnedFolio {}
// SAFETY: A shared reference only gives out `&Folio`.
unsafe impl Sync for OwnedFolio {}

impl OwnedFolio {
    /// Allocates a folio of `order`, with zeroes in it. May sleep.
    pub fn new(order: u32) -> Result<Self> {
        let gfp = bindings::GFP_KERNEL | bindings::__GFP_ZERO;
        // SAFETY: No requirements.
        let ptr = unsafe { bindings::ferry_folio_alloc(gfp, order) };
        // INVARIANT: It was just allocated, for us alone.
        NonNull::new(ptr).map(Self).ok_or(ENOMEM)
    }

    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: The content is initialised, and by the type invariant nobody else has a
        // reference to write through.
        unsafe { core::slice::from_raw_parts(self.address(), self.nr_pages() * PAGE_SIZE) }
    }

    /// Its content, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: As in `bytes`; the exclusive reference keeps readers away.
        unsafe { core::slice::from_raw_parts_mut(self.address(), self.nr_pages() * PAGE_SIZE) }
    }

    /// A reference more on the same folio, which drops like the first.
    ///
    /// It gives no access to the content.
    pub fn another_reference(&self) -> FolioRef {
        FolioRef::new(self)
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_address(self.0.as_ptr()) }.cast()
    }
}

impl core::ops::Deref for OwnedFolio {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        // SAFETY: By the type invariant the folio exists; `Folio` is transparent.
        unsafe { self.0.cast().as_ref() }
    }
}

impl Drop for OwnedFolio {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this reference is ours.
        unsafe { bindings::ferry_folio_put(self.0.as_ptr()) };
    }
}

/// A reference count on a folio, and no more.
///
/// # Invariants
///
/// `0` points to a folio on which this value holds a reference.
pub struct FolioRef(NonNull<bindings::folio>);

// SAFETY: A reference may be used and given back by any task.
unsafe impl Send for FolioRef {}

impl FolioRef {
    /// A reference more on a folio.
    pub fn new(folio: &Folio) -> Self {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_get(folio.as_raw()) };
        // INVARIANT: It was just counted.
        Self(NonNull::from(folio).cast())
    }

    /// Takes over a reference that somebody has.
    ///
    /// # Safety
    ///
    /// `folio` must be valid; the reference must be the caller's, who may not use it again.
    #[cfg(any(CONFIG_FERRY_SERVICE, CONFIG_FERRY_PAGECACHE_PROMOTION))]
    pub(crate) unsafe fn adopt(folio: NonNull<bindings::folio>) -> Self {
        // INVARIANT: By the safety requirement.
        Self(folio)
    }
}

impl core::ops::Deref for FolioRef {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        // SAFETY: By the type invariant the folio exists; `Folio` is transparent.
        unsafe { self.0.cast().as_ref() }
    }
}

impl Drop for FolioRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this reference is ours.
        unsafe { bindings::ferry_folio_put(self.0.as_ptr()) };
    }
}
