// SPDX-License-Identifier: GPL-2.0-only

//! A process whose pages the caller may migrate, and ranges of its addresses.
//!
//! Locks: the mmap lock of the process, for reading, while folios are isolated; inside it, a PTL.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use kernel::{
    bindings,
    error::to_result,
    page::PAGE_MASK,
    prelude::*,
    types::Opaque, //
};

use super::events::Failures;

use crate::{
    crew::user_pages::Destination,
    kernel::folio::{
        IsolatedList,
        LockedFolio, //
    }, //
};

/// The name of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The calling process.
    Caller,
    /// The ID of one of its threads, in the caller's PID namespace.
    Pid(i32),
    /// A pidfd of the caller.
    PidFd(i32),
}

/// The processes that map a folio, as seen from a target process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedBy {
    /// Other processes, or none.
    Others,
    /// Only the target, and tasks that share its address space. The address of the first page, even
    /// if only later pages are mapped.
    Target(usize),
    /// The target and other processes. The address is as above.
    TargetAndOthers(usize),
}

/// A process whose pages the caller may migrate.
///
/// # Invariants
///
/// `ferry_target_find()` has initialised `0`, which holds a user reference to the address space.
pub struct Target(bindings::ferry_target);

impl Target {
    /// Finds a process, and checks that the caller may migrate its pages. May sleep.
    ///
    /// Fails with `ESRCH` if there is no such process, with `EBADF` if the number is no pidfd, with
    /// `EPERM` if the caller may not migrate its pages, with `EINVAL` for a kernel thread, and with
    /// `EINTR` if the caller is being killed.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let target = Target::find(Name::Pid(pid))?;
    /// let node = target.destination(1)?;
    /// let mut range = target.range(start..end, node, false, true);
    /// let (pages, result) = range.isolate_pages(512, &mut list);
    /// assert_eq!(Target::find(Name::Pid(2)).err(), Some(EINVAL)); // kthreadd
    /// ```
    ///
    /// `rust/tests/examples/target.rs` runs under KUnit.
    pub fn find(name: Name) -> Result<Self> {
        let (pid, is_fd) = match name {
            Name::Caller => (0, false),
            Name::Pid(pid) => (pid, false),
            Name::PidFd(fd) => (fd, true),
        };
        let target = Opaque::uninit();
        // SAFETY: `target` has room for the structure.
        to_result(unsafe { bindings::ferry_target_find(target.get(), pid, is_fd) })?;
        // INVARIANT: The function has just initialised the structure.
        // SAFETY: The structure is initialised, and this is its only copy.
        Ok(Self(unsafe { target.get().read() }))
    }

    /// Checks that pages may be moved to `node`. For any context.
    ///
    /// Fails with `ENODEV` if it has no memory, or if the cpuset of the target or of the caller
    /// does not allow it.
    pub fn destination(&self, node: i32) -> Result<Destination> {
        // SAFETY: The node mask is valid.
        unsafe { Destination::checked(node, &self.0.nodes) }.map_err(|_| ENODEV)
    }

    /// Returns an address without the tag that user space may have put into it. May sleep. Fails
    /// with `EINTR` if the caller is being killed.
    pub fn untagged(&self, mut addr: usize) -> Result<usize> {
        // SAFETY: By the type invariant the address space is valid; `addr` is valid for a write.
        to_result(unsafe { bindings::ferry_target_untag(&self.0, &mut addr) })?;
        Ok(addr)
    }

    /// Returns the processes that map the folio. Returns [`None`] if the caller is being killed or,
    /// without `wait`, if another task holds a lock of rmap. May miss concurrent changes. May
    /// sleep.
    pub fn mapped_by(&self, folio: LockedFolio<'_>, wait: bool) -> Option<MappedBy> {
        let (mm, mut at) = (self.0.mm, 0);
        // SAFETY: The folio is locked, and by the type invariant the address space is valid; `at`
        // is valid for a write.
        match unsafe { bindings::ferry_folio_owner(folio.as_raw(), mm, wait, &mut at) } {
            bindings::ferry_owner_FERRY_OWNER_ALONE => Some(MappedBy::Target(at)),
            bindings::ferry_owner_FERRY_OWNER_SHARED => Some(MappedBy::TargetAndOthers(at)),
            bindings::ferry_owner_FERRY_OWNER_OTHERS => Some(MappedBy::Others),
            _ => None,
        }
    }

