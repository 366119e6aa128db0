// SPDX-License-Identifier: GPL-2.0-only

//! How a batch is copied: through the caches, or past them.
//!
//! What goes to a lower tier was not used for a while, and nobody is waiting for it. A copy through
//! the caches fills them with it, and who runs there next finds his own memory gone. What is
//! promoted was just used: it is best left in the caches.

/// How the pages of a batch are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// As the kernel copies: source and destination go through the caches.
    Cached,
    /// Past the caches.
    NonTemporal,
}

/// Which batches are to be copied past the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonTemporalPolicy {
    /// None.
    Never,
    /// Those that go to a lower memory tier, if their folios are large enough.
    #[default]
    Demotion,
    /// All.
    Always,
}

/// What there is to know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Folios.
    pub folios: u32,
    /// Base pages of all of them.
    pub pages: u32,
}

/// Pages that a folio must have for a copy past the caches to be a gain, 64 KB with pages of 4 KB.
///
/// Such a copy is slow to start. Of smaller folios it takes longer by more than what it spares
/// whoever has its memory in the caches: measured by `./ferry bench method`.
pub const MIN_FOLIO_PAGES: u32 = 16;

/// How to copy a batch, which may go to a lower memory tier than it is in, whatever the reason;
/// that is asked only where it matters. A mean of the folios' sizes counts, as all are copied in
/// one way.
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
    load: BatchShape,
    demotes: impl FnOnce() -> bool,
) -> StoreKind {
    let past = match setting {
        NonTemporalPolicy::Never => false,
        NonTemporalPolicy::Demotion => {
            load.pages >= load.folios.saturating_mul(MIN_FOLIO_PAGES) && demotes()
        }
        NonTemporalPolicy::Always => true,
    };
    match past {
        true => StoreKind::NonTemporal,
        false => StoreKind::Cached,
    }
}

impl StoreKind {
    /// Base pages that a batch must have to be posted, if a thread should have `per_thread` of
    /// them. Less is best left to the serial copy, which is cached, and only that.
    pub fn least_pages(self, per_thread: u32) -> u32 {
        match self {
            StoreKind::Cached => per_thread.saturating_mul(2),
            StoreKind::NonTemporal => 1,
        }
    }
}
