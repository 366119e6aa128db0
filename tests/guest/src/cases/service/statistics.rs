// SPDX-License-Identifier: GPL-2.0-only
//! The counters of the service: calls, pages, reasons and errors, and pages by pair of nodes.

use anyhow::{Context, Result, ensure};
use libc::{E2BIG, EBADF, EFAULT, EINVAL, ENODEV, ENOSPC, ESRCH};

use super::layout::put;
use super::{PAGES, says, small_pages, table, whole};
use crate::cases::pinned::Spliced;
use crate::cases::policy::Partner;
use crate::harness::{Case, expect, expect_errno};
use crate::kernel;
use crate::plan::FolioSize;
use crate::sys::service::{Call, Counters, ERRORS, FAILURES, MATRIX, PIDFD, Service};
use crate::sys::{Mapping, PAGE, UserPtr, pin_for_long};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("service/counters", |_| counters()),
        Case::new("service/failures-by-reason", |_| failures()),
        Case::new("service/errors-by-number", |_| errors()),
        Case::new("service/matrix", |_| matrix()),
        Case::new("service/matrix-errors", |_| matrix_errors()),
    ]
}

fn sysfs() -> Result<Counters> {
    let value = |name: &str| kernel::number(format!("/sys/kernel/mm/ferry/service/{name}"));
    let mut all = Counters::default();
    let (failures, errors) = (&mut all.failures, &mut all.errors);
    for (number, name) in failures.iter_mut().zip(FAILURES) {
        *number = value(&format!("failures/{name}"))?;
    }
    for (number, name) in errors.iter_mut().zip(ERRORS) {
        *number = value(&format!("errors/{name}"))?;
    }
    Ok(Counters {
        size: size_of::<Counters>() as u32,
        flags: 0,
        phys_calls: value("phys_calls")?,
        phys_entries: value("phys_entries")?,
        phys_ignored: value("phys_ignored")?,
        range_calls: value("range_calls")?,
        successful: value("successful")?,
        failed: value("failed")?,
        refused: value("refused")?,
        aborted: value("aborted")?,
        phys_usec: value("phys_usec")?,
        range_usec: value("range_usec")?,
        ..all
    })
}

fn index(names: &[&str], name: &str) -> Result<usize> {
    let found = names.iter().position(|&found| found == name);
    found.with_context(|| format!("no counter {name}"))
}

fn counters() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let before = service.counters()?;
    expect("counters of sysfs", sysfs()?, before)?;
    says(service.range(whole(&map, 1)), 0, PAGES, 0)?;
    let mut table = table(&map)?;
    table.extend([u64::MAX, 1 << 51]);
    says(service.phys(&table, Call::to(0)), 0, PAGES, 0)?;
    ensure!(service.range(whole(&map, 99)).errno == ENODEV);
    ensure!(service.range(Call::range(0, PAGE, 1)).errno == EFAULT);
    let after = service.counters()?;
    ensure!(
        after.phys_usec > before.phys_usec && after.range_usec > before.range_usec,
        "expected times of {before:?} to grow, got {after:?}"
    );
    let mut errors = before.errors;
    errors[index(&ERRORS, "enodev")?] += 1;
    errors[index(&ERRORS, "efault")?] += 1;
    let expected = Counters {
        phys_calls: before.phys_calls + 1,
        phys_entries: before.phys_entries + PAGES as u64 + 2,
        phys_ignored: before.phys_ignored + 2,
        range_calls: before.range_calls + 2,
        successful: before.successful + 2 * PAGES as u64,
        refused: before.refused + 1,
        aborted: before.aborted + 1,
        phys_usec: after.phys_usec,
        range_usec: after.range_usec,
        errors,
        ..before
    };
    expect("counters", after, expected)?;
    expect("counters of sysfs", sysfs()?, after)
}

/// Pages that stay count by their reason.
fn failures() -> Result<()> {
    let service = Service::open()?;
    // Returns the pages that `failed` by any reason, and checks that it was this one.
    let pages_of = |reason: &str, before: Counters| -> Result<u64> {
        let after = service.counters()?;
        let failed = after.failed - before.failed;
        let mut expected = before.failures;
        expected[index(&FAILURES, reason)?] += failed;
        expect(
            format!("pages by reason, {reason}"),
            after.failures,
            expected,
        )?;
        Ok(failed)
    };
    // Both calls leave all pages of `map`.
    let all_stay = |map: &Mapping, reason: &str| {
        let before = service.counters()?;
        says(service.range(whole(map, 1)), 0, 0, PAGES)?;
        says(service.phys(&table(map)?, Call::to(1)), 0, 0, PAGES)?;
        let pages = pages_of(reason, before)?;
        expect(
            format!("pages of both calls, {reason}"),
            pages,
            2 * PAGES as u64,
        )
    };
    let map = small_pages()?;
    let partner = Partner::sharing(&map)?;
    all_stay(&map, "shared")?;
    partner.finish()?;

    let pinned = small_pages()?;
    let ring = pin_for_long(&pinned)?;
    all_stay(&pinned, "unmovable")?;
    drop(ring);

    // In a pipe pages have a reference that only their migration notices.
    let spliced = Spliced::new(FolioSize::Small, 16)?;
    let before = service.counters()?;
    says(service.range(whole(&spliced.map, 1)), 0, 8, 8)?;
    expect("pages in use", pages_of("move", before)?, 8)?;
    spliced.drain()?;
    Ok(())
}

