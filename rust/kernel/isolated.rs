// SPDX-License-Identifier: GPL-2.0-only

//! Lists of isolated folios.
//!
//! No locks: a list has one user.
//!
//! C header: [`include/linux/list.h`](srctree/include/linux/list.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    interop::list::{
        CList,
        CListHead, //
    },
    prelude::*, //
};

use super::folio::{
    Folio,
    LRU, //
};

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
