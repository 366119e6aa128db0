// SPDX-License-Identifier: GPL-2.0-only

//! Whether a batch is copied through the caches or with non-temporal stores.
//!
//! Demoted memory was not used for a while, and no task waits for it. A copy through the caches
//! would fill them with this memory and evict the data of running tasks. Promoted memory was just
//! used, so it is copied through the caches.

/// How the pages of a batch are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The kernel's usual copy: source and destination go through the caches.
    Cached,
    /// Non-temporal stores, which bypass the caches.
    NonTemporal,
}

/// Which batches are copied with non-temporal stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonTemporalPolicy {
    /// No batch.
    Never,
    /// Batches that go to a lower memory tier, if their folios are large enough.
    #[default]
    Demotion,
    /// Each batch.
    Always,
}

/// The size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Number of folios.
    pub folios: u32,
    /// Number of base pages of all folios.
    pub pages: u32,
}

/// Minimum pages of a folio for a non-temporal copy: 64 KB with 4 KB pages.
///
/// A non-temporal copy is slow to start. For smaller folios it takes longer by more than it saves
/// the tasks that use the caches, as measured with `./ferry bench method`.
pub const MIN_FOLIO_PAGES: u32 = 16;

/// Returns how to copy a batch. All folios are copied in the same way, so their mean size counts.
///
/// `demotes` returns whether the batch goes to a lower memory tier, whatever the reason of the
/// migration. It is called only if the result depends on it.
///
/// ```
/// use ferry_logic::store_kind::{choose, BatchShape, StoreKind, NonTemporalPolicy};
///
/// let huge = BatchShape { folios: 8, pages: 4096 };
/// assert_eq!(choose(NonTemporalPolicy::Demotion, huge, || true), StoreKind::NonTemporal);
/// assert_eq!(choose(NonTemporalPolicy::Demotion, huge, || false), StoreKind::Cached); // promoted
/// let small = BatchShape { folios: 4096, ..huge };
/// assert_eq!(choose(NonTemporalPolicy::Demotion, small, || true), StoreKind::Cached);
/// assert_eq!(choose(NonTemporalPolicy::Always, small, || true), StoreKind::NonTemporal);
/// ```
pub fn choose(
    setting: NonTemporalPolicy,
    batch: BatchShape,
    demotes: impl FnOnce() -> bool,
) -> StoreKind {
    let nontemporal = match setting {
        NonTemporalPolicy::Never => false,
        NonTemporalPolicy::Demotion => {
            batch.pages >= batch.folios.saturating_mul(MIN_FOLIO_PAGES) && demotes()
        }
        NonTemporalPolicy::Always => true,
    };
    match nontemporal {
        true => StoreKind::NonTemporal,
        false => StoreKind::Cached,
    }
}

impl StoreKind {
    /// Returns the base pages that a batch must have to be posted, if each thread should have
    /// `per_thread` of them. A smaller cached batch is left to mainline's serial copy. Mainline has
    /// no non-temporal copy, so each non-temporal batch is posted.
    pub fn least_pages(self, per_thread: u32) -> u32 {
        match self {
            StoreKind::Cached => per_thread.saturating_mul(2),
            StoreKind::NonTemporal => 1,
        }
    }
}
