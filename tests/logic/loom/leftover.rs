// SPDX-License-Identifier: GPL-2.0-only

//! The rest of a grain that a helper leaves to the owner of the batch.

use std::sync::atomic::{AtomicBool as Witness, Ordering};

use ferry_logic::batch::{FolioOutcome, FolioProgress};
use ferry_logic::claim::Cursor;
use ferry_logic::claim::Leftovers;
use ferry_logic::sync::spin_hint;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{model, seen};

/// A helper leaves the second half of its grain. The owner copies it once, before the batch ends.
#[test]
fn what_a_helper_leaves_is_copied_once() {
    static LEFT: Witness = Witness::new(false);

    struct Batch {
        cursor: Cursor,
        leftovers: Leftovers,
        item: FolioProgress,
        pages: [UnsafeCell<u32>; 2],
    }

    impl Batch {
        fn copy(&self, pages: core::ops::Range<u32>) {
            for page in pages {
                // SAFETY: The page was claimed or left; loom checks that no other thread uses it.
                self.pages[page as usize].with_mut(|it| unsafe { *it += 1 });
            }
        }
    }

    model(None, || {
        let batch = Arc::new(Batch {
            cursor: Cursor::new(),
            leftovers: Leftovers::new(),
            item: FolioProgress::new(2),
            pages: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        batch.cursor.publish(1, 1);
        let helper = {
            let batch = batch.clone();
            thread::spawn(move || {
                if batch.cursor.claim().is_some() {
                    batch.copy(0..1);
                    assert!(batch.leftovers.leave(1..2));
                    batch.item.add(1, FolioOutcome::Copied);
                    batch.cursor.complete(1);
                }
            })
        };
        while batch.item.outcome().is_none() {
            if let Some(pages) = batch.leftovers.take() {
                seen(&LEFT, true);
                batch.copy(pages);
                batch.item.add(1, FolioOutcome::Copied);
            } else if batch.cursor.claim().is_some() {
                batch.copy(0..2);
                batch.item.add(2, FolioOutcome::Copied);
                batch.cursor.complete(1);
            } else {
                spin_hint();
            }
        }
        while !batch.cursor.all_done() {
            spin_hint();
        }
        for page in &batch.pages {
            // SAFETY: The batch is all done; loom checks that the helper does not access it.
            assert_eq!(page.with(|it| unsafe { *it }), 1);
        }
        assert_eq!(batch.leftovers.take(), None);
        helper.join().unwrap();
    });
    assert!(LEFT.load(Ordering::Relaxed));
}
