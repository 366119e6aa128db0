// SPDX-License-Identifier: GPL-2.0-only
//! Memory to move between the nodes, and the interfaces that move it, timed.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::damon::Damon;
use crate::demotion::{self, Reclaim};
use crate::kernel::{self, Setting};
use crate::plan::{Cell, Config, FolioSize, Stuff, Way};
use crate::sys::service::{Call, LONG, MAX_LONG_TABLE, MAX_TABLE, Service};
use crate::sys::{self, MF_MOVE, MF_MOVE_ALL, Mapping, PAGE};
use crate::{pattern, region};

/// Number of folios of sparse memory of which one is moved.
const SPARSE: usize = 32;

/// The interface that moves the memory.
pub enum Carrier {
    MovePages,
    MigratePages,
    Mbind,
    Reclaim(Reclaim),
    Damon(Damon),
    Range(Service),
    Phys(Service),
}

impl Carrier {
    pub fn new(way: Way) -> Result<Self> {
        Ok(match way {
            Way::MovePages => Self::MovePages,
            Way::MigratePages => Self::MigratePages,
            Way::Mbind => Self::Mbind,
            Way::Reclaim => Self::Reclaim(Reclaim::new()?),
            Way::ReclaimGenerations => Self::Reclaim(Reclaim::of_generations()?),
            Way::Damon => Self::Damon(Damon::new()?),
            Way::ServiceRange if kernel::has_service() => Self::Range(Service::open()?),
            Way::ServicePhys if kernel::has_service() => Self::Phys(Service::open()?),
            Way::ServiceRange | Way::ServicePhys => Self::MovePages,
        })
    }
}

/// The memory of one cell, and its current node.
pub struct Cargo {
    cell: Cell,
    stuff: Stuff,
    map: Arc<Mapping>,
    addrs: Vec<usize>,
    node: i32,
    /// The pools of hugetlb.
    _pools: Vec<Setting>,
}

impl Cargo {
    /// Allocates the memory on node 0.
    pub fn new(cell: Cell, stuff: Stuff) -> Result<Self> {
        let pools = match stuff {
            Stuff::Hugetlb => region::hugetlb_pools(cell.count)?,
            _ => Vec::new(),
        };
        let (map, addrs) = Self::allocate(cell, stuff)?;
        Ok(Self {
            cell,
            stuff,
            map,
            addrs,
            node: 0,
            _pools: pools,
        })
    }

    /// Returns memory on node 0, and the addresses of the folios to move.
    fn allocate(cell: Cell, stuff: Stuff) -> Result<(Arc<Mapping>, Vec<usize>)> {
        let map = match stuff {
            Stuff::Hugetlb => region::hugetlb(cell.count, libc::MAP_PRIVATE)?,
            Stuff::SharedFile => region::file(cell.folio, cell.count)?,
            Stuff::Sparse => region::scattered(cell.folio, SPARSE * cell.count)?,
            _ => region::scattered(cell.folio, cell.count)?,
        };
        let mut addrs = map.addrs(cell.folio.bytes());
        if stuff == Stuff::Sparse {
            addrs = addrs
                .chunks(SPARSE)
                .filter_map(fastrand::choice)
                .copied()
                .collect();
        }
        if matches!(stuff, Stuff::Shuffled | Stuff::Sparse) {
            fastrand::shuffle(&mut addrs);
        }
        Ok((Arc::new(map), addrs))
    }

    pub fn map(&self) -> &Arc<Mapping> {
        &self.map
    }

