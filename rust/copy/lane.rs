// SPDX-License-Identifier: GPL-2.0-only

//! A lane: one batch at a time, copied by its owner and by helpers.
//!
//! No locks. How many may help is a bound on who comes; nothing is published by it, so it is
//! relaxed.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use crate::{
    abstractions::{
        board::{
            Board,
            CopySegment, //
        },
        vm_event::VmEvent,
        workqueue::OwnedQueue, //
    },
    helpers::pool::{
        Helped,
        Helpers, //
    }, //
};

/// Folios of a batch: as many base pages as `migrate_pages()` takes at a time.
pub const MAX_FOLIOS: usize = 512;

/// A lane.
pub struct Lane<C: CopySegment> {
    shared: Arc<Shared<C>>,
    helpers: Helpers<Shared<C>>,
}

/// What a lane's helpers see of it.
struct Shared<C> {
    board: Board<C>,
    /// Helpers that were called last: one that comes late, from another batch, may be one too many.
    most: Atomic<u32>,
    /// Helpers that copy now.
    present: Atomic<u32>,
}

impl<C: CopySegment> Lane<C> {
    /// Allocates a lane with all its helpers. May sleep.
    pub fn new(copier: C) -> Result<Self> {
        let shared = Arc::new(
            Shared {
                board: Board::new(MAX_FOLIOS, copier)?,
                most: Atomic::new(0),
                present: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;
        Ok(Self {
            helpers: Helpers::new(&shared)?,
            shared,
        })
    }

    /// Where its batch is posted.
    pub fn board(&self) -> &Board<C> {
        &self.shared.board
    }

    /// Calls a helper to each of the first `most` CPUs. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: impl Iterator<Item = CpuId>, most: u32) {
        self.shared.most.store(most, Relaxed);
        self.helpers.call(queue, cpus.take(most as usize));
    }
}

impl<C: CopySegment> Helped for Shared<C> {
    fn help_out(&self) -> bool {
        let mut pages = 0;
        if self.present.fetch_add(1, Relaxed) < self.most.load(Relaxed) {
            pages = self.board.help();
        }
        self.present.fetch_sub(1, Relaxed);
        VmEvent::PagesHelper.count(pages as usize);
        pages > 0
    }
}
