// SPDX-License-Identifier: GPL-2.0-only

//! A process whose pages the caller may migrate, and ranges of its addresses.
//!
//! Locks: the mmap lock of the process, for reading, while folios are isolated.
//!
//! C file: [`mm/ferry/c-glue/service/service.c`](srctree/mm/ferry/c-glue/service/service.c)

use kernel::{
    bindings,
    error::to_result,
    page::PAGE_MASK,
    prelude::*,
    types::Opaque, //
};

use crate::{
    crew::user_pages::Destination,
    kernel::folio::{
        IsolatedList,
        LockedFolio, //
    }, //
};

/// How a process is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The calling process.
    Caller,
    /// By the number of one of its threads, in the caller's namespace.
    Pid(i32),
    /// By a pidfd of the caller.
    PidFd(i32),
}

/// Who has a folio mapped, as seen from one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Others, or nobody.
    Others,
    /// It and who shares all its memory, and nobody else; where it has the first page, or could.
    Alone(usize),
    /// It, and others.
    Shared(usize),
}

/// A process whose pages the caller may migrate.
///
/// # Invariants
///
/// `0` is what `ferry_target_find()` has filled in, and holds a user of the address space.
pub struct Target(bindings::ferry_target);

impl Target {
    /// Finds it, and asks whether the caller may. May sleep.
    ///
    /// # Examples
    ///
    /// ```ignore
    #[doc = include_str!("../tests/examples/target.rs")]
    /// ```
    ///
    /// `ESRCH`: there is none, or no more; `EBADF`: no pidfd; `EPERM`: the caller may not;
    /// `EINVAL`: it is the kernel's own; `EINTR`: the caller is being killed.
    pub fn find(name: Name) -> Result<Self> {
        let (pid, is_fd) = match name {
            Name::Caller => (0, false),
            Name::Pid(pid) => (pid, false),
            Name::PidFd(fd) => (fd, true),
        };
        let target = Opaque::uninit();
        // SAFETY: There is room for it.
        to_result(unsafe { bindings::ferry_target_find(target.get(), pid, is_fd) })?;
        // INVARIANT: As it was found.
        // SAFETY: As it was found it is filled in; this is the only copy.
        Ok(Self(unsafe { target.get().read() }))
    }

    /// A node that its pages may go to; `ENODEV`: it has no memory, or its cpuset or the caller's
    /// does not let it. Any context.
    pub fn destination(&self, node: i32) -> Result<Destination> {
        // SAFETY: The node mask is valid.
        unsafe { Destination::checked(node, &self.0.nodes) }.map_err(|_| ENODEV)
    }

    /// An address without the tag that the process may have put into it; `EINTR`: the caller is
    /// being killed. May sleep.
    pub fn untagged(&self, mut addr: usize) -> Result<usize> {
        // SAFETY: By the type invariant the address space is valid; the address is ours.
        to_result(unsafe { bindings::ferry_target_untag(&self.0, &mut addr) })?;
        Ok(addr)
    }

    /// Who has the folio mapped; [`None`]: that is not known, as the caller is being killed or,
    /// unless it is to `wait`, somebody has the locks of rmap. Who maps it meanwhile may be missed.
    /// May sleep.
    pub fn owner_of(&self, folio: LockedFolio<'_>, wait: bool) -> Option<Owner> {
        let (mm, mut at) = (self.0.mm, 0);
        // SAFETY: The folio is locked, and by the type invariant the address space is valid; the
        // address is ours.
        match unsafe { bindings::ferry_folio_owner(folio.as_raw(), mm, wait, &mut at) } {
            bindings::ferry_owner_FERRY_OWNER_ALONE => Some(Owner::Alone(at)),
            bindings::ferry_owner_FERRY_OWNER_SHARED => Some(Owner::Shared(at)),
            bindings::ferry_owner_FERRY_OWNER_OTHERS => Some(Owner::Others),
            _ => None,
        }
    }

    /// Isolates the folios of page frames as long as they are mapped one after the other, from `at`
    /// on, and may be migrated to `node`; how many. Large ones end it, as do others' unless
    /// `shared`; so may anything. May sleep, but waits for nobody.
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
        // SAFETY: By the type invariants the address space and the list are valid; so many page
        // frames are there, and the address begins a page.
        unsafe { bindings::ferry_isolate_next(&mapped, list.as_raw()) }
    }

    /// A range of its addresses, made whole pages, whose folios are to go to `node`. Any context.
    ///
    /// `shared`: those that others have mapped, too; `holes`: pass over addresses at which nothing
    /// is mapped.
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
            failed: 0,
        };
        // INVARIANT: By the type invariant of `Target`, which is borrowed; both are rounded.
        Range(raw, core::marker::PhantomData)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it has a user of ours, which nobody needs any more.
        unsafe { bindings::ferry_target_put(&mut self.0) };
    }
}

/// Addresses of a process, and how far they were looked at.
///
/// # Invariants
///
/// The address space has a user for `'a`. `addr` and `end` begin pages.
pub struct Range<'a>(bindings::ferry_range, core::marker::PhantomData<&'a Target>);

impl Range<'_> {
    /// Whether all was looked at.
    pub fn is_at_end(&self) -> bool {
        self.0.addr >= self.0.end
    }

    /// Base pages that could not be isolated so far.
    pub fn failed(&self) -> u64 {
        self.0.failed as u64
    }

    /// Bytes that were not looked at yet.
    pub fn rest_bytes(&self) -> usize {
        self.0.end.saturating_sub(self.0.addr)
    }

    /// Isolates folios of about so many base pages, or fewer if others wait for what that needs;
    /// how many base pages. May sleep.
    ///
    /// `EFAULT`: nothing is mapped at the next address; `EINTR`: the caller is being killed. What
    /// was isolated before that is in the list.
    pub fn isolate_run(&mut self, want: usize, list: &mut IsolatedList<'_>) -> (usize, Result) {
        self.isolate_by(want, list, true)
    }

    /// Whether folios of hugetlb are among those that were isolated since this was asked last:
    /// crews have no way to migrate them. Any context.
    pub fn had_hugetlb(&mut self) -> bool {
        core::mem::take(&mut self.0.hugetlb)
    }

    /// As [`Range::isolate_run`], but looks at none if somebody has the mmap lock, and ends before
    /// folios of hugetlb. May sleep.
    pub fn isolate_run_now(&mut self, want: usize, list: &mut IsolatedList<'_>) -> (usize, Result) {
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
        // SAFETY: By the type invariants the address space and the list are valid, and the range is
        // of whole pages.
        let rc = unsafe { bindings::ferry_isolate_range(&mut self.0, list.as_raw()) };
        (self.0.isolated, to_result(rc))
    }
}
