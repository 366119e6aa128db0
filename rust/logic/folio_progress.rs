// SPDX-License-Identifier: GPL-2.0-only

//! Copy progress of one folio in a batch.
//!
//! Several workers may copy the grains of one folio. The owner of the batch waits for this folio
//! only, and remaps it while helpers copy the next folios.
//!
//! 1. A worker copies pages that it claimed, stores a bad outcome if there is one, and subtracts
//!    the pages from `left` ([`FolioProgress::add`]).
//! 2. The owner reads `left`; at 0 it reads the outcomes ([`FolioProgress::outcome`]).
//!
//! Memory ordering: the release of `left` in `add` pairs with the acquire in `outcome`. Each
//! subtraction continues the release sequence, so at 0 the copies and outcomes of all workers are
//! visible.
//!
//! Checked by loom: `item_is_whole_when_it_says_so` (`tests/loom/folio_progress.rs`).

use super::sync::{const_unless_loom, AtomicU32};

/// The copy progress of one folio.
///
/// ```
/// use ferry_logic::folio_progress::{FolioProgress, FolioOutcome};
///
/// let item = FolioProgress::new(3);
/// item.add(2, FolioOutcome::Copied);
/// assert_eq!(item.outcome(), None);
/// item.add(1, FolioOutcome::Copied);
/// assert_eq!(item.outcome(), Some(FolioOutcome::Copied));
/// ```
pub struct FolioProgress {
    /// The number of pages that are not finished.
    left: AtomicU32,
    // 1 if some page had this outcome.
    failed: AtomicU32,
    not_copied: AtomicU32,
    timed_out: AtomicU32,
}

/// The result of the copy of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolioOutcome {
    /// All pages were copied.
    Copied,
    /// A page could not be read.
    Failed,
    /// The DMA engine that copies a page has not answered, and may still write to the page.
    TimedOut,
    /// A page was not copied, and only DMA engines may read it.
    NotCopied,
}

impl FolioProgress {
    const_unless_loom! {
        /// Returns the progress of a folio of `nr_pages` pages, none of them copied.
        pub fn new(nr_pages: u32) -> Self {
            Self {
                left: AtomicU32::new(nr_pages),
                failed: AtomicU32::new(0),
                not_copied: AtomicU32::new(0),
                timed_out: AtomicU32::new(0),
            }
        }
    }

    /// Counts `nr_pages` pages as finished, with their outcome. Each page must be counted once, by
    /// the task that claimed it or took it over.
    pub fn add(&self, nr_pages: u32, outcome: FolioOutcome) {
        let word = match outcome {
            FolioOutcome::Copied => None,
            FolioOutcome::Failed => Some(&self.failed),
            FolioOutcome::NotCopied => Some(&self.not_copied),
            FolioOutcome::TimedOut => Some(&self.timed_out),
        };
        if let Some(word) = word {
            // Relaxed: the release below orders it before the count.
            word.store_relaxed(1);
        }
        // Release: pairs with `outcome`; the copy and the store above come before the count.
        self.left.fetch_sub_release(nr_pages);
    }

    /// Returns the outcome of the folio, or [`None`] while pages are missing. Any task may call it.
    ///
    /// All writes before each [`FolioProgress::add`] are visible after it returns an outcome.
    pub fn outcome(&self) -> Option<FolioOutcome> {
        // Acquire: pairs with the release of every `add`.
        if self.left.load_acquire() != 0 {
            return None;
        }
        // The worst outcome of any page wins.
        let words = [
            (&self.timed_out, FolioOutcome::TimedOut),
            (&self.not_copied, FolioOutcome::NotCopied),
            (&self.failed, FolioOutcome::Failed),
        ];
        let worst = words.into_iter().find(|(word, _)| word.load_relaxed() != 0);
        Some(worst.map_or(FolioOutcome::Copied, |(_, outcome)| outcome))
    }
}
