// SPDX-License-Identifier: GPL-2.0-only

//! Which CPUs help, chosen from a description of the machine.
//!
//! 1. [`seat`], once: the position of each CPU in its core and last-level cache.
//! 2. [`order`], once per memory node: the order in which CPUs are asked. It takes a core of each
//!    last-level cache in turn, nearest nodes first, and the second threads of cores last.
//! 3. [`View::choose`], for each batch or list: the idle CPUs that come first in that order. It
//!    allocates nothing.
//!
//! `tests/logic/topology.rs` checks this with proptest (`whoever_is_chosen_may_be`,
//! `where_all_are_idle_cores_and_caches_are_spread`), and on models of machines.

use core::cell::Cell;

/// The core, cache and node of a CPU. CPUs with equal numbers share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// Physical core.
    pub core: u32,
    /// Last-level cache.
    pub llc: u32,
    /// Memory node.
    pub node: u32,
}

/// The position of a CPU in its core and last-level cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Index of the thread in its core.
    thread: u16,
    /// Index of the core in its last-level cache.
    core: u16,
    /// The next thread of the core; after the last, the first.
    sibling: u16,
}

/// Maximum number of CPUs that are chosen.
pub const MAX_CHOSEN: usize = 31;

/// Maximum number of busy CPUs that are asked. To ask one reads a cache line of another CPU, which
/// takes some 100 ns.
pub const MAX_REFUSALS: u32 = 64;

/// Fills in the seats of all CPUs. `places` is indexed by CPU number and has at most 65536 entries.
///
/// Takes time that grows with the square of the number of CPUs, so it is called once.
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

/// Sorts all CPUs into the order in which they are asked to help near a node. `distance` returns
/// the distance of a node from that node. Returns how many CPUs, from the first on, are first
/// threads of cores of the nearest node that has CPUs.
///
/// `places` and `seats` are indexed by CPU number; `order` has the same length.
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
    // CPUs without a description come last.
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
    /// The seats, indexed by CPU number.
    pub seats: &'a [Seat],
    /// The CPUs as sorted by [`order`].
    pub order: &'a [u16],
    /// The return value of [`order`].
    pub home: usize,
}

impl View<'_> {
    /// Chooses helpers of `caller`, as many as `chosen` has room for and at most [`MAX_CHOSEN`].
    /// Returns their number.
    ///
    /// A helper must be `allowed`, which is cheap to ask, and `idle`, which is not. An offline CPU
    /// counts as idle, so that an offline thread does not make its core busy; `allowed` excludes
    /// it.
    ///
    /// The first choice is one CPU of each idle core, the second are CPUs that share a core with the
    /// caller, a busy CPU or another helper. Callers on different CPUs begin at different CPUs of
    /// the nearest node.
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
        let mut second_choice = [0; MAX_CHOSEN];
        let (mut nr, mut nr_second) = (0, 0);
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
            } else if let Some(slot) = second_choice.get_mut(nr_second) {
                *slot = cpu;
                nr_second += 1;
            }
        }
        let free = chosen.get_mut(nr..wanted).unwrap_or_default();
        let last = free.len().min(nr_second);
        for (slot, &cpu) in free.iter_mut().zip(second_choice.iter().take(last)) {
            *slot = cpu;
        }
        nr + last
    }

    fn thread(&self, cpu: u16) -> u16 {
        self.seats
            .get(usize::from(cpu))
            .map_or(0, |seat| seat.thread)
    }

    /// Returns the other threads of the core of `cpu`.
    fn siblings(&self, cpu: u16) -> impl Iterator<Item = u16> + '_ {
        let next = move |at: u16| {
            let next = self.seats.get(usize::from(at))?.sibling;
            (next != cpu).then_some(next)
        };
        core::iter::successors(next(cpu), move |&at| next(at))
    }
}
