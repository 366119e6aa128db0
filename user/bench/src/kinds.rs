// SPDX-License-Identifier: GPL-2.0-only
//! The kinds of memory that can be moved, and how each is made.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use ferry_numa::files::{self, Setting};
use ferry_numa::{MF_MOVE, Mapping, folios, page_size, pattern};
use nix::errno::Errno;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous folios of this size in bytes, a base page or larger.
    Anon(usize),
    /// Anonymous huge pages of hugetlb, of the default size.
    Hugetlb,
    /// The page cache of a file, which is mapped and clean.
    File,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anon(bytes) if bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
            Self::Anon(bytes) => write!(f, "{}K", bytes >> 10),
            Self::Hugetlb => f.write_str("hugetlb"),
            Self::File => f.write_str("file"),
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |suffix, unit| {
            let number: usize = text.strip_suffix(suffix)?.parse().ok()?;
            let bytes = number.checked_mul(unit)?;
            (bytes >= page_size() && bytes.is_power_of_two()).then_some(bytes)
        };
        match text {
            "hugetlb" => Ok(Self::Hugetlb),
            "file" => Ok(Self::File),
            _ => match size("K", 1 << 10).or_else(|| size("M", 1 << 20)) {
                Some(bytes) => Ok(Self::Anon(bytes)),
                None => Err(format!(
                    "expected hugetlb, file, or a power of two such as {} or 2M, no smaller than a base page",
                    Self::Anon(page_size())
                )),
            },
        }
    }
}

impl Kind {
    /// Returns the kinds to measure by default: a base page, 64 KB and a huge page, as far as this
    /// kernel has them.
    pub fn usual() -> Vec<Self> {
        let mut sizes = vec![page_size()];
        let medium = 64 << 10;
        if medium > page_size() && Path::new(&setting(medium)).exists() {
            sizes.push(medium);
        }
        sizes.extend(huge_size());
        sizes.into_iter().map(Self::Anon).collect()
    }

    /// Returns the bytes of a folio, or of a base page where folios may have any size.
    pub fn bytes(self) -> Result<usize> {
        match self {
            Self::Anon(bytes) => Ok(bytes),
            Self::Hugetlb => files::meminfo("/proc/meminfo", "Hugepagesize")
                .context("this kernel has no hugetlb"),
            Self::File => Ok(page_size()),
        }
    }

    /// Returns whether each move needs new memory, because the vanilla kernel splits such folios when
    /// they move again.
    pub fn wears_out(self) -> bool {
        matches!(self, Self::Anon(bytes) if bytes > page_size() && Some(bytes) != huge_size())
    }
}

/// Returns the size of a huge page that one entry of a page table maps.
fn huge_size() -> Option<usize> {
    let size = files::number(format!("{THP}/hpage_pmd_size")).ok()?;
    usize::try_from(size).ok()
}

/// Returns the file that allows folios of a size.
fn setting(bytes: usize) -> String {
    format!("{THP}/hugepages-{}kB/enabled", bytes >> 10)
}

/// Settings that a kind of memory needs while it is measured. Dropping this restores them.
pub struct Allowed {
    settings: Vec<Setting>,
    pools: Vec<Pool>,
}

impl Allowed {
    /// Allows folios of the kind's size where memory is advised to have them, and adds `most` pages to
    /// the pools of hugetlb of both nodes.
    pub fn new(kind: Kind, nodes: [u32; 2], most: usize) -> Result<Self> {
        let mut allowed = Self {
            settings: Vec::new(),
            pools: Vec::new(),
        };
        match kind {
            Kind::Anon(bytes) if bytes > page_size() => allowed.allow(bytes)?,
            Kind::Hugetlb => {
                let size = kind.bytes()?;
                for node in nodes {
                    allowed.pools.push(Pool::grow(node, size, most)?);
                }
            }
            _ => (),
        }
        Ok(allowed)
    }

    /// A huge page may follow the general setting.
    fn allow(&mut self, bytes: usize) -> Result<()> {
        let (own, general) = (setting(bytes), format!("{THP}/enabled"));
        let path = match Path::new(&own).exists() {
            true if files::chosen(&files::read(&own)?) == "inherit" => general,
            true => own,
            false if Some(bytes) == huge_size() => general,
            false => bail!("this kernel has no folios of {} KB", bytes >> 10),
        };
        let text = files::read(&path)?;
        if ["always", "madvise"].contains(&files::chosen(&text)) {
            return Ok(());
        }
        // A write to a setting of huge pages may raise this one.
        self.settings.extend(Setting::keep(MIN_FREE));
        let changed = Setting::change(&path, "madvise");
        let changed =
            changed.with_context(|| format!("only root can allow such folios in {path}"))?;
        // Restored first.
        self.settings.insert(0, changed);
        Ok(())
    }
}

/// A pool of hugetlb that was made larger. Dropping this restores its size.
struct Pool {
    file: String,
    /// Pages of the pool before, without those above its size that are in use for now.
    old: usize,
}

