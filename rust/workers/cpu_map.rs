// SPDX-License-Identifier: GPL-2.0-only

//! The CPUs of the machine in the order in which helpers are chosen, recorded when help is first
//! needed.
//!
//! A CPU that was offline at that time is known by its node alone.

use kernel::{
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    prelude::*,
    sync::SetOnce, //
};

use super::settings;

use crate::{
    kernel::sched::{
        distance,
        is_idle,
        nr_nodes,
        places,
        NodeId, //
    },
    logic::topology::{
        self,
        Seat,
        View, //
    }, //
};

static MAP: SetOnce<Map> = SetOnce::new();

/// The place of each CPU, and the order of CPUs for each node near which helpers may be wanted.
struct Map {
    seats: KVec<Seat>,
    orders: KVec<Order>,
}

struct Order {
    cpus: KVec<u16>,
    home: usize,
}

/// Records the CPUs, unless that was done before. May sleep.
pub fn prepare() -> Result {
    if MAP.as_ref().is_none() {
        // If another task was faster, its map is as good.
        MAP.populate(Map::new()?);
    }
    Ok(())
}

/// Chooses helpers for the calling task near `node`, or near the current node if `node` is not
/// valid, among CPUs that are `allowed`. Stores them in `chosen`, the best first, and returns their
/// number. For any context but NMI.
pub fn choose(node: NodeId, allowed: impl Fn(CpuId) -> bool, chosen: &mut [u16]) -> usize {
    let Some(view) = MAP.as_ref().and_then(|map| map.view(node)) else {
        return 0;
    };
    let is_allowed = |cpu: u16| CpuId::from_u32(cpu.into()).is_some_and(&allowed);
    let idle = |cpu: u16| CpuId::from_u32(cpu.into()).is_some_and(is_idle);
    let me = CpuId::current().as_u32() as u16;
    let nr = view.choose(me, is_allowed, idle, chosen);
    match chosen.split_at_mut_checked(nr) {
        Some((found, room)) if settings::asks_busy_cpus() => {
            let is_other = |cpu: u16| is_allowed(cpu) && !found.contains(&cpu);
            nr + view.choose(me, is_other, |_| true, room)
        }
        _ => nr,
    }
}

impl Map {
    fn new() -> Result<Self> {
        let nr = nr_cpu_ids() as usize;
        if nr > usize::from(u16::MAX) {
            return Err(E2BIG);
        }
        let mut all = KVec::with_capacity(nr, GFP_KERNEL)?;
        for place in places() {
            all.push(place, GFP_KERNEL)?;
        }
        let mut seats = KVec::from_elem(Seat::default(), nr, GFP_KERNEL)?;
        topology::seat(&all, &mut seats);
        let mut orders = KVec::with_capacity(nr_nodes() as usize, GFP_KERNEL)?;
        for node in 0..nr_nodes() {
            let mut cpus = KVec::from_elem(0, nr, GFP_KERNEL)?;
            let home = topology::order(&all, &seats, |other| distance(node, other), &mut cpus);
            orders.push(Order { cpus, home }, GFP_KERNEL)?;
        }
        Ok(Self { seats, orders })
    }

    fn view(&self, node: NodeId) -> Option<View<'_>> {
        let of = |node: NodeId| self.orders.get(usize::try_from(node.0).ok()?);
        let order = of(node).or_else(|| of(NodeId::here()))?;
        Some(View {
            seats: &self.seats,
            order: &order.cpus,
            home: order.home,
        })
    }
}
