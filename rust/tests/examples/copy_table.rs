// SPDX-License-Identifier: GPL-2.0-only
use crate::{
    copy::{
        owned_pairs::OwnedPairs,
        table::{
            Board,
            CopySegment,
            Filled,
            Segment,
            Unreadable, //
        }, //
    },
    logic::{
        item::Outcome,
        method::Method, //
    }, //
};
use kernel::prelude::*;

struct Plain;

impl CopySegment for Plain {
    fn copy<'s>(&self, segment: Segment<'s>) -> Result<Filled<'s>, Unreadable> {
        segment.copy_machine_check_safe()
    }
}

fn example() -> Result {
    let board = Board::new(8, Plain)?;
    assert_eq!(board.help(|| false), 0); // nothing is posted

    // Folios of one and of eight pages, the sources filled with a pattern.
    let mut pairs = OwnedPairs::new(&[0, 3])?;
    pairs.with_lists(|lists| {
        let owner = board.try_own().ok_or(EBUSY)?;
        assert!(board.try_own().is_none());

        let mut batch = owner.batch(Method::Cached);
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        // From now on anybody may help. The owner takes the first folio back, and uses it.
        let (first, copied) = batch.run(1, |posted| posted.take_next());
        assert_eq!(first, Some(Outcome::Copied));
        assert_eq!((copied.folios, copied.pages, copied.helped), (2, 9, 0));
        Ok(())
    })?;
    assert!(board.is_free());
    assert!(pairs.all_equal() && pairs.all_marked());
    Ok(())
}
