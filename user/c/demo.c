// SPDX-License-Identifier: GPL-2.0-only
/* Memory to migrate, the nodes of its pages, and output. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "demo.h"

void demo_fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(EXIT_FAILURE);
}

/* Parses a decimal, octal or hexadecimal number. */
unsigned long demo_number(const char *text, const char *what, unsigned long max)
{
	unsigned long number;
	char *end;

	errno = 0;
	number = strtoul(text, &end, 0);
	if (end == text || *end || strchr(text, '-'))
		errno = EINVAL;
	else if (number > max)
		errno = ERANGE;
	if (errno)
		demo_fail(what);
	return number;
}

size_t demo_page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

static uint64_t demo_content(size_t word)
{
	return (word + 1) * 0x9e3779b97f4a7c15ULL;
}

/* Returns base pages with a different content in each word. */
char *demo_memory(size_t pages)
{
	size_t i, bytes = pages * demo_page_size();
	uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (words == MAP_FAILED)
		demo_fail("no memory");
	/* Large folios migrate as a whole. EINVAL: the kernel has none. */
	if (madvise(words, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		demo_fail("madvise");
	for (i = 0; i < bytes / sizeof(*words); i++)
		words[i] = demo_content(i);
	return (char *)words;
}

/* Checks that each word has its content. */
void demo_check(const char *memory, size_t pages)
{
	const volatile uint64_t *words = (const volatile uint64_t *)memory;
	size_t i;

	errno = EIO;
	for (i = 0; i < pages * demo_page_size() / sizeof(*words); i++)
		if (words[i] != demo_content(i))
			demo_fail("the content has changed");
}

/* Finds the nodes of the pages of a process, 0 for the caller. */
void demo_find(pid_t pid, const char *memory, size_t pages, struct demo_places *places)
{
	const char **addresses = calloc(pages + 1, sizeof(*addresses));
	int *status = calloc(pages + 1, sizeof(*status));
	size_t i;

	if (!addresses || !status)
		demo_fail("no memory");
	for (i = 0; i < pages; i++)
		addresses[i] = memory + i * demo_page_size();
	if (syscall(SYS_move_pages, pid, pages, addresses, NULL, status, 0))
		demo_fail("querying the nodes of the pages");
	memset(places, 0, sizeof(*places));
	for (i = 0; i < pages; i++) {
		if (status[i] < 0)
			places->absent++;
		else if (status[i] < DEMO_NODES)
			places->on[status[i]]++;
	}
	free(addresses);
	free(status);
}

void demo_print(const char *label, const struct demo_places *places)
{
	const char *before = "";
	int node;

	fputs(label, stdout);
	for (node = 0; node < DEMO_NODES; node++) {
		if (!places->on[node])
			continue;
		printf("%s%zu on node %d", before, places->on[node], node);
		before = ", ";
	}
	if (places->absent)
		printf("%s%zu absent", before, places->absent);
	putchar('\n');
	fflush(stdout);
}

void demo_count(const struct _un_success_count_ *count)
{
	printf("%u pages migrated, %u failed\n", count->successful, count->failed);
}
