// SPDX-License-Identifier: GPL-2.0-only

//! The list of a [`Migration`](super::migration::Migration), cut into chunks, and its results.
//!
//! Locks: none here. The mutex of the migration protects the list and the chunks.
//!
//! The list is cut in two steps. A *span* is a run of neighbouring folios, if possible all folios
//! of one page table. A *chunk* is a part of a span, which one worker claims. A worker prefers a
//! span without an active worker, then a new span. So workers contend for a PTL only when little is
//! left, or when they migrate as fast as the caller adds to the list.

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

/// Maximum number of spans that chunks are cut from at a time. If there are more workers than
/// spans, several workers share a span.
const NR_SPANS: usize = 16;

/// Maximum number of chunks that are migrated at a time, each by one worker.
const NR_CHUNKS: usize = MAX_THREADS as usize;
const _: () = assert!(NR_CHUNKS <= u32::BITS as usize);

/// The kind of worker that migrates a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// The calling task.
    Caller,
    /// A helper, see [`on_behalf`](super::migration::Migration::on_behalf).
    Helper,
}

/// The folios that no worker has claimed, the folios that failed, and the results.
///
/// # Invariants
///
/// - `rest`, `done` and the `rest` of each span link isolated folios that this value owns, each
///   with the reference that its isolation took.
/// - `done` also links, in the order of the original list, the `place` of each chunk that is being
///   migrated, and the `end` of each span that has folios left, after the places of its chunks. No
///   other place or end is linked.
/// - No link is on the stack of a worker, so all links stay valid if a worker dies in an oops.
/// - Bit `nr` of `free` is set if chunk `nr` is not being migrated. The lists of a free chunk are
///   empty.
#[pin_data]
pub(super) struct ChunkList {
    /// Folios that are not part of a span yet.
    #[pin]
    rest: CListHead,
    /// Folios that were not migrated.
    #[pin]
    done: CListHead,
    #[pin]
    spans: [Span; NR_SPANS],
    #[pin]
    chunks: [Chunk; NR_CHUNKS],
    free: u32,
    /// Number of spans that were begun since the call began.
    begun: u32,
    /// The error after which no more chunks are cut.
    stopped: Option<Error>,
    failed: c_int,
    stats: bindings::migrate_pages_stats,
    report: bindings::ferry_crew_report,
    helper_ns: u64,
}

/// A run of neighbouring folios of the list.
#[pin_data]
struct Span {
    /// Folios that no worker has claimed, and the number of their base pages.
    #[pin]
    rest: CListHead,
    pages: Cell<u32>,
    #[pin]
    end: CListHead,
    /// Number of chunks of this span that are being migrated.
    busy: Cell<u32>,
    /// Number of spans that were begun before this one.
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

/// A chunk. Its worker owns it from [`ChunkList::cut`] to [`ChunkList::put`].
#[pin_data]
struct Chunk {
    /// Isolated folios, which only the worker of the chunk accesses.
    #[pin]
    folios: CListHead,
    /// The position on [`ChunkList::done`] where folios that are not migrated go.
    #[pin]
    place: CListHead,
    /// The index and the number of the span that the chunk was cut from. A newer span may have
    /// taken the index since then.
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

/// A chunk that was cut for a worker. If it is never put, the chunk stays in use.
///
/// # Invariants
///
/// Until the chunk is put, no other [`Cut`] has its number. `folios` is valid as long as its
/// [`ChunkList`], and links isolated folios without another user.
#[must_use]
pub(super) struct Cut {
    nr: usize,
    folios: *mut bindings::list_head,
}

impl Cut {
    /// Returns the list of the folios of the chunk.
    pub(super) fn folios(&self) -> *mut bindings::list_head {
        self.folios
    }
}

/// The result of all chunks.
pub(super) struct Total {
    /// The number of folios that were not migrated, or the error that stopped the call.
    pub(super) failed: Result<c_int>,
    pub(super) stats: bindings::migrate_pages_stats,
    pub(super) report: bindings::ferry_crew_report,
    pub(super) helper_ns: u64,
}

impl ChunkList {
    /// Returns an initialiser of an empty list with the initial values of the trace report.
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

    /// Adds all folios of `list`.
    ///
    /// # Safety
    ///
    /// `list` must be a valid list of isolated folios. The caller transfers their ownership.
    pub(super) unsafe fn add(self: Pin<&mut Self>, list: *mut bindings::list_head) {
        // INVARIANT: This value owns the folios from now on.
        // SAFETY: The caller guarantees that `list` is valid; by the type invariants `rest` is.
        unsafe { bindings::ferry_list_splice_tail_init(list, self.rest.as_raw()) };
    }

    /// Adds `ns` nanoseconds of CPU time that a helper used.
    pub(super) fn helped(self: Pin<&mut Self>, ns: u64) {
        let all = self.project().helper_ns;
        *all = all.wrapping_add(ns);
    }

