/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The two calls of the page migration service of 2004, with their original
 * signatures and errors, on top of the ioctls of /dev/page_migrate.
 *
 * Needs linux/page_migrate.h, which `make headers_install` of a kernel with
 * Ferry installs (c-glue/include/uapi/ in Ferry), and no library. Compiles as
 * C11, and as C++11 and later. Any thread may make the calls.
 *
 * Both return 0, even if some pages could not be migrated, or -1 with errno set
 * if a major error ended the call:
 *
 * ENODEV: illegal destination node: it has no memory, or a cpuset forbids it
 * ESRCH: no process of @pid can be found
 * EPERM: no permission
 * EINVAL: invalid parameters
 * EFAULT: illegal address: in the range, or of @table or @p
 * ENOMEM: cannot allocate memory
 *
 * Pages migrated before the error stay on the new node. Errors beyond the list
 * of 2004: ENOSYS if the kernel does not have the service (in 2004, the system
 * call was missing); EINTR if the caller is being killed; EMFILE and ENFILE if
 * no file descriptor is free to open the device.
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

/* sys/types.h defines this too, but not in strict ISO C. */
typedef char *caddr_t;

/* Strict ISO C has no O_CLOEXEC. The device is open only during a call. */
#ifdef O_CLOEXEC
#define __PAGE_MIGRATE_OPEN	(O_RDONLY | O_CLOEXEC)
#else
#define __PAGE_MIGRATE_OPEN	O_RDONLY
#endif

/* A physical address; any within a page names it. 8 bytes also on 32 bits. */
typedef uint64_t phaddr_t;

/* Base pages. Those of a large folio migrate, and count, together. */
struct _un_success_count_ {
	unsigned int successful;	/* Pages successfully migrated */
	unsigned int failed;		/* Minor failures */
};

static inline unsigned int __page_migrate_count(uint64_t pages)
{
	return pages < UINT_MAX ? (unsigned int)pages : UINT_MAX;
}

/* Makes one ioctl. Sets errno as the service of 2004 did. */
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
	/* ENOTTY: the device is not the service. */
	error = ret < 0 && errno == ENOTTY ? ENOSYS : errno;
	close(device);
	errno = error;
	return ret;
}

/**
 * migrate_ph_pages() - migrate pages to another NUMA node
 * @table: physical addresses of the pages
 * @length: number of addresses, up to PAGE_MIGRATE_MAX_TABLE (else EINVAL)
 * @node: the destination node
 * @p: the counts; 0 if the kernel did not start the call
 * @pid: the process that maps the pages, 0 for the caller. Other pages, and
 *	addresses without a page, are silently ignored.
 *
 * Needs CAP_SYS_ADMIN in the initial user namespace, and for another process
 * the same permission as migrate_virt_addr_range().
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
 * @address: start of the range
 * @length: length of the range in bytes
 * @node: the destination node
 * @p: the counts; 0 if the kernel did not start the call
 * @pid: the process that owns the range, 0 for the caller
 *
 * Pages that unrelated processes map too count as failed. For another process
 * the caller needs the same permission as for move_pages(2).
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
