// SPDX-License-Identifier: GPL-2.0-only

//! The CPUs that are chosen to help, on models of many machines.
#![cfg(not(loom))]

use std::collections::HashSet;

use ferry_logic::topology::{order, seat, CpuPlace, Seat, View, MAX_CHOSEN, MAX_REFUSALS};
use proptest::prelude::*;

/// A machine, and the order of its CPUs for each of its nodes.
struct Machine {
    places: Vec<CpuPlace>,
    seats: Vec<Seat>,
    orders: Vec<(Vec<u16>, usize)>,
}

/// The size of a machine: nodes with CPUs, nodes without CPUs, last-level caches per node, cores
/// per cache, threads per core.
#[derive(Clone, Copy, Debug)]
struct Shape {
    nodes: u32,
    memory_nodes: u32,
    llcs: u32,
    cores: u32,
    threads: u32,
}

impl Shape {
    fn cpus(self) -> u32 {
        self.nodes * self.llcs * self.cores * self.threads
    }

    /// Numbers CPUs like x86: the first threads of all cores, node by node, then the second
    /// threads.
    fn machine(self) -> Machine {
        let cores = self.cpus() / self.threads;
        let place = |cpu: u32| CpuPlace {
            core: cpu % cores,
            llc: cpu % cores / self.cores,
            node: cpu % cores / (self.cores * self.llcs),
        };
        let places: Vec<CpuPlace> = (0..self.cpus()).map(place).collect();
        let mut seats = vec![Seat::default(); places.len()];
        seat(&places, &mut seats);
        let all = 0..self.nodes + self.memory_nodes;
        let orders = all.map(|node| {
            let mut cpus = vec![0; places.len()];
            // A node without CPUs is nearest to the node with its number modulo the nodes with
            // CPUs.
            let near = |other: u32| if other == node % self.nodes { 20 } else { 32 };
            let home = order(&places, &seats, near, &mut cpus);
            (cpus, home)
        });
        Machine {
            orders: orders.collect(),
            places,
            seats,
        }
    }
}

impl Machine {
    fn choose(
        &self,
        node: u32,
        caller: u16,
        wanted: usize,
        idle: impl Fn(u16) -> bool,
    ) -> Vec<u16> {
        self.choose_allowed(node, caller, wanted, |_| true, idle)
    }

    fn choose_allowed(
        &self,
        node: u32,
        caller: u16,
        wanted: usize,
        allowed: impl Fn(u16) -> bool,
        idle: impl Fn(u16) -> bool,
    ) -> Vec<u16> {
        let (order, home) = &self.orders[node as usize];
        let view = View {
            seats: &self.seats,
            order,
            home: *home,
        };
        let mut chosen = vec![u16::MAX; wanted];
        let nr = view.choose(caller, allowed, idle, &mut chosen);
        chosen.truncate(nr);
        chosen
    }

    fn place(&self, cpu: u16) -> CpuPlace {
        self.places[usize::from(cpu)]
    }

    fn distinct<T: Eq + std::hash::Hash>(&self, cpus: &[u16], of: impl Fn(CpuPlace) -> T) -> usize {
        let all: HashSet<T> = cpus.iter().map(|&cpu| of(self.place(cpu))).collect();
        all.len()
    }
}

const ONE_CPU: Shape = Shape {
    nodes: 1,
    memory_nodes: 0,
    llcs: 1,
    cores: 1,
    threads: 1,
};

/// Two Grace CPUs with 72 cores behind one last-level cache each, and memory nodes of two GPUs.
const GRACE: Shape = Shape {
    nodes: 2,
    memory_nodes: 2,
    llcs: 1,
    cores: 72,
    threads: 1,
};

/// Two EPYC CPUs with 64 cores in eight complexes of eight, two threads each, and a CXL node.
const EPYC: Shape = Shape {
    nodes: 2,
    memory_nodes: 1,
    llcs: 8,
    cores: 8,
    threads: 2,
};

#[test]
fn nobody_helps_where_there_is_one_cpu() {
    assert!(ONE_CPU.machine().choose(0, 0, 31, |_| true).is_empty());
}