    /// Returns the number of base pages that workers have claimed since the call began.
    pub(super) fn begun_pages(&self) -> u32 {
        self.report.pages
    }

    /// Returns whether there are folios that a worker can claim.
    pub(super) fn has_more(&self) -> bool {
        self.stopped.is_none() && (self.rest.is_linked() || self.spans.iter().any(Span::has_more))
    }

    /// Cuts a chunk of about `chunk_pages` base pages; the last folio may exceed this number.
    ///
    /// Returns [`None`] if no folio is left, if an error has stopped the call, or if [`NR_CHUNKS`]
    /// chunks are being migrated.
    pub(super) fn cut(mut self: Pin<&mut Self>, worker: Worker, chunk_pages: u32) -> Option<Cut> {
        let nr = self.free.trailing_zeros() as usize;
        self.chunks.get(nr)?;
        let index = self.as_mut().choose(chunk_pages)?;
        let work = self.project();
        let span = work.spans.get(index)?;
        let chunk = work.chunks.get(nr)?;
        let wanted = chunk_of_span(span.pages.get(), chunk_pages);
        // SAFETY: By the type invariants the span links isolated folios of this value, and the list
        // of the chunk, which is free, is empty.
        let pages =
            unsafe { move_first(&span.rest, &chunk.folios, |pages, _, _| pages >= wanted) }?;
        // INVARIANT: The place of the chunk follows the places of all earlier chunks of the span,
        // until `put` removes it. The end of a span without folios is removed. The bit in `free` is
        // cleared below.
        // SAFETY: The span had folios, so by the type invariants its end is on `done`. The place is
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
        // INVARIANT: The chunk was free, and its worker owns it from now on.
        Some(Cut {
            nr,
            folios: chunk.folios.as_raw(),
        })
    }

    /// Chooses the span to cut a chunk of `chunk_pages` base pages from, and returns its index.
    ///
    /// Prefers a span without an active worker, then a new span, then the span with the fewest
    /// workers.
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

    /// Begins a span. Returns [`None`] if no folios are left for it, or if all spans have folios.
    fn begin(self: Pin<&mut Self>, chunk_pages: u32) -> Option<usize> {
        let index = self.spans.iter().position(|span| !span.has_more())?;
        let work = self.project();
        let span = work.spans.get(index)?;
        let ends = |pages, last: &Folio, next: &Folio| {
            span_ends(pages, chunk_pages, last.index(), next.index())
        };
        // INVARIANT: The span has folios now, and its end follows the ends of all earlier spans.
        // SAFETY: By the type invariants `rest` links isolated folios of this value. The span has
        // none, so its end is on no list.
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

    /// Returns a chunk, with the result `rc` of its migration and its counters.
    ///
    /// # Safety
    ///
    /// `cut` must be a chunk of this list. It must link exactly the folios of the chunk that were
    /// not migrated.
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
        // INVARIANT: The folios that were not migrated replace the place of the chunk, which is
        // free from now on.
        // SAFETY: `cut()` has put the place on `done`, and the caller guarantees that `cut` links
        // the folios of the chunk.
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

    /// Moves the folios that were not migrated to the end of `left`, and returns the result.
    ///
    /// Folios that failed come first, in the order of the list, followed by the folios that no
    /// worker has claimed.
    ///
    /// # Safety
    ///
    /// Every chunk that was cut must be put. `left` must be a valid list of folios without another
    /// user.
    pub(super) unsafe fn end(self: Pin<&mut Self>, left: *mut bindings::list_head) -> Total {
        let work = self.project();
        let first = || {
            let begun = work.spans.iter().filter(|span| span.has_more());
            begun.min_by_key(|span| span.nr.get())
        };
        // INVARIANT: No folio and no end is left.
        // SAFETY: By the type invariants `rest` and the `rest` of each span link folios. `done`
        // links only folios once the ends are removed, because no chunk is being migrated.
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

/// Moves at least one folio from the start of `from` to `to`, up to the first folio for which
/// `ends` returns `true`. Returns the number of base pages moved, or [`None`] if `from` is empty.
///
/// `ends` gets the number of base pages before a folio, the folio before it, and the folio.
///
/// # Safety
///
/// `from` must link folios by `lru`, each with a reference. Neither list may have another user, and
/// `to` must be empty.
unsafe fn move_first(
    from: &CListHead,
    to: &CListHead,
    ends: impl Fn(u32, &Folio, &Folio) -> bool,
) -> Option<u32> {
    let mut pages = 0u32;
    let mut last: Option<&Folio> = None;
    // SAFETY: The caller guarantees that `from` links folios by `lru`.
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

/// Adds the counters of `more` to `all`.
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
