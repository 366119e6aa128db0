// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::lru_batches::NoLruBatches;
use kernel::prelude::*;

fn example() -> Result {
    let none_in_batches = NoLruBatches::begin();
    // Every folio is on an LRU list, unless a task has isolated it.
    drop(none_in_batches);
    Ok(())
}
