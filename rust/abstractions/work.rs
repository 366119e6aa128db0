// SPDX-License-Identifier: GPL-2.0-only

//! What a [`Migration`](super::migration::Migration) has to do, and what it has done: its lists.
//!
//! No locks: all of it is behind the mutex of the migration.
//!
//! The list is cut twice. A *span* is a run of neighbours, of one page table where they are so
//! many; of that *chunks* are cut, each for who asks next. Who asks gets his chunk of a span that
//! nobody is at, so two workers want the lock of the same page table only when little is left.

use core::cell::Cell;
use kernel::{
    bindings,
    interop::list::{
        CList,
        CListHead, //
    },
    prelude::*, //
};

use super::{
    folio::{
        Folio,
        LRU, //
    },
    migration::Worker, //
};
use crate::logic::crew::{
    chunk_of_span,
    span_ends, //
};

/// Spans that chunks are cut from at a time. More workers share them.
const NR_SPANS: usize = 16;

/// What is to be done, and what was.
///
/// # Invariants
///
/// `rest`, `done` and the `rest` of each span link isolated folios that are ours, with the
/// references that isolation took. On `done` there are beside them, in the order of the list that
/// was given: the `place` of each chunk that is being migrated, before the `end` of its span; and
/// the `end` of each span that has folios left, or chunks that are being migrated. No other is
/// linked.
#[pin_data]
pub(super) struct Work {
    /// Of no span.
    #[pin]
    rest: CListHead,
    #[pin]
    done: CListHead,
    #[pin]
    spans: [Span; NR_SPANS],
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

    fn is_begun(&self) -> bool {
        self.end.is_linked()
    }

    fn has_more(&self) -> bool {
        self.rest.is_linked()
    }
}

/// A chunk, on the stack of who works on it.
///
/// # Invariants
///
/// From [`Work::cut`] to [`Work::put`], and only then, `place` is on `Work::done`, and `folios`
/// links isolated folios that are ours. It does not move meanwhile.
#[pin_data]
pub(super) struct Chunk {
    /// Its folios.
    #[pin]
    pub(super) folios: CListHead,
    /// Where on `Work::done` goes what is not migrated.
    #[pin]
    place: CListHead,
}

