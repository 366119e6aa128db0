// SPDX-License-Identifier: GPL-2.0-only

//! A misc device that is there for good, with permissions of its own; and what its callers may do.
//!
//! The kernel crate's registration goes with a module, and leaves the device to root.
//!
//! C headers: [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h),
//! [`include/linux/capability.h`](srctree/include/linux/capability.h)

use kernel::{
    bindings,
    error::to_result,
    fs::File,
    miscdevice::{
        MiscDevice,
        MiscDeviceOptions, //
    },
    prelude::*,
    str::CStr,
    types::Opaque,
    ModuleMetadata,
    ThisModule, //
};

/// Whose the device's code is: nobody's, as it is never unloaded.
pub struct BuiltIn;

impl ModuleMetadata for BuiltIn {
    const NAME: &'static CStr = c"ferry";
    // SAFETY: Code that is built in has no module, which is what NULL says.
    const THIS_MODULE: ThisModule = unsafe { ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// Registers a device that stays until the machine is switched off, with `mode` for its node: some
/// of the permission bits. May sleep. What `misc_register()` fails with, or `ENOMEM`.
pub fn register<T: MiscDevice<OwnerModule = BuiltIn>>(name: &'static CStr, mode: u16) -> Result {
    let mut raw = MiscDeviceOptions { name }.into_raw::<T>();
    raw.mode = mode & 0o666;
    let device = KBox::new(Opaque::new(raw), GFP_KERNEL)?;
    // SAFETY: It is filled in, and stays where it is, for good if this succeeds; if it fails C has
    // forgotten it when it is freed. `open` is given it
    // as a `MiscDeviceRegistration<T>`, which is such an `Opaque` and nothing else.
    to_result(unsafe { bindings::misc_register(device.get()) })?;
    KBox::leak(device);
    Ok(())
}

/// A capability in the initial user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// `CAP_SYS_ADMIN`.
    SysAdmin = bindings::CAP_SYS_ADMIN,
    /// `CAP_SYS_NICE`.
    SysNice = bindings::CAP_SYS_NICE,
}

impl Capability {
    /// `EPERM` unless the calling task has it. May sleep.
    pub fn check(self) -> Result {
        // SAFETY: No requirements.
        match unsafe { bindings::ferry_capable(self as c_int) } {
            true => Ok(()),
            false => Err(EPERM),
        }
    }

    /// `EPERM` unless who opened the file had it then, and the calling task has it. May sleep.
    pub fn check_with(self, file: &File) -> Result {
        // SAFETY: The file is valid.
        match unsafe { bindings::ferry_opened_with(file.as_ptr(), self as c_int) } {
            true => self.check(),
            false => Err(EPERM),
        }
    }
}

/// Whether the calling task is being killed. Any context.
pub fn is_being_killed() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::ferry_killed() }
}
