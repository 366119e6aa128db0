// SPDX-License-Identifier: GPL-2.0-only
//! The memory and the processes that programs use, and the expected contents of the memory.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use ferry_numa::files::Setting;
use ferry_numa::{
    MF_MOVE, MF_MOVE_ALL, MF_MOVE_MT, MF_STRICT, Mapping, RawMove, Reserved, UserPtr, folios,
    mbind_default, migrate_pages, page_size,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, getpid};

use crate::coverage::Coverage;
use crate::log::Log;
use crate::program::{Address, Arrays, Either, Kind, Move, Operation, Order, Program, Who, Word};
use crate::settings::Settings;
use crate::sys;

const DEVICE: &str = "/dev/page_migrate";
/// Bytes of the structure of a migrating call.
const MIGRATE_SIZE: u64 = 48;
/// All flags of the service, and the one for a pidfd.
const FLAGS: u8 = 0x1f;
const PIDFD: u8 = 2;
/// Flags of `move_pages(2)` and `mbind(2)`.
const MOVE_FLAGS: u8 = (MF_STRICT | MF_MOVE | MF_MOVE_ALL | MF_MOVE_MT) as u8;

/// Base pages of the private memory, and of other kinds but the large folio.
const OWN: usize = 256;
const FEW: usize = 16;
const HUGE: usize = 2 << 20;
/// Room in an array; longer than any list, and whole pages.
const MOST: usize = 1024;
/// Ranges of this many pages and more are not cut at the end of the memory.
const UNCUT: u8 = 240;
/// Programs between two reports of the number of calls.
const REPORT: u64 = 64;

/// Memory whose pages have known contents.
struct Pages {
    map: Mapping,
    /// The value of each page; 0 after it was discarded. See [`contents`].
    values: Vec<u64>,
    /// Whether discarded pages read as zeroes. Otherwise they have another owner.
    is_private: bool,
}

/// Returns the words of a page that has this value, and their places: the first, one in the middle
/// and the last.
fn contents(value: u64) -> [(usize, u64); 3] {
    let last = page_size() / 8 - 1;
    let middle = 1 + value as usize % (last - 1);
    match value {
        0 => [(0, 0), (middle, 0), (last, 0)],
        _ => [(0, value), (middle, !value), (last, value.rotate_left(32))],
    }
}

impl Pages {
    fn new(map: Mapping, is_private: bool) -> Self {
        let values = vec![0; map.len() / page_size()];
        Self {
            map,
            values,
            is_private,
        }
    }

    fn word(&self, page: usize, at: usize) -> &AtomicU64 {
        &self.map.words()[page * page_size() / 8 + at]
    }

    /// Writes a page that has other contents. The old middle word becomes 0.
    fn put(&self, page: usize, value: u64) {
        let (middle, _) = contents(self.values[page])[1];
        self.word(page, middle).store(0, Relaxed);
        for (at, word) in contents(value) {
            self.word(page, at).store(word, Relaxed);
        }
    }

    fn check(&self) -> Result<()> {
        for (page, value) in self.values.iter().enumerate() {
            for (at, expected) in contents(*value) {
                let found = self.word(page, at).load(Relaxed);
                ensure!(
                    found == expected,
                    "page {page} of {}, word {at}: expected {expected:#x}, found {found:#x}",
                    self.values.len()
                );
            }
        }
        Ok(())
    }
}

pub struct World {
    coverage: Coverage,
    log: Log,
    settings: Settings,
    device: File,
    /// By [`index`].
    memory: [Pages; 5],
    hole: Reserved,
    /// Arrays of addresses, nodes and statuses. Each has [`MOST`] elements and ends at a hole.
    pages: Mapping,
    nodes: Mapping,
    status: Mapping,
    /// The argument of an ioctl.
    argument: Mapping,
    /// Has the shared memory mapped.
    child: Pid,
    child_fd: OwnedFd,
    /// The value of the page that is written next.
    next: u64,
    programs: u64,
    calls: u64,
    /// The number of calls to make.
    until: u64,
    /// The file for the number of calls.
    report: Option<PathBuf>,
    /// The file for the current input.
    input: Option<File>,
}

/// Returns the place of this kind of memory in a [`World`], if there are pages.
fn index(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Own | Kind::OwnToo => Some(0),
        Kind::File => Some(1),
        Kind::Huge => Some(2),
        Kind::Shared => Some(3),
        Kind::Zero => Some(4),
        Kind::Hole | Kind::Wild => None,
    }
}

