use crate::abstractions::board::{Board, CopySegment, Segment, Unreadable};
use crate::abstractions::owned_pairs::OwnedPairs;
use kernel::prelude::*;

struct Plain;

impl CopySegment for Plain {
    fn copy(&self, segment: &Segment<'_>) -> Result<(), Unreadable> {
        segment.copy_machine_check_safe()
    }
}

fn example() -> Result {
    let board = Board::new(8)?;
    assert_eq!(board.help(&Plain), 0); // nothing is posted

    // Folios of one and of eight pages, the sources filled with a pattern.
    let mut pairs = OwnedPairs::new(&[0, 3])?;
    pairs.with_lists(|lists| {
        let mut owner = board.try_own().ok_or(EBUSY)?;
        assert!(board.try_own().is_none());

        let mut batch = owner.batch();
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        let copied = batch.copy(1, &Plain, || ());
        assert_eq!((copied.folios(), copied.own(), copied.helped()), (2, 9, 0));
        assert_eq!(copied.mark().folios, 0);
        Ok::<(), Error>(())
    })?;
    assert!(pairs.all_equal() && pairs.all_marked());
    Ok(())
}
