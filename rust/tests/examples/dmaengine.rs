// SPDX-License-Identifier: GPL-2.0-only
use crate::kernel::{
    dmaengine::{
        Answers,
        CopyRange,
        DmaChannel,
        Requested, //
        SubmitError,
        Transfer,
    },
    folio::OwnedFolio, //
};
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
    fn leg(&self) -> CopyRange<'_> {
        CopyRange {
            dst: &self.dst,
            src: &self.src,
            first_page: 0,
            nr_pages: 1,
        }
    }
}

// Never freed: an engine may answer late.
static PORT: SetOnce<DmaChannel<Both>> = SetOnce::new();

fn example() -> Result {
    PORT.populate(DmaChannel::new());
    let port: &'static DmaChannel<Both> = PORT.as_ref().ok_or(EBUSY)?;
    let both = || -> Result<Both> {
        let (dst, mut src) = (OwnedFolio::new(0)?, OwnedFolio::new(0)?);
        src.bytes_mut().fill(0x2a);
        Ok(Both { dst, src })
    };

    // Without a channel nothing can be submitted.
    let mut user = port.try_use().ok_or(EBUSY)?;
    assert!(port.try_use().is_none());
    assert!(matches!(user.submit(both()?), Err((_, SubmitError::Full))));
    drop(user);

    let Some(requested) = Requested::new() else {
        return Ok(()); // no engine here
    };
    assert!(requested.open(port).is_ok());
    assert!(port.is_open());

    let mut user = port.try_use().ok_or(EBUSY)?;
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
    port.close()
}
