// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::folio::OwnedFolio;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

fn example() -> Result {
    let mut folio = OwnedFolio::new(2)?;
    assert_eq!(folio.nr_pages(), 4);
    assert_eq!(folio.ref_count(), 1);
    assert!(folio.bytes().iter().all(|&byte| byte == 0));
    folio.bytes_mut()[3 * PAGE_SIZE] = 7;
    assert_eq!(folio.bytes()[3 * PAGE_SIZE], 7);
    Ok(())
}
