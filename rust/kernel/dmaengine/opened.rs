// SPDX-License-Identifier: GPL-2.0-only

//! The ports that were opened, each of which is told when a driver leaves its device.
//!
//! No locks: a port is entered before the device of its first channel is unlocked, and stays.

use kernel::{
    prelude::*,
    sync::SetOnce, //
};

use super::MAX_CHANNELS;

/// Ports that can be opened: those of batches, and as many others.
const MAX_PORTS: usize = 2 * MAX_CHANNELS;

/// A port, whatever it carries.
pub(super) trait OpenedPort: Sync {
    /// Takes the channel from the port if its device is at this address: the driver leaves it.
    /// Returns whether the engine has memory that it did not answer for. May sleep.
    fn abandon(&'static self, device: usize) -> bool;
}

/// The ports that were opened. Places are taken in order, and never given back.
static PORTS: [SetOnce<&'static dyn OpenedPort>; MAX_PORTS] = [const { SetOnce::new() }; MAX_PORTS];

/// Enters a port, if it is not entered yet. For any context.
///
/// Fails with `ENOSPC` if there is no room.
pub(super) fn enter(port: &'static dyn OpenedPort) -> Result {
    let is_entered = PORTS.iter().any(|place| {
        let is_same = |entered: &&dyn OpenedPort| core::ptr::addr_eq(*entered, port);
        place.as_ref().is_some_and(is_same) || place.populate(port)
    });
    match is_entered {
        true => Ok(()),
        false => Err(ENOSPC),
    }
}

/// The driver of the device at this address is about to leave it: closes all ports that have channels
/// of it. Called with the device locked. May sleep.
///
/// Returns whether engines have memory that they did not answer for, which stays with them.
pub fn leave(device: usize) -> bool {
    let ports = PORTS.iter().filter_map(SetOnce::as_ref);
    let mut any = false;
    for port in ports {
        any |= port.abandon(device);
    }
    any
}
