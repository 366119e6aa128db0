// SPDX-License-Identifier: GPL-2.0-only

//! User-space structures that may grow: the first member is their size, as in `clone3(2)`.
//!
//! They follow the rules of `copy_struct_from_user()`, which is inline: members that the caller
//! does not know are 0, and bytes that the kernel does not know must be 0.
//!
//! C header: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h)

use core::mem::{
    offset_of,
    size_of, //
};
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    transmute::{
        AsBytes,
        FromBytes, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// A structure that later kernels may extend.
///
/// # Safety
///
/// The type must consist of integers without padding. The first one must be a `u32`, its size.
pub unsafe trait Extensible: Copy + Default {
    /// Size in bytes of the first version of the structure.
    const FIRST: usize;
}

#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Plain<T>(T);

// SAFETY: An `Extensible` type consists of integers, for which any bytes are valid.
unsafe impl<T: Extensible> FromBytes for Plain<T> {}
// SAFETY: An `Extensible` type has no padding.
unsafe impl<T: Extensible> AsBytes for Plain<T> {}

/// A structure that the calling task passed, and its address.
pub struct FromUser<T> {
    at: UserPtr,
    size: usize,
    /// The value that was read.
    pub value: T,
}

impl<T: Extensible> FromUser<T> {
    /// Reads the structure at `arg`. May sleep, for an unlimited time if user space handles the
    /// page fault.
    ///
    /// Fails with `EFAULT` if it cannot be read, with `EINVAL` if it is too small, and with `E2BIG`
    /// if it is too large or has bytes other than 0 that this kernel does not know.
    pub fn read(arg: usize) -> Result<Self> {
        let at = UserPtr::from_addr(arg);
        let size: u32 = UserSlice::new(at, size_of::<u32>()).reader().read()?;
        let size = size as usize;
        if size < T::FIRST {
            return Err(EINVAL);
        }
        if size > PAGE_SIZE {
            return Err(E2BIG);
        }
        let mut value = Plain::<T>::default();
        let mut reader = UserSlice::new(at, size).reader();
        let known = size.min(size_of::<T>());
        reader.read_slice(value.as_bytes_mut().get_mut(..known).ok_or(EINVAL)?)?;
        // User space may have changed the size since it was first read.
        if let Some(said) = value.as_bytes_mut().first_chunk_mut() {
            *said = (size as u32).to_ne_bytes();
        }
        let mut rest = [0; 64];
        while !reader.is_empty() {
            let some = reader.len().min(rest.len());
            let some = rest.get_mut(..some).ok_or(EINVAL)?;
            reader.read_slice(some)?;
            if some.iter().any(|&byte| byte != 0) {
                return Err(E2BIG);
            }
        }
        Ok(Self {
            at,
            size,
            value: value.0,
        })
    }

    /// Writes bytes `first..end` of the value back, as far as the caller's structure has them. May
    /// sleep, for an unlimited time if user space handles the page fault. Fails with `EFAULT` if
    /// the memory cannot be written.
    pub fn write(&self, first: usize, end: usize) -> Result {
        let plain = Plain(self.value);
        let end = end.min(self.size);
        let Some(bytes) = plain.as_bytes().get(first..end) else {
            return Ok(());
        };
        let at = self.at.wrapping_byte_add(first);
        UserSlice::new(at, bytes.len()).writer().write_slice(bytes)
    }
}

macro_rules! extensible {
    ($($name:ty: $first:literal),*) => {$(
        // SAFETY: It consists of integers. The assertion below adds up their sizes, so it has no
        // padding.
        unsafe impl Extensible for $name {
            const FIRST: usize = $first;
        }
    )*};
}

extensible! {
    bindings::page_migrate_phys: 48,
    bindings::page_migrate_range: 48,
    bindings::page_migrate_counters: 280,
    bindings::page_migrate_matrix: 24
}

// The members of 32 bits and those of 64.
const _: () = {
    assert!(size_of::<bindings::page_migrate_phys>() == 4 * 4 + 4 * 8);
    assert!(size_of::<bindings::page_migrate_range>() == 4 * 4 + 4 * 8);
    assert!(size_of::<bindings::page_migrate_counters>() == 2 * 4 + 34 * 8);
    assert!(size_of::<bindings::page_migrate_matrix>() == 2 * 4 + 2 * 8);
    assert!(offset_of!(bindings::page_migrate_phys, size) == 0);
    assert!(offset_of!(bindings::page_migrate_range, size) == 0);
    assert!(offset_of!(bindings::page_migrate_counters, size) == 0);
    assert!(offset_of!(bindings::page_migrate_matrix, size) == 0);
};
