// SPDX-License-Identifier: GPL-2.0-only

//! What a [`Migration`](super::migration::Migration) has to do, and what it has done: its lists.
//!
//! No locks: all of it is behind the mutex of the migration.
//!
//! The list is cut twice. A *span* is a run of neighbours, of one page table where they are so
//! many; of that *chunks* are cut, each for who asks next. Who asks gets a chunk of a span that
//! nobody is at, or of a new one, so that two workers seldom want the lock of the same page table:
//! when little is left, or when they are as fast as a caller who still adds to the list.

use core::cell::Cell;
use kernel::{
    bindings,
    interop::list::{
        CList,
        CListHead, //
    },
    prelude::*, //
};

use crate::{
    kernel::folio::{
        Folio,
        LRU, //
    },
    logic::crew::{
        chunk_of_span,
        span_ends, //
    },
    workers::MAX_THREADS, //
};

/// Spans that chunks are cut from at a time. More workers share them.
const NR_SPANS: usize = 16;

/// Chunks that can be migrated at a time, each by a worker of its own.
const NR_CHUNKS: usize = MAX_THREADS as usize;
const _: () = assert!(NR_CHUNKS <= u32::BITS as usize);

/// Who migrates a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// The task that the migration is for.
    Caller,
    /// Another, see [`on_behalf`](super::migration::Migration::on_behalf).
    Helper,
}

/// What is to be done, and what was.
///
/// # Invariants
///
/// `rest`, `done` and the `rest` of each span link isolated folios that are ours, with the
/// references that isolation took. On `done` there are beside them, in the order of the list that
/// was given, the `place` of each chunk that is being migrated, and the `end` of each span that has
/// folios left, after the places of its chunks. No other place or end is linked. No link is on the
/// stack of a worker, so the links of a worker that dies in an oops stay valid.
///
/// A bit of `free` is set if the chunk with that number is not being migrated. The lists of a chunk
/// are then empty.
#[pin_data]
pub(super) struct ChunkList {
    /// Of no span.
    #[pin]
    rest: CListHead,
    #[pin]
    done: CListHead,
    #[pin]
    spans: [Span; NR_SPANS],
    #[pin]
    chunks: [Chunk; NR_CHUNKS],
    free: u32,
    /// How many were begun.
    begun: u32,
    /// Why no more chunks are cut.
    stopped: Option<Error>,
    failed: c_int,
    stats: bindings::migrate_pages_stats,
    report: bindings::ferry_crew_report,
    helper_ns: u64,
}

/// Neighbours on the list.
#[pin_data]
struct Span {
    /// Those that nobody has begun to migrate, and their base pages.
    #[pin]
    rest: CListHead,
    pages: Cell<u32>,
    #[pin]
    end: CListHead,
    /// Chunks of it that are being migrated.
    busy: Cell<u32>,
    /// How many were begun before.
    nr: Cell<u32>,
}

impl Span {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            rest <- CListHead::new(),
            pages: Cell::new(0),
            end <- CListHead::new(),
            busy: Cell::new(0),
            nr: Cell::new(0),
        })
    }

    fn has_more(&self) -> bool {
        self.rest.is_linked()
    }
}

/// A chunk. It is its worker's from [`ChunkList::cut`] to [`ChunkList::put`].
#[pin_data]
struct Chunk {
    /// Its folios, isolated, and its worker's alone.
    #[pin]
    folios: CListHead,
    /// Where on `ChunkList::done` goes what is not migrated.
    #[pin]
    place: CListHead,
    /// Of which span it was cut: its index, and its number, as another may be there now.
    span: Cell<(usize, u32)>,
}

impl Chunk {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            folios <- CListHead::new(),
            place <- CListHead::new(),
            span: Cell::new((0, 0)),
        })
    }
}

/// A chunk that was cut, for the worker that migrates it. A chunk that is never put stays as it is.
///
/// # Invariants
///
/// Until it is put no other chunk has this number. `folios` is valid for as long as its [`ChunkList`],
/// and links isolated folios that have no other user.
#[must_use]
pub(super) struct Cut {
    nr: usize,
    folios: *mut bindings::list_head,
}

impl Cut {
    /// Returns the chunk's folios.
    pub(super) fn folios(&self) -> *mut bindings::list_head {
        self.folios
    }
}

/// What came of all chunks together.
pub(super) struct Total {
    /// Folios that were not migrated, or what stopped it.
    pub(super) failed: Result<c_int>,
    pub(super) stats: bindings::migrate_pages_stats,
    pub(super) report: bindings::ferry_crew_report,
    pub(super) helper_ns: u64,
}