impl World {
    pub fn new() -> Result<Self> {
        let page = page_size();
        let shared = Mapping::anon_flags(FEW * page, libc::MAP_SHARED)?;
        // Before there is private memory, which the child would share as well.
        let child = sys::sleeper(|| {
            let words = shared.words().iter().step_by(page / 8);
            words.for_each(|word| word.store(0, Relaxed));
        })?;
        let file = memfd_create(c"fuzz", MFdFlags::empty()).context("memfd_create")?;
        nix::unistd::ftruncate(&file, (FEW * page) as i64).context("ftruncate")?;
        let small = |pages| -> Result<Mapping> {
            let map = Mapping::anon(pages * page, page)?;
            map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
            Ok(map)
        };
        let huge = Mapping::anon(HUGE, HUGE)?;
        huge.advise(0, HUGE, libc::MADV_HUGEPAGE)?;
        let of_file = Mapping::file(&file, FEW * page, libc::MAP_SHARED, page)?;
        let path = |variable| std::env::var_os(variable).map(PathBuf::from);
        Ok(Self {
            memory: [
                Pages::new(small(OWN)?, true),
                Pages::new(of_file, false),
                Pages::new(huge, true),
                Pages::new(shared, false),
                Pages::new(small(FEW)?, true),
            ],
            hole: Reserved::new(FEW * page)?,
            pages: Mapping::before_a_hole(MOST * 8)?,
            nodes: Mapping::before_a_hole(MOST * 4)?,
            status: Mapping::before_a_hole(MOST * 4)?,
            argument: Mapping::anon(page, page)?,
            device: File::open(DEVICE).context(DEVICE)?,
            coverage: Coverage::new()?,
            settings: Settings::new()?,
            log: Log::new()?,
            child,
            child_fd: sys::pidfd(child)?,
            next: 1,
            programs: 0,
            calls: 0,
            until: match std::env::var("FERRY_FUZZ_UNTIL") {
                Ok(calls) => calls.parse().context("FERRY_FUZZ_UNTIL")?,
                Err(_) => u64::MAX,
            },
            report: path("FERRY_FUZZ_CALLS"),
            input: path("FERRY_FUZZ_INPUT")
                .map(File::create)
                .transpose()
                .context("FERRY_FUZZ_INPUT")?,
        })
    }

    /// Writes an input to its file: a kernel that stops leaves it there.
    pub fn keep(&self, input: &[u8]) -> Result<()> {
        if let Some(file) = &self.input {
            let length = u32::try_from(input.len())?.to_le_bytes();
            file.write_all_at(&[&length, input].concat(), 0)?;
        }
        Ok(())
    }

    /// Runs a program, and checks all memory and the kernel log. Returns whether enough calls were
    /// made.
    pub fn run(&mut self, program: &Program) -> Result<bool> {
        self.prepare();
        let mut kept = Vec::new();
        for operation in &program.operations {
            self.calls += u64::from(operation.is_call());
            kept.extend(self.apply(operation)?);
        }
        if !kept.is_empty() {
            // The same setting may have been written twice: its first value must be restored last.
            while kept.pop().is_some() {}
            self.settings.check()?;
        }
        let binds = |operation: &Operation| matches!(operation, Operation::Bind { .. });
        if program.operations.iter().any(binds) {
            let maps = self.memory.iter().map(|Pages { map, .. }| map);
            let ranges = maps.map(|map| (map.addr(), map.len()));
            for (addr, len) in ranges.chain([(self.hole.addr(), FEW * page_size())]) {
                mbind_default(addr, len).zero("mbind")?;
            }
        }
        self.memory.iter().try_for_each(Pages::check)?;
        self.log.check()?;
        self.programs += 1;
        let is_done = self.calls >= self.until;
        let is_due = is_done || self.programs == 1 || self.programs % REPORT == 0;
        if let Some(report) = self.report.as_ref().filter(|_| is_due) {
            fs::write(report, self.calls.to_string()).context("cannot report")?;
        }
        Ok(is_done)
    }

    /// Gives the memory the same state before each program: all pages present and written, on the
    /// first node, and the large folio whole, as far as the kernel can.
    fn prepare(&mut self) {
        let zero = index(Kind::Zero);
        for (number, pages) in self.memory.iter_mut().enumerate() {
            if Some(number) == zero {
                continue;
            }
            for page in 0..pages.values.len() {
                pages.put(page, self.next);
                pages.values[page] = self.next;
                self.next += 1;
            }
        }
        if let Some(huge) = index(Kind::Huge) {
            let map = &self.memory[huge].map;
            let _ = map.advise(0, map.len(), libc::MADV_COLLAPSE);
        }
        migrate_pages(0, 1 << 1, 1 << 0);
    }

