// SPDX-License-Identifier: GPL-2.0-only
/* Migrates all memory of another process, for example of victim, or a range. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "demo.h"

/* Migrates all mappings of a process. Those without migratable pages count 0. */
static void all_mappings(pid_t pid, int node, struct _un_success_count_ *count)
{
	struct _un_success_count_ one;
	unsigned long start, end;
	char path[32], *line = NULL;
	size_t room = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "r");
	if (!maps)
		demo_fail(path);
	while (getline(&line, &room, maps) > 0) {
		if (sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		/* EFAULT: it is gone by now, or not in user space (vsyscall). */
		if (migrate_virt_addr_range((caddr_t)start, end - start, node, &one, pid) &&
		    errno != EFAULT)
			demo_fail("migrate_virt_addr_range");
		count->successful += one.successful;
		count->failed += one.failed;
	}
	free(line);
	fclose(maps);
}

int main(int argc, char **argv)
{
	struct _un_success_count_ count = { 0 };
	struct demo_places places;
	pid_t pid;
	int node;

	if (argc != 3 && argc != 5) {
		fprintf(stderr, "usage: %s PID NODE\n       %s PID ADDRESS LENGTH NODE\n",
			argv[0], argv[0]);
		return EXIT_FAILURE;
	}
	pid = demo_number(argv[1], "PID", INT_MAX);
	node = demo_number(argv[argc - 1], "NODE", INT_MAX);
	if (argc == 3) {
		all_mappings(pid, node, &count);
		demo_count(&count);
	} else {
		char *start = (char *)demo_number(argv[2], "ADDRESS", ULONG_MAX);
		size_t length = demo_number(argv[3], "LENGTH", LONG_MAX);
		size_t inside = (uintptr_t)start % demo_page_size();
		size_t pages = (inside + length + demo_page_size() - 1) / demo_page_size();

		demo_find(pid, start, pages, &places);
		demo_print("before: ", &places);
		if (migrate_virt_addr_range(start, length, node, &count, pid))
			demo_fail("migrate_virt_addr_range");
		demo_count(&count);
		demo_find(pid, start, pages, &places);
		demo_print("after:  ", &places);
	}
	return EXIT_SUCCESS;
}
