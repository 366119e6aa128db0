// SPDX-License-Identifier: GPL-2.0-only

//! Which pairs of nodes have which places.

use ferry_logic::thread_choice::Pairs;
use loom::sync::Arc;
use loom::thread;

use super::model;

/// Tasks that meet two pairs at once, in another order, give each pair the same place, and the two
/// pairs different ones.
#[test]
fn a_pair_has_one_place() {
    model(None, || {
        let pairs = Arc::new(Pairs::new());
        let other = {
            let pairs = pairs.clone();
            thread::spawn(move || [2, 1].map(|to| pairs.place(0, Some(to))))
        };
        let here = [1, 2].map(|to| pairs.place(0, Some(to)));
        let [second, first] = other.join().unwrap();
        assert_eq!(here, [first, second]);
        assert_ne!(first, second);
    });
}
