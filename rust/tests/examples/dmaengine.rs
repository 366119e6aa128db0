// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::{
    dmaengine::{
        Answers,
        DmaChannel,
        Requested,
        SubmitError,
        Transfer, //
    },
    folio::{
        Folio,
        OwnedFolio, //
    }, //
};
use core::ops::Range;
use kernel::prelude::*;
use kernel::sync::SetOnce;

/// Two folios that belong to the engine until it is done.
struct Both {
    dst: OwnedFolio,
    src: OwnedFolio,
}

// SAFETY: The transfer owns the folios, which have one page each, and does not access them while
// they are in flight.
unsafe impl Transfer for Both {
    fn folios(&self) -> (&Folio, &Folio) {
        (&self.dst, &self.src)
    }

    fn pages(&self) -> Range<u32> {
        0..1
    }
}

// Never freed: an engine may answer late.
static SLOT: SetOnce<DmaChannel<Both>> = SetOnce::new();

fn example() -> Result {
    SLOT.populate(DmaChannel::new());
    let slot: &'static DmaChannel<Both> = SLOT.as_ref().ok_or(EBUSY)?;
    let both = || -> Result<Both> {
        let (dst, mut src) = (OwnedFolio::new(0)?, OwnedFolio::new(0)?);
        src.bytes_mut().fill(0x2a);
        Ok(Both { dst, src })
    };

    // Without a channel nothing can be submitted.
    let mut user = slot.try_use().ok_or(EBUSY)?;
    assert!(slot.try_use().is_none());
    assert!(matches!(user.submit(both()?), Err((_, SubmitError::Full))));
    drop(user);

    let Some(requested) = Requested::new() else {
        return Ok(()); // no engine here
    };
    assert!(requested.open(slot).is_ok());
    assert!(slot.is_open());

    let mut user = slot.try_use().ok_or(EBUSY)?;
    assert!(user.submit(both()?).is_ok());
    user.issue();
    let mut landed = None;
    while landed.is_none() && !user.is_idle() {
        let answers = Answers::now();
        user.collect(|load, good| landed = Some((load, good)));
        if landed.is_none() {
            answers.wait_for_more(1_000_000);
        }
    }
    let (both, good) = landed.ok_or(EIO)?;
    assert!(good && both.dst.bytes() == both.src.bytes());
    drop(user);
    slot.close()
}
