// SPDX-License-Identifier: GPL-2.0-only
//! Memory as CPUs see it: the page table of one address space, the TLBs, and the frames with their
//! contents.

/// Virtual pages of the address space.
pub const PAGES: usize = 2;
pub const CPUS: usize = 2;
/// Frames: one for each page, and two to migrate to.
pub const FRAMES: usize = PAGES + 2;
/// Contents of a frame that was never used. No task writes this value.
const UNUSED: u8 = u8::MAX;

/// An entry of the page table.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Entry {
    None,
    /// A migration entry of the folio in this frame.
    Migrating(u8),
    Present(Translation),
}

/// A translation, as a TLB can hold it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Translation {
    pub frame: u8,
    pub writable: bool,
}

/// The owner of a frame.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Owner {
    /// The page allocator.
    Free,
    /// The address space.
    Mapping,
    /// A batch, as the destination of a copy.
    Destination,
    /// A batch, a group, or a task that recalls a batch: an old frame that is still to be flushed.
    Kept,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Memory {
    pub table: [Entry; PAGES],
    pub tlbs: [[Option<Translation>; PAGES]; CPUS],
    pub owners: [Owner; FRAMES],
    pub contents: [u8; FRAMES],
    /// The contents that a task must read in each page, or `None` if it is not mapped.
    pub expected: [Option<u8>; PAGES],
    /// The next value that a task writes. No value is written twice.
    next: u8,
}

impl Memory {
    pub fn new(writable: [bool; PAGES]) -> Self {
        let mut memory = Self {
            table: [Entry::None; PAGES],
            tlbs: [[None; PAGES]; CPUS],
            owners: [Owner::Free; FRAMES],
            contents: [UNUSED; FRAMES],
            expected: [None; PAGES],
            next: 0,
        };
        for (page, writable) in writable.into_iter().enumerate() {
            memory.map(page, writable);
        }
        memory
    }

    fn new_value(&mut self) -> u8 {
        self.next += 1;
        self.next
    }

    /// Returns the translation of a page that is present.
    pub fn present(&self, page: usize) -> Option<Translation> {
        match self.table[page] {
            Entry::Present(translation) => Some(translation),
            Entry::None | Entry::Migrating(_) => None,
        }
    }

    /// Takes a free frame.
    pub fn allocate(&mut self, owner: Owner) -> Option<u8> {
        let frame = self.owners.iter().position(|owner| *owner == Owner::Free)?;
        self.owners[frame] = owner;
        Some(frame as u8)
    }

    pub fn free(&mut self, frame: u8) {
        self.owners[usize::from(frame)] = Owner::Free;
    }

    pub fn keep(&mut self, frame: u8) {
        self.owners[usize::from(frame)] = Owner::Kept;
    }

    /// Maps a new page with new contents. Returns whether there was a frame.
    pub fn map(&mut self, page: usize, writable: bool) -> bool {
        let Some(frame) = self.allocate(Owner::Mapping) else {
            return false;
        };
        let value = self.new_value();
        self.contents[usize::from(frame)] = value;
        self.expected[page] = Some(value);
        self.table[page] = Entry::Present(Translation { frame, writable });
        true
    }

    pub fn copy(&mut self, from: u8, to: u8) {
        self.contents[usize::from(to)] = self.contents[usize::from(from)];
    }

    /// A CPU walks the page table for a page that its TLB does not hold.
    pub fn walk(&mut self, cpu: usize, page: usize) {
        self.tlbs[cpu][page] = self.present(page);
    }

    /// A CPU writes through its TLB, whatever the page table says by now.
    pub fn write(&mut self, frame: u8, page: usize) {
        let value = self.new_value();
        self.contents[usize::from(frame)] = value;
        if self.expected[page].is_some() {
            self.expected[page] = Some(value);
        }
    }

    pub fn flush_page(&mut self, cpu: usize, page: usize) {
        self.tlbs[cpu][page] = None;
    }

    pub fn flush_cpu(&mut self, cpu: usize) {
        self.tlbs[cpu] = [None; PAGES];
    }

    fn held(&self) -> impl Iterator<Item = (usize, Translation)> {
        let pages = self.tlbs.iter().flat_map(|tlb| tlb.iter().enumerate());
        pages.filter_map(|(page, held)| held.map(|held| (page, held)))
    }

    /// Returns whether each CPU reads what was written last, through its TLB or the page table.
    pub fn no_stale_read(&self) -> bool {
        let mapped = (0..PAGES).filter_map(|page| Some((page, self.present(page)?)));
        self.held().chain(mapped).all(|(page, translation)| {
            let found = self.contents[usize::from(translation.frame)];
            self.expected[page].is_none_or(|expected| expected == found)
        })
    }

    /// Returns whether no TLB has a frame that is free. A frame is free before it has another use.
    pub fn no_use_after_free(&self) -> bool {
        let is_free = |frame: u8| self.owners[usize::from(frame)] == Owner::Free;
        !self
            .held()
            .any(|(_, translation)| is_free(translation.frame))
    }

    /// Returns whether each frame is free or mapped once.
    pub fn nothing_lost(&self) -> bool {
        (0..FRAMES as u8).all(|frame| {
            let is_of = |page: &usize| self.present(*page).is_some_and(|t| t.frame == frame);
            let maps = (0..PAGES).filter(is_of).count();
            match self.owners[usize::from(frame)] {
                Owner::Free => maps == 0,
                Owner::Mapping => maps == 1,
                Owner::Destination | Owner::Kept => false,
            }
        })
    }
}
