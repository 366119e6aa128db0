// SPDX-License-Identifier: GPL-2.0-only

//! Copy progress of one folio.

use ferry_logic::batch::{FolioOutcome, FolioProgress};
use ferry_logic::sync::spin_hint;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::model;

/// Two workers copy a folio in two parts. Its owner, which does not wait for the batch, sees both
/// parts and the failure of one.
#[test]
fn item_is_whole_when_it_says_so() {
    struct Folio {
        item: FolioProgress,
        parts: [UnsafeCell<u32>; 2],
    }

    model(Some(3), || {
        let folio = Arc::new(Folio {
            item: FolioProgress::new(2),
            parts: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let workers = [0, 1].map(|part| {
            let folio = folio.clone();
            thread::spawn(move || {
                // SAFETY: Each worker has its own part; loom checks the reader below.
                folio.parts[part].with_mut(|it| unsafe { *it = 1 });
                let outcome = if part == 0 {
                    FolioOutcome::Copied
                } else {
                    FolioOutcome::Failed
                };
                folio.item.add(1, outcome);
            })
        });

        let outcome = loop {
            match folio.item.outcome() {
                Some(outcome) => break outcome,
                None => spin_hint(),
            }
        };
        assert_eq!(outcome, FolioOutcome::Failed);
        for part in &folio.parts {
            // SAFETY: The folio is finished; loom checks that no worker accesses it any more.
            assert_eq!(part.with(|it| unsafe { *it }), 1);
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
