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
    /// Helpers that may still come to the batch that is or was here. One that comes late, from
    /// another, takes a place of one that was called; if that happens just as they are set there is
    /// one helper too many.
    places: Atomic<i32>,
}

impl<C: CopySegment> Lane<C> {
    /// Allocates a lane with all its helpers. May sleep.
    pub fn new(copier: C) -> Result<Self> {
        let shared = Arc::new(
            Shared {
                board: Board::new(MAX_FOLIOS, copier)?,
                places: Atomic::new(0),
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

    /// Calls a helper to each CPU, for the batch that is posted. For any context but NMI.
    pub fn call(&self, queue: &OwnedQueue, cpus: &[CpuId]) {
        self.shared.places.store(cpus.len() as i32, Relaxed);
        self.helpers.call(queue, cpus.iter().copied());
    }
}

impl<C: CopySegment> Helped for Shared<C> {
    fn help_out(&self) -> bool {
        if self.places.load(Relaxed) <= 0 || self.places.fetch_sub(1, Relaxed) <= 0 {
            return false;
        }
        self.board.help() > 0
    }
}
