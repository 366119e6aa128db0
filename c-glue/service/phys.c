// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what the service of /dev/page_migrate needs for physical addresses that
 * Rust cannot reach: folios by page frames, walks of rmap to see whose they are,
 * and of page tables where that is likely known.
 *
 * Locks: that of memory hotplug for reading; inside it that of a folio, inside that
 * those of rmap, inside these a page table's; or the mmap lock of the process for
 * reading, if nobody has to be waited for, inside it a page table's, inside that
 * those of isolation.
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
 * ferry_folio_at() - the folio of a page frame, if it could be migrated at all
 * @pfn: any number
 * @unsettled: set if it might be one soon, see ferry_lru_drain()
 *
 * Between ferry_online_mems_begin() and ferry_online_mems_end().
 *
 * Return: the folio, with a reference; NULL: no memory, or nobody's, or of another
 * kind than what is on LRU lists.
 */
struct folio *ferry_folio_at(unsigned long pfn, bool *unsettled)
{
	struct page *page = pfn_to_online_page(pfn);
	struct folio *folio;

	/* Looked at first: who uses memory otherwise need not see a reference. */
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

/* 0, or EINTR. May sleep. */
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
	unsigned long addr;	/* where @mm has it */
	bool exact;		/* not who could, but who has it mapped */
	bool own;
	bool others;
	bool mapped;		/* when the last was looked at */
};

static bool ferry_owner_one(struct folio *folio, struct vm_area_struct *vma,
			    unsigned long addr, void *arg)
{
	/* Entries may be cleared for a moment, under their lock. */
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

/* Has anybody mapped it? Not a word of whom; without its lock. */
bool ferry_folio_is_mapped(struct folio *folio)
{
	return folio_mapped(folio);
}

/**
 * ferry_folio_owner() - who has a folio mapped?
 * @folio: locked
 * @mm: whose view
 * @wait: for the locks of rmap, if others have them
 * @addr: set to where @mm has it, if it has: a guess, as it is not locked there
 *
 * Most are where only one address space could have them: page tables need not be
 * looked at then. All that could are found: an address space is among those of
 * rmap before it has a folio of others, by fork() or by a fault, and is still
 * there when it has given it up. Who maps it meanwhile may be missed. May sleep.
 *
 * Return: who; FERRY_OWNER_UNKNOWN if the caller is being killed or, without
 * @wait, somebody has a lock.
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
	/* Some may not have been looked at. */
	if (rwc.contended || fatal_signal_pending(current))
		return FERRY_OWNER_UNKNOWN;
	/* Who could have it may have had it. */
	if (!walk.own || !walk.mapped)
		return FERRY_OWNER_OTHERS;
	*addr = walk.addr;
	return walk.others ? FERRY_OWNER_SHARED : FERRY_OWNER_ALONE;
}

/* Those that one page table maps. */
static unsigned long ferry_isolate_mapped(const struct ferry_mapped *mapped,
					  struct vm_area_struct *vma,
					  struct list_head *folios)
{
	unsigned long addr = mapped->addr;
	unsigned long end = pmd_addr_end(addr, vma->vm_end);
	unsigned long i, nr = min(mapped->nr, (end - addr) >> PAGE_SHIFT);
	struct folio *folio;
	spinlock_t *ptl;	/* of the page table */
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
		    ferry_add_folio(folio, mapped->node, folios,
				    mapped->all) <= 0)
			break;
	}
	pte_unmap_unlock(start, ptl);
	return i;
}

/**
 * ferry_isolate_next() - isolate page frames where they are likely mapped
 * @mapped: which, and where
 * @folios: gets the folios
 *
 * Who asks where pages are is told in the order of their addresses, and names them
 * in that. Then one look at a page table tells what would else be asked of each by
 * itself, of its lock and those of rmap: whose it is. May sleep, but waits for
 * nobody who has the mmap lock.
 *
 * Return: how many were isolated, from the first on. The next was not looked at, is
 * not there, is large, or is not to be migrated, which is for others to tell.
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

/* Takes a folio off its LRU list, with a reference of its own. */
bool ferry_folio_isolate(struct folio *folio, struct list_head *folios)
{
	if (!folio_isolate_lru(folio))
		return false;
	list_add_tail(&folio->lru, folios);
	node_stat_mod_folio(folio, NR_ISOLATED_ANON + folio_is_file_lru(folio),
			    folio_nr_pages(folio));
	return true;
}
