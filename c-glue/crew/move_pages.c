// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: looks up folios by address and isolates them, for move_pages(2).
 *
 * Lock order, as in do_pages_move(), but for many addresses at a time:
 *
 * 1. the mmap lock of the target, for reading;
 * 2. one PTL at a time;
 * 3. the locks of isolation.
 */
#include <linux/ferry_glue.h>
#include <linux/mempolicy.h>
#include <linux/mmap_lock.h>
#include <linux/nodemask.h>
#include <linux/pagewalk.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

/* struct migration_target_control */
#include "internal.h"

/* Pages that are isolated before the PTL is released for other tasks. */
#define FERRY_PAGES_PER_LOCK	32

/*
 * Moves a walk to another address under the PTL that it holds. Returns NULL if
 * the page table of the walk certainly has no page there.
 */
static struct folio *ferry_walk_on(struct folio_walk *fw,
				   struct vm_area_struct *vma,
				   unsigned long from, unsigned long addr)
{
	struct page *page = NULL;
	pte_t *ptep, pte;

	if (fw->level != FW_LEVEL_PTE || ((from ^ addr) & PMD_MASK))
		return NULL;
	ptep = fw->ptep + pte_index(addr) - pte_index(from);
	pte = ptep_get(ptep);
	if (pte_present(pte))
		page = vm_normal_page(vma, addr, pte);
	if (!page)
		return NULL;
	fw->ptep = ptep;
	fw->pte = pte;
	fw->page = page;
	return page_folio(page);
}

/**
 * ferry_isolate_run() - isolate the folios at many addresses
 * @run: the addresses, and the result
 * @pagelist: receives the folios
 *
 * Takes the mmap lock once. Walks the page tables from the top for the first
 * address of each page table, and again after FERRY_PAGES_PER_LOCK pages.
 *
 * Context: process context, may sleep.
 *
 * Return: the number of leading addresses with a queued folio.
 */
int ferry_isolate_run(struct ferry_addr_list *run, struct list_head *pagelist)
{
	struct mm_struct *mm = run->mm;
	struct vm_area_struct *vma = NULL;
	struct folio *folio = NULL;	/* of the current walk; NULL if none */
	unsigned long addr, last = 0;
	struct folio_walk fw;
	int i, nr_locked = 0;

	run->err = 1;
	if (run->wait)
		mmap_read_lock(mm);
	else if (!mmap_read_trylock(mm))
		return 0;

	for (i = 0; i < run->nr; i++, last = addr) {
		addr = untagged_addr_remote(mm, run->pages[i]);

		run->err = 1;
		if (i && (need_resched() || mmap_lock_is_contended(mm)))
			break;

		if (folio) {
			folio = NULL;
			if (addr >= vma->vm_start && addr < vma->vm_end &&
			    ++nr_locked < FERRY_PAGES_PER_LOCK)
				folio = ferry_walk_on(&fw, vma, last, addr);
			if (!folio)
				folio_walk_end(&fw, vma);
		}
		if (!folio) {
			run->err = -EFAULT;
			if (!vma || addr < vma->vm_start || addr >= vma->vm_end)
				vma = vma_lookup(mm, addr);
			if (!vma || !vma_migratable(vma))
				break;

			run->err = -ENOENT;
			folio = folio_walk_start(&fw, vma, addr, FW_ZEROPAGE);
			if (!folio)
				break;
			nr_locked = 0;
		}

		run->err = ferry_add_folio(folio, run->node, pagelist,
					   run->all);
		if (folio_test_large(folio) || folio_mapcount(folio) != 1)
			run->alone = false;
		if (run->err <= 0)
			break;
	}
	if (folio)
		folio_walk_end(&fw, vma);
	mmap_read_unlock(mm);
	return i;
}

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
