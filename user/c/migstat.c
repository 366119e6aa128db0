// SPDX-License-Identifier: GPL-2.0-only
/* Prints the counters of the service, and the pages by pair of nodes. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "demo.h"

static const char * const failures[PAGE_MIGRATE_NR_FAILURES] = {
	[PAGE_MIGRATE_FAILED_SHARED]	= "shared",
	[PAGE_MIGRATE_FAILED_UNMOVABLE]	= "unmovable",
	[PAGE_MIGRATE_FAILED_BUSY]	= "busy",
	[PAGE_MIGRATE_FAILED_MOVE]	= "move",
};

static const char * const errors[PAGE_MIGRATE_NR_ERRORS] = {
	[PAGE_MIGRATE_EPERM]	= "EPERM",
	[PAGE_MIGRATE_ESRCH]	= "ESRCH",
	[PAGE_MIGRATE_EINTR]	= "EINTR",
	[PAGE_MIGRATE_EBADF]	= "EBADF",
	[PAGE_MIGRATE_ENOMEM]	= "ENOMEM",
	[PAGE_MIGRATE_EFAULT]	= "EFAULT",
	[PAGE_MIGRATE_ENODEV]	= "ENODEV",
	[PAGE_MIGRATE_EINVAL]	= "EINVAL",
	[PAGE_MIGRATE_EOTHER]	= "other",
};

static void counters(int device)
{
	struct page_migrate_counters now = { .size = sizeof(now) };
	int i;

	if (ioctl(device, PAGE_MIGRATE_COUNTERS, &now))
		demo_fail("PAGE_MIGRATE_COUNTERS");
#define PRINT(name)	printf("%-14s%12" PRIu64 "\n", #name, (uint64_t)now.name)
	PRINT(phys_calls);
	PRINT(phys_entries);
	PRINT(phys_ignored);
	PRINT(phys_usec);
	PRINT(range_calls);
	PRINT(range_usec);
	PRINT(successful);
	PRINT(failed);
	for (i = 0; i < PAGE_MIGRATE_NR_FAILURES; i++)
		printf("  %-12s%12" PRIu64 "\n", failures[i], (uint64_t)now.failures[i]);
	PRINT(refused);
	PRINT(aborted);
	for (i = 0; i < PAGE_MIGRATE_NR_ERRORS; i++)
		printf("  %-12s%12" PRIu64 "\n", errors[i], (uint64_t)now.errors[i]);
}

static void matrix(int device)
{
	struct page_migrate_matrix call = { .size = sizeof(call) };
	uint64_t *table, from, to;

	/* Only asks how large the table must be. */
	if (!ioctl(device, PAGE_MIGRATE_MATRIX, &call) || errno != ENOSPC)
		demo_fail("PAGE_MIGRATE_MATRIX");
	table = calloc(call.nodes * call.nodes, sizeof(*table));
	if (!table)
		demo_fail("no memory");
	call.table = (uintptr_t)table;
	if (ioctl(device, PAGE_MIGRATE_MATRIX, &call))
		demo_fail("PAGE_MIGRATE_MATRIX");
	for (from = 0; from < call.nodes; from++)
		for (to = 0; to < call.nodes; to++)
			if (table[from * call.nodes + to])
				printf("node %" PRIu64 " to %" PRIu64 ": %" PRIu64 " pages\n",
				       from, to, table[from * call.nodes + to]);
	free(table);
}

int main(int argc, char **argv)
{
	int device;

	if (argc > 1) {
		fprintf(stderr, "usage: %s\n", argv[0]);
		return EXIT_FAILURE;
	}
	device = open("/dev/page_migrate", O_RDONLY);
	if (device < 0)
		demo_fail("opening /dev/page_migrate");
	counters(device);
	matrix(device);
	close(device);
	return EXIT_SUCCESS;
}
