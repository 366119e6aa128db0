// SPDX-License-Identifier: GPL-2.0-only

//! The user arrays of `move_pages(2)`, and the isolation of folios by address.
//!
//! Locks: the mmap lock of the target, for reading, while folios at some addresses are isolated.
//!
//! C file: [`mm/migrate.c`](srctree/mm/migrate.c), `do_pages_move()`

use core::marker::PhantomData;
use kernel::{
    bindings,
    error::to_result,
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

use crate::{
    kernel::folio::{
        IsolatedFolios,
        IsolatedList, //
    },
    logic::sorted_prefix::TAGGED, //
};

/// An array in the user space of the calling task.
pub struct UserArray<T> {
    addr: usize,
    len: usize,
    _element: PhantomData<T>,
}

impl<T> UserArray<T>
where
    T: Copy,
    [T]: AsBytes + FromBytes,
{
    /// Returns an array of `len` elements at `addr`, which may be any address.
    pub fn new(addr: usize, len: usize) -> Self {
        Self {
            addr,
            len,
            _element: PhantomData,
        }
    }

    /// Reads elements from index `at` on, as many as `into` has. May sleep, for as long as user
    /// space delays the page faults.
    ///
    /// Fails with `EFAULT` if an element cannot be read. The content of `into` is undefined then.
    pub fn read(&self, at: usize, into: &mut [T]) -> Result {
        let bytes = into.as_bytes_mut();
        self.slice(at, bytes.len())?.reader().read_slice(bytes)
    }

    /// Like [`UserArray::read`], but also fails with `EFAULT` if a page of the elements is not
    /// mapped now. Does not sleep.
    pub fn read_now(&self, at: usize, into: &mut [T]) -> Result {
        let bytes = into.as_bytes_mut();
        let from = self.address(at, bytes.len())?;
        // SAFETY: `bytes` has room for that many bytes, and any byte is valid.
        let rc = unsafe {
            bindings::copy_from_user_nofault(
                bytes.as_mut_ptr().cast(),
                from as *const c_void,
                bytes.len(),
            )
        };
        match rc {
            0 => Ok(()),
            _ => Err(EFAULT),
        }
    }

    /// Writes elements from index `at` on. May sleep, for as long as user space delays the page
    /// faults.
    ///
    /// Fails with `EFAULT` if an element cannot be written. Some of those before it are written
    /// then.
    pub fn write(&self, at: usize, from: &[T]) -> Result {
        let bytes = from.as_bytes();
        self.slice(at, bytes.len())?.writer().write_slice(bytes)
    }

    /// Returns whether the addresses of both arrays overlap. Memory that is mapped twice is not
    /// found.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let pages: UserArray<usize> = UserArray::new(0x1000, 4); // ends at 0x1020
    /// assert!(pages.overlaps(&UserArray::<i32>::new(0x101c, 8)));
    /// assert!(!pages.overlaps(&UserArray::<i32>::new(0x1020, 8)));
    /// assert!(pages.read(3, &mut [0; 2]).is_err()); // beyond the end
    /// ```
    pub fn overlaps<U>(&self, other: &UserArray<U>) -> bool {
        self.distance(other) < self.bytes() || other.distance(self) < other.bytes()
    }

    fn slice(&self, at: usize, bytes: usize) -> Result<UserSlice> {
        let addr = self.address(at, bytes)?;
        Ok(UserSlice::new(UserPtr::from_addr(addr), bytes))
    }

    /// Returns the address of `bytes` bytes from element `at` on. Fails with `EFAULT` if they are
    /// not all in the array.
    fn address(&self, at: usize, bytes: usize) -> Result<usize> {
        let offset = at.checked_mul(size_of::<T>()).ok_or(EFAULT)?;
        let end = offset.checked_add(bytes).ok_or(EFAULT)?;
        if end > self.bytes() {
            return Err(EFAULT);
        }
        self.addr.checked_add(offset).ok_or(EFAULT)
    }
}

impl<T> UserArray<T> {
    /// Returns the distance from the start of this array to the start of the other, without address
    /// bits that may be tags. So arrays that are far apart may seem to overlap, but overlapping
    /// arrays never seem not to.
    fn distance<U>(&self, other: &UserArray<U>) -> usize {
        other.addr.wrapping_sub(self.addr) & (TAGGED - 1)
    }

    fn bytes(&self) -> usize {
        self.len.saturating_mul(size_of::<T>())
    }
}

/// The condition on which idle CPUs may help with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// Only if `vm.mt_page_copy` is 1 and `copy/reasons` has the reason of the call.
    AsConfigured,
    /// Because the call asks for it with `MPOL_MF_MOVE_MT` or `PAGE_MIGRATE_MT`.
    Asked,
}

