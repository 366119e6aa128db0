// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prints the layout and constants of linux/page_migrate.h and page_migrate.h,
 * to compare with the crate. Also checks the signatures of the two calls of
 * 2004.
 */
#include "page_migrate.h"

#include <stdio.h>

int (*const ph)(const phaddr_t *const, const size_t, const int,
		struct _un_success_count_ *const, const pid_t) = migrate_ph_pages;
int (*const virt)(const caddr_t, const size_t, const int,
		  struct _un_success_count_ *const, const pid_t) = migrate_virt_addr_range;

#define SIZE(type)		printf(#type " %zu\n", sizeof(type))
#define MEMBER(type, member)	printf(#type "." #member " %zu\n", offsetof(struct type, member))
#define NUMBER(name)		printf(#name " %lu\n", (unsigned long)(name))

int main(void)
{
	struct _un_success_count_ count = { 7, 7 };

	SIZE(phaddr_t);
	SIZE(struct page_migrate_phys);
	MEMBER(page_migrate_phys, size);
	MEMBER(page_migrate_phys, flags);
	MEMBER(page_migrate_phys, table);
	MEMBER(page_migrate_phys, length);
	MEMBER(page_migrate_phys, node);
	MEMBER(page_migrate_phys, pid);
	MEMBER(page_migrate_phys, successful);
	MEMBER(page_migrate_phys, failed);
	SIZE(struct page_migrate_range);
	MEMBER(page_migrate_range, size);
	MEMBER(page_migrate_range, flags);
	MEMBER(page_migrate_range, address);
	MEMBER(page_migrate_range, length);
	MEMBER(page_migrate_range, node);
	MEMBER(page_migrate_range, pid);
	MEMBER(page_migrate_range, successful);
	MEMBER(page_migrate_range, failed);
	SIZE(struct page_migrate_counters);
	MEMBER(page_migrate_counters, size);
	MEMBER(page_migrate_counters, flags);
	MEMBER(page_migrate_counters, phys_calls);
	MEMBER(page_migrate_counters, phys_entries);
	MEMBER(page_migrate_counters, phys_ignored);
	MEMBER(page_migrate_counters, range_calls);
	MEMBER(page_migrate_counters, successful);
	MEMBER(page_migrate_counters, failed);
	MEMBER(page_migrate_counters, refused);
	MEMBER(page_migrate_counters, aborted);
	MEMBER(page_migrate_counters, phys_usec);
	MEMBER(page_migrate_counters, range_usec);
	MEMBER(page_migrate_counters, failures);
	MEMBER(page_migrate_counters, errors);
	SIZE(struct page_migrate_matrix);
	MEMBER(page_migrate_matrix, size);
	MEMBER(page_migrate_matrix, flags);
	MEMBER(page_migrate_matrix, table);
	MEMBER(page_migrate_matrix, nodes);
	NUMBER(PAGE_MIGRATE_NR_FAILURES);
	NUMBER(PAGE_MIGRATE_NR_ERRORS);
	NUMBER(PAGE_MIGRATE_MAX_TABLE);
	NUMBER(PAGE_MIGRATE_MAX_LONG_TABLE);
	NUMBER(PAGE_MIGRATE_SHARED);
	NUMBER(PAGE_MIGRATE_PIDFD);
	NUMBER(PAGE_MIGRATE_HOLES);
	NUMBER(PAGE_MIGRATE_MT);
	NUMBER(PAGE_MIGRATE_LONG);
	NUMBER(PAGE_MIGRATE_PHYS);
	NUMBER(PAGE_MIGRATE_RANGE);
	NUMBER(PAGE_MIGRATE_COUNTERS);
	NUMBER(PAGE_MIGRATE_MATRIX);
	/* Without a place for the counts both calls fail, and try nothing. */
	if (ph(NULL, 0, 0, NULL, 0) != -1 || errno != EFAULT)
		return 1;
	errno = 0;
	if (virt(NULL, 0, 0, NULL, 0) != -1 || errno != EFAULT)
		return 1;
	/* An empty range succeeds, unless the kernel has no service. */
	if (virt(NULL, 0, 0, &count, 0) == -1 && errno != ENOSYS)
		return 1;
	return count.successful || count.failed;
}
