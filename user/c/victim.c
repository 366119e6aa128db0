// SPDX-License-Identifier: GPL-2.0-only
/*
 * Holds memory for vmig to migrate, and prints vmig's command, except for the
 * node. Checks the contents ten times a second, and prints where the pages are
 * whenever that has changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "demo.h"

int main(int argc, char **argv)
{
	size_t pages = argc > 1 ? demo_number(argv[1], "PAGES", DEMO_PAGES) : 64;
	unsigned long checks = argc > 2 ? 10 * demo_number(argv[2], "SECONDS", INT_MAX / 10) :
					  ULONG_MAX;
	struct demo_places now, before = { 0 };
	char *memory;

	if (argc > 3) {
		fprintf(stderr, "usage: %s [PAGES [SECONDS]]\n", argv[0]);
		return EXIT_FAILURE;
	}
	memory = demo_memory(pages);
	printf("vmig %d %p %#zx\n", getpid(), (void *)memory, pages * demo_page_size());
	while (checks--) {
		demo_find(0, memory, pages, &now);
		demo_check(memory, pages);
		/* Pages that are being migrated are on no node. */
		if (!now.absent && memcmp(&now, &before, sizeof(now))) {
			demo_print("victim: ", &now);
			before = now;
		}
		usleep(100000);
	}
	return EXIT_SUCCESS;
}
