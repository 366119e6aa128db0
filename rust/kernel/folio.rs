// SPDX-License-Identifier: GPL-2.0-only

//! Folios: properties that migration needs, some of them stable only under the folio lock; and lists
//! of isolated folios, each of which has one user.
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/page-flags.h`](srctree/include/linux/page-flags.h)

use core::{
    marker::PhantomData,
    mem::offset_of,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    interop::list::{
        CList,
        CListHead, //
    },
    page::PAGE_SIZE,
    prelude::*,
    types::Opaque, //
};

use super::sched::NodeId;

/// Offset of the list head `lru` in a folio.
pub(crate) const LRU: usize = offset_of!(
    bindings::folio,
    __bindgen_anon_1.__bindgen_anon_1.__bindgen_anon_1.lru
);

/// A folio: one or more base pages, a power of two, that mm handles as a unit.
///
/// # Invariants
///
/// A Rust reference to a folio implies a reference count on it, so it is neither freed nor split.
///
/// # Examples
///
/// ```ignore
/// let mut folio = OwnedFolio::new(2)?; // of order 2
/// assert_eq!((folio.nr_pages(), folio.ref_count()), (4, 1));
/// assert!(folio.bytes().iter().all(|&byte| byte == 0));
/// folio.bytes_mut()[3 * PAGE_SIZE] = 7;
/// assert_eq!(folio.bytes()[3 * PAGE_SIZE], 7);
/// ```
#[repr(transparent)]
pub struct Folio(Opaque<bindings::folio>);

// SAFETY: All operations on a shared reference are atomic, or read what the reference count keeps
// stable.
unsafe impl Send for Folio {}
// SAFETY: As above.
unsafe impl Sync for Folio {}

impl Folio {
    /// Returns the C folio.
    pub fn as_raw(&self) -> *mut bindings::folio {
        self.0.get()
    }

    /// Returns the number of base pages.
    pub fn nr_pages(&self) -> usize {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_nr_pages(self.as_raw()) }
    }

    /// Returns the offset in the mapping, in base pages. A hint unless the folio is locked.
    pub fn index(&self) -> u64 {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_index(self.as_raw()) as u64 }
    }

    /// Returns the list head by which the folio is linked.
    pub fn lru(&self) -> *mut bindings::list_head {
        self.as_raw().wrapping_byte_add(LRU).cast()
    }

    /// Returns the memory node of the folio.
    pub fn nid(&self) -> NodeId {
        // SAFETY: By the type invariant the folio exists.
        NodeId(unsafe { bindings::ferry_folio_nid(self.as_raw()) })
    }

    /// Returns whether a DMA engine can copy these pages: they have no MTE tags or sanitizer state,
    /// and the folio is not poisoned.
    pub fn is_bytes(&self, first_page: u32, nr_pages: u32) -> bool {
        let (first, nr) = (first_page as usize, nr_pages as usize);
        // SAFETY: By the type invariant the folio exists, and it has the pages.
        first + nr <= self.nr_pages()
            && unsafe { bindings::ferry_dma_reaches(self.as_raw(), first, nr) }
    }

    /// Returns the reference count. A hint, as other tasks may change it.
    pub fn ref_count(&self) -> i32 {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_ref_count(self.as_raw()) }
    }
}

/// A folio with its lock held.
///
/// # Invariants
///
/// The folio's lock is held for `'a`.
#[derive(Clone, Copy)]
pub struct LockedFolio<'a>(&'a Folio);

impl<'a> LockedFolio<'a> {
    /// Wraps a folio that is locked.
    ///
    /// # Safety
    ///
    /// The lock must be held for `'a`, on behalf of the caller.
    pub unsafe fn new(folio: &'a Folio) -> Self {
        // INVARIANT: The caller guarantees that the lock is held.
        Self(folio)
    }

    /// Wraps a C folio that is locked.
    ///
    /// # Safety
    ///
    /// `raw` must point to a folio. For `'a` the caller must have its lock, and a reference to it.
    pub unsafe fn from_raw(raw: *mut bindings::folio) -> Self {
        // INVARIANT: The caller guarantees that the lock is held, and so is a reference.
        // SAFETY: The caller guarantees that the folio exists for `'a`. `Folio` is a transparent
        // wrapper.
        Self(unsafe { &*raw.cast() })
    }

