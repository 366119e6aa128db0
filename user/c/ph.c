// SPDX-License-Identifier: GPL-2.0-only
/* Migrates every second one of its pages by physical address. Needs root. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "demo.h"

/* Of an entry of /proc/self/pagemap */
#define PRESENT		(1ULL << 63)
#define FRAME		((1ULL << 55) - 1)

/* Returns the physical address of a page, 0 if it has none. */
static phaddr_t physical(int pagemap, const char *page)
{
	off_t at = (uintptr_t)page / demo_page_size() * sizeof(uint64_t);
	uint64_t entry;

	if (pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry))
		demo_fail("reading /proc/self/pagemap");
	return entry & PRESENT ? (entry & FRAME) * demo_page_size() : 0;
}

int main(int argc, char **argv)
{
	size_t pages = argc > 1 ? demo_number(argv[1], "PAGES", DEMO_PAGES) : 64;
	int node = argc > 2 ? demo_number(argv[2], "NODE", INT_MAX) : 1;
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	struct _un_success_count_ count;
	phaddr_t table[PAGE_MIGRATE_MAX_TABLE];
	struct demo_places places;
	size_t i, length = 0;
	char *memory;

	if (argc > 3 || pages > 2 * PAGE_MIGRATE_MAX_TABLE) {
		fprintf(stderr, "usage: %s [PAGES [NODE]]\nPAGES: up to %d\n", argv[0],
			2 * PAGE_MIGRATE_MAX_TABLE);
		return EXIT_FAILURE;
	}
	if (pagemap < 0)
		demo_fail("opening /proc/self/pagemap");
	memory = demo_memory(pages);
	demo_find(0, memory, pages, &places);
	demo_print("before: ", &places);
	for (i = 0; i < pages; i += 2) {
		phaddr_t address = physical(pagemap, memory + i * demo_page_size());

		if (address)
			table[length++] = address;
	}
	if (migrate_ph_pages(table, length, node, &count, 0))
		demo_fail("migrate_ph_pages");
	demo_count(&count);
	demo_find(0, memory, pages, &places);
	demo_print("after:  ", &places);
	demo_check(memory, pages);
	return EXIT_SUCCESS;
}
