// SPDX-License-Identifier: GPL-2.0-only
//! Code that the programs share: memory to migrate, output before and after, and error messages.
#![forbid(unsafe_code)]

pub mod statistics;

use page_migrate::{Error, Node, Spread, Stopped, page_size};
use std::{
    fmt,
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// An error message, and advice for the user.
#[derive(Debug)]
pub struct Failure {
    what: String,
    /// Suggestion for the user.
    advice: String,
}

impl Failure {
    pub fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            advice: advice.into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.to_string(), error.advice())
    }
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Self {
        Self::new(stopped.to_string(), stopped.error.advice())
    }
}

/// Adds the failed action to an error of a file or a system call.
pub trait While<T> {
    fn doing(self, what: &str) -> Result<T, Failure>;
}

impl<T> While<T> for std::io::Result<T> {
    fn doing(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| {
            use std::io::ErrorKind::{NotFound, PermissionDenied};
            let advice = match (error.kind(), error.raw_os_error()) {
                (PermissionDenied, _) => "run as root in the initial user namespace",
                (_, Some(ESRCH)) | (NotFound, _) => "check that it is still there",
                _ => "see the error message",
            };
            Failure::new(format!("{what}: {error}"), advice)
        })
    }
}

const ESRCH: i32 = nix::errno::Errno::ESRCH as i32;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  what to do: {}", self.what, self.advice)
    }
}

/// Ends a program: prints its error, if any, and returns the exit status.
pub fn end(program: &str, done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{program}: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Pages of this process, with a different content in each word.
pub struct Memory {
    words: Vec<AtomicU64>,
    first: usize,
    pages: usize,
}

impl Memory {
    /// Allocates and fills `pages` base pages. Huge pages are disabled, because they migrate as a
    /// whole.
    pub fn new(pages: usize) -> Result<Self, Failure> {
        nix::sys::prctl::set_thp_disable(true)
            .map_err(std::io::Error::from)
            .doing("disabling huge pages")?;
        let in_page = page_size() as usize / 8;
        let mut words = Vec::new();
        let room = (pages + 1).checked_mul(in_page);
        let room = room.filter(|&room| words.try_reserve_exact(room).is_ok());
        let Some(room) = room else {
            let what = format!("cannot allocate {pages} pages");
            return Err(Failure::new(what, "choose a smaller number with --pages"));
        };
        words.resize_with(room, || AtomicU64::new(0));
        let at = words.as_ptr().addr();
        let first = (at.next_multiple_of(page_size() as usize) - at) / 8;
        let memory = Self {
            words,
            first,
            pages,
        };
        for (index, word) in memory.words().iter().enumerate() {
            word.store(content(index), Relaxed);
        }
        Ok(memory)
    }

    fn words(&self) -> &[AtomicU64] {
        let in_page = page_size() as usize / 8;
        &self.words[self.first..][..self.pages * in_page]
    }

    /// Returns the address range of all pages.
    pub fn range(&self) -> Range<u64> {
        let start = self.words().as_ptr().addr() as u64;
        start..start + self.pages as u64 * page_size()
    }

    /// Returns the address range of `count` pages from page `first` on.
    pub fn part(&self, first: usize, count: usize) -> Range<u64> {
        let start = self.range().start + first as u64 * page_size();
        start..start + count as u64 * page_size()
    }

    /// Checks that every word has its original content.
    pub fn check(&self) -> Result<(), Failure> {
        let mut words = self.words().iter().enumerate();
        match words.find(|(index, word)| word.load(Relaxed) != content(*index)) {
            None => Ok(()),
            Some((index, _)) => Err(Failure::new(
                format!("the content of byte {} has changed", index * 8),
                "report this with the kernel log",
            )),
        }
    }
}

fn content(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the default destination: the next node with memory after the one with the most pages.
pub fn other_node(spread: &Spread) -> Result<Node, Failure> {
    let nodes = Node::with_memory().doing("looking for memory nodes")?;
    let here = spread.most();
    let after = nodes.iter().find(|&&node| Some(node) > here);
    let other = after.or_else(|| nodes.iter().find(|&&node| Some(node) != here));
    other.copied().ok_or_else(|| {
        Failure::new(
            "only one node of this machine has memory",
            "use a machine with two nodes, such as the guest of `./ferry shell`",
        )
    })
}

/// Parses a number of base pages.
pub fn pages(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 28;
    match text.parse() {
        Ok(pages) if (1..=MOST).contains(&pages) => Ok(pages),
        _ => Err(format!("expected a number of pages from 1 to {MOST}")),
    }
}

/// Parses an address or a length in bytes: decimal, or hexadecimal after `0x`.
pub fn bytes(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_whole_pages_and_checked() {
        let memory = Memory::new(3).unwrap();
        let range = memory.range();
        assert_eq!(range.start % page_size(), 0);
        assert_eq!(range.end - range.start, 3 * page_size());
        assert_eq!(memory.part(1, 2), range.start + page_size()..range.end);
        assert!(memory.check().is_ok());
        memory.words()[700].fetch_xor(1, Relaxed);
        assert!(memory.check().unwrap_err().what.contains("byte 5600"));
    }

    #[test]
    fn numbers_of_bytes_and_pages() {
        assert_eq!(bytes("0x1000"), Ok(4096));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "0x", "-1", "1G", "1000h"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pages("64"), Ok(64));
        assert!(pages("0").is_err() && pages("99999999999").is_err());
    }

    #[test]
    fn failures_say_what_to_do() {
        let text = Failure::from(Error::NoService).to_string();
        assert!(text.contains("what to do: boot a kernel with CONFIG_FERRY_SERVICE"));
        let gone = std::io::Error::from_raw_os_error(ESRCH);
        let failed: Result<(), _> = Err(gone).doing("asking");
        assert!(failed.unwrap_err().to_string().contains("still there"));
    }
}
