// SPDX-License-Identifier: GPL-2.0-only
//! System calls by the interface of 32-bit programs. A 64-bit program may use it as well, if all
//! memory that it names has 32-bit addresses.

use anyhow::{Context, Result};

use super::{Mapping, RawMove, Ret};

/// Numbers of calls (arch/x86/entry/syscalls/syscall_32.tbl).
pub(super) const IOCTL: u32 = 54;
const MOVE_PAGES: u32 = 317;

/// Returns an address as a 32-bit program has it.
pub(super) fn short(addr: usize) -> Result<u32> {
    u32::try_from(addr).with_context(|| format!("{addr:#x} has more than 32 bits"))
}

/// Maps memory at a 32-bit address.
#[cfg(target_arch = "x86_64")]
pub fn low_memory(len: usize) -> Result<Mapping> {
    Mapping::anon_flags(len, libc::MAP_PRIVATE | libc::MAP_32BIT)
}

/// Skips the test: on other architectures a 64-bit program cannot use the interface.
#[cfg(not(target_arch = "x86_64"))]
pub fn low_memory(_: usize) -> Result<Mapping> {
    Err(crate::harness::skip(
        "only programs of x86-64 can make 32-bit calls",
    ))
}

/// Makes a system call.
///
/// # Safety
///
/// The kernel may write the memory that the arguments name, so it must be the caller's.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn call(nr: u32, [a, b, c, d, e, f]: [u32; 6]) -> Ret {
    let mut ret = i64::from(nr);
    // SAFETY: The caller vouches for the memory. The call preserves all registers but rax and, on
    // some kernels, r8 to r11. The compiler reserves rbx and rbp, and both are restored.
    unsafe {
        std::arch::asm!(
            "push rbp",
            "mov rbp, {f}",
            "xchg {a}, rbx",
            "int 0x80",
            "xchg {a}, rbx",
            "pop rbp",
            a = inout(reg) u64::from(a) => _,
            f = in(reg) u64::from(f),
            inout("rax") ret,
            in("rcx") u64::from(b),
            in("rdx") u64::from(c),
            in("rsi") u64::from(d),
            in("rdi") u64::from(e),
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    match i64::from(ret as i32) {
        ret @ 0.. => Ret { ret, errno: 0 },
        errno => Ret::failed(-errno as i32),
    }
}

/// As above, on an architecture without these calls.
///
/// # Safety
///
/// The function has no requirements; it is unsafe as the other one is.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn call(_: u32, _: [u32; 6]) -> Ret {
    Ret::failed(libc::ENOSYS)
}

/// Calls `move_pages(2)` with arrays in memory with 32-bit addresses. The elements of `pages` have
/// 32 bits. The caller's duties are those of [`super::move_pages_raw`]. Fails if an address or the
/// number of pages has more than 32 bits.
pub fn move_pages_32(raw: &RawMove<'_>) -> Result<Ret> {
    let args = [
        raw.pid as u32,
        u32::try_from(raw.count)?,
        short(raw.pages.addr())?,
        short(raw.nodes.addr())?,
        short(raw.status.addr())?,
        raw.flags as u32,
    ];
    // SAFETY: The kernel only reads `pages` and `nodes`, and handles faults. `status` is in a
    // mapping of atomics, or cannot be written.
    Ok(unsafe { call(MOVE_PAGES, args) })
}
