// SPDX-License-Identifier: GPL-2.0-only

//! The function of the service that C calls.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_service.h`

use kernel::prelude::*;

use crate::service;

/// The service's device: called once, when all else is there. May sleep; 0 or an error number.
#[export]
pub extern "C" fn ferry_service_register() -> c_int {
    match service::register() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}