    /// Returns the folio, for as long as it is locked.
    pub fn folio(self) -> &'a Folio {
        self.0
    }

    /// Returns the number of references that page cache, swap cache, private data and page tables
    /// hold.
    ///
    /// Stable while the folio is not mapped. The caller's own references are not included.
    pub fn expected_ref_count(self) -> i32 {
        // SAFETY: By the type invariants the folio exists and is locked.
        unsafe { bindings::ferry_folio_expected_ref_count(self.as_raw()) }
    }

    /// Returns whether the folio has private data, such as buffer heads.
    pub fn has_private(self) -> bool {
        // SAFETY: By the type invariants the folio exists and is locked.
        unsafe { bindings::ferry_folio_test_private(self.as_raw()) }
    }

    /// Returns whether this is a driver's page, which the driver migrates itself.
    pub fn has_movable_ops(self) -> bool {
        // SAFETY: By the type invariants the folio exists and is locked.
        unsafe { bindings::ferry_folio_has_movable_ops(self.as_raw()) }
    }

    /// Returns whether to migrate the folio means only to copy it and to replace its mapping.
    ///
    /// This is true for hugetlb folios (unless the copy of the first page copies the MTE tags of
    /// all), anonymous memory, folios without a mapping, and regular files (including tmpfs) that
    /// use a function of mm itself. Other mappings may need more, and the content of some,
    /// like `memfd_secret(2)` and guest memory, may not even be read. A file system may write its
    /// directories and other internal mappings without the folio lock.
    pub fn migrates_by_copy(self) -> bool {
        // SAFETY: By the type invariants the folio exists and is locked.
        if unsafe { bindings::ferry_folio_test_hugetlb(self.as_raw()) } {
            // SAFETY: As above.
            return !unsafe { bindings::ferry_hugetlb_has_tags(self.as_raw()) };
        }
        // SAFETY: As above.
        if unsafe { bindings::ferry_folio_test_anon(self.as_raw()) } {
            return true;
        }
        // SAFETY: As above; the folio lock keeps the mapping stable.
        let mapping = unsafe { bindings::folio_mapping(self.as_raw()) };
        if mapping.is_null() {
            return true;
        }
        // SAFETY: The folio lock keeps the mapping, and the mapping keeps its inode.
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

/// Returns whether a `migrate_folio` operation only copies a folio without private data and
/// replaces its mapping.
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

/// A folio that its holder allocated, not mapped; freed when dropped.
///
/// # Invariants
///
/// This value and other [`FolioRef`]s hold all references to the folio.
pub struct OwnedFolio(FolioRef);

impl OwnedFolio {
    /// Allocates a zeroed folio of `order`. May sleep.
    pub fn new(order: u32) -> Result<Self> {
        let gfp = bindings::GFP_KERNEL | bindings::__GFP_ZERO;
        // SAFETY: The function has no requirements.
        let ptr = unsafe { bindings::ferry_folio_alloc(gfp, order) };
        // INVARIANT: The folio was just allocated, and this is its only reference.
        Ok(Self(FolioRef(NonNull::new(ptr).ok_or(ENOMEM)?)))
    }

    /// Returns the content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: The content is initialised. By the type invariant no other task can write it: a
        // `FolioRef` gives no access to the content.
        unsafe { core::slice::from_raw_parts(self.address(), self.nr_pages() * PAGE_SIZE) }
    }

    /// Returns the content for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: As in `bytes`; `&mut self` excludes readers.
        unsafe { core::slice::from_raw_parts_mut(self.address(), self.nr_pages() * PAGE_SIZE) }
    }

    /// Takes another reference to the folio, without access to its content.
    pub fn another_reference(&self) -> FolioRef {
        FolioRef::new(self)
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_address(self.as_raw()) }.cast()
    }
}

impl core::ops::Deref for OwnedFolio {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        &self.0
    }
}