impl ChunkList {
    /// Nothing to do yet, and what is known for its tracepoint.
    pub(super) fn new(report: bindings::ferry_crew_report) -> impl PinInit<Self> {
        // INVARIANT: All lists are empty.
        pin_init!(Self {
            rest <- CListHead::new(),
            done <- CListHead::new(),
            spans <- pin_init::pin_init_array_from_fn(|_| Span::new()),
            chunks <- pin_init::pin_init_array_from_fn(|_| Chunk::new()),
            free: u32::MAX >> (u32::BITS as usize - NR_CHUNKS),
            begun: 0,
            stopped: None,
            failed: 0,
            stats: Default::default(),
            report,
            helper_ns: 0,
        })
    }

    /// Adds all of a list to what is to be done.
    ///
    /// # Safety
    ///
    /// It must be a list of isolated folios, which the caller gives away.
    pub(super) unsafe fn add(self: Pin<&mut Self>, list: *mut bindings::list_head) {
        // INVARIANT: These folios are ours from now on.
        // SAFETY: By the safety requirement and the type invariants both are lists.
        unsafe { bindings::ferry_list_splice_tail_init(list, self.rest.as_raw()) };
    }

    /// Counts nanoseconds for which a helper ran.
    pub(super) fn helped(self: Pin<&mut Self>, ns: u64) {
        let all = self.project().helper_ns;
        *all = all.wrapping_add(ns);
    }

    /// Base pages that somebody has begun to migrate.
    pub(super) fn begun_pages(&self) -> u32 {
        self.report.pages
    }

    /// Whether there are folios that somebody could begin to migrate.
    pub(super) fn has_more(&self) -> bool {
        self.stopped.is_none() && (self.rest.is_linked() || self.spans.iter().any(Span::has_more))
    }

    /// Cuts a chunk of at most `chunk_pages` pages, which its last folio may exceed; [`None`]: no
    /// folios are left, or `NR_CHUNKS` chunks are being migrated.
    pub(super) fn cut(mut self: Pin<&mut Self>, worker: Worker, chunk_pages: u32) -> Option<Cut> {
        let nr = self.free.trailing_zeros() as usize;
        self.chunks.get(nr)?;
        let index = self.as_mut().choose(chunk_pages)?;
        let work = self.project();
        let span = work.spans.get(index)?;
        let chunk = work.chunks.get(nr)?;
        let wanted = chunk_of_span(span.pages.get(), chunk_pages);
        // SAFETY: By the type invariants these are folios, of a list of ours; the chunk has none.
        let pages =
            unsafe { move_first(&span.rest, &chunk.folios, |pages, _, _| pages >= wanted) }?;
        // INVARIANT: The folios went from one list of ours to another, and the chunk's place
        // follows those of all chunks before it; `put` takes it out again. A span without folios
        // has no end there. The chunk is not free.
        // SAFETY: By the type invariants the end is on `done`, as the span had folios. The place is
        // on no list.
        unsafe {
            bindings::list_add_tail(chunk.place.as_raw(), span.end.as_raw());
            if !span.has_more() {
                bindings::ferry_list_del_init(span.end.as_raw());
            }
        }
        *work.free &= !(1 << nr);
        chunk.span.set((index, span.nr.get()));
        span.pages.set(span.pages.get().saturating_sub(pages));
        span.busy.set(span.busy.get().wrapping_add(1));
        let report = work.report;
        report.chunks = report.chunks.wrapping_add(1);
        report.pages = report.pages.wrapping_add(pages);
        if worker == Worker::Helper {
            report.helped = report.helped.wrapping_add(1);
            report.helped_pages = report.helped_pages.wrapping_add(pages);
        }
        // INVARIANT: The chunk was free, and is the worker's from now on.
        Some(Cut {
            nr,
            folios: chunk.folios.as_raw(),
        })
    }

    /// The span to cut a chunk of so many pages from: one that nobody is at, or a new one; if there
    /// can be none, that which the fewest are at.
    fn choose(mut self: Pin<&mut Self>, chunk_pages: u32) -> Option<usize> {
        if self.stopped.is_some() {
            return None;
        }
        let with_more = self.spans.iter().enumerate();
        let with_more = with_more.filter(|(_, span)| span.has_more());
        let calmest = with_more
            .map(|(index, span)| (span.busy.get(), index))
            .min();
        match calmest {
            Some((0, index)) => Some(index),
            _ => {
                let shared = calmest.map(|(_, index)| index);
                self.as_mut().begin(chunk_pages).or(shared)
            }
        }
    }

    /// Begins a span; [`None`]: no folios are left for one, or all spans have some.
    fn begin(self: Pin<&mut Self>, chunk_pages: u32) -> Option<usize> {
        let index = self.spans.iter().position(|span| !span.has_more())?;
        let work = self.project();
        let span = work.spans.get(index)?;
        let ends = |pages, last: &Folio, next: &Folio| {
            span_ends(pages, chunk_pages, last.index(), next.index())
        };
        // INVARIANT: The folios go from one list of ours to another, and the span, which has some,
        // follows those before it.
        // SAFETY: By the type invariants these are folios, and as the span has none, its end is on
        // no list.
        let pages = unsafe {
            let pages = move_first(&work.rest, &span.rest, ends)?;
            bindings::list_add_tail(span.end.as_raw(), work.done.as_raw());
            pages
        };
        span.pages.set(pages);
        span.busy.set(0);
        span.nr.set(*work.begun);
        *work.begun = work.begun.wrapping_add(1);
        Some(index)
    }

