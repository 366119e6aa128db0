// SPDX-License-Identifier: GPL-2.0-only

//! There is one ledger of retained groups, and it owes nothing while it is empty.

use kernel::prelude::*;

use crate::migrc::group::ledger::Ledger;

fn there_is_one_ledger() -> Result {
    for _ in 0..2 {
        // None of migrc's own: that is made when it is switched on, which no test does.
        let ledger = KBox::pin_init(Ledger::new()?, GFP_KERNEL)?;
        assert_eq!(Ledger::new().err(), Some(EBUSY));
        assert_eq!(ledger.since_ns(), None);
        assert_eq!(ledger.covering(&[usize::MAX]), None);
    }
    // Also if one was not even begun.
    drop(Ledger::new()?);
    drop(Ledger::new()?);
    Ok(())
}

suite! {
    ferry_migrc:
    there_is_one_ledger,
}