/// A reference to a folio, as a reference count.
///
/// # Invariants
///
/// `0` points to a folio, and this value holds a reference to it.
pub struct FolioRef(NonNull<bindings::folio>);

// SAFETY: Any task may use and drop a reference.
unsafe impl Send for FolioRef {}
// SAFETY: A shared reference gives out only `&Folio`.
unsafe impl Sync for FolioRef {}

impl FolioRef {
    /// Takes a reference to a folio.
    pub fn new(folio: &Folio) -> Self {
        // SAFETY: By the type invariant the folio exists.
        unsafe { bindings::ferry_folio_get(folio.as_raw()) };
        // INVARIANT: The reference was just taken.
        Self(NonNull::from(folio).cast())
    }

    /// Takes over a reference that the caller holds.
    ///
    /// # Safety
    ///
    /// `folio` must be valid. The caller must hold a reference, and must not use it afterwards.
    #[cfg(any(CONFIG_FERRY_SERVICE, CONFIG_FERRY_PAGECACHE_PROMOTION))]
    pub(crate) unsafe fn adopt(folio: NonNull<bindings::folio>) -> Self {
        // INVARIANT: The caller passes its reference.
        Self(folio)
    }
}

impl core::ops::Deref for FolioRef {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        // SAFETY: By the type invariant the folio exists, and `Folio` is transparent.
        unsafe { self.0.cast().as_ref() }
    }
}

impl Drop for FolioRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value holds a reference, which it does not use again.
        unsafe { bindings::ferry_folio_put(self.0.as_ptr()) };
    }
}

/// A caller's list of isolated folios.
///
/// # Invariants
///
/// For `'a` the list has no other user. It links isolated folios by `lru`, each with the reference
/// that its isolation took.
pub struct IsolatedList<'a>(NonNull<bindings::list_head>, PhantomData<&'a mut CListHead>);

impl<'a> IsolatedList<'a> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be valid for `'a`, and the type invariants must hold.
    pub unsafe fn from_raw(list: *mut bindings::list_head) -> Self {
        // INVARIANT: The caller guarantees the type invariants.
        // SAFETY: A valid pointer is not NULL.
        Self(unsafe { NonNull::new_unchecked(list) }, PhantomData)
    }

    pub(crate) fn as_raw(&mut self) -> *mut bindings::list_head {
        self.0.as_ptr()
    }

    /// Returns the folios, in order.
    pub fn iter(&mut self) -> impl Iterator<Item = &Folio> {
        // SAFETY: By the type invariants the list links folios with references, and has no other
        // user while the iterator exists.
        unsafe { CList::<Folio, LRU>::from_raw(self.as_raw()) }.iter()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        // SAFETY: By the type invariants the list is valid and does not change during the call.
        !unsafe { CListHead::from_raw(self.0.as_ptr()) }.is_linked()
    }
}

/// An owned list of isolated folios. Its drop puts the folios back.
///
/// # Invariants
///
/// `head` links isolated folios, with the references that isolation took, and has no other user.
#[pin_data(PinnedDrop)]
pub struct IsolatedFolios {
    #[pin]
    head: CListHead,
}

impl IsolatedFolios {
    /// Returns an empty list.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The list is empty.
            head <- CListHead::new(),
        })
    }

    /// Returns the list, to add folios to and to take folios from.
    pub fn list(self: Pin<&mut Self>) -> IsolatedList<'_> {
        // SAFETY: `head` links isolated folios, and has no other user while `self` is borrowed.
        unsafe { IsolatedList::from_raw(self.head.as_raw()) }
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        !self.head.is_linked()
    }

    /// Puts all folios back where they were isolated from. May sleep.
    pub fn put_back(self: Pin<&mut Self>) {
        // SAFETY: `head` links isolated folios with the references that isolation took.
        unsafe { bindings::putback_movable_pages(self.head.as_raw()) };
    }
}

#[pinned_drop]
impl PinnedDrop for IsolatedFolios {
    fn drop(self: Pin<&mut Self>) {
        self.put_back();
    }
}
