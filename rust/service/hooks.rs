// SPDX-License-Identifier: GPL-2.0-only

//! The entry point from C of the service.
//!
//! C header: `mm/ferry/c-glue/include/linux/ferry_service.h`

use kernel::prelude::*;

use crate::service;

/// Registers the device of the service. Called once, when the rest of Ferry is initialised. May
/// sleep.
///
/// Returns 0 or an error number.
#[export]
pub extern "C" fn ferry_service_register() -> c_int {
    match service::register() {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}
