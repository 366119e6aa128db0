// SPDX-License-Identifier: GPL-2.0-only
use crate::copy::owned_pairs::OwnedPairs;
use kernel::prelude::*;

fn example() -> Result {
    let mut pairs = OwnedPairs::new(&[1, 0])?;
    assert_eq!(pairs.pages(), 3);
    assert!(!pairs.equal(0));
    pairs.copy_serially()?;
    assert!(pairs.all_equal() && !pairs.all_marked());
    let sizes = pairs.with_lists(|lists| lists.sources().map(|src| src.nr_pages()).sum::<usize>());
    assert_eq!(sizes, 3);
    Ok(())
}