impl Chunk {
    pub(super) fn new() -> impl PinInit<Self> {
        // INVARIANT: It is not cut yet.
        pin_init!(Self {
            folios <- CListHead::new(),
            place <- CListHead::new(),
        })
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

impl Work {
    /// Nothing to do yet, and what is known for its tracepoint.
    pub(super) fn new(report: bindings::ferry_crew_report) -> impl PinInit<Self> {
        // INVARIANT: All lists are empty.
        pin_init!(Self {
            rest <- CListHead::new(),
            done <- CListHead::new(),
            spans <- pin_init::pin_init_array_from_fn(|_| Span::new()),
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

    /// Whether there are folios that somebody could begin to migrate.
    pub(super) fn has_more(&self) -> bool {
        self.stopped.is_none() && (self.rest.is_linked() || self.spans.iter().any(Span::has_more))
    }

    /// Cuts a chunk, of so many pages at most, but for the last folio, off what is to be done. Of
    /// which span it is; [`None`]: nothing is to be done.
    ///
    /// # Safety
    ///
    /// The chunk must have nothing in it. If it was cut it must be [`Work::put`] before it is gone
    /// or moved.
    pub(super) unsafe fn cut(
        mut self: Pin<&mut Self>,
        chunk: &Chunk,
        worker: Worker,
        chunk_pages: u32,
    ) -> Option<usize> {
        if self.stopped.is_some() {
            return None;
        }
        let index = self.as_mut().choose(chunk_pages)?;
        let work = self.project();
        let span = work.spans.get(index)?;
        let wanted = chunk_of_span(span.pages.get(), chunk_pages);
        // INVARIANT: The folios go from one list of ours to another, and the chunk's place follows
        // those of all chunks before it; `put` takes it out again.
        // SAFETY: By the type invariants these are folios, of lists of ours, and the span's end is
        // on `done`; the chunk's lists are empty.
        let pages = unsafe {
            let pages = cut(&span.rest, &chunk.folios, |pages, _, _| pages >= wanted)?;
            bindings::list_add_tail(chunk.place.as_raw(), span.end.as_raw());
            pages
        };
        span.pages.set(span.pages.get().saturating_sub(pages));
        span.busy.set(span.busy.get() + 1);
        let report = work.report;
        report.chunks = report.chunks.wrapping_add(1);
        report.pages = report.pages.wrapping_add(pages);
        if worker == Worker::Helper {
            report.helped = report.helped.wrapping_add(1);
            report.helped_pages = report.helped_pages.wrapping_add(pages);
        }
        Some(index)
    }

    /// The span to cut a chunk of so many pages from: one that nobody is at, or a new one; if there
    /// is none, that with the fewest.
    fn choose(mut self: Pin<&mut Self>, chunk_pages: u32) -> Option<usize> {
        let with_more = |work: &Self| {
            let spans = work.spans.iter().enumerate();
            let spans = spans.filter(|(_, span)| span.has_more());
            let best = spans.min_by_key(|(_, span)| span.busy.get());
            best.map(|(index, span)| (index, span.busy.get()))
        };
        match with_more(&self) {
            Some((index, 0)) => Some(index),
            other => self
                .as_mut()
                .begin(chunk_pages)
                .or(other.map(|(index, _)| index)),
        }
    }

    /// Begins a span; [`None`]: there are no folios, or no more spans.
    fn begin(self: Pin<&mut Self>, chunk_pages: u32) -> Option<usize> {
        let index = self.spans.iter().position(|span| !span.is_begun())?;
        let work = self.project();
        let span = work.spans.get(index)?;
        // INVARIANT: The folios go from one list of ours to another, and the span, which has some,
        // follows those before it.
        // SAFETY: By the type invariants these are folios, and as it is not begun the span has none,
        // and its end is on no list.
        unsafe {
            let pages = cut(&work.rest, &span.rest, |pages, last, next| {
                span_ends(pages, chunk_pages, last.index(), next.index())
            })?;
            bindings::list_add_tail(span.end.as_raw(), work.done.as_raw());
            span.pages.set(pages);
        }
        span.nr.set(*work.begun);
        *work.begun = work.begun.wrapping_add(1);
        Some(index)
    }

    /// Takes back what is left of a chunk.
    ///
    /// # Safety
    ///
    /// It must have been cut from that span of this work, and not yet been put.
    pub(super) unsafe fn put(
        self: Pin<&mut Self>,
        chunk: &Chunk,
        index: usize,
        rc: c_int,
        stats: &bindings::migrate_pages_stats,
    ) {
        let work = self.project();
        // INVARIANT: What was not migrated is at the chunk's place, which is taken out.
        // SAFETY: The place is on the list since `cut`, and the folios are a list.
        unsafe {
            bindings::ferry_list_splice_tail_init(chunk.folios.as_raw(), chunk.place.as_raw());
            bindings::ferry_list_del_init(chunk.place.as_raw());
        }
        if let Some(span) = work.spans.get(index) {
            span.busy.set(span.busy.get().saturating_sub(1));
            if span.busy.get() == 0 && !span.has_more() {
                // INVARIANT: It has neither folios nor chunks.
                // SAFETY: Its end is on `done`, as there was a chunk.
                unsafe { bindings::ferry_list_del_init(span.end.as_raw()) };
            }
        }
        match rc {
            0.. => *work.failed = work.failed.wrapping_add(rc),
            _ => *work.stopped = Some(Error::from_errno(rc)),
        }
        add(work.stats, stats);
    }

    /// Ends it, when no chunk is being migrated: what was not migrated goes to `left`, an empty
    /// list, first what failed, in its order, then what nobody has begun to migrate.
    pub(super) fn end(self: Pin<&mut Self>, left: &CListHead) -> Total {
        let work = self.project();
        // Those begun last first, so that each is put before what follows it.
        let last = || {
            let begun = work.spans.iter().filter(|span| span.is_begun());
            begun.max_by_key(|span| span.nr.get())
        };
        while let Some(span) = last() {
            // INVARIANT: The folios go from one list of ours to another; the span has none then.
            // SAFETY: By the type invariants these are lists, and the end is on one.
            unsafe {
                bindings::ferry_list_splice_init(span.rest.as_raw(), work.rest.as_raw());
                bindings::ferry_list_del_init(span.end.as_raw());
            }
        }
        // INVARIANT: No folios are left to us.
        // SAFETY: With no chunk or span, these are lists of folios of ours.
        unsafe {
            bindings::ferry_list_splice_tail_init(work.done.as_raw(), left.as_raw());
            bindings::ferry_list_splice_tail_init(work.rest.as_raw(), left.as_raw());
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

/// Moves the first folios of `from` to `to`, those before which `ends` says so not being the first:
/// it is given their base pages so far, the last of them, and the next. How many base pages;
/// [`None`]: there are no folios.
///
/// # Safety
///
/// `from` must link folios, with references, by `lru`. Both lists must be the caller's, and `to`
/// empty.
unsafe fn cut(
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
pub(super) fn add(all: &mut bindings::migrate_pages_stats, more: &bindings::migrate_pages_stats) {
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
