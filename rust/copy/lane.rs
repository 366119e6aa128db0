// SPDX-License-Identifier: GPL-2.0-only

//! A lane: carries one batch at a time, which its owner and helpers copy.
//!
//! No locks. The table limits the number of helpers of a batch. A helper that was called for an
//! earlier batch and starts late may take one of these places.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::Arc, //
};

use super::table::{
    CopySegment, //
    CopyTable,
};

use crate::{
    kernel::workqueue::OwnedQueue,
    workers::{
        must_leave,
        pool::{
            Helped,
            Helpers, //
        }, //
    }, //
};

/// Maximum number of folios in a batch: `NR_MAX_BATCHED_MIGRATION`, the base pages in a batch of
/// mainline.
pub const MAX_FOLIOS: usize = 512;

/// A table for batches, and the work items of its helpers.
pub struct CopyLane<C: CopySegment> {
    shared: Arc<Shared<C>>,
    helpers: Helpers<Shared<C>>,
}

/// The part of a lane that its helpers access.
struct Shared<C> {
    table: CopyTable<C>,
}

impl<C: CopySegment> CopyLane<C> {
    /// Allocates a lane with all its helpers. May sleep.
    pub fn new(copier: C) -> Result<Self> {
        let shared = Arc::new(
            Shared {
                table: CopyTable::new(MAX_FOLIOS, copier)?,
            },
            GFP_KERNEL,
        )?;
        Ok(Self {
            helpers: Helpers::new(&shared)?,
            shared,
        })
    }

    /// Returns the table on which batches are posted.
    pub fn table(&self) -> &CopyTable<C> {
        &self.shared.table
    }

    /// Queues a helper on each of `cpus`, for the batch that is posted. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        self.helpers.call(queue, cpus.iter().copied());
    }
}

impl<C: CopySegment> Helped for Shared<C> {
    fn help_out(&self) -> bool {
        self.table.help(must_leave) > 0 && !must_leave()
    }
}