    /// Runs an operation. The result of a call may be an error. Returns what restores a setting.
    fn apply(&mut self, operation: &Operation) -> Result<Option<Setting>> {
        match operation {
            Operation::Move(call) => self.move_pages(call)?,
            Operation::Bind {
                at,
                pages,
                mode,
                nodes,
                flags,
            } => {
                let mode = match mode {
                    Either::Usual(mode) => i32::from(*mode % 8),
                    Either::Any(mode) => *mode,
                };
                let flags = match flags {
                    Either::Usual(flags) => u32::from(*flags & MOVE_FLAGS),
                    Either::Any(flags) => *flags,
                };
                let (addr, len) = self.range(*at, *pages);
                let nodes = u64::from(*nodes);
                self.coverage
                    .of(|| sys::mbind(addr, len, mode, &nodes, flags))?;
            }
            Operation::MigrateAll { who, from, to } => {
                let (pid, from, to) = (self.process(*who), u64::from(*from), u64::from(*to));
                self.coverage.of(|| migrate_pages(pid, from, to))?;
            }
            Operation::Range {
                who,
                at,
                pages,
                node,
                flags,
            } => {
                let (addr, len) = self.range(*at, *pages);
                let flags = match who {
                    Who::PidFd => flags | PIDFD,
                    _ => *flags,
                };
                self.service(
                    sys::RANGE,
                    (addr as u64, len as u64),
                    (node.number(), self.process(*who)),
                    flags,
                )?;
            }
            Operation::Physical {
                at,
                pages,
                instead,
                node,
                flags,
            } => {
                let mut table = self.frames(*at, *pages)?;
                if let (Some(instead), Some(first)) = (instead, table.first_mut()) {
                    *first = *instead;
                }
                let start = MOST - table.len();
                for (word, address) in self.pages.words()[start..MOST].iter().zip(&table) {
                    word.store(*address, Relaxed);
                }
                let range = (
                    UserPtr::In(&self.pages, start * 8).addr() as u64,
                    table.len() as u64,
                );
                self.service(sys::PHYS, range, (node.number(), 0), *flags)?;
            }
            Operation::Device { request, words } => self.device(*request, words)?,
            Operation::Set { setting, value } => {
                return self.coverage.of(|| self.settings.write(*setting, value));
            }
            Operation::Write { at } => {
                let value = self.next;
                if let Some((pages, page)) = self.written(*at) {
                    pages.put(page, value);
                    pages.values[page] = value;
                    self.next += 1;
                }
            }
            Operation::WriteInChild { at } => {
                let page = self.written(*at);
                if let Some((pages, page)) = page.filter(|(pages, _)| pages.is_private) {
                    sys::fork_and(|| pages.put(page, u64::MAX))?;
                }
            }
            Operation::Discard { at, pages } => self.discard(*at, usize::from(*pages))?,
            Operation::Collapse { at } => {
                if let Some((map, _, _)) = self.part(*at, 0).filter(|_| at.kind == Kind::Huge) {
                    // The kernel may have no free large folio.
                    let _ = map.advise(0, map.len(), libc::MADV_COLLAPSE);
                }
            }
            Operation::Protect { at, pages } => {
                if let Some((map, offset, len)) = self.part(*at, usize::from(*pages)) {
                    map.protect(offset, len, libc::PROT_READ)?;
                    map.protect(offset, len, libc::PROT_READ | libc::PROT_WRITE)?;
                }
            }
        }
        Ok(None)
    }

    fn address(&self, at: Address) -> usize {
        const WILD: [usize; 5] = [0, 0x1234_5678, 1 << 47, 0xffff_8880_0000_0000, usize::MAX];
        let page = usize::from(at.page);
        match index(at.kind) {
            Some(index) => {
                let Pages { map, values, .. } = &self.memory[index];
                map.addr() + page % values.len() * page_size()
            }
            None if at.kind == Kind::Hole => self.hole.addr() + page % FEW * page_size(),
            None => WILD[page % WILD.len()],
        }
    }

    fn process(&self, who: Who) -> i32 {
        match who {
            Who::Own => 0,
            Who::OwnByNumber => getpid().as_raw(),
            Who::Child => self.child.as_raw(),
            Who::PidFd => self.child_fd.as_raw_fd(),
            Who::Any(pid) => pid,
        }
    }

    /// Returns the page at an address that programs may write.
    fn written(&mut self, at: Address) -> Option<(&mut Pages, usize)> {
        let index = index(at.kind).filter(|_| at.kind != Kind::Zero)?;
        let pages = &mut self.memory[index];
        let page = usize::from(at.page) % pages.values.len();
        Some((pages, page))
    }

    /// Returns a mapping, and the offset and length of at most `pages` pages in it.
    fn part(&self, at: Address, pages: usize) -> Option<(&Mapping, usize, usize)> {
        let Pages { map, values, .. } = &self.memory[index(at.kind)?];
        let page = usize::from(at.page) % values.len();
        let pages = pages.min(values.len() - page);
        Some((map, page * page_size(), pages * page_size()))
    }

