// SPDX-License-Identifier: GPL-2.0-only
use crate::{
    copy::{
        owned_pairs::OwnedPairs,
        table::CopyTable, //
    },
    logic::{
        batch::FolioOutcome,
        policy::StoreKind, //
    }, //
};
use kernel::prelude::*;

fn example() -> Result {
    let table = CopyTable::new(8)?;
    assert_eq!(table.help(|| false), 0); // nothing is posted

    // Folios of one and of eight pages, the sources filled with a pattern.
    let mut pairs = OwnedPairs::new(&[0, 3])?;
    pairs.with_lists(|lists| {
        let owner = table.try_own().ok_or(EBUSY)?;
        assert!(table.try_own().is_none());

        let mut batch = owner.batch(StoreKind::Cached);
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        // From now on any task may help. The owner takes the first folio back, and uses it.
        let (first, copied) = batch.run(1, |posted| posted.wait_next_folio());
        assert_eq!(first, Some(FolioOutcome::Copied));
        assert_eq!((copied.folios, copied.pages, copied.helped), (2, 9, 0));
        Ok(())
    })?;
    assert!(table.is_free());
    assert!(pairs.all_equal() && pairs.all_marked());
    Ok(())
}
