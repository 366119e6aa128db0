// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: C part of /dev/page_migrate for physical addresses: folios by page
 * frame number, rmap walks to find the processes that map them, and page table
 * walks where the mapping is likely known.
 *
 * Lock order:
 *
 * 1. the memory hotplug lock, for reading;
 * 2. the lock of a folio, by trylock;
 * 3. the rmap locks;
 * 4. a PTL.
 *
 * Or, for pages at known addresses:
 *
 * 1. the mmap lock of the process, for reading, by trylock;
 * 2. a PTL;
 * 3. the locks of isolation.
 */
#include <linux/ferry_glue.h>
#include <linux/hugetlb.h>
#include <linux/memory_hotplug.h>
#include <linux/mempolicy.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/secretmem.h>
#include <linux/swap.h>

/* mm_find_pmd(), folio_isolate_lru() */
#include "internal.h"

/**
 * ferry_folio_at() - get the folio of a page frame, if it may be migratable
 * @pfn: any number
 * @unsettled: set if the page may be on an LRU list soon, see
 *	ferry_lru_drain()
 *
 * Context: between ferry_online_mems_begin() and ferry_online_mems_end().
 *
 * Return: the folio, with a reference; NULL if there is no memory, or the page
 * is unused or of a type that is not on LRU lists.
 */
struct folio *ferry_folio_at(unsigned long pfn, bool *unsettled)
{
	struct page *page = pfn_to_online_page(pfn);
	struct folio *folio;

	/*
	 * Tested first: users of other types of pages need not see a
	 * reference.
	 */
	if (!page || PageReserved(page))
		return NULL;
	if (!PageLRU(page)) {
		*unsettled = page_count(page) > 0;
		return NULL;
	}
	folio = page_folio(page);
	if (!folio_try_get(folio))
		return NULL;
	if (page_folio(page) == folio && folio_test_lru(folio))
		return folio;
	folio_put(folio);
	return NULL;
}

/* Returns 0 or -EINTR. May sleep. */
int ferry_folio_lock_killable(struct folio *folio)
{
	return folio_lock_killable(folio);
}

void ferry_folio_unlock(struct folio *folio)
{
	folio_unlock(folio);
}

struct ferry_owner_walk {
	struct mm_struct *mm;
	unsigned long addr;	/* where @mm maps it */
	bool exact;		/* check page tables, not only VMAs */
	bool own;
	bool others;
	bool mapped;		/* at the last check */
};

static bool ferry_owner_one(struct folio *folio, struct vm_area_struct *vma,
			    unsigned long addr, void *arg)
{
	/* Entries may be cleared for a moment, under the PTL. */
	DEFINE_FOLIO_VMA_WALK(pvmw, folio, vma, addr, PVMW_SYNC);
	struct ferry_owner_walk *walk = arg;
	bool *found = vma->vm_mm == walk->mm ? &walk->own : &walk->others;

	walk->mapped = folio_mapped(folio);
	if (*found)
		return true;
	if (!walk->exact) {
		*found = true;
	} else if (page_vma_mapped_walk(&pvmw)) {
		*found = true;
		page_vma_mapped_walk_done(&pvmw);
	}
	if (walk->own && !walk->addr)
		walk->addr = addr;
	return !walk->own || !walk->others;
}

static int ferry_owner_done(struct folio *folio)
{
	return fatal_signal_pending(current);
}

/*
 * Returns whether any process maps the folio. The folio lock is not required.
 */
bool ferry_folio_is_mapped(struct folio *folio)
{
	return folio_mapped(folio);
}

/**
 * ferry_folio_owner() - find the processes that map a folio
 * @folio: the folio, locked
 * @mm: address space to compare with
 * @wait: wait for contended rmap locks
 * @addr: set to the address at which @mm maps it, if it does: a hint, since no
 *	lock keeps it mapped there
 *
 * Most folios are in VMAs of a single address space, and then page tables are
 * not checked. No address space that could map the folio is missed: it is
 * linked in the rmap before fork() or a fault maps the folio, and is still
 * linked after it has unmapped the folio. A process that maps the folio during
 * the walk may be missed.
 *
 * Context: process context, may sleep.
 *
 * Return: the owner; FERRY_OWNER_UNKNOWN if a fatal signal is pending or,
 * without @wait, a lock is contended.
 */
