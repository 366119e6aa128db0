// SPDX-License-Identifier: GPL-2.0-only

//! What `move_pages(2)` does with user space and page tables: its arrays, and the folios that are
//! isolated by address.
//!
//! Locks: the mmap lock of the target, for reading, while a run of addresses is isolated.
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

use super::migration::Help;

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
    /// Of so many elements; nothing is known of the memory.
    pub fn new(addr: usize, len: usize) -> Self {
        Self {
            addr,
            len,
            _element: PhantomData,
        }
    }

    /// Reads elements `at..`, as many as `into` has. May sleep, for as long as user space likes.
    ///
    /// `EFAULT` if one of them cannot be read; `into` has then anything.
    pub fn read(&self, at: usize, into: &mut [T]) -> Result {
        let bytes = into.as_bytes_mut();
        self.slice(at, bytes.len())?.reader().read_slice(bytes)
    }

    /// As [`UserArray::read`], but `EFAULT` if a page that is read is not mapped now. Does not
    /// sleep.
    pub fn read_now(&self, at: usize, into: &mut [T]) -> Result {
        let bytes = into.as_bytes_mut();
        let from = self.address(at, bytes.len())?;
        // SAFETY: There is room for so many bytes, each of which may be anything.
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

    /// Writes elements `at..`. May sleep, for as long as user space likes.
    ///
    /// `EFAULT` if one of them cannot be written; some of those before it are.
    pub fn write(&self, at: usize, from: &[T]) -> Result {
        let bytes = from.as_bytes();
        self.slice(at, bytes.len())?.writer().write_slice(bytes)
    }

    /// Whether the two share memory, by their addresses: not if it is mapped twice.
    ///
    /// # Examples
    ///
    /// ```ignore
    #[doc = include_str!("../tests/examples/user_pages.rs")]
    /// ```
    pub fn overlaps<U>(&self, other: &UserArray<U>) -> bool {
        self.distance(other) < self.bytes() || other.distance(self) < other.bytes()
    }

    fn slice(&self, at: usize, bytes: usize) -> Result<UserSlice> {
        let addr = self.address(at, bytes)?;
        Ok(UserSlice::new(UserPtr::from_addr(addr), bytes))
    }

    /// Where elements `at..` are, so many bytes of them; `EFAULT` if they are not of the array.
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
    /// From the start of this to that of the other, without what may be tags: so arrays that are
    /// far apart may seem to overlap, and never the other way round.
    fn distance<U>(&self, other: &UserArray<U>) -> usize {
        other.addr.wrapping_sub(self.addr) & (TAGGED - 1)
    }

    fn bytes(&self) -> usize {
        self.len.saturating_mul(size_of::<T>())
    }
}

/// A node that pages may go to.
///
/// # Invariants
///
/// It is the number of a node that has, or had, memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination(i32);

impl Destination {
    /// A node that pages may go to: `ENODEV` if it has no memory, `EACCES` if it is not one of
    /// `nodes`. Any context.
    ///
    /// # Safety
    ///
    /// `nodes` must be valid.
    pub(crate) unsafe fn checked(node: i32, nodes: *const bindings::nodemask_t) -> Result<Self> {
        // SAFETY: By the safety requirement.
        to_result(unsafe { bindings::ferry_check_node(node, nodes) })?;
        // INVARIANT: It was just checked.
        Ok(Self(node))
    }

    /// Its number.
    pub fn nid(self) -> i32 {
        self.0
    }
}

/// What became of addresses whose folios were to be isolated.
pub struct Isolated {
    /// How many were, from the first on.
    pub queued: usize,
    /// What there is to say of the next: 0 if it is where it is to go, or an error number;
    /// [`None`]: nothing, it was not looked at.
    pub stopped: Option<c_int>,
    /// Whether the folios are base pages, and each mapped at that address alone.
    pub alone: bool,
}

/// What `do_pages_move()` was asked.
///
/// # Invariants
///
/// The address space and the nodes it may use are valid for `'a`.
pub struct MovePages<'a>(&'a bindings::ferry_move_pages);

