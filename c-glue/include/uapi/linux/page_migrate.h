/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * Page migration by physical address, or of another process's range of
 * addresses: the ioctls of /dev/page_migrate.
 *
 * Each ioctl takes a pointer to a structure. Its first member is its size as
 * the caller knows it, so that later kernels can add members at the end:
 *
 * - members that the caller does not know are 0 for the kernel, and are not
 *   written;
 * - members that the kernel does not know must be 0, else the call fails with
 *   E2BIG; it does not write them;
 * - a size below that of the first version fails with EINVAL, one above a page
 *   with E2BIG.
 *
 * Flags that the kernel does not know, or that the call does not have, fail
 * with EINVAL. The layout of each structure is the same for programs of 32 and
 * 64 bits; pointers are 64 bits wide, extended by zeroes.
 *
 * Calls that migrate write @successful and @failed of their structure whenever
 * that could be read, also if they return an error: what was migrated before
 * stays where it is.
 *
 * See docs/service.rst in mm/ferry/.
 */
#ifndef _UAPI_LINUX_PAGE_MIGRATE_H
#define _UAPI_LINUX_PAGE_MIGRATE_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Of struct page_migrate_phys: addresses of 8 bytes, a page of 4 KB of them */
#define PAGE_MIGRATE_MAX_TABLE	512
/* The same with PAGE_MIGRATE_LONG: 1 GB of base pages of 4 KB */
#define PAGE_MIGRATE_MAX_LONG_TABLE	262144

/**
 * enum page_migrate_flags - how pages are to be migrated
 * @PAGE_MIGRATE_SHARED: also pages that unrelated processes have mapped; needs
 *	CAP_SYS_NICE, as MPOL_MF_MOVE_ALL does (EPERM)
 * @PAGE_MIGRATE_PIDFD: @pid is a pidfd
 * @PAGE_MIGRATE_HOLES: pass over addresses that nothing is mapped at, also such
 *	as no process can have, instead of ending there with EFAULT; of
 *	PAGE_MIGRATE_RANGE alone
 * @PAGE_MIGRATE_MT: let idle CPUs take part whatever vm.mt_page_copy is, as
 *	MPOL_MF_MOVE_MT does
 * @PAGE_MIGRATE_LONG: the table may be longer than a page, up to
 *	PAGE_MIGRATE_MAX_LONG_TABLE; of PAGE_MIGRATE_PHYS alone
 */
enum page_migrate_flags {
	PAGE_MIGRATE_SHARED	= 1 << 0,
	PAGE_MIGRATE_PIDFD	= 1 << 1,
	PAGE_MIGRATE_HOLES	= 1 << 2,
	PAGE_MIGRATE_MT		= 1 << 3,
	PAGE_MIGRATE_LONG	= 1 << 4,
};

/**
 * struct page_migrate_phys - migrate pages by their physical addresses
 * @size: of this structure, in bytes
 * @flags: of &enum page_migrate_flags
 * @table: pointer to physical addresses, each a __u64; any address within a
 *	page names it
 * @length: how many, up to PAGE_MIGRATE_MAX_TABLE or, with PAGE_MIGRATE_LONG,
 *	PAGE_MIGRATE_MAX_LONG_TABLE
 * @node: where they are to go
 * @pid: whose pages: a process or, with PAGE_MIGRATE_PIDFD, a pidfd; 0 without
 *	that: the caller's
 * @successful: written: base pages migrated; all those of a large folio
 * @failed: written: base pages of that process that could not be; a page that
 *	the table names again, with others between, may count each time
 *
 * Only pages that the process, or one that shares its memory (CLONE_VM), has
 * mapped. All other addresses are passed over, and counted neither way: there
 * may be nothing at them, or a page of somebody else. So are pages that are on
 * @node already.
 */
