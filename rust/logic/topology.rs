// SPDX-License-Identifier: GPL-2.0-only

//! Which CPUs help: a choice over a description of the machine.
//!
//! Where a CPU sits in its core and its last-level cache is worked out once ([`Seat`]), and for
//! each memory node the order in which CPUs are asked ([`order`]): a core of each last-level cache
//! in turn, nearest nodes first, before the second thread of any core. Then a choice ([`View`])
//! asks along that order, and allocates nothing.

use core::cell::Cell;

/// What a CPU shares with others: equal numbers say that it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// Of its physical core.
    pub core: u32,
    /// Of its last-level cache.
    pub llc: u32,
    /// Of its memory node.
    pub node: u32,
}

/// Where a CPU sits among those that share something with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Which of its core's threads it is.
    thread: u16,
    /// Which of its last-level cache's cores it is in.
    core: u16,
    /// The next thread of its core, the first again after the last.
    sibling: u16,
}

/// CPUs that are chosen at most.
pub const MAX_CHOSEN: usize = 31;

/// CPUs that are asked and found busy, at most: to ask one costs a cache line of another CPU's,
/// some hundred nanoseconds.
pub const MAX_REFUSALS: u32 = 64;

/// Seats everybody: `places` by CPU number, of which there may be 65536.
///
/// In time that grows with the square of the CPUs: to be called once.
pub fn seat(places: &[CpuPlace], seats: &mut [Seat]) {
    for (cpu, place) in places.iter().enumerate().take(seats.len()) {
        let before = || places.iter().zip(seats.iter()).enumerate().take(cpu);
        let siblings = || before().filter(|(_, (other, _))| other.core == place.core);
        let in_cache = before().filter(|(_, (other, _))| other.llc == place.llc);
        let cores = in_cache.filter(|(_, (_, seat))| seat.thread == 0).count();
        let first = siblings()
            .next()
            .map(|(first, (_, seat))| (first, seat.core));
        let (first, core) = first.unwrap_or((cpu, cores as u16));
        let thread = siblings().count() as u16;
        let last = siblings().map(|(last, _)| last).max();
        if let Some(last) = last.and_then(|last| seats.get_mut(last)) {
            last.sibling = cpu as u16;
        }
        if let Some(seat) = seats.get_mut(cpu) {
            *seat = Seat {
                thread,
                core,
                sibling: first as u16,
            };
        }
    }
}

/// Puts all CPUs into the order in which they are asked to help near a node to which `distance`
/// says how far others are. How many are first threads of cores of the nearest node that has any.
///
/// `places` and `seats` are by CPU number; `order` is as long.
pub fn order(
    places: &[CpuPlace],
    seats: &[Seat],
    distance: impl Fn(u32) -> u32,
    order: &mut [u16],
) -> usize {
    for (cpu, slot) in order.iter_mut().enumerate() {
        *slot = cpu as u16;
    }
    let key = |cpu: u16| {
        let (place, seat) = (places.get(usize::from(cpu))?, seats.get(usize::from(cpu))?);
        let far = (distance(place.node), place.node);
        Some((seat.thread, far, seat.core, place.llc, cpu))
    };
    // Those that are not described come last.
    order.sort_unstable_by_key(|&cpu| (key(cpu).is_none(), key(cpu)));
    let group = |cpu: u16| key(cpu).map(|(thread, far, ..)| (thread, far));
    let nearest = order.first().and_then(|&cpu| group(cpu));
    order
        .iter()
        .take_while(|&&cpu| group(cpu) == nearest)
        .count()
}

/// The order in which CPUs are asked to help near a node.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// By CPU number.
    pub seats: &'a [Seat],
    /// As [`order`] has left it.
    pub order: &'a [u16],
    /// What it has said.
    pub home: usize,
}

impl View<'_> {
    /// Chooses helpers of `caller` among CPUs that are `allowed`, which costs little to ask, and
    /// `idle` (as those are that are offline), as many as `chosen` has room for and [`MAX_CHOSEN`]
    /// at most: how many it is.
    ///
    /// First come CPUs whose cores are all idle, then those that share theirs with somebody.
    /// Callers on different CPUs begin at different ones of the nearest node.
    ///
    /// ```
    /// use ferry_logic::topology::{order, seat, CpuPlace, Seat, View};
    ///
    /// // Two last-level caches, two cores each, two threads each: core 0 has CPUs 0 and 4.
    /// let places: Vec<CpuPlace> = (0..8)
    ///     .map(|cpu| CpuPlace { core: cpu % 4, llc: cpu % 4 / 2, node: 0 })
    ///     .collect();
    /// let (mut seats, mut cpus) = ([Seat::default(); 8], [0; 8]);
    /// seat(&places, &mut seats);
    /// let home = order(&places, &seats, |_| 10, &mut cpus);
    /// let view = View { seats: &seats, order: &cpus, home };
    ///
    /// let mut chosen = [0; 4];
    /// let all = |_| true;
    /// assert_eq!(view.choose(0, all, all, &mut chosen), 4);
    /// assert_eq!(chosen[..3], [2, 1, 3]); // the other cache first
    /// assert_eq!(view.choose(0, all, |cpu| cpu != 6, &mut chosen), 4);
    /// assert_eq!(chosen[..2], [1, 3]); // the core of CPU 2 is busy
    /// ```
    pub fn choose(
        &self,
        caller: u16,
        allowed: impl Fn(u16) -> bool,
        idle: impl Fn(u16) -> bool,
        chosen: &mut [u16],
    ) -> usize {
        let wanted = chosen.len().min(MAX_CHOSEN);
        let mut spares = [0; MAX_CHOSEN];
        let (mut nr, mut nr_spare) = (0, 0);
        let refusals = Cell::new(0);
        let idle = |cpu| {
            let is_idle = idle(cpu);
            refusals.set(refusals.get() + u32::from(!is_idle));
            is_idle
        };
        let (home, others) = self.order.split_at_checked(self.home).unwrap_or_default();
        let start = home.iter().position(|&cpu| cpu == caller);
        let start = start.unwrap_or(usize::from(caller).checked_rem(home.len()).unwrap_or(0));
        let (late, early) = home.split_at_checked(start).unwrap_or_default();
        for &cpu in early.iter().chain(late).chain(others) {
            if nr == wanted || refusals.get() >= MAX_REFUSALS {
                break;
            }
            if cpu == caller || !allowed(cpu) || !idle(cpu) {
                continue;
            }
            if self.thread(cpu) == 0 && self.siblings(cpu).all(|cpu| cpu != caller && idle(cpu)) {
                if let Some(slot) = chosen.get_mut(nr) {
                    *slot = cpu;
                }
                nr += 1;
            } else if let Some(slot) = spares.get_mut(nr_spare) {
                *slot = cpu;
                nr_spare += 1;
            }
        }
        let free = chosen.get_mut(nr..wanted).unwrap_or_default();
        let last = free.len().min(nr_spare);
        for (slot, &spare) in free.iter_mut().zip(spares.iter().take(last)) {
            *slot = spare;
        }
        nr + last
    }

    fn thread(&self, cpu: u16) -> u16 {
        self.seats
            .get(usize::from(cpu))
            .map_or(0, |seat| seat.thread)
    }

    /// The other threads of a CPU's core.
    fn siblings(&self, cpu: u16) -> impl Iterator<Item = u16> + '_ {
        let next = move |at: u16| {
            let next = self.seats.get(usize::from(at))?.sibling;
            (next != cpu).then_some(next)
        };
        core::iter::successors(next(cpu), move |&at| next(at))
    }
}
