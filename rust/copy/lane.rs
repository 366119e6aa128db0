// SPDX-License-Identifier: GPL-2.0-only

//! A lane: one batch at a time, copied by its owner and by helpers.
//!
//! No locks. The table limits the helpers of a batch: a helper that comes late, from another batch,
//! takes the place of one that was called.

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

/// Folios of a batch: as many base pages as `migrate_pages()` takes at a time.
pub const MAX_FOLIOS: usize = 512;

/// A lane.
pub struct CopyLane<C: CopySegment> {
    shared: Arc<Shared<C>>,
    helpers: Helpers<Shared<C>>,
}

/// What a lane's helpers see of it.
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

    /// Where its batch is posted.
    pub fn table(&self) -> &CopyTable<C> {
        &self.shared.table
    }

    /// Calls a helper to each CPU, for the batch that is posted. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        self.helpers.call(queue, cpus.iter().copied());
    }
}

impl<C: CopySegment> Helped for Shared<C> {
    fn help_out(&self) -> bool {
        self.table.help(must_leave) > 0 && !must_leave()
    }
}