struct page_migrate_phys {
	__u32 size;
	__u32 flags;
	__aligned_u64 table;
	__aligned_u64 length;
	__s32 node;
	__s32 pid;
	__aligned_u64 successful;
	__aligned_u64 failed;
};

/**
 * struct page_migrate_range - migrate a range of a process's addresses
 * @size: of this structure, in bytes
 * @flags: of &enum page_migrate_flags
 * @address: where the range begins; need not be the first of a page
 * @length: bytes; 0: nothing is to be done
 * @node: where its pages are to go
 * @pid: as in &struct page_migrate_phys
 * @successful: written: base pages migrated; all those of a large folio
 * @failed: written: base pages that could not be, among them those that
 *	unrelated processes have mapped, without PAGE_MIGRATE_SHARED; a page
 *	that the range has twice, as KSM has, may count twice
 *
 * Addresses that no page is at yet, and pages that are on @node already, are
 * counted neither way; nor is what is no memory of a node, as that of devices.
 */
struct page_migrate_range {
	__u32 size;
	__u32 flags;
	__aligned_u64 address;
	__aligned_u64 length;
	__s32 node;
	__s32 pid;
	__aligned_u64 successful;
	__aligned_u64 failed;
};

/**
 * struct page_migrate_counters - what was done since boot, of all callers
 * @size: of this structure, in bytes
 * @flags: 0
 * @phys_calls: calls of PAGE_MIGRATE_PHYS that were let in
 * @phys_entries: addresses in their tables
 * @phys_ignored: those that were passed over
 * @range_calls: calls of PAGE_MIGRATE_RANGE that were let in
 * @successful: base pages migrated
 * @failed: base pages that could not be
 * @refused: calls that were not let in, for want of a right or as they were no
 *	good
 * @aborted: calls that were let in, and ended early with an error
 *
 * "Let in" means that all was found good but the table and the range
 * themselves. The same numbers are in /sys/kernel/mm/ferry/service/.
 */
struct page_migrate_counters {
	__u32 size;
	__u32 flags;
	__aligned_u64 phys_calls;
	__aligned_u64 phys_entries;
	__aligned_u64 phys_ignored;
	__aligned_u64 range_calls;
	__aligned_u64 successful;
	__aligned_u64 failed;
	__aligned_u64 refused;
	__aligned_u64 aborted;
};

#define PAGE_MIGRATE_IOC	0xBC

/*
 * Common to the two that migrate. Major errors, which end the call:
 *
 * ENODEV: the node has no memory, or the caller's or the owner's cpuset does
 *	not allow it
 * ESRCH: there is no such process, or it is no more
 * EPERM: the caller may not move the memory of that process, or lacks a right
 * EINVAL: an argument is no good; or the process has no memory of its own
 * EFAULT: the structure or the table is not readable, or not writable
 * ENOMEM: no memory for the call itself; or none on the node, and nothing more
 *	of what was tried could be migrated
 * EBADF: with PAGE_MIGRATE_PIDFD, no pidfd
 * EINTR: the caller is being killed
 */

/*
 * Needs CAP_SYS_ADMIN in the initial user namespace, both of who has opened the
 * device and of the caller (EPERM), and what PAGE_MIGRATE_RANGE needs. EINVAL:
 * the table is longer than it may be.
 */
#define PAGE_MIGRATE_PHYS	_IO(PAGE_MIGRATE_IOC, 0)

/*
 * Needs what move_pages(2) needs: the right to read the process's state by
 * ptrace(2) (PTRACE_MODE_READ_REALCREDS), unless it is the caller. EFAULT: the
 * range is not in user space, or has a hole.
 */
#define PAGE_MIGRATE_RANGE	_IO(PAGE_MIGRATE_IOC, 1)

/* Needs nothing but the open device. Members after @flags are written. */
#define PAGE_MIGRATE_COUNTERS	_IO(PAGE_MIGRATE_IOC, 2)

#endif /* _UAPI_LINUX_PAGE_MIGRATE_H */
