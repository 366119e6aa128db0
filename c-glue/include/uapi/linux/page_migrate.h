/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * Page migration by physical address, or of a range of addresses of a process:
 * the ioctls of /dev/page_migrate.
 *
 * Each ioctl takes a pointer to a structure. The first member is the size of
 * the structure as the caller knows it, so that later kernels can add members
 * at the end:
 *
 * - members that the caller does not know are 0 for the kernel, and are not
 *   written;
 * - members that the kernel does not know must be 0, else the call fails with
 *   E2BIG; the kernel does not write them;
 * - a size smaller than the first version of the structure fails with EINVAL,
 *   a size larger than a page with E2BIG.
 *
 * Flags that are unknown, or not valid for the call, fail with EINVAL. The
 * layout of each structure is the same for 32-bit and 64-bit programs;
 * pointers are 64 bits wide, zero-extended.
 *
 * Calls that migrate write @successful and @failed whenever the structure
 * could be read, even if they return an error: pages migrated before the error
 * stay migrated.
 *
 * See docs/service.rst in mm/ferry/.
 */
#ifndef _UAPI_LINUX_PAGE_MIGRATE_H
#define _UAPI_LINUX_PAGE_MIGRATE_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Maximum @length of struct page_migrate_phys: a 4 KB page of 8-byte addresses
 */
#define PAGE_MIGRATE_MAX_TABLE	512
/* The same with PAGE_MIGRATE_LONG: 1 GB in base pages of 4 KB */
#define PAGE_MIGRATE_MAX_LONG_TABLE	262144

/**
 * enum page_migrate_flags - flags of the calls that migrate
 * @PAGE_MIGRATE_SHARED: also migrate pages that unrelated processes map; needs
 *	CAP_SYS_NICE, like MPOL_MF_MOVE_ALL (EPERM)
 * @PAGE_MIGRATE_PIDFD: @pid is a pidfd
 * @PAGE_MIGRATE_HOLES: skip unmapped addresses, including addresses that no
 *	process can map, instead of failing with EFAULT; only for
 *	PAGE_MIGRATE_RANGE
 * @PAGE_MIGRATE_MT: let idle CPUs take part regardless of vm.mt_page_copy,
 *	like MPOL_MF_MOVE_MT
 * @PAGE_MIGRATE_LONG: the table may be longer than a page, up to
 *	PAGE_MIGRATE_MAX_LONG_TABLE; only for PAGE_MIGRATE_PHYS
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
 * @size: size of this structure, in bytes
 * @flags: bits of &enum page_migrate_flags
 * @table: pointer to physical addresses, each a __u64; any address within a
 *	page names it
 * @length: number of addresses, up to PAGE_MIGRATE_MAX_TABLE or, with
 *	PAGE_MIGRATE_LONG, PAGE_MIGRATE_MAX_LONG_TABLE
 * @node: destination node
 * @pid: process that maps the pages, or, with PAGE_MIGRATE_PIDFD, a pidfd;
 *	without that flag, 0 is the caller
 * @successful: written: base pages migrated; all pages of a large folio count
 * @failed: written: base pages of that process that could not be migrated; a
 *	page that the table names again, with other pages in between, may count
 *	each time
 *
 * Migrates only pages that are mapped by the process, or by one that shares
 * its memory (CLONE_VM). Skips all other addresses, where there may be no page
 * or a page of an unrelated process, and pages that are on @node already.
 * Skipped addresses count neither as @successful nor as @failed.
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
 * struct page_migrate_range - migrate a range of addresses of a process
 * @size: size of this structure, in bytes
 * @flags: bits of &enum page_migrate_flags
 * @address: start of the range; need not be page-aligned
 * @length: bytes; 0 migrates nothing
 * @node: destination node
 * @pid: as in &struct page_migrate_phys
 * @successful: written: base pages migrated; all pages of a large folio count
 * @failed: written: base pages that could not be migrated, including, without
 *	PAGE_MIGRATE_SHARED, pages that unrelated processes map; a page that is
 *	mapped twice in the range, as by KSM, may count twice
 *
 * Addresses without a page, pages that are on @node already, and memory that
 * belongs to no node, such as device memory, count neither as @successful nor
 * as @failed.
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
 * enum page_migrate_failure - why a page was not migrated
 * @PAGE_MIGRATE_FAILED_SHARED: unrelated processes map it too, and
 *	PAGE_MIGRATE_SHARED was not given
 * @PAGE_MIGRATE_FAILED_UNMOVABLE: pinned, poisoned or inaccessible
 * @PAGE_MIGRATE_FAILED_BUSY: another task migrates, reclaims or scans it
 * @PAGE_MIGRATE_FAILED_MOVE: its migration failed: other references, a lock, or
 *	no memory on the node
 * @PAGE_MIGRATE_NR_FAILURES: number of the above
 */
enum page_migrate_failure {
	PAGE_MIGRATE_FAILED_SHARED,
	PAGE_MIGRATE_FAILED_UNMOVABLE,
	PAGE_MIGRATE_FAILED_BUSY,
	PAGE_MIGRATE_FAILED_MOVE,
	PAGE_MIGRATE_NR_FAILURES
};