    /// Returns the address and the length of a range, which nearly always ends in the same memory.
    fn range(&self, at: Address, pages: u8) -> (usize, usize) {
        let len = usize::from(pages) * page_size();
        match self.part(at, usize::from(pages)) {
            Some((_, _, part)) if pages < UNCUT => (self.address(at), part),
            _ => (self.address(at), len),
        }
    }

    fn discard(&mut self, at: Address, pages: usize) -> Result<()> {
        let Some((map, offset, len)) = self.part(at, pages) else {
            return Ok(());
        };
        map.advise(offset, len, libc::MADV_DONTNEED)?;
        let Some((pages, page)) = self.written(at).filter(|(pages, _)| pages.is_private) else {
            return Ok(());
        };
        pages.values[page..page + len / page_size()].fill(0);
        Ok(())
    }

    /// Returns the physical addresses of at most `pages` pages.
    fn frames(&self, at: Address, pages: u8) -> Result<Vec<u64>> {
        let Some((map, offset, len)) = self.part(at, usize::from(pages)) else {
            return Ok(Vec::new());
        };
        let first = offset / page_size();
        let frames = folios::first_frames(map, first + len / page_size())?;
        let frames = frames[first..].iter();
        Ok(frames.map(|frame| frame * page_size() as u64).collect())
    }

    fn move_pages(&self, call: &Move) -> Result<()> {
        let count = usize::from(call.count);
        let first = self.address(call.first);
        let step = match call.order {
            Order::Ascending => page_size() as isize,
            Order::Descending => -(page_size() as isize),
            Order::Same => 0,
            Order::By(bytes) => bytes as isize,
        };
        let start = MOST - count;
        for place in 0..count {
            let also = |every: u8| every > 0 && place % usize::from(every) == 0;
            let addr = match call.also {
                Some((every, other)) if also(every) => self.address(other),
                _ => first.wrapping_add_signed(step * place as isize),
            };
            let node = match call.also_to {
                Some((every, other)) if also(every) => other.number(),
                _ => call.node.number(),
            };
            self.pages.words()[start + place].store(addr as u64, Relaxed);
            put_half(&self.nodes, start + place, node);
        }
        let at = |map, size| UserPtr::In(map, start * size);
        let (mut pages, mut nodes) = (at(&self.pages, 8), at(&self.nodes, 4));
        let (mut status, mut more) = (at(&self.status, 4), 0);
        match call.arrays {
            Arrays::Valid => {}
            Arrays::NoNodes => nodes = UserPtr::Null,
            Arrays::NoPages => pages = UserPtr::Null,
            Arrays::NoStatus => status = UserPtr::Null,
            Arrays::InvalidPages => pages = UserPtr::Bad,
            Arrays::InvalidNodes => nodes = UserPtr::Bad,
            Arrays::InvalidStatus => status = UserPtr::Bad,
            Arrays::Longer(by) => more = by as usize,
        }
        let raw = RawMove {
            pid: self.process(call.who),
            count: count + more,
            pages,
            nodes,
            status,
            flags: match call.flags {
                Either::Usual(flags) => i32::from(flags & MOVE_FLAGS),
                Either::Any(flags) => flags,
            },
        };
        self.coverage.of(|| sys::move_pages(&raw))?.map(drop)
    }

    /// Makes a call of the service with a valid structure.
    fn service(
        &self,
        request: u32,
        (at, length): (u64, u64),
        (node, pid): (i32, i32),
        flags: u8,
    ) -> Result<()> {
        let structure = [
            MIGRATE_SIZE | u64::from(flags & FLAGS) << 32,
            at,
            length,
            u64::from(node as u32) | u64::from(pid as u32) << 32,
        ];
        self.ioctl(request, structure)
    }

    /// Makes an ioctl with any structure.
    fn device(&self, request: u8, words: &[Word; 4]) -> Result<()> {
        const REQUESTS: [u32; 5] = [
            sys::PHYS,
            sys::RANGE,
            sys::COUNTERS,
            sys::MATRIX,
            sys::UNKNOWN,
        ];
        let structure = words.map(|word| match word {
            Word::Number(number) => number,
            Word::Address(at) => self.address(at) as u64,
            Word::Size => MIGRATE_SIZE,
            Word::Child => self.child.as_raw() as u64,
        });
        self.ioctl(REQUESTS[usize::from(request) % REQUESTS.len()], structure)
    }

    fn ioctl(&self, request: u32, structure: [u64; 4]) -> Result<()> {
        let call = || sys::service(&self.device, request, &self.argument, structure);
        self.coverage.of(call)?.map(drop)
    }
}

/// Stores an element of an array of 32-bit numbers.
fn put_half(map: &Mapping, at: usize, value: i32) {
    let (word, shift) = (&map.words()[at / 2], at % 2 * 32);
    let others = word.load(Relaxed) & !(u64::from(u32::MAX) << shift);
    word.store(others | u64::from(value as u32) << shift, Relaxed);
}