#[test]
fn one_core_of_two_threads_has_its_sibling() {
    let smt = Shape {
        threads: 2,
        ..ONE_CPU
    };
    assert_eq!(smt.machine().choose(0, 0, 31, |_| true), [1]);
    assert_eq!(smt.machine().choose(0, 1, 31, |_| true), [0]);
}

#[test]
fn grace_helps_on_the_node_that_is_asked_for() {
    let machine = GRACE.machine();
    for (node, caller) in [(0, 0), (1, 0), (2, 0), (3, 0), (1, 143)] {
        let chosen = machine.choose(node, caller, 31, |_| true);
        assert_eq!(chosen.len(), 31);
        let there = |cpu: &&u16| machine.place(**cpu).node == node % 2;
        assert_eq!(chosen.iter().filter(there).count(), 31, "node {node}");
    }
}

#[test]
fn grace_helps_from_elsewhere_where_the_node_is_busy() {
    let machine = GRACE.machine();
    let chosen = machine.choose(0, 0, 4, |cpu| cpu >= 72 || cpu == 5);
    // The node has 71 other CPUs, so the limit of 64 busy CPUs stops the search before node 1.
    assert_eq!(chosen, [5]);
    let chosen = machine.choose(0, 0, 4, |cpu| cpu >= 60);
    assert_eq!((chosen.len(), chosen[0]), (4, 60));
}

#[test]
fn epyc_spreads_over_complexes() {
    let machine = EPYC.machine();
    for node in [0, 1, 2] {
        // First the seven complexes other than the caller's, then its own.
        let chosen = machine.choose(node, 0, 8, |_| true);
        assert_eq!(
            machine.distinct(&chosen, |place| place.llc),
            8,
            "node {node}"
        );
        assert_eq!(
            machine.distinct(&chosen, |place| place.node),
            1,
            "node {node}"
        );
        let chosen = machine.choose(node, 0, 31, |_| true);
        assert_eq!(machine.distinct(&chosen, |place| place.core), 31);
        assert!(chosen.iter().all(|&cpu| cpu < 128), "first threads alone");
    }
    let own = machine.place(0).llc;
    let first = machine.choose(0, 0, 7, |_| true);
    assert!(first.iter().all(|&cpu| machine.place(cpu).llc != own));
}

#[test]
fn epyc_takes_other_nodes_cores_before_second_threads() {
    let machine = EPYC.machine();
    // Idle are cores 0 and 1 of node 0, with both threads, and all of node 1.
    let idle = |cpu: u16| cpu % 128 < 2 || cpu % 128 >= 64;
    let chosen = machine.choose(0, 0, 4, idle);
    assert_eq!(chosen[0], 1);
    assert!(
        chosen[1..].iter().all(|&cpu| (64..128).contains(&cpu)),
        "{chosen:?}"
    );
}

#[test]
fn a_core_whose_other_thread_is_busy_comes_later() {
    let machine = EPYC.machine();
    let chosen = machine.choose(0, 0, 2, |cpu| [1, 2, 130].contains(&cpu));
    assert_eq!(chosen, [2, 1]);
}

#[test]
fn callers_on_different_cpus_ask_different_ones() {
    let machine = GRACE.machine();
    let one = machine.choose(0, 0, 8, |_| true);
    let other = machine.choose(0, 20, 8, |_| true);
    assert!(one.iter().all(|cpu| !other.contains(cpu)));
    // The same holds for a caller on another node.
    let far = machine.choose(0, 72 + 40, 8, |_| true);
    assert!(far.iter().all(|cpu| !one.contains(cpu)));
}

#[test]
fn who_may_not_help_is_not_asked() {
    let machine = EPYC.machine();
    // The cpuset of the caller has four cores of node 1; its folios are on node 0.
    let allowed = |cpu: u16| (96..100).contains(&cpu);
    assert_eq!(
        machine.choose_allowed(0, 96, 4, allowed, |_| true),
        [97, 98, 99]
    );
    // CPUs outside the cpuset are not asked at all.
    let asked = std::cell::RefCell::new(Vec::new());
    machine.choose_allowed(0, 96, 4, allowed, |cpu| {
        asked.borrow_mut().push(cpu % 128);
        true
    });
    assert!(asked.borrow().iter().all(|&cpu| allowed(cpu)));
}

