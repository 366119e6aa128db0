// SPDX-License-Identifier: GPL-2.0-only
//! The steps of a generated program.

use fastrand::Rng;

use super::world::{Area, Kind};

/// Whether threads migrate pages during a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No thread migrates pages.
    Alone,
    /// Threads migrate pages, and the step itself migrates none.
    WithMovers,
}

/// Pages of an area.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The index of the area.
    pub area: usize,
    /// The index of the first page in the area.
    pub first: usize,
    /// The number of pages, at least one.
    pub count: usize,
}

/// A step of a program. Steps name areas by their index.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Writes the pages that may be written.
    Write(Part),
    /// `mprotect(2)`
    Protect(Part, i32),
    /// `MADV_DONTNEED`
    Discard(Part),
    /// `mremap(2)` to other addresses.
    Remap(usize),
    /// `mlock(2)`
    Lock(usize),
    /// `munlock(2)`
    Unlock(usize),
    /// By userfaultfd; the kernel itself resolves writes.
    WriteProtect(Part),
    /// Writes 4 to `clear_refs`.
    ClearSoftDirty,
    /// A process that writes these pages in its copy of the memory.
    Fork(Part),
    /// Waits for all processes.
    Join,
    /// `MADV_PAGEOUT`
    PageOut(Part),
    /// Gives pages the same contents, and lets KSM merge them.
    Merge(Part),
    /// Reads all pages.
    Check,
    /// `move_pages(2)` to a node.
    Move(Part, i32),
    /// `mbind(2)`
    Bind(usize, i32),
    /// `migrate_pages(2)`
    Migrate(i32),
}

const PROTECTIONS: [i32; 4] = [
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ | libc::PROT_WRITE,
    libc::PROT_READ,
    libc::PROT_NONE,
];
/// More pages of one content would take KSM long.
const MOST_MERGED: usize = 12;

impl Step {
    /// Generates a step that is possible now. `forked`: other processes may share the memory.
    pub fn any(rng: &mut Rng, mode: Mode, areas: &[Area], forked: bool) -> Self {
        loop {
            let step = Self::generate(rng, mode, areas);
            if step.is_possible(areas, forked) {
                return step;
            }
        }
    }

    fn generate(rng: &mut Rng, mode: Mode, areas: &[Area]) -> Self {
        let area = rng.usize(..areas.len());
        let part = part(rng, area, areas[area].pages.len());
        let node = rng.i32(0..2);
        let kinds = match mode {
            Mode::Alone => 24,
            Mode::WithMovers => 15,
        };
        match rng.u8(..kinds) {
            0..=3 => Self::Write(part),
            4 | 5 => Self::Protect(part, PROTECTIONS[rng.usize(..PROTECTIONS.len())]),
            6 => Self::Discard(part),
            7 => Self::Remap(area),
            8 => Self::Lock(area),
            9 => Self::Unlock(area),
            10 | 11 => Self::WriteProtect(part),
            12 => Self::Fork(part),
            13 => Self::Join,
            14 => Self::Check,
            15 => Self::ClearSoftDirty,
            16 => Self::PageOut(part),
            17 => Self::Merge(Part {
                count: part.count.min(MOST_MERGED),
                ..part
            }),
            18 => Self::Bind(area, node),
            19 => Self::Migrate(node),
            _ => Self::Move(part, node),
        }
    }

    /// Returns whether the step succeeds, and has the same result on every kernel.
    fn is_possible(&self, areas: &[Area], forked: bool) -> bool {
        match *self {
            Self::Discard(at) => !areas[at.area].locked,
            // KSM could merge the zero-filled pages that mlock() allocates.
            Self::Lock(area) => {
                let area = &areas[area];
                let readable = |page: &super::Page| page.prot != libc::PROT_NONE;
                area.kind != Kind::Mergeable && area.pages.iter().all(readable)
            }
            Self::PageOut(at) => {
                let area = &areas[at.area];
                let pages = &area.pages[at.first..at.first + at.count];
                matches!(area.kind, Kind::Mergeable | Kind::Small)
                    && !forked
                    && !area.locked
                    && !pages.iter().any(|page| page.merged)
            }
            Self::Merge(at) => areas[at.area].kind == Kind::Mergeable && !forked,
            // The child would write pages of this process's model.
            Self::Fork(at) => areas[at.area].kind != Kind::Shared,
            _ => true,
        }
    }
}

fn part(rng: &mut Rng, area: usize, pages: usize) -> Part {
    let first = rng.usize(..pages);
    let most = match rng.u8(..3) {
        0 => 1,
        1 => 48,
        _ => pages,
    };
    let count = rng.usize(1..=most).min(pages - first);
    Part { area, first, count }
}
