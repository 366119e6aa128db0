// SPDX-License-Identifier: GPL-2.0-only

//! Lists of folios that are isolated.
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
/// For `'a` the list has no other user. It links folios by `lru`, each of which is isolated, with
/// the reference that isolation takes.
pub struct IsolatedList<'a>(NonNull<bindings::list_head>, PhantomData<&'a mut CListHead>);

impl<'a> IsolatedList<'a> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be valid for `'a`, and the type invariants hold.
    pub unsafe fn from_raw(list: *mut bindings::list_head) -> Self {
        // INVARIANT: The caller passes a list that is as the type demands.
        // SAFETY: A valid pointer is not NULL.
        Self(unsafe { NonNull::new_unchecked(list) }, PhantomData)
    }

    pub(crate) fn as_raw(&mut self) -> *mut bindings::list_head {
        self.0.as_ptr()
    }

    /// Returns the folios, in order.
    pub fn iter(&mut self) -> impl Iterator<Item = &Folio> {
        // SAFETY: By the type invariants these are folios, with references, and the list is ours
        // for as long as the iterator lives.
        unsafe { CList::<Folio, LRU>::from_raw(self.as_raw()) }.iter()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        // SAFETY: By the type invariants it is a list, which does not change meanwhile.
        !unsafe { CListHead::from_raw(self.0.as_ptr()) }.is_linked()
    }
}

/// A list of isolated folios that the bearer owns; they are put back when it is dropped.
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
        // SAFETY: `head` links isolated folios, and is ours for as long as `self` is borrowed.
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
