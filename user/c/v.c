// SPDX-License-Identifier: GPL-2.0-only
/* Migrates the middle half of its address range. */
#include <stdio.h>
#include <stdlib.h>

#include "demo.h"

int main(int argc, char **argv)
{
	size_t pages = argc > 1 ? demo_number(argv[1], "PAGES", DEMO_PAGES) : 64;
	int node = argc > 2 ? demo_number(argv[2], "NODE", INT_MAX) : 1;
	struct _un_success_count_ count;
	struct demo_places places;
	char *memory;

	if (argc > 3) {
		fprintf(stderr, "usage: %s [PAGES [NODE]]\n", argv[0]);
		return EXIT_FAILURE;
	}
	memory = demo_memory(pages);
	demo_find(0, memory, pages, &places);
	demo_print("before: ", &places);
	if (migrate_virt_addr_range(memory + pages / 4 * demo_page_size(),
				    (pages + 1) / 2 * demo_page_size(), node, &count, 0))
		demo_fail("migrate_virt_addr_range");
	demo_count(&count);
	demo_find(0, memory, pages, &places);
	demo_print("after:  ", &places);
	demo_check(memory, pages);
	return EXIT_SUCCESS;
}
