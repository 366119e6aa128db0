// SPDX-License-Identifier: GPL-2.0-only
use crate::service::target::{
    Name,
    Target, //
};
use kernel::prelude::*;

fn example() -> Result {
    let error = |name| Target::find(name).err();
    assert_eq!(error(Name::Pid(i32::MAX)), Some(ESRCH));
    assert_eq!(error(Name::PidFd(-1)), Some(EBADF));
    // kthreadd has no memory of its own.
    assert_eq!(error(Name::Pid(2)), Some(EINVAL));
    Ok(())
}
