// SPDX-License-Identifier: GPL-2.0-only
use crate::crew::user_pages::UserArray;
use kernel::prelude::*;

fn example() -> Result {
    let pages: UserArray<usize> = UserArray::new(0x1000, 4);
    assert!(pages.overlaps(&UserArray::<i32>::new(0x101c, 8)));
    assert!(!pages.overlaps(&UserArray::<i32>::new(0x1020, 8)));
    // Nothing is read past the end, wherever that is.
    assert!(pages.read_now(4, &mut [0]).is_err());
    assert!(pages.read(3, &mut [0; 2]).is_err());
    Ok(())
}