#[cfg(CONFIG_FERRY_SERVICE)]
impl Help {
    /// Returns whether a call that migrates to a node may have a crew now. For any context.
    pub fn may_come(self) -> bool {
        let mt = self == Self::Asked;
        // SAFETY: The function has no requirements.
        unsafe { bindings::ferry_may_crew(bindings::migrate_reason_MR_SYSCALL, mt) }
    }
}

/// A grant of the help that a call has asked for. Dropping it returns the grant.
///
/// # Invariants
///
/// `ferry_mt_hold()` has returned `true`, and the drop calls `ferry_mt_release()` for it.
#[cfg(CONFIG_FERRY_SERVICE)]
#[must_use = "dropping it returns the grant"]
pub struct AskedHelp(());

#[cfg(CONFIG_FERRY_SERVICE)]
impl AskedHelp {
    /// Asks for help. Returns [`None`] if `copy/mt_flag` denies help, or if memory is short for
    /// lanes and queues. May sleep.
    pub fn new() -> Option<Self> {
        // SAFETY: The function has no requirements.
        let granted = unsafe { bindings::ferry_mt_hold() };
        // INVARIANT: `then()` creates the value only if `ferry_mt_hold()` has returned `true`, so a
        // refused request releases no grant.
        granted.then(|| Self(()))
    }
}

#[cfg(CONFIG_FERRY_SERVICE)]
impl Drop for AskedHelp {
    fn drop(&mut self) {
        // SAFETY: By the type invariant help was granted, and the drop releases the grant once.
        unsafe { bindings::ferry_mt_release() };
    }
}

/// A node that pages may be moved to.
///
/// # Invariants
///
/// `0` is the number of a node that has, or had, memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination(i32);

impl Destination {
    /// Checks that pages may be moved to `node`. For any context.
    ///
    /// Fails with `ENODEV` if it has no memory, and with `EACCES` if it is not in `nodes`.
    ///
    /// # Safety
    ///
    /// `nodes` must be valid.
    pub(crate) unsafe fn checked(node: i32, nodes: *const bindings::nodemask_t) -> Result<Self> {
        // SAFETY: The caller guarantees that `nodes` is valid.
        to_result(unsafe { bindings::ferry_check_node(node, nodes) })?;
        // INVARIANT: The node was just checked.
        Ok(Self(node))
    }

    /// Returns the number of the node.
    pub fn nid(self) -> i32 {
        self.0
    }
}

/// The result of isolating the folios at some addresses.
pub struct Isolated {
    /// Number of addresses, from the first on, whose folios were isolated.
    pub queued: usize,
    /// The status of the next address: 0 if its folio is already on the node, or an error number;
    /// [`None`] if it was not looked at.
    pub stopped: Option<c_int>,
    /// Whether the folios are base pages, each mapped at that address only.
    pub alone: bool,
}

/// The arguments of `do_pages_move()`.
///
/// # Invariants
///
/// The address space and the mask of the nodes that it may use are valid for `'a`.
pub struct MovePages<'a>(&'a bindings::ferry_move_pages);

impl<'a> MovePages<'a> {
    /// Wraps the C structure.
    ///
    /// # Safety
    ///
    /// `args` must be valid for `'a`, and the type invariant must hold.
    pub unsafe fn from_raw(args: *const bindings::ferry_move_pages) -> Self {
        // INVARIANT: The caller guarantees the type invariant.
        // SAFETY: The caller guarantees that `args` is valid for `'a`.
        Self(unsafe { &*args })
    }

