// SPDX-License-Identifier: GPL-2.0-only

//! Members of a crew: what they are helped themselves is passed on once.

use kernel::prelude::*;

use crate::crew::members::Members;

fn what_helpers_are_helped() -> Result {
    let members = KBox::new(Members::default(), GFP_KERNEL)?;
    assert!(!members.note_borrowed(1));
    {
        // A caller pays itself.
        let _caller = members.enter_caller(1);
        assert!(!members.note_borrowed(2));
    }
    {
        let helper = members.enter_helper(1).ok_or(EBUSY)?;
        assert!(members.enter_helper(1).is_none());
        assert!(members.note_borrowed(3) && members.note_borrowed(4));
        assert_eq!(helper.borrowed_ns(), 7);
        assert_eq!(helper.borrowed_ns(), 0);
    }
    assert!(!members.note_borrowed(5));
    let next = members.enter_helper(1).ok_or(EBUSY)?;
    assert_eq!(next.borrowed_ns(), 0);
    Ok(())
}

#[kunit_tests(ferry_crew)]
mod suite {
    use kernel::prelude::*;

    #[test]
    fn what_helpers_are_helped() -> Result {
        super::what_helpers_are_helped()
    }
}