/// Calls that end early count by their error.
fn errors() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let call = whole(&map, 1);
    for (errno, name, call) in [
        (ENODEV, "enodev", Call { node: 99, ..call }),
        (EFAULT, "efault", Call::range(0, PAGE, 1)),
        (ESRCH, "esrch", call.pid(i32::MAX)),
        (EBADF, "ebadf", call.pid(-1).flags(PIDFD)),
        (EINVAL, "einval", call.flags(1 << 31)),
        (
            E2BIG,
            "other",
            Call {
                size: 1 << 20,
                ..call
            },
        ),
    ] {
        let before = service.counters()?;
        expect_errno(
            format!("a call for {name}"),
            service.range(call).errno,
            errno,
        )?;
        let (after, mut expected) = (service.counters()?, before.errors);
        expected[index(&ERRORS, name)?] += 1;
        expect(format!("errors after {name}"), after.errors, expected)?;
        let ended = after.refused + after.aborted;
        let expected = before.refused + before.aborted + 1;
        expect(
            format!("calls that ended early after {name}"),
            ended,
            expected,
        )?;
    }
    Ok(())
}

/// The matrix has each page that was migrated at its pair of nodes, and none that stayed.
fn matrix() -> Result<()> {
    let (map, service) = (small_pages()?, Service::open()?);
    let (errno, nodes, _) = service.matrix(0);
    expect_errno("a table without room", errno, ENOSPC)?;
    ensure!(nodes >= 2, "expected two nodes or more, got {nodes}");
    let (errno, _, small) = service.matrix(nodes - 1);
    expect_errno("a table that is too small", errno, ENOSPC)?;
    ensure!(
        small.iter().all(|&pages| pages == 0),
        "expected no writes, got {small:?}"
    );
    let now = || -> Result<Vec<u64>> {
        // Larger than needed: the rows are as long as the kernel's number of nodes.
        let (errno, found, table) = service.matrix(nodes + 1);
        expect_errno("the matrix", errno, 0)?;
        expect("number of nodes", found, nodes)?;
        let (used, rest) = table.split_at(nodes * nodes);
        ensure!(
            rest.iter().all(|&pages| pages == 0),
            "expected no more writes, got {table:?}"
        );
        Ok(used.to_vec())
    };
    let (there, back) = (1, nodes);
    let mut expected = now()?;
    says(service.range(whole(&map, 1)), 0, PAGES, 0)?;
    expected[there] += PAGES as u64;
    expect("pages after a range", &now()?, &expected)?;
    says(service.phys(&table(&map)?, Call::to(0)), 0, PAGES, 0)?;
    expected[back] += PAGES as u64;
    expect("pages after a table", &now()?, &expected)?;
    let spliced = Spliced::new(FolioSize::Small, 16)?;
    says(service.range(whole(&spliced.map, 1)), 0, 8, 8)?;
    expected[there] += 8;
    expect("pages after pages in use", &now()?, &expected)?;
    says(service.phys(&table(&spliced.map)?, Call::to(1)), 0, 0, 8)?;
    expect("pages after a table of pages in use", &now()?, &expected)?;
    spliced.drain()?;
    Ok(())
}

fn matrix_errors() -> Result<()> {
    /// The size of `struct page_migrate_matrix`.
    const SIZE: u32 = 24;
    let (page, service) = (Mapping::anon(2 * PAGE, PAGE)?, Service::open()?);
    // No table is at an address that the kernel may write.
    for (size, flags, at, errno) in [
        (SIZE, 1, 0, EINVAL),
        (SIZE - 8, 0, 0, EINVAL),
        (SIZE, 0, 0, EFAULT),
        (SIZE, 0, u64::MAX - 7, EFAULT),
    ] {
        let call = Call {
            size,
            flags,
            at,
            length: 1 << 10,
            ..Call::default()
        };
        put(&page, call);
        let ret = service.raw(MATRIX, UserPtr::In(&page, 0))?;
        expect_errno(format!("a matrix by {call:?}"), ret.errno, errno)?;
    }
    let ret = service.raw(MATRIX, UserPtr::Null)?;
    expect_errno("a matrix without a structure", ret.errno, EFAULT)
}
