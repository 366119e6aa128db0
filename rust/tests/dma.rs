// SPDX-License-Identifier: GPL-2.0-only

//! DMA copies of real folios, by a software engine with and without injected faults.

use kernel::{
    bindings,
    prelude::*,
    sync::SetOnce,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::engine::MIXED;

use crate::{
    copy::{
        batch::Copied,
        dma::{
            self,
            feed::{
                Copiers,
                DmaPages, //
            }, //
        },
        hooks::ferry_dma_leave,
        owned_pairs::OwnedPairs,
        soft_dma::{
            FaultInjection,
            Faults, //
        },
        table::{
            CopyTable,
            MAX_FOLIOS, //
        }, //
    },
    kernel::dmaengine::{
        DmaChannel,
        Requested, //
    },
    logic::{
        batch::FolioOutcome,
        policy::StoreKind, //
    }, //
};

/// Number of channels of the engine.
const CHANNELS: usize = 4;

/// Longer than any test, so that a copy that the engine answers does not time out.
const PATIENCE_NS: i64 = 1_000_000_000_000;

/// Keeps channels open until it is dropped.
struct Open(());

impl Open {
    fn new(nr: usize) -> Result<Self> {
        dma::open(nr)?;
        assert_eq!(dma::nr_open(), nr);
        Ok(Self(()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if dma::open(0).is_err() {
            pr_err!("channels could not be given back\n");
        }
    }
}

/// Injects the faults that `set` chooses, until the result is dropped.
fn inject(set: impl FnOnce(&mut Faults)) -> FaultInjection {
    let mut faults = Faults::default();
    set(&mut faults);
    FaultInjection::new(faults)
}

/// Posts `pairs` with every free channel, and calls `each` with the outcome of each folio.
fn copy(
    pairs: &mut OwnedPairs,
    copiers: Copiers,
    give_up_ns: i64,
    mut each: impl FnMut(usize, FolioOutcome) -> Result,
) -> Result<Copied> {
    let table = CopyTable::new(MAX_FOLIOS)?;
    pairs.spoil();
    pairs.with_lists(|lists| {
        let target = lists.target();
        let mut batch = table.try_own().ok_or(EBUSY)?.batch(StoreKind::Cached);
        for pair in lists.into_pairs() {
            assert!(batch.add(pair));
        }
        batch.set_copiers(copiers, give_up_ns);
        let mut channels = 0;
        for channel in dma::take(target, 16) {
            batch.add_channel(channel);
            channels += 1;
        }
        let (result, copied) = batch.run(1 + channels, |posted| {
            let mut nr = 0;
            while let Some(outcome) = posted.wait_next_folio() {
                each(nr, outcome)?;
                nr += 1;
            }
            Ok(())
        });
        result.map(|()| copied)
    })
}

fn must_be_copied(_: usize, outcome: FolioOutcome) -> Result {
    assert_eq!(outcome, FolioOutcome::Copied);
    Ok(())
}

/// Like [`copy`]; every folio must be copied.
fn copy_all(pairs: &mut OwnedPairs, copiers: Copiers) -> Result<Copied> {
    let copied = copy(pairs, copiers, PATIENCE_NS, must_be_copied)?;
    assert_eq!(copied.pages as usize, pairs.pages());
    assert_eq!((copied.failed, copied.left, copied.dma_late), (0, 0, 0));
    assert!(pairs.all_equal());
    assert!(pairs.all_marked());
    Ok(copied)
}

fn channels_carry_all() -> Result {
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for nr in 1..=CHANNELS {
        let _open = Open::new(nr)?;
        let copied = copy_all(&mut pairs, Copiers::EnginesFirst)?;
        assert_eq!((copied.by_dma, copied.dma_failed), (copied.pages, 0));
    }
    // The channels are released.
    assert_eq!(copy_all(&mut pairs, Copiers::EnginesFirst)?.by_dma, 0);
    Ok(())
}

fn each_order_alone() -> Result {
    let _open = Open::new(2)?;
    for order in 0..=9 {
        let mut pairs = OwnedPairs::new(&[order])?;
        assert_eq!(
            copy_all(&mut pairs, Copiers::EnginesFirst)?.by_dma,
            1 << order
        );
    }
    Ok(())
}

fn more_folios_than_places() -> Result {
    let _open = Open::new(1)?;
    let mut pairs = OwnedPairs::new(&[0; MAX_FOLIOS])?;
    assert_eq!(
        copy_all(&mut pairs, Copiers::EnginesFirst)?.by_dma as usize,
        MAX_FOLIOS
    );
    Ok(())
}

fn owner_and_channels_share() -> Result {
    let _open = Open::new(CHANNELS)?;
    let _slow = inject(|faults| faults.delay_us = 200);
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..20 {
        let copied = copy_all(&mut pairs, Copiers::All)?;
        assert!(copied.by_dma > 0 && copied.by_dma <= copied.pages);
    }
    Ok(())
}

fn the_last_lands_first() -> Result {
    let _open = Open::new(CHANNELS)?;
    let _reverse = inject(|faults| {
        faults.reverse = true;
        faults.delay_us = 50;
    });
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..20 {
        let copied = copy_all(&mut pairs, Copiers::EnginesFirst)?;
        assert_eq!(copied.by_dma, copied.pages);
    }
    Ok(())
}

/// CPUs repeat the copies that an engine failed.
fn failed_copies_are_made_good() -> Result {
    let _open = Open::new(CHANNELS)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for fail_ppm in [10_000, 200_000, 1_000_000] {
        let _bad = inject(|faults| faults.fail_ppm = fail_ppm);
        let mut failed = 0;
        for _ in 0..50 {
            let copied = copy_all(&mut pairs, Copiers::EnginesFirst)?;
            assert_eq!(copied.dma_failed == 0, copied.by_dma == copied.pages);
            failed += copied.dma_failed;
        }
        assert!(failed > 0);
    }
    Ok(())
}

fn engine_takes_few() -> Result {
    let _open = Open::new(CHANNELS)?;
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for descriptors in [0, 1, 3] {
        let _few = inject(|faults| {
            faults.descriptors = descriptors;
            faults.delay_us = 20;
        });
        let copied = copy_all(&mut pairs, Copiers::EnginesFirst)?;
        assert_eq!(copied.by_dma == 0, descriptors == 0);
    }
    Ok(())
}

/// Returns whether both folios of each pair have no reference but the test's own: no copy that
/// timed out is left.
fn is_nobodys(pairs: &OwnedPairs) -> bool {
    (0..MIXED.len()).all(|nr| pairs.ref_counts(nr) == Some((1, 1)))
}

/// Lets an engine that does not answer copy a batch. Returns the number of folios that timed out.
fn lose(pairs: &mut OwnedPairs) -> Result<usize> {
    let mut lost = KVec::new();
    let copied = copy(pairs, Copiers::EnginesFirst, 20_000_000, |nr, outcome| {
        if outcome == FolioOutcome::TimedOut {
            lost.push(nr, GFP_KERNEL)?;
        }
        Ok(())
    })?;
    assert!(copied.dma_late > 0 && copied.by_dma == 0);
    assert_eq!(copied.folios as usize + lost.len(), MIXED.len());
    for &nr in lost.iter() {
        // The engine's copy holds references until it answers.
        let (dst, src) = pairs.ref_counts(nr).ok_or(EINVAL)?;
        assert!(dst > 1 && src > 1);
    }
    Ok(lost.len())
}

fn late_copies_are_parked() -> Result {
    let _open = Open::new(CHANNELS)?;
    let mute = inject(|faults| faults.mute = true);
    let mut pairs = OwnedPairs::new(&MIXED)?;
    assert!(lose(&mut pairs)? > 0);
    // A channel with a copy that timed out is not used; CPUs copy.
    let mut others = OwnedPairs::new(&MIXED)?;
    assert_eq!(copy_all(&mut others, Copiers::EnginesFirst)?.by_dma, 0);

    drop(mute);
    dma::sweep();
    for _ in 0..1000 {
        if is_nobodys(&pairs) {
            break;
        }
        fsleep(Delta::from_millis(10));
    }
    assert!(is_nobodys(&pairs));
    assert!(pairs.all_marked());
    // The channel is used again.
    let copied = copy_all(&mut pairs, Copiers::EnginesFirst)?;
    assert_eq!(copied.by_dma, copied.pages);
    Ok(())
}

fn dead_engine_is_stopped() -> Result {
    let _mute = inject(|faults| faults.mute = true);
    let mut pairs = OwnedPairs::new(&MIXED)?;
    for _ in 0..3 {
        let open = Open::new(CHANNELS)?;
        assert!(lose(&mut pairs)? > 0);
        drop(open);
        assert!(is_nobodys(&pairs));
        assert!(pairs.all_marked());
    }
    Ok(())
}

/// Folios that CPUs must not read are copied by engines, or not at all.
fn no_cpu_copies() -> Result {
    let mut pairs = OwnedPairs::new(&MIXED)?;
    let refused = |_: usize, outcome| {
        assert_eq!(outcome, FolioOutcome::NotCopied);
        Ok(())
    };
    // Without a channel no copy is possible.
    let copied = copy(&mut pairs, Copiers::EnginesOnly, PATIENCE_NS, refused)?;
    assert_eq!((copied.folios, copied.left), (0, copied.pages));
    assert!((0..MIXED.len()).all(|nr| !pairs.equal(nr)));
    assert!(pairs.all_marked());

    let _open = Open::new(2)?;
    let copied = copy_all(&mut pairs, Copiers::EnginesOnly)?;
    assert_eq!((copied.by_dma, copied.helped), (copied.pages, 0));
    {
        let _few = inject(|faults| faults.descriptors = 3);
        let mut came = 0;
        let copied = copy(
            &mut pairs,
            Copiers::EnginesOnly,
            PATIENCE_NS,
            |nr, outcome| {
                came += match outcome {
                    FolioOutcome::Copied => 1 << MIXED[nr],
                    _ => refused(nr, outcome).map(|()| 0)?,
                };
                Ok(())
            },
        )?;
        // Engines copied every page that arrived.
        assert!(copied.by_dma >= came && came + copied.left == copied.pages);
        assert!(pairs.all_marked());
    }
    let _bad = inject(|faults| faults.fail_ppm = 1_000_000);
    let copied = copy(&mut pairs, Copiers::EnginesOnly, PATIENCE_NS, refused)?;
    assert_eq!((copied.folios, copied.by_dma), (0, 0));
    assert!(pairs.all_marked());
    Ok(())
}

/// A caller that may not copy itself does not wait for ever for an engine that never answers.
fn no_cpu_copies_for_a_dead_engine() -> Result {
    let _open = Open::new(1)?;
    let _mute = inject(|faults| faults.mute = true);
    let mut pairs = OwnedPairs::new(&[0; MAX_FOLIOS])?;
    let mut lost = 0;
    let copied = copy(
        &mut pairs,
        Copiers::EnginesOnly,
        20_000_000,
        |_, outcome| {
            assert!(matches!(
                outcome,
                FolioOutcome::TimedOut | FolioOutcome::NotCopied
            ));
            lost += u32::from(outcome == FolioOutcome::TimedOut);
            Ok(())
        },
    )?;
    assert_eq!(copied.left as usize, MAX_FOLIOS);
    assert!(lost > 0 && lost < copied.left);
    assert!(pairs.all_marked());
    Ok(())
}

/// A driver that leaves gets back all channels, also those that batches know nothing of.
fn driver_leaves_every_port() -> Result {
    static SLOT: SetOnce<DmaChannel<DmaPages>> = SetOnce::new();
    SLOT.populate(DmaChannel::new());
    let slot = SLOT.as_ref().ok_or(EBUSY)?;
    for nr in [0, 1] {
        let _open = Open::new(nr)?;
        let requested = Requested::new().ok_or(ENODEV)?;
        assert!(requested.open(slot).is_ok());
        let device = slot.device().ok_or(ENODEV)?;
        ferry_dma_leave(device as *mut bindings::device);
        assert!(!slot.is_open());
        assert_eq!(dma::nr_open(), 0);
        // There is nothing to wait for.
        slot.close()?;
    }
    as_many_as_there_are()
}

fn as_many_as_there_are() -> Result {
    for (wanted, found) in [(16, CHANNELS), (1, 1), (0, 0)] {
        dma::open(wanted)?;
        assert_eq!(dma::nr_open(), found);
    }
    Ok(())
}

suite! {
    ferry_dma:
    channels_carry_all,
    each_order_alone,
    more_folios_than_places,
    owner_and_channels_share,
    the_last_lands_first,
    failed_copies_are_made_good,
    engine_takes_few,
    late_copies_are_parked,
    dead_engine_is_stopped,
    no_cpu_copies,
    no_cpu_copies_for_a_dead_engine,
    as_many_as_there_are,
    driver_leaves_every_port,
}
