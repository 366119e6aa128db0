// SPDX-License-Identifier: GPL-2.0-only

//! A [`ChunkList`] with folios of its own, for tests: who migrates a chunk is made up, the lists are
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

/// Where a folio has its place in its mapping.
const INDEX: usize = offset_of!(
    bindings::folio,
    __bindgen_anon_1.__bindgen_anon_1.__bindgen_anon_2.index
);

/// Folios, numbered, and workers that have chunks of them.
///
/// # Invariants
///
/// `flying` has the chunks that were cut and not put, and whose worker has not died.
pub struct ChunkListTest {
    folios: KVec<OwnedFolio>,
    step: u64,
    work: Pin<KBox<ChunkList>>,
    flying: KVec<Cut>,
    has_died: bool,
}

impl ChunkListTest {
    /// So many folios, each so many pages behind the one before, none of them added. May sleep.
    pub fn new(nr_folios: usize, step: u64) -> Result<Self> {
        let mut folios = KVec::with_capacity(nr_folios, GFP_KERNEL)?;
        for nr in 0..nr_folios {
            let folio = OwnedFolio::new(0)?;
            set_index(&folio, nr as u64 * step);
            folios.push(folio, GFP_KERNEL)?;
        }
        // INVARIANT: There are none.
        Ok(Self {
            folios,
            step,
            work: KBox::pin_init(ChunkList::new(Default::default()), GFP_KERNEL)?,
            flying: KVec::new(),
            has_died: false,
        })
    }

    /// Adds folios to what is to be done, each of which once.
    pub fn add(&mut self, range: core::ops::Range<usize>) {
        stack_pin_init!(let list = CListHead::new());
        for folio in self.folios.get(range).into_iter().flatten() {
            // SAFETY: It is on no list.
            unsafe { bindings::list_add_tail(folio.lru(), list.as_raw()) };
        }
        // SAFETY: It is a list of folios, which nobody else uses while this exists.
        unsafe { self.work.as_mut().add(list.as_raw()) };
    }

    /// Whether there are folios to begin with.
    pub fn has_more(&self) -> bool {
        self.work.has_more()
    }

    /// Has another worker cut a chunk, of so many pages; whether there was one. May sleep.
    pub fn cut(&mut self, chunk_pages: u32) -> Result<bool> {
        self.flying.reserve(1, GFP_KERNEL)?;
        let Some(chunk) = self.work.as_mut().cut(Worker::Helper, chunk_pages) else {
            return Ok(false);
        };
        // INVARIANT: It was just cut. Never lost, as there is room.
        Ok(self.flying.push_within_capacity(chunk).is_ok())
    }

    /// How many chunks there are.
    pub fn flying(&self) -> usize {
        self.flying.len()
    }

    /// The numbers of the first and the last folio of a chunk.
    pub fn ends_of(&self, which: usize) -> Option<(u64, u64)> {
        let chunk = self.flying.get(which)?;
        // SAFETY: By the type invariant it has folios, which nobody else uses.
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
            // SAFETY: Both are list heads, and nobody changes the lists meanwhile.
            if !left(self.number(folio)) && unsafe { is_on(first, last) } {
                // SAFETY: It is on the chunk's list.
                unsafe { bindings::ferry_list_del_init(last) };
            }
        }
        // SAFETY: By the type invariant it was cut, and not yet put.
        unsafe { self.work.as_mut().put(chunk, rc, &Default::default()) };
    }

    /// Simulates that the worker of a chunk dies: the chunk is never put.
    pub fn abandon(&mut self, which: usize) {
        if which < self.flying.len() {
            // INVARIANT: Its worker is dead.
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
        // SAFETY: No chunk is there, and `left` is empty.
        unsafe { self.work.as_mut().end(left.as_raw()) };
        // SAFETY: It is a list of folios, which nobody else uses.
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
        // Chunks that were cut leave the lists that go with `work`; links of folios are not looked
        // at any more.
        while !self.flying.is_empty() {
            self.put(0, |_| true, 0);
        }
        for folio in self.folios.iter() {
            set_index(folio, 0);
        }
    }
}

/// Says where a folio of our own would be in its mapping.
fn set_index(folio: &OwnedFolio, index: u64) {
    // SAFETY: The folio exists, is mapped nowhere, and nobody else uses it.
    unsafe {
        folio
            .as_raw()
            .wrapping_byte_add(INDEX)
            .cast::<c_ulong>()
            .write(index as c_ulong)
    };
}

/// Whether a link is on the list of a head.
///
/// # Safety
///
/// Both must be initialised list heads, of lists that nobody changes.
unsafe fn is_on(head: *mut bindings::list_head, link: *mut bindings::list_head) -> bool {
    // SAFETY: By the safety requirement.
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
