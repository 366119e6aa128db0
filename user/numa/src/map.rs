// SPDX-License-Identifier: GPL-2.0-only
//! Memory mappings whose words are atomics, because threads write them while the kernel moves the
//! pages.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;

/// Exists if the kernel has huge pages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Returns the bytes of a base page.
pub fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: The call has no effect.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        size as usize
    })
}

/// A mapped range of addresses. Dropping it unmaps the range.
pub struct Mapping {
    addr: usize,
    len: usize,
}

/// Reserved addresses without access, so that nothing else is mapped there. They give room for
/// aligned mappings, and holes in which every access faults.
pub struct Reserved {
    map: Mapping,
}

fn map_at(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Result<Mapping> {
    // SAFETY: Without MAP_FIXED the kernel picks free addresses. With it, the callers pass
    // addresses that they own as a `Reserved` or a `Mapping`.
    let addr = unsafe { libc::mmap(addr as *mut _, len, prot, flags, fd, offset) };
    if addr == libc::MAP_FAILED {
        return Err(Errno::last()).with_context(|| format!("mmap of {len} bytes"));
    }
    Ok(Mapping {
        addr: addr as usize,
        len,
    })
}

impl Reserved {
    /// Reserves `len` bytes.
    pub fn new(len: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let map = map_at(0, len, libc::PROT_NONE, flags, -1, 0)?;
        Ok(Self { map })
    }

    /// Returns the first address.
    pub fn addr(&self) -> usize {
        self.map.addr
    }

    /// Maps memory at the first multiple of `align`, and unmaps the rest.
    fn replace(
        self,
        len: usize,
        align: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Result<Mapping> {
        let addr = self.map.addr.next_multiple_of(align);
        let end = self.map.addr + self.map.len;
        ensure!(
            addr + len <= end,
            "the reservation is too small for the alignment"
        );
        let map = map_at(addr, len, prot, flags | libc::MAP_FIXED, fd, offset)?;
        drop(Mapping {
            addr: self.map.addr,
            len: addr - self.map.addr,
        });
        drop(Mapping {
            addr: addr + len,
            len: end - addr - len,
        });
        std::mem::forget(self.map);
        Ok(map)
    }
}

impl Mapping {
    /// Maps private anonymous memory, aligned to `align`.
    pub fn anon(len: usize, align: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::aligned(len, align, flags, -1)
    }

    /// Maps shared anonymous memory, aligned to `align`.
    pub fn shared(len: usize, align: usize) -> Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::aligned(len, align, flags, -1)
    }

    /// Maps `len` bytes, and an inaccessible page behind them as a part of the mapping.
    pub fn before_a_hole(len: usize) -> Result<Self> {
        let map = Self::anon(len + page_size(), page_size())?;
        map.protect(len, page_size(), libc::PROT_NONE)?;
        Ok(map)
    }

    /// Maps anonymous memory with flags such as MAP_SHARED or MAP_HUGETLB.
    pub fn anon_flags(len: usize, flags: i32) -> Result<Self> {
        ensure!(flags & libc::MAP_FIXED == 0, "the kernel picks the address");
        map_at(
            0,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    }

    /// Maps the first `len` bytes of a file, MAP_SHARED or MAP_PRIVATE, aligned to `align`.
    pub fn file(fd: &impl AsRawFd, len: usize, flags: i32, align: usize) -> Result<Self> {
        Self::aligned(len, align, flags, fd.as_raw_fd())
    }

    /// Maps the first `len` bytes of a file, shared and read-only.
    pub fn of_file_to_read(fd: &impl AsRawFd, len: usize) -> Result<Self> {
        map_at(0, len, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    }

    /// Maps the first `len` bytes of a file, private, to read and to execute.
    pub fn of_file_to_run(fd: &impl AsRawFd, len: usize) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_EXEC;
        map_at(0, len, prot, libc::MAP_PRIVATE, fd.as_raw_fd(), 0)
    }

    fn aligned(len: usize, align: usize, flags: i32, fd: i32) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Reserved::new(len + align)?.replace(len, align, prot, flags, fd, 0)
    }

    /// Returns the first address.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns the bytes that are mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether all of it was unmapped, by [`truncate`](Self::truncate).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns one address for each `step` bytes.
    pub fn addrs(&self, step: usize) -> Vec<usize> {
        (self.addr..self.addr + self.len).step_by(step).collect()
    }

    /// Returns the memory as words. Accessing a page that is protected or beyond the file kills the
    /// process.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: The range is mapped while `self` lives and page aligned; atomics may change at
        // any time.
        unsafe { std::slice::from_raw_parts(self.addr as *const AtomicU64, self.len / 8) }
    }

    fn checked(&self, offset: usize, len: usize) -> usize {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len));
        self.addr + offset
    }

    /// Calls `madvise(2)` for `len` bytes from offset `offset` on.
    pub fn advise(&self, offset: usize, len: usize, advice: i32) -> Result<()> {
        let addr = self.checked(offset, len);
        let is_on_size = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE].contains(&advice);
        if is_on_size && !Path::new(THP).exists() {
            // A kernel without huge pages rejects both kinds of advice, and all its pages are
            // small.
            return Ok(());
        }
        // SAFETY: `self` owns the range, which holds only atomics. Advice can at most zero them.
        let ret = unsafe { libc::madvise(addr as *mut _, len, advice) };
        Errno::result(ret)
            .map(drop)
            .with_context(|| format!("madvise({advice}) of {len} bytes"))
    }

    /// Sets the protection of `len` bytes from offset `offset` on.
    pub fn protect(&self, offset: usize, len: usize, prot: i32) -> Result<()> {
        let addr = self.checked(offset, len);
        // SAFETY: `self` owns the range. A forbidden access raises a signal.
        let ret = unsafe { libc::mprotect(addr as *mut _, len, prot) };
        Errno::result(ret).map(drop).context("mprotect")
    }

    /// Atomically replaces a part with new memory, whose first word is `value`.
    pub fn replace(&self, offset: usize, len: usize, value: u64) -> Result<()> {
        let new = Self::anon(len, page_size())?;
        new.words()[0].store(value, std::sync::atomic::Ordering::Relaxed);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let at = self.checked(offset, len) as *mut libc::c_void;
        // SAFETY: The source is `new`, which is forgotten. `self` owns the target, which stays
        // mapped.
        let addr = unsafe { libc::mremap(new.addr as *mut _, len, len, flags, at) };
        if addr == libc::MAP_FAILED {
            return Err(Errno::last()).context("mremap");
        }
        std::mem::forget(new);
        Ok(())
    }

    /// Moves the pages of a part to a new mapping. The part stays mapped, without pages.
    pub fn take(&self, offset: usize, len: usize) -> Result<Self> {
        let at = self.checked(offset, len) as *mut libc::c_void;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // With this flag the kernel takes the fifth argument as a hint.
        let hint = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: The kernel picks free addresses. `self` owns the source, which stays mapped.
        let addr = unsafe { libc::mremap(at, len, len, flags, hint) };
        if addr == libc::MAP_FAILED {
            return Err(Errno::last()).context("mremap with MREMAP_DONTUNMAP");
        }
        Ok(Self {
            addr: addr as usize,
            len,
        })
    }

    /// Locks all pages in memory.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: Locking changes no contents.
        let ret = unsafe { libc::mlock(self.addr as *const _, self.len) };
        Errno::result(ret).map(drop).context("mlock")
    }

    /// Locks each page when it is first accessed.
    pub fn lock_on_fault(&self) -> Result<()> {
        // SAFETY: Locking changes no contents.
        let ret = unsafe { libc::mlock2(self.addr as *const _, self.len, libc::MLOCK_ONFAULT) };
        Errno::result(ret).map(drop).context("mlock2")
    }

    /// Locks `len` bytes from offset `at` on.
    pub fn lock_part(&self, at: usize, len: usize) -> Result<()> {
        let addr = self.checked(at, len);
        // SAFETY: Locking changes no contents.
        let ret = unsafe { libc::mlock(addr as *const _, len) };
        Errno::result(ret).map(drop).context("mlock")
    }

    /// Unlocks the pages that [`lock`](Self::lock) has locked.
    pub fn unlock(&self) -> Result<()> {
        // SAFETY: Unlocking changes no contents.
        let ret = unsafe { libc::munlock(self.addr as *const _, self.len) };
        Errno::result(ret).map(drop).context("munlock")
    }

    /// Writes back dirty pages of a file mapping.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: Writeback changes no contents.
        let ret = unsafe { libc::msync(self.addr as *mut _, self.len, libc::MS_SYNC) };
        Errno::result(ret).map(drop).context("msync")
    }

    /// Unmaps the memory beyond the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        let addr = self.checked(len, 0);
        drop(Self {
            addr,
            len: self.len - len,
        });
        self.len = len;
    }

    /// Moves the mapping to other addresses by `mremap(2)`.
    pub fn remap(self) -> Result<Self> {
        let to = Reserved::new(self.len)?;
        let addr = to.addr();
        self.remap_into(to, addr)
    }

    /// As `remap`, to `below` bytes below a multiple of `align`.
    pub fn remap_below(self, align: usize, below: usize) -> Result<Self> {
        let to = Reserved::new(self.len + 2 * align)?;
        let addr = (to.addr() + below).next_multiple_of(align) - below;
        self.remap_into(to, addr)
    }

    /// Moves the mapping to `addr`, within the target, and unmaps the rest of the target.
    fn remap_into(self, to: Reserved, addr: usize) -> Result<Self> {
        let (start, end) = (to.map.addr, to.map.addr + to.map.len);
        ensure!(
            start <= addr && addr + self.len <= end,
            "the reservation is too small"
        );
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: The source is `self`, which is consumed. The target is in `to`, which is forgotten.
        let got = unsafe {
            libc::mremap(
                self.addr as *mut _,
                self.len,
                self.len,
                flags,
                addr as *mut libc::c_void,
            )
        };
        if got == libc::MAP_FAILED {
            return Err(Errno::last()).context("mremap");
        }
        let map = Self {
            addr,
            len: self.len,
        };
        let rest = [(start, addr), (addr + self.len, end)];
        for (addr, end) in rest.into_iter().filter(|(addr, end)| addr < end) {
            drop(Self {
                addr,
                len: end - addr,
            });
        }
        std::mem::forget(to);
        std::mem::forget(self);
        Ok(map)
    }

    /// Reads from a file into the mapping.
    pub fn read_at(
        &self,
        offset: usize,
        len: usize,
        fd: &impl AsRawFd,
        from: usize,
    ) -> Result<usize> {
        let addr = self.checked(offset, len);
        // SAFETY: `self` owns the range, which holds atomics.
        let got = unsafe { libc::pread(fd.as_raw_fd(), addr as *mut _, len, from as i64) };
        Ok(Errno::result(got).context("pread into the mapping")? as usize)
    }

    /// Puts references to the pages of a range into a pipe. The pages stay pinned until they are
    /// read.
    pub fn splice_into(&self, offset: usize, len: usize, pipe: &impl AsRawFd) -> Result<usize> {
        let iov = libc::iovec {
            iov_base: self.checked(offset, len) as *mut _,
            iov_len: len,
        };
        // SAFETY: The vector names memory of `self`, which the kernel only reads.
        let got = unsafe { libc::vmsplice(pipe.as_raw_fd(), &iov, 1, libc::SPLICE_F_NONBLOCK) };
        Ok(Errno::result(got).context("vmsplice")? as usize)
    }

    /// Writes the mapping to the beginning of a file.
    pub fn write_to(&self, file: &impl AsRawFd) -> Result<()> {
        // SAFETY: `self` owns the memory, which the kernel only reads.
        let got = unsafe { libc::pwrite(file.as_raw_fd(), self.addr as *const _, self.len, 0) };
        let got = Errno::result(got).context("pwrite")? as usize;
        ensure!(
            got == self.len,
            "expected {} bytes written, got {got}",
            self.len
        );
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `self` owns the range, and the borrows from `words()` have ended.
            unsafe { libc::munmap(self.addr as *mut _, self.len) };
        }
    }
}
