// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: isolates the folios at many addresses, for move_pages(2).
 *
 * For each address, mainline takes the mmap lock, searches the VMA, walks the page
 * tables from the top and takes the lock of an LRU list. ferry_isolate_pages() takes
 * the mmap lock once. It walks from the top for the first address in each page table,
 * and again after 31 folios, and removes the folios of a walk from their LRU lists
 * together.
 *
 * Lock order:
 *
 * 1. the mmap lock of the target, for reading;
 * 2. one PTL at a time, while LRU flags are cleared or a hugetlb folio is isolated;
 * 3. the lock of an lruvec, with interrupts disabled, after the PTL is released.
 */
#include <linux/ferry_glue.h>
#include <linux/ferry_lru.h>
#include <linux/folio_batch.h>
#include <linux/hugetlb.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/mmap_lock.h>
#include <linux/pagewalk.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "internal.h"

/*
 * A walk of one page table. Folios whose LRU flag is cleared are still linked in an
 * LRU list: nothing else isolates them, and a reference of the walk keeps them.
 */
struct isolation {
	struct vm_area_struct *vma;
	struct folio_walk fw;
	unsigned long addr;
	struct folio *folio;		/* at @addr; NULL if there is no walk */
	struct folio_batch cleared;
};

/* Moves the folios of a batch from their LRU lists to @pagelist. */
static void isolate_batch(struct folio_batch *batch, struct list_head *pagelist)
{
	struct ferry_isolated_sum isolated = {};
	struct ferry_lru_sum sum = {};
	struct lruvec *lruvec = NULL;
	unsigned int i;

	if (!folio_batch_count(batch))
		return;

	for (i = 0; i < folio_batch_count(batch); i++) {
		struct folio *folio = batch->folios[i];
		enum lru_list lru;

		if (!lruvec || !folio_matches_lruvec(folio, lruvec)) {
			if (lruvec)
				ferry_lru_sum_flush(&sum, lruvec);
			lruvec = folio_lruvec_relock_irq(folio, lruvec);
		}
		/* As lruvec_del_folio() does */
		lru = folio_lru_list(folio);
		if (!lru_gen_del_folio(lruvec, folio, false)) {
			if (lru != LRU_UNEVICTABLE)
				list_del(&folio->lru);
			ferry_lru_sum_add(&sum, lruvec, folio, lru, -1);
		}
		list_add_tail(&folio->lru, pagelist);
		ferry_isolated_add(&isolated, folio, folio_nr_pages(folio));
	}
	ferry_lru_sum_flush(&sum, lruvec);
	lruvec_unlock_irq(lruvec);
	ferry_isolated_flush(&isolated);
	folio_batch_reinit(batch);
}

/* Ends the walk. Moves its folios to @pagelist. */
static void isolate_end(struct isolation *walk, struct list_head *pagelist)
{
	if (walk->folio)
		folio_walk_end(&walk->fw, walk->vma);
	walk->folio = NULL;
	isolate_batch(&walk->cleared, pagelist);
}

/*
 * Moves the walk to @addr under the PTL that it holds. Returns false if @addr needs a
 * new walk: there is none, another VMA or page table maps @addr, or its PTE maps no
 * normal page.
 */
static bool isolate_next(struct isolation *walk, unsigned long addr)
{
	struct folio_walk *fw = &walk->fw;
	struct page *page = NULL;
	pte_t *ptep, pte;

	if (!walk->folio || fw->level != FW_LEVEL_PTE ||
	    ((walk->addr ^ addr) & PMD_MASK) ||
	    addr < walk->vma->vm_start || addr >= walk->vma->vm_end)
		return false;
	ptep = fw->ptep + pte_index(addr) - pte_index(walk->addr);
	pte = ptep_get(ptep);
	if (pte_present(pte))
		page = vm_normal_page(walk->vma, addr, pte);
	if (!page)
		return false;
	fw->ptep = ptep;
	fw->pte = pte;
	fw->page = page;
	walk->addr = addr;
	walk->folio = page_folio(page);
	return true;
}

/*
 * Begins a walk at @addr. Returns 0, -EFAULT if no migratable VMA contains @addr, or
 * -ENOENT if no page is mapped there.
 */
static int isolate_begin(struct isolation *walk, struct mm_struct *mm,
			 unsigned long addr)
{
	struct vm_area_struct *vma = walk->vma;

	if (!vma || addr < vma->vm_start || addr >= vma->vm_end)
		vma = vma_lookup(mm, addr);
	walk->vma = vma;
	if (!vma || !vma_migratable(vma))
		return -EFAULT;

	walk->addr = addr;
	walk->folio = folio_walk_start(&walk->fw, vma, addr, FW_ZEROPAGE);
	return walk->folio ? 0 : -ENOENT;
}

/* Returns whether an LRU cache of a CPU may hold a reference to the folio. */
static bool isolate_is_cached(const struct folio *folio)
{
	return folio_may_be_lru_cached(folio) &&
	       folio_ref_count(folio) != folio_expected_ref_count(folio);
}

/* Isolates the folio of the walk. Returns as __add_folio_for_migration() does. */
static int isolate_folio(struct isolation *walk,
			 const struct ferry_addr_list *list,
			 struct list_head *pagelist)
{
	struct folio *folio = walk->folio;
	int err;

	if (folio_test_hugetlb(folio))
		return __add_folio_for_migration(folio, list->node, pagelist,
						 list->all);

	err = check_folio_for_migration(folio, list->node, list->all);
	if (err <= 0)
		return err;
	if (list->settled && isolate_is_cached(folio))
		return -EBUSY;
	if (!folio_test_clear_lru(folio))
		return -EBUSY;
	folio_get(folio);
	folio_batch_add(&walk->cleared, folio);
	return 1;
}

/**
 * ferry_isolate_pages() - isolate the folios at many addresses
 * @list: the addresses, and the result
 * @pagelist: receives the folios
 *
 * Context: process context, may sleep.
 *
 * Return: the number of leading addresses whose folios were isolated.
 */
int ferry_isolate_pages(struct ferry_addr_list *list, struct list_head *pagelist)
{
	struct isolation walk __uninitialized;
	struct mm_struct *mm = list->mm;
	int i;

	list->err = 1;
	if (list->wait)
		mmap_read_lock(mm);
	else if (!mmap_read_trylock(mm))
		return 0;

	walk.vma = NULL;
	walk.folio = NULL;
	folio_batch_init(&walk.cleared);
	for (i = 0; i < list->nr; i++) {
		unsigned long addr = untagged_addr_remote(mm, list->pages[i]);

		list->err = 1;
		if (i && (need_resched() || mmap_lock_is_contended(mm)))
			break;

		if (!folio_batch_space(&walk.cleared) || !isolate_next(&walk, addr)) {
			isolate_end(&walk, pagelist);
			list->err = isolate_begin(&walk, mm, addr);
			if (list->err)
				break;
		}
		list->err = isolate_folio(&walk, list, pagelist);
		if (folio_test_large(walk.folio) ||
		    folio_mapcount(walk.folio) != 1)
			list->alone = false;
		if (list->err <= 0)
			break;
	}
	isolate_end(&walk, pagelist);
	mmap_read_unlock(mm);
	return i;
}
