// SPDX-License-Identifier: GPL-2.0-only

//! The channels that batches may use.
//!
//! They are taken when an operator says how many, and given back when he says fewer, or when a
//! driver leaves its device. A batch takes the ports that are free at that moment; one that finds
//! none is copied by CPUs.
//!
//! Locks: that of the fleet, under which channels come and go, and are told of; in it, what the end
//! of a channel takes. It is taken inside of the notifiers of a bus, so channels are requested
//! before it is. Batches take no lock.

use crate::{
    abstractions::{
        board::Carried,
        dmaengine::{
            Channel,
            InUse,
            Port,
            MAX_CHANNELS, //
        },
        sched::NodeId, //
    },
    helpers::settings, //
};
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        self,
        impl_has_delayed_work,
        new_delayed_work,
        DelayedWork,
        WorkItem, //
    }, //
};

/// How often copies that were given up are looked after.
const SWEEP_MS: u32 = 1000;
/// So many times; then their engine is stopped.
const SWEEPS: u32 = 10;

/// Room for as many channels as there may be.
#[pin_data]
struct Fleet {
    ports: KVec<Pin<KBox<Port<Carried>>>>,
    sweeper: Arc<Sweeper>,
    #[pin]
    lock: Mutex<()>,
}

static FLEET: SetOnce<Pin<KBox<Fleet>>> = SetOnce::new();

impl Fleet {
    fn new() -> Result<Pin<KBox<Self>>> {
        let mut ports = KVec::with_capacity(MAX_CHANNELS, GFP_KERNEL)?;
        for _ in 0..MAX_CHANNELS {
            ports.push(KBox::pin_init(Port::new(), GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let sweeper = Sweeper::new()?;
        KBox::pin_init(
            pin_init!(Self {
                ports,
                sweeper,
                lock <- new_mutex!((), "ferry::Fleet::lock"),
            }),
            GFP_KERNEL,
        )
    }

    fn ports(&'static self) -> impl DoubleEndedIterator<Item = &'static Port<Carried>> {
        self.ports.iter().map(|port| &**port)
    }
}

fn fleet() -> Option<&'static Fleet> {
    FLEET.as_ref().map(|fleet| &**fleet)
}

/// How many channels there are for batches. For any context.
pub fn nr_open() -> usize {
    fleet().map_or(0, |fleet| {
        fleet.ports().filter(|port| port.is_open()).count()
    })
}

/// Takes channels, or gives some back, until there are so many, or no more are to be had. May sleep;
/// one caller at a time. Returns how many there are.
///
/// Fails with `ENODEV` if there is none, and with `EBUSY` if one cannot be given back, as its engine
/// neither answers nor stops.
pub fn open(nr: usize) -> Result<usize> {
    if FLEET.as_ref().is_none() {
        if nr == 0 {
            return Ok(0);
        }
        // Never lost: one caller at a time.
        FLEET.populate(Fleet::new()?);
    }
    let fleet = fleet().ok_or(ENOMEM)?;
    while nr_open() < nr {
        let Some(channel) = Channel::request() else {
            break;
        };
        let _guard = fleet.lock.lock();
        let free = fleet.ports().find(|port| !port.is_open());
        if !free.is_some_and(|port| port.open(channel)) {
            break;
        }
    }
    let _guard = fleet.lock.lock();
    let open = fleet.ports().filter(|port| port.is_open());
    for port in open.skip(nr) {
        port.close()?;
    }
    match nr_open() {
        0 if nr > 0 => Err(ENODEV),
        open => Ok(open),
    }
}

/// The driver of a device, at this address, is about to leave it: gives its channels back. May sleep.
pub fn leave(device: usize) {
    let Some(fleet) = fleet() else {
        return;
    };
    let _guard = fleet.lock.lock();
    for port in fleet.ports().filter(|port| port.is_of(device)) {
        if port.close().is_err() {
            pr_warn!("a DMA engine leaves that neither answers nor stops\n");
        }
    }
}

/// Tells of the channel with this number: its name, its node, and what it has done; [`None`]: there
/// is none. May sleep.
pub fn read_out<R>(
    nr: usize,
    tell: impl FnOnce(*const c_char, Option<NodeId>, bindings::ferry_dma_counts) -> R,
) -> Option<R> {
    let fleet = fleet()?;
    // The name stays as long as the lock is held.
    let _guard = fleet.lock.lock();
    let port = fleet.ports().filter(|port| port.is_open()).nth(nr)?;
    let (name, counts) = port.read_out()?;
    Some(tell(name, port.node(), counts))
}

/// Whether there are channels, and a batch of so many base pages is large enough for them. For any
/// context.
pub fn is_for(pages: u32) -> bool {
    pages as usize * PAGE_SIZE >= settings::dma_min_bytes() as usize && nr_open() > 0
}

/// The ports that are free now: first those of engines on `node`, to which is copied. For any
/// context but NMI.
pub fn take(node: Option<NodeId>) -> impl Iterator<Item = InUse<Carried>> {
    let near = move |port: &&Port<Carried>| port.node() == node;
    let all = fleet().into_iter().flat_map(Fleet::ports);
    let far = fleet().into_iter().flat_map(Fleet::ports);
    let far = far.filter(move |port| !near(port));
    let free = Iterator::chain(all.filter(near), far);
    free.filter(|port| port.is_open() && port.parked() == 0)
        .filter_map(Port::try_use)
}

/// Copies were given up: sees that their memory comes back. For any context but NMI.
pub fn sweep() {
    if let Some(fleet) = fleet() {
        fleet.sweeper.rounds.store(0, Relaxed);
        fleet.sweeper.clone().call();
    }
}

/// Looks after copies that were given up, until their engines are done with them.
#[pin_data]
struct Sweeper {
    /// How often it has looked; a hint, so relaxed.
    rounds: Atomic<u32>,
    #[pin]
    work: DelayedWork<Sweeper>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Sweeper { self.work }
}

impl Sweeper {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                rounds: Atomic::new(0),
                work <- new_delayed_work!("ferry::Sweeper::work"),
            }),
            GFP_KERNEL,
        )
    }

    fn call(self: Arc<Self>) {
        // Given back if it is on its way.
        drop(workqueue::system_long().enqueue_delayed(self, msecs_to_jiffies(SWEEP_MS)));
    }
}

impl WorkItem for Sweeper {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let parked = |port: &&Port<Carried>| port.parked() > 0;
        let patient = this.rounds.fetch_add(1, Relaxed) < SWEEPS;
        for mut port in fleet()
            .into_iter()
            .flat_map(Fleet::ports)
            .filter(parked)
            .filter_map(Port::try_use)
        {
            port.collect(|_, _| ());
            if !patient && !port.is_idle() && port.reclaim().is_err() {
                pr_warn!("a DMA engine neither answers nor stops: folios stay with it\n");
            }
        }
        if fleet()
            .into_iter()
            .flat_map(Fleet::ports)
            .any(|port| port.parked() > 0)
        {
            this.call();
        }
    }
}
