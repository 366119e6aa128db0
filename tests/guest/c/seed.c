// SPDX-License-Identifier: GPL-2.0-only
/* The two calls of page_migrate.h, as functions that Rust can call. */
#include "page_migrate.h"

int seed_ph_pages(const phaddr_t *table, size_t length, int node,
		  struct _un_success_count_ *p, int pid);
int seed_virt_addr_range(uintptr_t address, size_t length, int node,
			 struct _un_success_count_ *p, int pid);

int seed_ph_pages(const phaddr_t *table, size_t length, int node,
		  struct _un_success_count_ *p, int pid)
{
	return migrate_ph_pages(table, length, node, p, pid);
}

int seed_virt_addr_range(uintptr_t address, size_t length, int node,
			 struct _un_success_count_ *p, int pid)
{
	return migrate_virt_addr_range((caddr_t)address, length, node, p, pid);
}
