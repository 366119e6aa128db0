// SPDX-License-Identifier: GPL-2.0-only

//! How far the copy of one folio has come, while the batch it is in goes on.
//!
//! Grains of one folio may be copied by several workers. The owner of the batch waits for the folio
//! alone: it can be switched to its new place while the next ones are still being copied.

use super::sync::{const_unless_loom, AtomicU32};

/// One folio of a batch.
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
    left: AtomicU32,
    failed: AtomicU32,
    not_copied: AtomicU32,
    timed_out: AtomicU32,
}

/// What came of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolioOutcome {
    /// Every page arrived.
    Copied,
    /// Some page could not be read.
    Failed,
    /// Who was to copy some page has not answered, and may write to it even now.
    TimedOut,
    /// Nobody who may copy some page has done so.
    NotCopied,
}

impl FolioProgress {
    const_unless_loom! {
        /// A folio of so many pages, none of them copied.
        pub fn new(nr_pages: u32) -> Self {
            Self {
                left: AtomicU32::new(nr_pages),
                failed: AtomicU32::new(0),
                not_copied: AtomicU32::new(0),
                timed_out: AtomicU32::new(0),
            }
        }
    }

    /// Counts pages that the caller is through with, and what came of them. By who claimed them,
    /// each once.
    pub fn add(&self, nr_pages: u32, outcome: FolioOutcome) {
        let word = match outcome {
            FolioOutcome::Copied => None,
            FolioOutcome::Failed => Some(&self.failed),
            FolioOutcome::NotCopied => Some(&self.not_copied),
            FolioOutcome::TimedOut => Some(&self.timed_out),
        };
        if let Some(word) = word {
            // Relaxed: read only after the count below was.
            word.store_relaxed(1);
        }
        // Release: the copy, and the word above, come before the count.
        self.left.fetch_sub_release(nr_pages);
    }

    /// What came of the folio, once all its pages are through. For anybody.
    ///
    /// All that was written before any [`FolioProgress::add`] is then visible.
    pub fn outcome(&self) -> Option<FolioOutcome> {
        // Acquire: pairs with every release of `add`, each of which continues the sequence.
        if self.left.load_acquire() != 0 {
            return None;
        }
        // The worst that came of any page counts.
        let words = [
            (&self.timed_out, FolioOutcome::TimedOut),
            (&self.not_copied, FolioOutcome::NotCopied),
            (&self.failed, FolioOutcome::Failed),
        ];
        let worst = words.into_iter().find(|(word, _)| word.load_relaxed() != 0);
        Some(worst.map_or(FolioOutcome::Copied, |(_, outcome)| outcome))
    }
}
