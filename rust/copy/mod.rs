// SPDX-License-Identifier: GPL-2.0-only

//! The engine that copies the folios of a migration batch together.
//!
//! - [`engine`]: the pool of copy tables; posts a batch, or leaves it to the serial copy;
//! - [`migrate_batch`]: the batch of a `migrate_pages_batch()`;
//! - [`folio_pair`]: a source and its destination, and which pairs may be posted;
//! - [`batch`]: the owner's side of a copy table: collects a batch, posts it, takes it back;
//! - [`table`]: the copy table: folios, grains, and the helpers' side;
//! - [`dma`]: the DMA channels that batches may use, and [`dma::feed`] those of a batch.
//!
//! Context: the migrating task, which may sleep, holds folio locks and may run under memory
//! pressure. A batch takes no lock and allocates nothing. A driver of a DMA engine may do both when
//! a copy is submitted, which works in any context. The engine allocates what it needs before idle
//! CPUs take part for the first time, and keeps it.
//!
//! Boundary: `batch.rs`, `dma/feed.rs`, `folio_pair.rs`, `half_readable.rs`, `hooks.rs`,
//! `migrate_batch.rs`, `owned_pairs.rs`, `soft_dma.rs`, `table.rs`. Only these files contain unsafe
//! code.

pub mod batch;
pub mod dma;
pub mod engine;
pub mod folio_pair;
#[cfg(all(CONFIG_FERRY_KUNIT_TEST, CONFIG_X86_64, not(CONFIG_UML)))]
pub mod half_readable;
pub mod hooks;
pub mod migrate_batch;
#[cfg(any(CONFIG_FERRY_KUNIT_TEST, CONFIG_FERRY_COPY_BENCH))]
pub mod owned_pairs;
#[cfg(CONFIG_FERRY_SOFT_DMA)]
pub mod soft_dma;
pub mod table;
