// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/page_migrate: migration by physical address and of a range of addresses,
 * the rights that it needs, and its counters.
 */
#include "kselftest_harness.h"
#include <linux/page_migrate.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include "ferry_test.h"

/* Without PAGE_MIGRATE_LONG a table has no more. */
#define PAGES		((size_t)PAGE_MIGRATE_MAX_TABLE)
#define NOBODY		65534
/* Not a result of these tests. */
#define UNSET		~0ULL

FIXTURE(ferry_service)
{
	struct ferry_nodes nodes;
	struct ferry_range range;
	int device;
};

FIXTURE_SETUP(ferry_service)
{
	ferry_begin_test();
	self->device = open("/dev/page_migrate", O_RDWR);
	if (self->device < 0)
		SKIP(return, "no CONFIG_FERRY_SERVICE, or not root");
	if (!ferry_find_nodes(&self->nodes))
		SKIP(return, "fewer than two nodes with memory");
	ASSERT_TRUE(ferry_small(&self->range, PAGES * psize()));
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.from, MPOL_MF_MOVE));
}

FIXTURE_TEARDOWN(ferry_service)
{
	if (self->range.mem)
		munmap(self->range.mem, self->range.len);
	if (self->device >= 0)
		close(self->device);
}

/* Writes the physical address of each page. It may change at any time. */
static bool find_addresses(const struct ferry_range *range, uint64_t *table)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	bool found = pagemap >= 0;
	size_t nr;

	for (nr = 0; found && nr < ferry_count(range); nr++) {
		unsigned long pfn = pagemap_get_pfn(pagemap, range->mem +
							     nr * psize());

		found = pfn && pfn != -1ul;
		table[nr] = (uint64_t)pfn * psize();
	}
	if (pagemap >= 0)
		close(pagemap);
	return found;
}

/* Pages move by their physical addresses, and are counted. */
TEST_F_TIMEOUT(ferry_service, by_address, 120)
{
	struct page_migrate_counters before = { .size = sizeof(before) };
	struct page_migrate_counters after = { .size = sizeof(after) };
	struct page_migrate_phys call = {
		.size = sizeof(call), .length = PAGES, .node = self->nodes.to,
	};
	uint64_t *table = calloc(PAGES, sizeof(*table)), moved = 0;
	int try;

	ASSERT_NE(table, NULL);
	call.table = (uintptr_t)table;
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_COUNTERS, &before), 0);
	for (try = 0; moved < PAGES && try < FERRY_TRIES; try++) {
		ASSERT_TRUE(find_addresses(&self->range, table));
		call.successful = UNSET;
		ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_PHYS, &call), 0);
		moved += call.successful;
	}
	ASSERT_EQ(moved, PAGES);
	ASSERT_TRUE(ferry_on(&self->range, self->nodes.to));
	ASSERT_TRUE(ferry_intact(self->range.mem, self->range.len));
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_COUNTERS, &after), 0);
	ASSERT_GE(after.successful, before.successful + PAGES);
	ASSERT_GE(after.phys_calls, before.phys_calls + try);
	free(table);
}

/* A page of another process, and an address without memory, are skipped. */
TEST_F_TIMEOUT(ferry_service, others_are_ignored, 120)
{
	uint64_t table[] = { 0, ~0ULL };
	struct page_migrate_phys call = {
		.size = sizeof(call), .table = (uintptr_t)table,
		.length = ARRAY_SIZE(table), .node = self->nodes.to,
		.successful = UNSET, .failed = UNSET,
	};
	struct ferry_range theirs;
	int told[2], go_on[2], exited;
	pid_t child;
	char byte;

	ASSERT_EQ(pipe(told), 0);
	ASSERT_EQ(pipe(go_on), 0);
	child = fork();
	ASSERT_GE(child, 0);
	if (!child) {
		close(go_on[1]);
		if (!ferry_small(&theirs, psize()) ||
		    !ferry_move(&theirs, self->nodes.from, MPOL_MF_MOVE) ||
		    !find_addresses(&theirs, table) ||
		    write(told[1], table, sizeof(*table)) != sizeof(*table))
			_exit(1);
		/* Until the parent closes its end. */
		_exit(read(go_on[0], &byte, 1) != 0 ||
		      !ferry_on(&theirs, self->nodes.from));
	}
	ASSERT_EQ(read(told[0], table, sizeof(*table)), sizeof(*table));
	ASSERT_NE(table[0], 0);
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_PHYS, &call), 0);
	ASSERT_EQ(call.successful, 0);
	ASSERT_EQ(call.failed, 0);
	close(go_on[1]);
	ASSERT_EQ(waitpid(child, &exited, 0), child);
	ASSERT_EQ(exited, 0);
}

/* A hole in the range is an error, unless the caller expects holes. */
TEST_F_TIMEOUT(ferry_service, by_range, 120)
{
	struct ferry_range half = self->range;
	struct page_migrate_range call = {
		.size = sizeof(call), .address = (uintptr_t)self->range.mem,
		.length = self->range.len, .node = self->nodes.to,
		.successful = UNSET,
	};
	uint64_t moved = 0;
	int try;

	half.len /= 2;
	ASSERT_EQ(munmap(half.mem + half.len, psize()), 0);
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &call), -1);
	ASSERT_EQ(errno, EFAULT);
	moved += call.successful;
	call.flags = PAGE_MIGRATE_HOLES;
	for (try = 0; moved < PAGES - 1 && try < FERRY_TRIES; try++) {
		call.successful = UNSET;
		ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &call), 0);
		moved += call.successful;
	}
	ASSERT_EQ(moved, PAGES - 1);
	ASSERT_TRUE(ferry_on(&half, self->nodes.to));
	ASSERT_TRUE(ferry_intact(half.mem, half.len));
}

/*
 * Physical addresses need CAP_SYS_ADMIN, ranges of other processes the rights
 * of move_pages(2), and ranges of one's own memory none.
 */
TEST_F_TIMEOUT(ferry_service, rights, 120)
{
	uint64_t address = 0;
	struct page_migrate_phys phys = {
		.size = sizeof(phys), .table = (uintptr_t)&address,
		.length = 1, .node = self->nodes.to,
	};
	struct page_migrate_range range = {
		.size = sizeof(range), .address = (uintptr_t)self->range.mem,
		.length = self->range.len, .node = self->nodes.to,
	};

	if (geteuid())
		SKIP(return, "not root");
	ASSERT_EQ(setuid(NOBODY), 0);
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_PHYS, &phys), -1);
	ASSERT_EQ(errno, EPERM);
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &range), 0);
	/* Memory of init. */
	range.pid = 1;
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &range), -1);
	ASSERT_EQ(errno, EPERM);
}

/* Structures of other versions: shorter, and longer with members that are set. */
TEST_F(ferry_service, sizes)
{
	struct {
		struct page_migrate_range range;
		uint64_t later;
	} call = {
		.range = {
			.address = (uintptr_t)self->range.mem,
			.length = psize(), .node = self->nodes.to,
		},
	};

	call.range.size = sizeof(call.range) - 1;
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &call), -1);
	ASSERT_EQ(errno, EINVAL);
	call.range.size = sizeof(call);
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &call), 0);
	call.later = 1;
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &call), -1);
	ASSERT_EQ(errno, E2BIG);
	call.range.size = sizeof(call.range);
	call.range.flags = 1U << 31;
	ASSERT_EQ(ioctl(self->device, PAGE_MIGRATE_RANGE, &call), -1);
	ASSERT_EQ(errno, EINVAL);
}

TEST_HARNESS_MAIN
