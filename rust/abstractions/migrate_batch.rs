// SPDX-License-Identifier: GPL-2.0-only

//! What C keeps of a batch on the stack of `migrate_pages_batch()`, and its tracepoint.
//!
//! C header: [`mm/ferry/c-glue/include/linux/ferry.h`](srctree/mm/ferry/c-glue/include/linux/ferry.h)

use kernel::{
    bindings,
    prelude::*, //
};

use super::clock::now_ns;

/// What the engine did for a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Folios that it copied.
    pub folios: u32,
    /// Base pages in them.
    pub pages: u32,
    /// Helpers that were asked.
    pub helpers: u32,
    /// Base pages that helpers copied, those of folios that failed among them.
    pub helped: u32,
}

/// One batch of `migrate_pages_batch()`, from before the first unmap to after the last remap.
pub struct MigrateBatch<'a>(&'a mut bindings::ferry_batch);

impl<'a> MigrateBatch<'a> {
    /// Wraps the C structure.
    ///
    /// # Safety
    ///
    /// `raw` must be valid for reads and writes, and nobody else's, for `'a`.
    pub unsafe fn from_raw(raw: *mut bindings::ferry_batch) -> Self {
        // SAFETY: By the safety requirement.
        Self(unsafe { &mut *raw })
    }

    /// The batch begins now.
    pub fn begin(&mut self) {
        self.0.start_ns = now_ns();
    }

    /// Runs `copy` and keeps what it reports, with the time it took.
    pub fn copy(&mut self, copy: impl FnOnce() -> Report) {
        let start = now_ns();
        let report = copy();
        self.0.copy_ns = now_ns() - start;
        self.0.folios = report.folios;
        self.0.pages = report.pages;
        self.0.helpers = report.helpers;
        self.0.helped = report.helped;
    }

    /// The batch ends now: tells the tracepoint `ferry:ferry_batch`.
    pub fn end(&mut self, reason: c_int) {
        let unmapped_ns = now_ns() - self.0.start_ns;
        // SAFETY: The structure is valid, and only read during the call.
        unsafe { bindings::ferry_trace_batch(self.0, reason, unmapped_ns) };
    }
}

/// Turns the hooks of page migration on or off. May sleep.
pub fn set_copy_key(on: bool) {
    // SAFETY: No requirements but the context.
    unsafe { bindings::ferry_copy_key_set(on) };
}