impl Pool {
    /// Adds pages to the pool of a node. Pages that are free there may be reserved by other processes.
    fn grow(node: u32, size: usize, pages: usize) -> Result<Self> {
        let kb = size >> 10;
        let dir = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kb}kB");
        let number =
            |name: &str| -> Result<usize> { Ok(files::number(format!("{dir}/{name}"))? as usize) };
        let old = number("nr_hugepages")?.saturating_sub(number("surplus_hugepages")?);
        let free = number("free_hugepages")?;
        let pool = Self {
            file: format!("{dir}/nr_hugepages"),
            old,
        };
        files::write(&pool.file, &(old + pages).to_string())
            .context("only root can make pools of hugetlb larger")?;
        let more = number("free_hugepages")?.saturating_sub(free);
        ensure!(
            more >= pages,
            "node {node} has memory for {more} more pages of hugetlb, not {pages}"
        );
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The error cannot be reported.
        let _ = files::write(&self.file, &self.old.to_string());
    }
}

/// Memory of one kind, with its pattern.
pub struct Memory {
    kind: Kind,
    map: Mapping,
    /// An address for each folio, or for each page where folios may have any size.
    addrs: Vec<usize>,
    /// The file, which has no name.
    _file: Option<File>,
}

impl Memory {
    /// Allocates `count` folios on a node, and fills them with the pattern of `seed`. A file is made
    /// in `dir`; its pages may be on any node.
    pub fn new(kind: Kind, count: usize, node: u32, (dir, seed): (&Path, u64)) -> Result<Self> {
        let size = kind.bytes()?;
        let len = count * size;
        let mut file = None;
        let map = match kind {
            Kind::Anon(_) => anon(size, len, node, seed)?,
            Kind::Hugetlb => {
                let map = Mapping::anon_flags(len, libc::MAP_PRIVATE | libc::MAP_HUGETLB)
                    .context("the pool of hugetlb has too few pages")?;
                ferry_numa::mbind(map.addr(), len, node, 0).zero("mbind")?;
                pattern::fill(map.words(), seed);
                map
            }
            Kind::File => {
                let made = file_in(dir, len, seed).with_context(|| {
                    format!("making a file of {len} bytes in {}", dir.display())
                })?;
                let map = Mapping::of_file_to_read(&made, len)?;
                pattern::check(map.words(), seed)?;
                file = Some(made);
                map
            }
        };
        let addrs = map.addrs(size);
        Ok(Self {
            kind,
            map,
            addrs,
            _file: file,
        })
    }

    /// Moves all of it to a node by calls of `callers` threads. Returns the seconds.
    pub fn move_to(&self, node: u32, callers: usize) -> Result<f64> {
        let node = node as i32;
        let (seconds, status) = ferry_numa::move_by(callers, &self.addrs, node, MF_MOVE)?;
        // The second address of a folio of a file is refused, because the folio is moving already.
        let is_good =
            |&status: &i32| status == node || self.kind == Kind::File && status == -libc::EBUSY;
        if let Some(status) = status.iter().find(|status| !is_good(status)) {
            bail!("a folio was not moved: {}", Errno::from_raw(-status));
        }
        Ok(seconds)
    }

    /// Checks the contents, that every base page is on a node, and, as far as the kernel shows it, that
    /// the folios have their size.
    pub fn check(&self, node: u32, seed: u64) -> Result<()> {
        pattern::check(self.map.words(), seed)?;
        let pages = match self.kind {
            Kind::Hugetlb => self.addrs.clone(),
            _ => self.map.addrs(page_size()),
        };
        ferry_numa::check_status(&ferry_numa::places(0, &pages)?, node as i32)
            .context("the kernel used smaller folios, or moved some back")?;
        match self.kind {
            Kind::Anon(size) if folios::are_visible(&self.map) => {
                folios::check_folios(&self.map, size)
            }
            _ => Ok(()),
        }
    }
}

/// Returns filled anonymous memory of folios of `size` bytes.
fn anon(size: usize, len: usize, node: u32, seed: u64) -> Result<Mapping> {
    let map = Mapping::anon(len, size.max(2 << 20))?;
    ferry_numa::mbind(map.addr(), len, node, 0).zero("mbind")?;
    let advice = match size == page_size() {
        true => libc::MADV_NOHUGEPAGE,
        false => libc::MADV_HUGEPAGE,
    };
    map.advise(0, len, advice)?;
    pattern::fill(map.words(), seed);
    // khugepaged could replace these folios by larger ones.
    map.advise(0, len, libc::MADV_NOHUGEPAGE)?;
    if folios::are_visible(&map) {
        folios::check_folios(&map, size).context("the kernel had no folios of this size")?;
    }
    Ok(map)
}

/// Returns a clean file without a name, with the pattern of `seed`.
fn file_in(dir: &Path, len: usize, seed: u64) -> Result<File> {
    const PIECE: usize = 1 << 20;
    let file = tempfile::tempfile_in(dir)?;
    for at in (0..len).step_by(PIECE) {
        let words = PIECE.min(len - at) / 8;
        file.write_all_at(&pattern::bytes(at / 8, words, seed), at as u64)?;
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["64K", "2M", "1024M", "hugetlb", "file"] {
            assert_eq!(name.parse::<Kind>().unwrap().to_string(), name);
        }
        // The last one would be 64 KB modulo 2^64.
        for wrong in ["", "K", "1K", "3M", "2G", "-1M", "18014398509482048K"] {
            assert!(wrong.parse::<Kind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn base_pages_are_first() {
        assert_eq!(Kind::usual()[0], Kind::Anon(page_size()));
        assert!(!Kind::Anon(page_size()).wears_out());
    }
}
