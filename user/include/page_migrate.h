/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The two calls of the page migration service of 2004, with the signatures and
 * the errors that they had then, over the ioctls of /dev/page_migrate.
 *
 * Needs linux/page_migrate.h, which `make headers_install` of a kernel with Ferry
 * installs (c-glue/include/uapi/ in Ferry), and no library. C11, or C++11 and
 * later. Both calls may be made by any thread.
 *
 * Both return 0, also if some pages could not be migrated; or -1 with errno set,
 * where a major error has ended the call:
 *
 * ENODEV: illegal destination node: it has no memory, or a cpuset forbids it
 * ESRCH: no process of @pid can be found
 * EPERM: no permission
 * EINVAL: invalid parameters
 * EFAULT: illegal address: of the range, of @table, or of @p
 * ENOMEM: cannot allocate memory
 *
 * What was migrated before stays where it is. Beyond the list of 2004: ENOSYS,
 * where the kernel has no such service (then a system call was missing); EINTR,
 * where the caller is being killed; EMFILE and ENFILE, where the device cannot
 * be opened for want of a file descriptor.
 */
#ifndef _PAGE_MIGRATE_H
#define _PAGE_MIGRATE_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <linux/page_migrate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As sys/types.h has it, but not in strict ISO C. */
typedef char *caddr_t;

/* Strict ISO C has no O_CLOEXEC; the device is open during a call alone. */
#ifdef O_CLOEXEC
#define __PAGE_MIGRATE_OPEN	(O_RDONLY | O_CLOEXEC)
#else
#define __PAGE_MIGRATE_OPEN	O_RDONLY
#endif

/* A physical address; any within a page names it. 8 bytes also for 32 bits. */
typedef uint64_t phaddr_t;

/* Base pages; those of a large folio are migrated, and counted, together. */
struct _un_success_count_ {
	unsigned int successful;	/* Pages successfully migrated */
	unsigned int failed;		/* Minor failures */
};

static inline unsigned int __page_migrate_count(uint64_t pages)
{
	return pages < UINT_MAX ? (unsigned int)pages : UINT_MAX;
}

/* One call of the device, which leaves errno as the seed had it. */
static inline int __page_migrate_call(unsigned long request, void *call)
{
	int device = open("/dev/page_migrate", __PAGE_MIGRATE_OPEN);
	int ret, error;

	if (device < 0) {
		if (errno == ENOENT || errno == ENXIO || errno == ENODEV)
			errno = ENOSYS;
		else if (errno == EACCES)
			errno = EPERM;
		return -1;
	}
	ret = ioctl(device, request, call);
	/* ENOTTY: that is something else. */
	error = ret < 0 && errno == ENOTTY ? ENOSYS : errno;
	close(device);
	errno = error;
	return ret;
}

/**
 * migrate_ph_pages() - migrate pages to another NUMA node
 * @table: their physical addresses
 * @length: how many, up to PAGE_MIGRATE_MAX_TABLE (EINVAL)
 * @node: the node they are to go to
 * @p: what became of them; written whenever the kernel took the call
 * @pid: the process whose pages they are, 0 for the caller: all other pages, and
 *	addresses without one, are silently ignored
 *
 * Needs CAP_SYS_ADMIN in the initial user namespace, and for the pages of
 * another process what migrate_virt_addr_range() needs.
 */
static inline int migrate_ph_pages(const phaddr_t *const table, const size_t length,
				   const int node, struct _un_success_count_ *const p,
				   const pid_t pid)
{
	struct page_migrate_phys call;
	int ret;

	if (!p) {
		errno = EFAULT;
		return -1;
	}
	memset(&call, 0, sizeof(call));
	call.size = sizeof(call);
	call.table = (uintptr_t)table;
	call.length = length;
	call.node = node;
	call.pid = pid;
	ret = __page_migrate_call(PAGE_MIGRATE_PHYS, &call);
	p->successful = __page_migrate_count(call.successful);
	p->failed = __page_migrate_count(call.failed);
	return ret;
}

/**
 * migrate_virt_addr_range() - migrate a virtual address range to another node
 * @address: where it begins
 * @length: its bytes
 * @node: the node its pages are to go to
 * @p: what became of them; written whenever the kernel took the call
 * @pid: the process whose range it is, 0 for the caller
 *
 * Pages that unrelated processes have mapped as well are counted as failed. For
 * another process the caller needs what move_pages(2) needs.
 */
static inline int migrate_virt_addr_range(const caddr_t address, const size_t length,
					  const int node,
					  struct _un_success_count_ *const p,
					  const pid_t pid)
{
	struct page_migrate_range call;
	int ret;

	if (!p) {
		errno = EFAULT;
		return -1;
	}
	memset(&call, 0, sizeof(call));
	call.size = sizeof(call);
	call.address = (uintptr_t)address;
	call.length = length;
	call.node = node;
	call.pid = pid;
	ret = __page_migrate_call(PAGE_MIGRATE_RANGE, &call);
	p->successful = __page_migrate_count(call.successful);
	p->failed = __page_migrate_count(call.failed);
	return ret;
}

#ifdef __cplusplus
}
#endif

#endif /* _PAGE_MIGRATE_H */
