// SPDX-License-Identifier: GPL-2.0-only
//! PREEMPT_RT: KUnit and the system calls in a kernel with sleeping spinlocks, on two and four
//! CPUs.

use super::{
    guest::{boot, divided, ready, Booting, LIMIT, USUAL},
    kunit, Tally,
};
use crate::{context::Context, guest, kernel::Variant};
use anyhow::Result;

/// Ferry's KUnit suites run in the same boots as the other tests. The kernel's own suites are left
/// out: `rust_spinlock_irq_condvar` warns with PREEMPT_RT, where `SpinLockIrq` leaves interrupts
/// enabled.
pub const WITH_KUNIT: Booting = Booting {
    args: "kunit.enable=1 kunit.filter_glob=ferry*",
    ..USUAL
};

pub fn run(context: &Context, tally: &mut Tally) -> Result<()> {
    let program = guest::program(context)?;
    for (cpus, cases) in divided() {
        let ready = ready(context, &program, Variant::Rt, (cpus, &WITH_KUNIT), LIMIT)?;
        let booted = boot(&ready, "on", &cases)?;
        let (guest, prefix) = &ready;
        kunit::booted(context, tally, guest, prefix)?;
        booted.tell(tally);
    }
    Ok(())
}