impl<'a> MovePages<'a> {
    /// Wraps the C structure.
    ///
    /// # Safety
    ///
    /// `args` must be valid for `'a`, and the type invariant hold.
    pub unsafe fn from_raw(args: *const bindings::ferry_move_pages) -> Self {
        // INVARIANT: By the safety requirement.
        // SAFETY: As above.
        Self(unsafe { &*args })
    }

    /// How many pages.
    pub fn nr_pages(&self) -> usize {
        self.0.nr_pages
    }

    /// Whether the caller asks for help.
    pub fn help(&self) -> Help {
        match self.0.mt {
            true => Help::Asked,
            false => Help::AsSwitched,
        }
    }

    /// Their addresses.
    pub fn pages(&self) -> UserArray<usize> {
        UserArray::new(self.0.pages, self.0.nr_pages)
    }

    /// Where each is to go.
    pub fn nodes(&self) -> UserArray<i32> {
        UserArray::new(self.0.nodes, self.0.nr_pages)
    }

    /// Where is to be told what became of each.
    pub fn status(&self) -> UserArray<i32> {
        UserArray::new(self.0.status, self.0.nr_pages)
    }

    /// An address without the tag that the process may have put into it. May sleep.
    pub fn untagged(&self, addr: usize) -> usize {
        // SAFETY: By the type invariant the address space is valid.
        unsafe { bindings::ferry_untag(self.0.mm, addr) }
    }

    /// A node that pages may go to: `ENODEV` if it has no memory, `EACCES` if the task may not use
    /// it.
    pub fn destination(&self, node: i32) -> Result<Destination> {
        // SAFETY: By the type invariant the node mask is valid.
        unsafe { Destination::checked(node, self.0.task_nodes) }
    }

    /// Isolates the folios at `pages`, to go to `node`, up to the first that cannot be. May sleep.
    pub fn isolate(
        &self,
        pages: &[usize],
        node: Destination,
        list: &mut IsolatedList<'_>,
    ) -> Isolated {
        self.isolate_run(pages, node, list, true)
    }

    /// As [`MovePages::isolate`], but looks at none if somebody has the mmap lock. May sleep.
    pub fn isolate_now(
        &self,
        pages: &[usize],
        node: Destination,
        list: &mut IsolatedList<'_>,
    ) -> Isolated {
        self.isolate_run(pages, node, list, false)
    }

    fn isolate_run(
        &self,
        pages: &[usize],
        node: Destination,
        list: &mut IsolatedList<'_>,
        wait: bool,
    ) -> Isolated {
        let nr = c_int::try_from(pages.len()).unwrap_or(c_int::MAX);
        let mut run = bindings::ferry_addr_list {
            mm: self.0.mm,
            pages: pages.as_ptr(),
            nr,
            node: node.0,
            all: self.0.all,
            wait,
            alone: true,
            err: 0,
        };
        // SAFETY: By the type invariants the address space and the list are valid; so are the
        // pages.
        let queued = unsafe { bindings::ferry_isolate_run(&mut run, list.as_raw()) };
        Isolated {
            queued: queued as usize,
            stopped: (run.err <= 0 && queued < nr).then_some(run.err),
            alone: run.alone,
        }
    }
}

/// Migrates a list to `node` as `move_pages(2)` does; what is not migrated is put back. May sleep.
///
/// Returns 0, the number of folios that were not migrated, or an error number.
pub fn move_to_node(mut folios: Pin<&mut IsolatedFolios>, node: Destination, help: Help) -> c_int {
    let (left, _) = try_to_node(folios.as_mut(), node, help);
    folios.put_back();
    left
}

/// The same, but what is not migrated stays in `folios`; how many base pages were, besides.
pub fn try_to_node(
    mut folios: Pin<&mut IsolatedFolios>,
    node: Destination,
    help: Help,
) -> (c_int, u32) {
    let mt = help == Help::Asked;
    let list = folios.as_mut().list().as_raw();
    let mut moved = 0;
    // SAFETY: The list is ours and has isolated folios only; the number is ours.
    let left = unsafe { bindings::ferry_move_to_node(list, node.0, mt, &mut moved) };
    (left, moved)
}
