// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: parts of move_pages(2), for crews.
 *
 * Locks: ferry_untag() takes the mmap lock of the target, for reading.
 */
#include <linux/ferry_glue.h>
#include <linux/mmap_lock.h>
#include <linux/nodemask.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

/* struct migration_target_control */
#include "internal.h"

/* Returns an address without its tag. */
unsigned long ferry_untag(struct mm_struct *mm, unsigned long addr)
{
	guard(mmap_read_lock)(mm);

	return untagged_addr_remote(mm, addr);
}

/* Checks whether pages may be migrated to a node, as do_pages_move() does. */
int ferry_check_node(int node, const nodemask_t *allowed)
{
	if (node < 0 || node >= MAX_NUMNODES)
		return -ENODEV;
	if (!node_state(node, N_MEMORY))
		return -ENODEV;
	if (!node_isset(node, *allowed))
		return -EACCES;
	return 0;
}

static struct migration_target_control ferry_target(int node)
{
	return (struct migration_target_control){
		.nid = node,
		.gfp_mask = GFP_HIGHUSER_MOVABLE | __GFP_THISNODE,
		.reason = MR_SYSCALL,
	};
}

/* Allocates the private data for ferry_move_call(). The caller frees it. */
void *ferry_move_target(int node)
{
	struct migration_target_control *mtc = kmalloc_obj(*mtc);

	if (mtc)
		*mtc = ferry_target(node);
	return mtc;
}

/* Sets up a migrate_folios() call as do_move_pages_to_node() does. */
void ferry_move_call(struct migrate_control *call, void *target, bool mt)
{
	*call = (struct migrate_control){
		.get_new_folio	= alloc_migration_target,
		.private	= (unsigned long)target,
		.mode		= MIGRATE_SYNC,
		.reason		= MR_SYSCALL,
		.shared		= MIGRATE_SHARED_TARGET,
		.flags		= mt ? MIGRATE_MT : 0,
	};
}

/*
 * Same as do_move_pages_to_node(), but folios that fail stay on the list. May
 * sleep.
 */
int ferry_move_to_node(struct list_head *pagelist, int node, bool mt,
		       unsigned int *succeeded)
{
	struct migration_target_control mtc = ferry_target(node);
	struct migrate_control mc;
	int rc;

	ferry_move_call(&mc, &mtc, mt);
	rc = migrate_folios(pagelist, &mc);
	*succeeded = mc.stats.nr_succeeded;
	return rc;
}
