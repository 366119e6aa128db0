// SPDX-License-Identifier: GPL-2.0-only

//! Structures of user space that may grow: their size comes first, as in `clone3(2)`.
//!
//! As `copy_struct_from_user()`, which is inline, has it: what the caller does not know is 0, what
//! the kernel does not know must be.
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

/// What the first version of a structure has, and of what it consists.
///
/// # Safety
///
/// The type must consist of integers without padding, the first of which is a `u32`, its size.
pub unsafe trait Extensible: Copy + Default {
    /// Bytes of its first version.
    const FIRST: usize;
}

#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Plain<T>(T);

// SAFETY: What is `Extensible` may have any bytes.
unsafe impl<T: Extensible> FromBytes for Plain<T> {}
// SAFETY: What is `Extensible` has no padding.
unsafe impl<T: Extensible> AsBytes for Plain<T> {}

/// A structure as the calling task gave it, and where.
pub struct FromUser<T> {
    at: UserPtr,
    size: usize,
    /// What it says.
    pub value: T,
}

impl<T: Extensible> FromUser<T> {
    /// Reads it. May sleep, for as long as user space likes.
    ///
    /// `EFAULT`: it cannot be read; `EINVAL`: it is too small; `E2BIG`: it is too large, or says
    /// something that this kernel does not know.
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
        // User space may have changed it since.
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

    /// Writes its value back from byte `first` to before `end`, as far as the caller knows that.
    /// May sleep, for as long as user space likes. `EFAULT`: it cannot be written.
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
    ($($name:ty),*) => {$(
        // SAFETY: It consists of integers, which the assertion counts: there is no padding.
        unsafe impl Extensible for $name {
            // What there is now; to be kept when something is added.
            const FIRST: usize = size_of::<$name>();
        }
    )*};
}

extensible! {
    bindings::page_migrate_phys,
    bindings::page_migrate_range,
    bindings::page_migrate_counters
}

// Four numbers of 32 bits, and four or, of counters, two and eight of 64.
const _: () = {
    assert!(size_of::<bindings::page_migrate_phys>() == 4 * 4 + 4 * 8);
    assert!(size_of::<bindings::page_migrate_range>() == 4 * 4 + 4 * 8);
    assert!(size_of::<bindings::page_migrate_counters>() == 2 * 4 + 8 * 8);
    assert!(offset_of!(bindings::page_migrate_phys, size) == 0);
    assert!(offset_of!(bindings::page_migrate_range, size) == 0);
    assert!(offset_of!(bindings::page_migrate_counters, size) == 0);
};