#[test]
fn busy_siblings_are_asked_in_vain_too() {
    let machine = EPYC.machine();
    let asked = std::cell::Cell::new(0);
    let chosen = machine.choose(0, 0, 31, |cpu| {
        asked.set(asked.get() + u32::from(cpu >= 128));
        cpu < 128
    });
    assert_eq!(asked.get(), MAX_REFUSALS);
    assert_eq!(chosen.len(), 31, "each shares a core with who is busy");
}

#[test]
fn few_are_asked_in_vain() {
    let large = Shape {
        nodes: 8,
        memory_nodes: 0,
        llcs: 8,
        cores: 8,
        threads: 2,
    };
    let asked = std::cell::Cell::new(0);
    let chosen = large.machine().choose(3, 700, 31, |_| {
        asked.set(asked.get() + 1);
        false
    });
    assert!(chosen.is_empty());
    assert_eq!(asked.get(), MAX_REFUSALS);
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1u32..=8, 0u32..=3, 1u32..=8, 1u32..=16, 1u32..=2)
        .prop_map(|(nodes, memory_nodes, llcs, cores, threads)| Shape {
            nodes,
            memory_nodes,
            llcs,
            cores,
            threads,
        })
        .prop_filter("1024 CPUs", |shape| shape.cpus() <= 1024)
}

proptest! {
    #[test]
    fn whoever_is_chosen_may_be(
        shape in shapes(), node in 0u32..11, caller in 0u16..1024, wanted in 0usize..40,
        busy in 0u64..5, seed: u64,
    ) {
        let machine = shape.machine();
        let caller = caller % shape.cpus() as u16;
        let node = node % (shape.nodes + shape.memory_nodes);
        let idle = |cpu: u16| (u64::from(cpu) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 >= busy;
        let chosen = machine.choose(node, caller, wanted, idle);
        let all: HashSet<u16> = chosen.iter().copied().collect();
        prop_assert_eq!(all.len(), chosen.len(), "twice");
        prop_assert!(chosen.len() <= wanted.min(MAX_CHOSEN));
        prop_assert!(chosen.iter().all(|&cpu| cpu != caller && idle(cpu)));
        prop_assert!(chosen.iter().all(|&cpu| u32::from(cpu) < shape.cpus()));
        // With few CPUs all are asked, so no CPU that could help is left out.
        if shape.cpus() <= MAX_REFUSALS {
            let could = (0..shape.cpus() as u16).filter(|&cpu| cpu != caller && idle(cpu)).count();
            prop_assert_eq!(chosen.len(), could.min(wanted).min(MAX_CHOSEN));
        }
    }

    #[test]
    fn where_all_are_idle_cores_and_caches_are_spread(
        shape in shapes(), node in 0u32..11, caller in 0u16..1024, wanted in 1usize..32,
    ) {
        let machine = shape.machine();
        let caller = caller % shape.cpus() as u16;
        let node = node % (shape.nodes + shape.memory_nodes);
        let chosen = machine.choose(node, caller, wanted, |_| true);
        let cores = (shape.cpus() / shape.threads) as usize;
        // No helper shares a core with the caller or another helper while cores are free.
        let mut with_caller = chosen.clone();
        with_caller.push(caller);
        let distinct = machine.distinct(&with_caller, |place| place.core);
        prop_assert_eq!(distinct, (chosen.len() + 1).min(cores));
        // Each cache of the nearest node has a helper before any has two, except for the caller's.
        let near: Vec<u16> = chosen
            .iter()
            .copied()
            .filter(|&cpu| machine.place(cpu).node == node % shape.nodes)
            .take(shape.llcs as usize)
            .collect();
        let own = usize::from(machine.place(caller).node == node % shape.nodes);
        prop_assert!(machine.distinct(&near, |place| place.llc) + own >= near.len());
    }
}