    /// Returns whether other processes must map the memory, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.stuff, Stuff::Shared | Stuff::SharedFile)
    }

    pub fn is_home(&self) -> bool {
        self.node == 0
    }

    /// Replaces the memory by new memory of the same kind.
    pub fn renew(&mut self, seed: u64) -> Result<()> {
        // Frees the old memory first, because the nodes may not have room for both.
        self.map = Arc::new(Mapping::anon(PAGE, PAGE)?);
        (self.map, self.addrs) = Self::allocate(self.cell, self.stuff)?;
        self.node = 0;
        pattern::fill(self.map.words(), seed);
        Ok(())
    }

    /// Brings filled memory into the wanted state.
    pub fn become_stuff(&self) -> Result<()> {
        if self.stuff != Stuff::Clean {
            return Ok(());
        }
        // Clean; reclaim frees it only when memory is short.
        self.map.advise(0, self.map.len(), libc::MADV_FREE)?;
        self.map.protect(0, self.map.len(), libc::PROT_READ)
    }

    /// Checks that all memory is on the node.
    pub fn check_on(&self, node: i32) -> Result<()> {
        region::check_on(&self.addrs, node)
    }

    /// Does what `call` needs once before it.
    pub fn prepare(&self, by: &Carrier) -> Result<()> {
        match by {
            Carrier::Reclaim(_) => demotion::forget_use(),
            _ => Ok(()),
        }
    }

    /// Moves all memory by one system call of this thread, and does nothing else. Reclaim moves
    /// most of it, and only to node 1.
    pub fn call(&self, by: &Carrier, config: &Config, dest: i32) -> Result<()> {
        match by {
            Carrier::Reclaim(reclaim) => reclaim.ask(self.cell.bytes() / 8 * 7),
            Carrier::MovePages => region::move_all(&self.addrs, dest, config.flags(MF_MOVE_ALL)),
            Carrier::MigratePages => {
                let ret = sys::migrate_pages(0, 1 << (1 - dest), 1 << dest);
                // Some of the process's other memory cannot be moved, which `ret` counts.
                ensure!(ret.ret >= 0, "migrate_pages: {ret:?}");
                Ok(())
            }
            Carrier::Mbind => {
                let map = &self.map;
                let flags = config.flags(MF_MOVE);
                sys::mbind(map.addr(), map.len(), dest as u32, flags).zero("mbind")
            }
            _ => bail!("expected one system call"),
        }
    }

    /// Moves all memory. Returns the seconds.
    pub fn carry(&mut self, by: &Carrier, config: &Config) -> Result<f64> {
        let map = (self.map.addr(), self.map.len());
        match by {
            Carrier::MovePages => self.over(|cargo, dest| {
                // New threads in every configuration, so that one and several callers start alike.
                let (callers, flags) = (config.callers, config.flags(MF_MOVE_ALL));
                let (seconds, status) = ferry_numa::move_by(callers, &cargo.addrs, dest, flags)?;
                region::check_status(&status, dest)?;
                Ok(seconds)
            }),
            Carrier::MigratePages | Carrier::Mbind => {
                self.over(|cargo, dest| timed(|| cargo.call(by, config, dest)))
            }
            Carrier::Range(service) => self.over(|_, dest| {
                timed(|| {
                    let done = service.range(Call::range(map.0, map.1, dest));
                    ensure!((done.errno, done.failed) == (0, 0), "{done:?}");
                    Ok(())
                })
            }),
            Carrier::Phys(service) => self.over(|cargo, dest| {
                let frames = kernel::frames(&cargo.map)?;
                let step = cargo.cell.folio.bytes() / PAGE;
                let table: Vec<u64> = frames
                    .iter()
                    .step_by(step)
                    .map(|frame| frame * PAGE as u64)
                    .collect();
                let flags = match table.len() as u64 {
                    ..=MAX_TABLE => 0,
                    _ => LONG,
                };
                timed(|| {
                    for part in table.chunks(MAX_LONG_TABLE as usize) {
                        let done = service.phys(part, Call::to(dest).flags(flags));
                        ensure!((done.errno, done.failed) == (0, 0), "{done:?}");
                    }
                    Ok(())
                })
            }),
            Carrier::Reclaim(_) => {
                self.prepare(by)?;
                self.away(|cargo| timed(|| cargo.call(by, config, 1)))
            }
            Carrier::Damon(damon) => {
                // The memory is on node 0 already. This drains the per-CPU LRU caches.
                region::move_all(&self.addrs, 0, MF_MOVE)?;
                self.away(|cargo| damon.migrate(map, 1, cargo.cell.bytes() / 16 * 15))
            }
        }
    }

    /// Moves all memory to the other node.
    fn over(&mut self, by: impl FnOnce(&mut Self, i32) -> Result<f64>) -> Result<f64> {
        let dest = 1 - self.node;
        let seconds = by(self, dest)?;
        self.check_on(dest)?;
        self.node = dest;
        Ok(seconds)
    }

    /// Moves as much to node 1 as the kernel chooses, then all back, untimed.
    /// Returns the time scaled to the whole memory.
    fn away(&self, by: impl FnOnce(&Self) -> Result<f64>) -> Result<f64> {
        let seconds = by(self)?;
        Ok(seconds / self.fetch()?)
    }

    /// Moves all memory back to node 0. Returns the part of it that was on node 1: more than half.
    pub fn fetch(&self) -> Result<f64> {
        let (all, moved) = (self.addrs.len(), demotion::count_on(&self.addrs, 1)?);
        ensure!(
            2 * moved > all,
            "expected more than half of {all} folios to move, but {moved} did"
        );
        region::move_all(&self.addrs, 0, MF_MOVE)?;
        Ok(moved as f64 / all as f64)
    }

    /// Moves to node 1 and back by calls of this thread. Every status is checked.
    pub fn round_trip(&mut self) -> Result<()> {
        for dest in [1, 0] {
            if self.cell.folio == FolioSize::Huge {
                // The order decides the destination of each folio; see `region::scattered`.
                fastrand::shuffle(&mut self.addrs);
            }
            region::move_all(&self.addrs, dest, MF_MOVE)?;
        }
        Ok(())
    }
}

fn timed(call: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64())
}
