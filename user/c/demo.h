/* SPDX-License-Identifier: GPL-2.0-only */
/* Functions that the programs share: memory to migrate, and output. */
#ifndef DEMO_H
#define DEMO_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "page_migrate.h"

/* As many as any kernel has */
#define DEMO_NODES	1024

/* Most pages of the programs' own memory */
#define DEMO_PAGES	(1UL << 20)

struct demo_places {
	size_t on[DEMO_NODES];
	size_t absent;
};

/* Each of these ends the program, with a message, if it fails. */
void __attribute__((noreturn)) demo_fail(const char *what);
unsigned long demo_number(const char *text, const char *what, unsigned long max);
size_t demo_page_size(void);
char *demo_memory(size_t pages);
void demo_check(const char *memory, size_t pages);
void demo_find(pid_t pid, const char *memory, size_t pages, struct demo_places *places);

void demo_print(const char *label, const struct demo_places *places);
void demo_count(const struct _un_success_count_ *count);

#endif /* DEMO_H */