    /// Returns the number of pages.
    pub fn nr_pages(&self) -> usize {
        self.0.nr_pages
    }

    /// Returns whether the caller asks for help.
    pub fn help(&self) -> Help {
        match self.0.mt {
            true => Help::Asked,
            false => Help::AsConfigured,
        }
    }

    /// Returns the array of addresses.
    pub fn pages(&self) -> UserArray<usize> {
        UserArray::new(self.0.pages, self.0.nr_pages)
    }

    /// Returns the array of destination nodes.
    pub fn nodes(&self) -> UserArray<i32> {
        UserArray::new(self.0.nodes, self.0.nr_pages)
    }

    /// Returns the array that receives the status of each page.
    pub fn status(&self) -> UserArray<i32> {
        UserArray::new(self.0.status, self.0.nr_pages)
    }

    /// Returns an address without the tag that user space may have put into it. May sleep.
    pub fn untagged(&self, addr: usize) -> usize {
        // SAFETY: By the type invariant the address space is valid.
        unsafe { bindings::ferry_untag(self.0.mm, addr) }
    }

    /// Checks that pages may be moved to `node`.
    ///
    /// Fails with `ENODEV` if it has no memory, and with `EACCES` if the task may not use it.
    pub fn destination(&self, node: i32) -> Result<Destination> {
        // SAFETY: By the type invariant the node mask is valid.
        unsafe { Destination::checked(node, self.0.task_nodes) }
    }

    /// Isolates the folios at `pages` that are not on `node`, up to the first that cannot be
    /// isolated. May sleep.
    pub fn isolate(
        &self,
        pages: &[usize],
        node: Destination,
        list: &mut IsolatedList<'_>,
    ) -> Isolated {
        self.isolate_list(pages, node, list, true)
    }

    /// Like [`MovePages::isolate`], but looks at no page if another task holds the mmap lock. May
    /// sleep.
    pub fn isolate_now(
        &self,
        pages: &[usize],
        node: Destination,
        list: &mut IsolatedList<'_>,
    ) -> Isolated {
        self.isolate_list(pages, node, list, false)
    }

    fn isolate_list(
        &self,
        pages: &[usize],
        node: Destination,
        list: &mut IsolatedList<'_>,
        wait: bool,
    ) -> Isolated {
        let nr = c_int::try_from(pages.len()).unwrap_or(c_int::MAX);
        let mut addrs = bindings::ferry_addr_list {
            mm: self.0.mm,
            pages: pages.as_ptr(),
            nr,
            node: node.0,
            all: self.0.all,
            wait,
            settled: false,
            alone: true,
            err: 0,
        };
        // SAFETY: By the type invariants the address space and the list are valid; so is the slice
        // of addresses.
        let queued = unsafe { bindings::ferry_isolate_pages(&mut addrs, list.as_raw()) };
        Isolated {
            queued: queued as usize,
            stopped: (addrs.err <= 0 && queued < nr).then_some(addrs.err),
            alone: addrs.alone,
        }
    }
}

/// Migrates a list to `node` as `move_pages(2)` does. Folios that are not migrated are put back.
/// May sleep.
///
/// Returns 0, the number of folios that were not migrated, or an error number.
pub fn move_to_node(mut folios: Pin<&mut IsolatedFolios>, node: Destination, help: Help) -> c_int {
    let (left, _) = try_to_node(folios.as_mut(), node, help);
    folios.put_back();
    left
}

/// Like [`move_to_node`], but folios that are not migrated stay in `folios`. Also returns the
/// number of base pages that were migrated.
pub fn try_to_node(
    mut folios: Pin<&mut IsolatedFolios>,
    node: Destination,
    help: Help,
) -> (c_int, u32) {
    let mt = help == Help::Asked;
    let list = folios.as_mut().list().as_raw();
    let mut moved = 0;
    // SAFETY: The list is valid and links isolated folios; `moved` is valid for a write.
    let left = unsafe { bindings::ferry_move_to_node(list, node.0, mt, &mut moved) };
    (left, moved)
}
