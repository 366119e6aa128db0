// SPDX-License-Identifier: GPL-2.0-only

//! A lane: one batch at a time, copied by its owner and by helpers.

use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::Arc, //
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
    board: Arc<Board<C>>,
    helpers: Helpers<Board<C>>,
}

impl<C: CopySegment> Lane<C> {
    /// Allocates a lane with all its helpers. May sleep.
    pub fn new(copier: C) -> Result<Self> {
        let board = Arc::new(Board::new(MAX_FOLIOS, copier)?, GFP_KERNEL)?;
        Ok(Self {
            helpers: Helpers::new(&board)?,
            board,
        })
    }

    /// Where its batch is posted.
    pub fn board(&self) -> &Board<C> {
        &self.board
    }

    /// Calls a helper to each CPU. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        self.helpers.call(queue, cpus);
    }
}

impl<C: CopySegment> Helped for Board<C> {
    fn help_out(&self) -> bool {
        let pages = self.help();
        VmEvent::PagesHelper.count(pages as usize);
        pages > 0
    }
}