enum ferry_owner ferry_folio_owner(struct folio *folio, struct mm_struct *mm,
				   bool wait, unsigned long *addr)
{
	struct ferry_owner_walk walk = { .mm = mm };
	struct rmap_walk_control rwc = {
		.arg		= &walk,
		.try_lock	= !wait,
		.rmap_one	= ferry_owner_one,
		.done		= ferry_owner_done,
		.anon_lock	= folio_lock_anon_vma_read,
	};

	rmap_walk(folio, &rwc);
	if (walk.own && walk.others) {
		walk = (struct ferry_owner_walk){ .mm = mm, .exact = true };
		rmap_walk(folio, &rwc);
	}
	/* Some address spaces may not have been checked. */
	if (rwc.contended || fatal_signal_pending(current))
		return FERRY_OWNER_UNKNOWN;
	/* An address space with a suitable VMA may have unmapped it. */
	if (!walk.own || !walk.mapped)
		return FERRY_OWNER_OTHERS;
	*addr = walk.addr;
	return walk.others ? FERRY_OWNER_SHARED : FERRY_OWNER_ALONE;
}

/* Isolates the folios that one page table maps. */
static unsigned long ferry_isolate_mapped(const struct ferry_mapped *mapped,
					  struct vm_area_struct *vma,
					  struct list_head *folios)
{
	unsigned long addr = mapped->addr;
	unsigned long end = pmd_addr_end(addr, vma->vm_end);
	unsigned long i, nr = min(mapped->nr, (end - addr) >> PAGE_SHIFT);
	struct ferry_moving moving = { .to = mapped->node };
	struct folio *folio;
	spinlock_t *ptl;	/* PTL of the page table */
	pte_t *start;
	pmd_t *pmd;
	pte_t pte;

	pmd = mm_find_pmd(vma->vm_mm, addr);
	start = pmd ? pte_offset_map_lock(vma->vm_mm, pmd, addr, &ptl) : NULL;
	if (!start)
		return 0;
	for (i = 0; i < nr; i++, addr += PAGE_SIZE) {
		pte = ptep_get(start + i);
		if (!pte_present(pte) || pte_pfn(pte) != mapped->pfns[i])
			break;
		folio = vm_normal_folio(vma, addr, pte);
		if (!folio || folio_test_large(folio) ||
		    ferry_folio_is_refused(folio) ||
		    __add_folio_for_migration(folio, mapped->node, folios,
				    mapped->all) <= 0)
			break;
		ferry_moving_add(&moving, folio);
	}
	pte_unmap_unlock(start, ptl);
	ferry_moving_end(&moving);
	return i;
}

/**
 * ferry_isolate_next() - isolate page frames where they are likely mapped
 * @mapped: the page frames, and their likely addresses
 * @folios: receives the folios
 *
 * A caller that looks up page frames gets them in address order, and passes
 * them in that order. One walk of a page table then replaces the folio lock
 * and the rmap walk that each page would need to find its owner.
 *
 * Context: process context, may sleep. Does not wait for the mmap lock.
 *
 * Return: the number of folios isolated, from the first on. The next page was
 * not checked, is not mapped there, is large, or must not be migrated; the
 * caller must find out.
 */
unsigned long ferry_isolate_next(const struct ferry_mapped *mapped,
				 struct list_head *folios)
{
	struct mm_struct *mm = mapped->mm;
	struct vm_area_struct *vma;
	unsigned long nr = 0;

	if (!mmap_read_trylock(mm))
		return 0;
	vma = vma_lookup(mm, mapped->addr);
	if (vma && !is_vm_hugetlb_page(vma) && vma_migratable(vma) &&
	    !vma_is_secretmem(vma))
		nr = ferry_isolate_mapped(mapped, vma, folios);
	mmap_read_unlock(mm);
	return nr;
}

/*
 * Isolates a folio from its LRU list, to be migrated to @node, and takes a
 * reference.
 */
bool ferry_folio_isolate(struct folio *folio, int node,
			 struct list_head *folios)
{
	struct ferry_moving moving = { .to = node };

	if (!folio_isolate_lru(folio))
		return false;
	list_add_tail(&folio->lru, folios);
	node_stat_mod_folio(folio, NR_ISOLATED_ANON + folio_is_file_lru(folio),
			    folio_nr_pages(folio));
	ferry_moving_add(&moving, folio);
	ferry_moving_end(&moving);
	return true;
}