/**
 * enum page_migrate_error - errors of calls, see below
 * @PAGE_MIGRATE_EPERM: EPERM
 * @PAGE_MIGRATE_ESRCH: ESRCH
 * @PAGE_MIGRATE_EINTR: EINTR
 * @PAGE_MIGRATE_EBADF: EBADF
 * @PAGE_MIGRATE_ENOMEM: ENOMEM
 * @PAGE_MIGRATE_EFAULT: EFAULT
 * @PAGE_MIGRATE_ENODEV: ENODEV
 * @PAGE_MIGRATE_EINVAL: EINVAL
 * @PAGE_MIGRATE_EOTHER: others, such as E2BIG
 * @PAGE_MIGRATE_NR_ERRORS: number of the above
 */
enum page_migrate_error {
	PAGE_MIGRATE_EPERM,
	PAGE_MIGRATE_ESRCH,
	PAGE_MIGRATE_EINTR,
	PAGE_MIGRATE_EBADF,
	PAGE_MIGRATE_ENOMEM,
	PAGE_MIGRATE_EFAULT,
	PAGE_MIGRATE_ENODEV,
	PAGE_MIGRATE_EINVAL,
	PAGE_MIGRATE_EOTHER,
	PAGE_MIGRATE_NR_ERRORS
};

/**
 * struct page_migrate_counters - work since boot, of all callers
 * @size: size of this structure, in bytes
 * @flags: 0
 * @phys_calls: accepted calls of PAGE_MIGRATE_PHYS
 * @phys_entries: addresses in their tables
 * @phys_ignored: addresses that were skipped
 * @range_calls: accepted calls of PAGE_MIGRATE_RANGE
 * @successful: base pages migrated
 * @failed: base pages that could not be migrated, the sum of @failures
 * @refused: rejected calls: missing privilege or invalid argument
 * @aborted: accepted calls that ended early with an error
 * @phys_usec: time in the calls of @phys_calls, in microseconds
 * @range_usec: time in the calls of @range_calls, in microseconds
 * @failures: @failed by &enum page_migrate_failure; unused elements are 0
 * @errors: @refused and @aborted by &enum page_migrate_error; unused elements
 *	are 0
 *
 * A call is accepted when all of its arguments are valid, other than the
 * contents of its table or range. The same counters are in
 * /sys/kernel/mm/ferry/service/.
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
	__aligned_u64 phys_usec;
	__aligned_u64 range_usec;
	__aligned_u64 failures[8];
	__aligned_u64 errors[16];
};

/**
 * struct page_migrate_matrix - pages migrated since boot, by pair of nodes
 * @size: size of this structure, in bytes
 * @flags: 0
 * @table: pointer to @nodes * @nodes numbers, each a __u64: base pages migrated
 *	from node f to node t, at index f * @nodes + t
 * @nodes: rows and columns of @table; written: those that the kernel needs, one
 *	more than the highest possible node
 *
 * Pages of a list that is being migrated are included. Those that turn out not
 * to be migrated are subtracted then.
 */
struct page_migrate_matrix {
	__u32 size;
	__u32 flags;
	__aligned_u64 table;
	__aligned_u64 nodes;
};

#define PAGE_MIGRATE_IOC	0xBC

/*
 * Errors of both calls that migrate. Each ends the call:
 *
 * ENODEV: the node has no memory, or the cpuset of the caller or of the
 *	process does not allow it
 * ESRCH: there is no such process, or it has exited
 * EPERM: the caller may not move the memory of that process, or lacks a
 *	privilege
 * EINVAL: an argument is invalid, or the process has no memory of its own
 * EFAULT: the structure or the table is not readable, or not writable
 * ENOMEM: no memory for the call itself; or no memory on the node, and no
 *	later page that was tried could be migrated
 * EBADF: with PAGE_MIGRATE_PIDFD, @pid is not a pidfd
 * EINTR: the caller has a fatal signal pending
 */

/*
 * Needs CAP_SYS_ADMIN in the initial user namespace, both for the task that
 * opened the device and for the caller (EPERM), and the permissions of
 * PAGE_MIGRATE_RANGE. EINVAL: the table is too long.
 */
#define PAGE_MIGRATE_PHYS	_IO(PAGE_MIGRATE_IOC, 0)

/*
 * Needs the permissions of move_pages(2): the caller may read the state of the
 * process with ptrace(2) (PTRACE_MODE_READ_REALCREDS), or is the process.
 * EFAULT: the range is not in user space, or has a hole.
 */
#define PAGE_MIGRATE_RANGE	_IO(PAGE_MIGRATE_IOC, 1)

/* Needs only the open device. The members after @flags are written. */
#define PAGE_MIGRATE_COUNTERS	_IO(PAGE_MIGRATE_IOC, 2)

/*
 * Needs only the open device. EINVAL: @flags is not 0; ENOSPC: @nodes, which is
 * written, was too small; EFAULT: the structure or the table is not readable, or
 * not writable. With more nodes than the kernel needs the table has the kernel's
 * number of rows and columns.
 */
#define PAGE_MIGRATE_MATRIX	_IO(PAGE_MIGRATE_IOC, 3)

#endif /* _UAPI_LINUX_PAGE_MIGRATE_H */
