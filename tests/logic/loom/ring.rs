// SPDX-License-Identifier: GPL-2.0-only

//! The ring of accesses that a CPU records.

use ferry_logic::promotion::ring::{Access, Ends, Ring, Slot};
use loom::sync::Arc;
use loom::thread;

/// The reader gets each access that the ring took, once, whole and in order, even if the ring is
/// full at times.
#[test]
fn ring_of_accesses() {
    loom::model(|| {
        let shared = Arc::new((Ends::new(), [Slot::new(), Slot::new()]));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let ring = Ring {
                    ends: &shared.0,
                    slots: &shared.1,
                };
                let access = |pfn| Access {
                    pfn,
                    from: 1,
                    to: pfn as u16,
                };
                (1..=4u64)
                    .filter(|&pfn| ring.push(access(pfn)).is_some())
                    .collect::<Vec<_>>()
            })
        };
        let ring = Ring {
            ends: &shared.0,
            slots: &shared.1,
        };
        let mut taken = Vec::new();
        let mut drain = || ring.drain(|it| taken.push((it.pfn, it.to)));
        drain();
        drain();
        let pushed = writer.join().unwrap();
        drain();
        let pushed: Vec<_> = pushed.into_iter().map(|pfn| (pfn, pfn as u16)).collect();
        assert_eq!(taken, pushed);
    });
}
