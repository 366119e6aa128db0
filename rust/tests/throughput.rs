// SPDX-License-Identifier: GPL-2.0-only

//! Rates measured between two nodes do not affect other nodes, and batches without folios affect
//! none.

use kernel::prelude::*;

use crate::{
    kernel::sched::NodeId,
    workers::throughput::{
        best,
        costs,
        forget,
        learn,
        learn_costs,
        Nodes,
        Scope,
        WorkKind, //
    }, //
};

/// Returns the kind of a list between two nodes that no machine has.
fn list(from: i32, to: i32) -> WorkKind {
    let nodes = Nodes {
        from: NodeId(from),
        to: Some(NodeId(to)),
    };
    WorkKind::new(Scope::List, nodes, 512, 512)
}

fn pairs_of_nodes_are_kept_apart() -> Result {
    let (fast, slow) = (list(1001, 1002), list(1001, 1003));
    for kind in [fast, slow] {
        // Until a rate is known, every available thread is used.
        assert_eq!(best(kind, 2), 2);
    }
    learn(slow, 1, 512, 1_000_000);
    learn(slow, 2, 512, 1_000_000);
    learn(fast, 1, 512, 1_000_000);
    learn(fast, 2, 512, 500_000);
    let found = [best(slow, 2), best(fast, 2), best(list(1002, 1001), 2)];
    forget();
    assert_eq!(found, [1, 2, 2]);
    Ok(())
}

fn no_folios_take_no_time() -> Result {
    let known = costs();
    learn_costs(0, 0, 1, (1_000_000_000, 1_000_000_000), false);
    learn_costs(0, 0, 2, (0, 0), true);
    assert_eq!(costs(), known);
    Ok(())
}

suite! {
    ferry_measured:
    pairs_of_nodes_are_kept_apart,
    no_folios_take_no_time,
}
