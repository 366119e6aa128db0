// SPDX-License-Identifier: GPL-2.0-only

//! A built-in misc device with its own permissions, and checks of its callers' capabilities.
//!
//! The registration of the kernel crate is tied to a module, and leaves the device to root.
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

/// The owner module of built-in code, which is never unloaded.
pub struct BuiltIn;

impl ModuleMetadata for BuiltIn {
    const NAME: &'static CStr = c"ferry";
    // SAFETY: Built-in code has no module, and NULL stands for none.
    const THIS_MODULE: ThisModule = unsafe { ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// Registers a device for the lifetime of the kernel, with the read and write bits of `mode` for
/// its node. May sleep. Fails with `ENOMEM`, or as `misc_register()` does.
pub fn register<T: MiscDevice<OwnerModule = BuiltIn>>(name: &'static CStr, mode: u16) -> Result {
    let mut raw = MiscDeviceOptions { name }.into_raw::<T>();
    raw.mode = mode & 0o666;
    let device = KBox::new(Opaque::new(raw), GFP_KERNEL)?;
    // SAFETY: The structure is filled in and does not move. If the call succeeds it is never freed;
    // if the call fails C keeps no pointer to it. `open` gets it as a `MiscDeviceRegistration<T>`,
    // which is a transparent wrapper of the same `Opaque`.
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
    /// Fails with `EPERM` unless the calling task has the capability. May sleep.
    pub fn check(self) -> Result {
        // SAFETY: The function has no requirements.
        match unsafe { bindings::ferry_capable(self as c_int) } {
            true => Ok(()),
            false => Err(EPERM),
        }
    }

    /// Fails with `EPERM` unless the calling task has the capability, and the opener of `file` had
    /// it then. May sleep.
    pub fn check_with(self, file: &File) -> Result {
        // SAFETY: `file` is a reference to a valid file.
        match unsafe { bindings::ferry_opened_with(file.as_ptr(), self as c_int) } {
            true => self.check(),
            false => Err(EPERM),
        }
    }
}