    /// Takes back what is left of a chunk.
    ///
    /// # Safety
    ///
    /// `cut` must be a chunk of this work, and its list must have the folios of the chunk that were
    /// not migrated, and no others.
    pub(super) unsafe fn put(
        self: Pin<&mut Self>,
        cut: Cut,
        rc: c_int,
        stats: &bindings::migrate_pages_stats,
    ) {
        let work = self.project();
        let Some(chunk) = work.chunks.get(cut.nr) else {
            return;
        };
        // INVARIANT: The folios that were not migrated are at the chunk's place, which is taken out;
        // then the chunk is free.
        // SAFETY: The place is on the list since `cut`, and the folios are a list.
        unsafe {
            bindings::ferry_list_splice_tail_init(chunk.folios.as_raw(), chunk.place.as_raw());
            bindings::ferry_list_del_init(chunk.place.as_raw());
        }
        *work.free |= 1 << cut.nr;
        let (index, nr) = chunk.span.get();
        if let Some(span) = work.spans.get(index).filter(|span| span.nr.get() == nr) {
            span.busy.set(span.busy.get().wrapping_sub(1));
        }
        match rc {
            0.. => *work.failed = work.failed.wrapping_add(rc),
            _ => *work.stopped = Some(Error::from_errno(rc)),
        }
        add_stats(work.stats, stats);
    }

    /// Ends it: what was not migrated goes to the end of `left`, first what failed, in its order,
    /// then what nobody has begun to migrate.
    ///
    /// # Safety
    ///
    /// No chunk must be cut and not put. `left` must be a list of folios, and the caller's.
    pub(super) unsafe fn end(self: Pin<&mut Self>, left: *mut bindings::list_head) -> Total {
        let work = self.project();
        let first = || {
            let begun = work.spans.iter().filter(|span| span.has_more());
            begun.min_by_key(|span| span.nr.get())
        };
        // INVARIANT: No folios are left to us, and with them goes each end.
        // SAFETY: By the type invariants these are lists of folios of ours, `done` once no end is
        // on it, as there is no chunk.
        unsafe {
            for span in work.spans.iter() {
                bindings::ferry_list_del_init(span.end.as_raw());
            }
            bindings::ferry_list_splice_tail_init(work.done.as_raw(), left);
            while let Some(span) = first() {
                bindings::ferry_list_splice_tail_init(span.rest.as_raw(), left);
            }
            bindings::ferry_list_splice_tail_init(work.rest.as_raw(), left);
        }
        Total {
            failed: match *work.stopped {
                Some(error) => Err(error),
                None => Ok(*work.failed),
            },
            stats: *work.stats,
            report: *work.report,
            helper_ns: *work.helper_ns,
        }
    }
}

/// Moves the first of the folios of `from` to `to`, at least one; the others stay from that on
/// before which `ends` says so. It is asked for each, and given the base pages of those before it,
/// the last of them, and itself. How many base pages were moved; [`None`]: there are no folios.
///
/// # Safety
///
/// `from` must link folios, with references, by `lru`. Both lists must be the caller's, and `to`
/// empty.
unsafe fn move_first(
    from: &CListHead,
    to: &CListHead,
    ends: impl Fn(u32, &Folio, &Folio) -> bool,
) -> Option<u32> {
    let mut pages = 0u32;
    let mut last: Option<&Folio> = None;
    // SAFETY: By the safety requirement.
    for folio in unsafe { CList::<Folio, LRU>::from_raw(from.as_raw()) }.iter() {
        if last.is_some_and(|last| ends(pages, last, folio)) {
            break;
        }
        pages = pages.saturating_add(folio.nr_pages() as u32);
        last = Some(folio);
    }
    // SAFETY: `last` is on `from`; `to` is empty.
    unsafe { bindings::ferry_list_cut_position(to.as_raw(), from.as_raw(), last?.lru()) };
    Some(pages)
}

/// Adds counters.
pub(super) fn add_stats(
    all: &mut bindings::migrate_pages_stats,
    more: &bindings::migrate_pages_stats,
) {
    for (all, more) in [
        (&mut all.nr_succeeded, more.nr_succeeded),
        (&mut all.nr_failed_pages, more.nr_failed_pages),
        (&mut all.nr_thp_succeeded, more.nr_thp_succeeded),
        (&mut all.nr_thp_failed, more.nr_thp_failed),
        (&mut all.nr_thp_split, more.nr_thp_split),
        (&mut all.nr_split, more.nr_split),
    ] {
        *all = all.wrapping_add(more);
    }
}
