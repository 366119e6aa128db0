// SPDX-License-Identifier: GPL-2.0

//! How a batch is copied: through the caches, or past them.
//!
//! What goes to a lower tier was not used for a while, and nobody is waiting for it. A copy through
//! the caches fills them with it, and who runs there next finds his own memory gone. What is
//! promoted was just used: it is best left in the caches.

/// How the pages of a batch are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// As the kernel copies: source and destination go through the caches.
    Cached,
    /// Past the caches.
    NonTemporal,
}

/// Which batches are to be copied past the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
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
pub struct Load {
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
/// use ferry_logic::method::{choose, Load, Method, When};
///
/// let huge = Load { folios: 8, pages: 4096 };
/// assert_eq!(choose(When::Demotion, huge, || true), Method::NonTemporal);
/// assert_eq!(choose(When::Demotion, huge, || false), Method::Cached); // promoted
/// let small = Load { folios: 4096, ..huge };
/// assert_eq!(choose(When::Demotion, small, || true), Method::Cached);
/// assert_eq!(choose(When::Always, small, || true), Method::NonTemporal);
/// ```
pub fn choose(setting: When, load: Load, demotes: impl FnOnce() -> bool) -> Method {
    let past = match setting {
        When::Never => false,
        When::Demotion => load.pages >= load.folios.saturating_mul(MIN_FOLIO_PAGES) && demotes(),
        When::Always => true,
    };
    match past {
        true => Method::NonTemporal,
        false => Method::Cached,
    }
}

impl Method {
    /// Base pages that a batch must have to be posted, if a thread should have `per_thread` of
    /// them. Less is best left to the serial copy, which is cached, and only that.
    pub fn least_pages(self, per_thread: u32) -> u32 {
        match self {
            Method::Cached => per_thread.saturating_mul(2),
            Method::NonTemporal => 1,
        }
    }
}