    /// Isolates the folios of `frames`, as long as the process maps them in that order from `at` on
    /// and they may be migrated to `node`. Returns their number. Stops at a large folio, at one
    /// that other processes map unless `shared` is set, and possibly earlier. May sleep, but waits
    /// for no lock.
    pub fn isolate_next(
        &self,
        at: usize,
        frames: &[u64],
        node: Destination,
        shared: bool,
        list: &mut IsolatedList<'_>,
    ) -> usize {
        let mapped = bindings::ferry_mapped {
            mm: self.0.mm,
            addr: at & PAGE_MASK,
            pfns: frames.as_ptr(),
            nr: frames.len(),
            node: node.nid(),
            all: shared,
        };
        // SAFETY: By the type invariants the address space and the list are valid. `pfns` has `nr`
        // elements, and `addr` is the start of a page.
        unsafe { bindings::ferry_isolate_next(&mapped, list.as_raw()) }
    }

    /// Returns a range of addresses, rounded to whole pages, whose folios go to `node`. For any
    /// context.
    ///
    /// `shared` includes folios that other processes map as well. `holes` skips addresses at which
    /// nothing is mapped.
    pub fn range(
        &self,
        pages: core::ops::Range<usize>,
        node: Destination,
        shared: bool,
        holes: bool,
    ) -> Range<'_> {
        let raw = bindings::ferry_range {
            mm: self.0.mm,
            addr: pages.start & PAGE_MASK,
            end: pages.end & PAGE_MASK,
            node: node.nid(),
            all: shared,
            holes,
            wait: true,
            take_hugetlb: true,
            hugetlb: false,
            want: 0,
            isolated: 0,
            failed: Default::default(),
            large_pfn: 0,
            large_end: 0,
        };
        // INVARIANT: By its type invariant `Target`, which is borrowed, has a user reference. Both
        // addresses are rounded.
        Range(raw, core::marker::PhantomData)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value has a user reference, and does not use it again.
        unsafe { bindings::ferry_target_put(&mut self.0) };
    }
}

/// A range of addresses of a process, and the progress in it.
///
/// # Invariants
///
/// The address space has a user reference for `'a`. `addr` and `end` are starts of pages.
pub struct Range<'a>(bindings::ferry_range, core::marker::PhantomData<&'a Target>);

impl Range<'_> {
    /// Returns whether the whole range was processed.
    pub fn is_at_end(&self) -> bool {
        self.0.addr >= self.0.end
    }

    /// Returns the base pages that could not be isolated so far.
    pub fn failed(&self) -> Failures {
        self.0.failed.into()
    }

    /// Returns the number of bytes that were not processed yet.
    pub fn rest_bytes(&self) -> usize {
        self.0.end.saturating_sub(self.0.addr)
    }

    /// Isolates folios of about `want` base pages, or fewer if other tasks wait for a lock that
    /// this needs. Returns the number of base pages. May sleep.
    ///
    /// Fails with `EFAULT` if nothing is mapped at the next address, and with `EINTR` if the caller
    /// is being killed. Folios that were isolated before are in the list.
    pub fn isolate_pages(&mut self, want: usize, list: &mut IsolatedList<'_>) -> (usize, Result) {
        self.isolate_by(want, list, true)
    }

    /// Returns whether hugetlb folios were isolated since the last call. Crews cannot migrate them.
    /// For any context.
    pub fn had_hugetlb(&mut self) -> bool {
        core::mem::take(&mut self.0.hugetlb)
    }

    /// Like [`Range::isolate_pages`], but looks at no folio if another task holds the mmap lock, and
    /// stops before hugetlb folios. May sleep.
    pub fn isolate_pages_now(
        &mut self,
        want: usize,
        list: &mut IsolatedList<'_>,
    ) -> (usize, Result) {
        self.isolate_by(want, list, false)
    }

    fn isolate_by(
        &mut self,
        want: usize,
        list: &mut IsolatedList<'_>,
        wait: bool,
    ) -> (usize, Result) {
        self.0.want = want;
        self.0.wait = wait;
        self.0.take_hugetlb = wait;
        self.0.isolated = 0;
        // SAFETY: By the type invariants the address space and the list are valid, and the range
        // consists of whole pages.
        let rc = unsafe { bindings::ferry_isolate_range(&mut self.0, list.as_raw()) };
        (self.0.isolated, to_result(rc))
    }
}
