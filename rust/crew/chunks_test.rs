// SPDX-License-Identifier: GPL-2.0-only

//! A [`ChunkList`] with folios of its own, for tests. The workers are simulated, the lists are
//! real.

use core::mem::offset_of;
use kernel::{
    bindings,
    interop::list::{
        CList,
        CListHead, //
    },
    prelude::*, //
};
use pin_init::stack_pin_init;

use super::chunks::{
    ChunkList,
    Cut,
    Worker, //
};

use crate::kernel::folio::{
    Folio,
    OwnedFolio,
    LRU, //
};

/// Offset of the index in a folio.
const INDEX: usize = offset_of!(
    bindings::folio,
    __bindgen_anon_1.__bindgen_anon_1.__bindgen_anon_2.index
);

/// Numbered folios, and simulated workers that own chunks of them.
///
/// # Invariants
///
/// `flying` has the chunks that were cut and not put, unless their worker has died.
pub struct ChunkListTest {
    folios: KVec<OwnedFolio>,
    step: u64,
    work: Pin<KBox<ChunkList>>,
    flying: KVec<Cut>,
    has_died: bool,
}

impl ChunkListTest {
    /// Allocates folios, each the same number of pages behind the one before. None is added. May
    /// sleep.
    pub fn new(nr_folios: usize, step: u64) -> Result<Self> {
        let mut folios = KVec::with_capacity(nr_folios, GFP_KERNEL)?;
        for nr in 0..nr_folios {
            let folio = OwnedFolio::new(0)?;
            set_index(&folio, nr as u64 * step);
            folios.push(folio, GFP_KERNEL)?;
        }
        // INVARIANT: No chunk was cut.
        Ok(Self {
            folios,
            step,
            work: KBox::pin_init(ChunkList::new(Default::default()), GFP_KERNEL)?,
            flying: KVec::new(),
            has_died: false,
        })
    }

    /// Adds folios to the list, each of them once.
    pub fn add(&mut self, range: core::ops::Range<usize>) {
        stack_pin_init!(let list = CListHead::new());
        for folio in self.folios.get(range).into_iter().flatten() {
            // SAFETY: The folio is on no list.
            unsafe { bindings::list_add_tail(folio.lru(), list.as_raw()) };
        }
        // SAFETY: It is a list of folios that have no other user while this value exists.
        unsafe { self.work.as_mut().add(list.as_raw()) };
    }

    /// Returns whether there are folios that a worker can begin to migrate.
    pub fn has_more(&self) -> bool {
        self.work.has_more()
    }

    /// Lets another worker cut a chunk of `pages` pages. Returns whether there was one. May sleep.
    pub fn cut(&mut self, chunk_pages: u32) -> Result<bool> {
        self.flying.reserve(1, GFP_KERNEL)?;
        let Some(chunk) = self.work.as_mut().cut(Worker::Helper, chunk_pages) else {
            return Ok(false);
        };
        // INVARIANT: The chunk was just cut. There is room for it.
        Ok(self.flying.push_within_capacity(chunk).is_ok())
    }

    /// Returns the number of chunks.
    pub fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Returns the numbers of the first and the last folio of a chunk.
    pub fn ends_of(&self, which: usize) -> Option<(u64, u64)> {
        let chunk = self.flying.get(which)?;
        // SAFETY: By the type invariant the chunk has folios, which have no other user.
        let folios = unsafe { CList::<Folio, LRU>::from_raw(chunk.folios()) };
        let first = folios.iter().next()?;
        let last = folios.iter().last()?;
        Some((self.number(first), self.number(last)))
    }

    /// Puts a chunk, of which the folios are left whose number is among those; with an error, or 0.
    pub fn put(&mut self, which: usize, left: impl Fn(u64) -> bool, rc: c_int) {
        if which >= self.flying.len() {
            return;
        }
        let Ok(chunk) = self.flying.remove(which) else {
            return;
        };
        for folio in self.folios.iter() {
            let (first, last) = (chunk.folios(), folio.lru());
            // SAFETY: Both are list heads, and no task changes the lists meanwhile.
            if !left(self.number(folio)) && unsafe { is_on(first, last) } {
                // SAFETY: The folio is on the list of the chunk.
                unsafe { bindings::ferry_list_del_init(last) };
            }
        }
        // SAFETY: By the type invariant the chunk was cut and not put.
        unsafe { self.work.as_mut().put(chunk, rc, &Default::default()) };
    }

    /// Simulates that the worker of a chunk dies: the chunk is never put.
    pub fn abandon(&mut self, which: usize) {
        if which < self.flying.len() {
            // INVARIANT: The worker of the chunk has died.
            drop(self.flying.remove(which));
            self.has_died = true;
        }
    }

    /// Puts all chunks as they are, ends the work, and returns the numbers of the folios that are
    /// left; `EBUSY` if a worker has died. May sleep.
    pub fn end(&mut self) -> Result<KVec<u64>> {
        if self.has_died {
            return Err(EBUSY);
        }
        while !self.flying.is_empty() {
            self.put(0, |_| true, 0);
        }
        stack_pin_init!(let left = CListHead::new());
        let mut numbers = KVec::with_capacity(self.folios.len(), GFP_KERNEL)?;
        // SAFETY: Every chunk was put, and `left` is empty.
        unsafe { self.work.as_mut().end(left.as_raw()) };
        // SAFETY: It is a list of folios without another user.
        for folio in unsafe { CList::<Folio, LRU>::from_raw(left.as_raw()) }.iter() {
            numbers.push(self.number(folio), GFP_KERNEL)?;
        }
        Ok(numbers)
    }

    fn number(&self, folio: &Folio) -> u64 {
        folio.index().checked_div(self.step).unwrap_or(0)
    }
}

impl Drop for ChunkListTest {
    fn drop(&mut self) {
        // Folios leave the lists that are freed with `work`. Their links are not used any more.
        while !self.flying.is_empty() {
            self.put(0, |_| true, 0);
        }
        for folio in self.folios.iter() {
            set_index(folio, 0);
        }
    }
}

/// Sets the index of a folio.
fn set_index(folio: &OwnedFolio, index: u64) {
    // SAFETY: The folio exists, is not mapped, and has no other user.
    unsafe {
        folio
            .as_raw()
            .wrapping_byte_add(INDEX)
            .cast::<c_ulong>()
            .write(index as c_ulong)
    };
}

/// Returns whether a link is on the list of a head.
///
/// # Safety
///
/// Both must be initialised list heads, of lists that do not change during the call.
unsafe fn is_on(head: *mut bindings::list_head, link: *mut bindings::list_head) -> bool {
    // SAFETY: The caller guarantees initialised list heads.
    let head = unsafe { CListHead::from_raw(head) };
    let mut at = head.next();
    while at != head {
        if at.as_raw() == link {
            return true;
        }
        at = at.next();
    }
    false
}
