// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: the two walks over the reverse mapping of a run.
 *
 * ferry_run_install() does for a run what try_to_migrate() does for a folio, and
 * ferry_run_restore() what remove_migration_ptes() does. Both visit the VMAs in
 * the order of the interval tree, as mainline's walk does: mremap() and fork()
 * rely on it.
 *
 * Each walk takes the lock of a page table before it looks at an entry, so it
 * waits for a task that is changing an entry, as PVMW_SYNC does.
 *
 * Context: the folios of the run are locked. May sleep. Locks: the anon_vma or
 * i_mmap for reading, and inside it the page table locks.
 */
#include <linux/ferry_migrc.h>
#include <linux/ferry_run.h>
#include <linux/fs.h>
#include <linux/ksm.h>
#include <linux/leafops.h>
#include <linux/memcontrol.h>
#include <linux/mmu_notifier.h>
#include <linux/rmap.h>

#include <asm/tlbflush.h>

#include <trace/events/migrate.h>

#include "internal.h"

/* Mapped pages to be added to the statistics of a folio's node and cgroup */
struct run_stat {
	struct folio *folio;
	int nr;
};

/* The part of a run that a VMA maps */
struct run_range {
	struct ferry_run *run;
	struct vm_area_struct *vma;
	unsigned long start;
	unsigned long end;
	/* Slot of the page at @start */
	unsigned int slot;
};

static void run_stat_flush(struct run_stat *stat)
{
	if (stat->nr)
		lruvec_stat_mod_folio(stat->folio, folio_test_anon(stat->folio) ?
				      NR_ANON_MAPPED : NR_FILE_MAPPED, stat->nr);
	stat->nr = 0;
}

/*
 * Adds @nr mapped pages. The folios of a run have one type, and usually one node
 * and cgroup.
 */
static void run_stat_add(struct run_stat *stat, struct folio *folio, int nr)
{
	if (stat->nr && (folio_pgdat(stat->folio) != folio_pgdat(folio) ||
			 folio_memcg(stat->folio) != folio_memcg(folio)))
		run_stat_flush(stat);
	stat->folio = folio;
	stat->nr += nr;
}

/* Sets the part of the run that @vma maps. Returns false if there is none. */
static bool run_clip(struct run_range *range, struct ferry_run *run,
		     struct vm_area_struct *vma, bool anon)
{
	pgoff_t first = run->start + run->first;
	unsigned long nr = run->last - run->first + 1;
	pgoff_t pgoff = anon ? vma_start_anon_pgoff(vma) : vma_start_pgoff(vma);
	unsigned long address = anon ? vma_anon_address(vma, first, nr) :
				       vma_filebacked_address(vma, first, nr);

	if (WARN_ON_ONCE(address == -EFAULT))
		return false;
	if (first < pgoff) {
		nr -= pgoff - first;
		first = pgoff;
	}
	nr = min(nr, (vma->vm_end - address) >> PAGE_SHIFT);
	*range = (struct run_range){
		.run = run,
		.vma = vma,
		.start = address,
		.end = address + (nr << PAGE_SHIFT),
		.slot = first - run->start,
	};
	return true;
}

typedef void run_table_fn(const struct run_range *part, pte_t *ptep, void *arg);

/*
 * Calls @fn for the part of the range in each page table, with its PTL held.
 * Skips ranges without a page table.
 */
static void run_walk_tables(const struct run_range *range, run_table_fn *fn,
			    void *arg)
{
	struct mm_struct *mm = range->vma->vm_mm;
	struct run_range part = *range;
	spinlock_t *ptl;
	pmd_t *pmd;
	pte_t *ptep;

	for (; part.start < range->end; part.start = part.end) {
		part.end = pmd_addr_end(part.start, range->end);
		pmd = mm_find_pmd(mm, part.start);
		ptep = pmd ? pte_offset_map_lock(mm, pmd, part.start, &ptl) : NULL;
		if (ptep) {
			fn(&part, ptep, arg);
			pte_unmap_unlock(ptep, ptl);
		}
		part.slot += (part.end - part.start) >> PAGE_SHIFT;
	}
}

/*
 * Replaces a PTE that maps @folio with a migration entry. Returns false if it still
 * maps the folio. Stores its old value in @old in either case.
 */
static bool run_install_pte(struct vm_area_struct *vma, unsigned long address,
			    pte_t *ptep, struct folio *folio, pte_t *old)
{
	struct page *page = &folio->page;
	struct mm_struct *mm = vma->vm_mm;
	bool anon_exclusive = folio_test_anon(folio) && PageAnonExclusive(page);
	pte_t pteval;

	flush_cache_page(vma, address, page_to_pfn(page));
	/* The caller flushes before it drops the PTL, or defers the flush. */
	if (IS_ENABLED(CONFIG_ARCH_WANT_BATCHED_UNMAP_TLB_FLUSH))
		pteval = ptep_get_and_clear(mm, address, ptep);
	else
		pteval = ptep_clear_flush(vma, address, ptep);
	*old = pteval;
	if (pte_dirty(pteval))
		folio_mark_dirty(folio);

	if (arch_unmap_one(mm, vma, address, pteval) < 0 ||
	    /* See folio_try_share_anon_rmap_pte(): the PTE is clear. */
	    (anon_exclusive && folio_try_share_anon_rmap_pte(folio, page))) {
		set_pte_at(mm, address, ptep, pteval);
		return false;
	}
	pteval = make_migration_pte(page, pteval, pte_write(pteval),
				    anon_exclusive);
	set_pte_at(mm, address, ptep, pteval);
	trace_set_migration_pte(address, pte_val(pteval), 0);
	return true;
}

static void run_install_ptes(const struct run_range *part, pte_t *ptep, void *arg)
{
	struct vm_area_struct *vma = part->vma;
	unsigned long address = part->start, flush_start = 0, flush_end = 0;
	struct folio **src = &part->run->src[part->slot];
	struct mm_struct *mm = vma->vm_mm;
	bool defer = should_defer_flush(mm, TTU_BATCH_FLUSH);
	struct ferry_unmaps *unmaps = arg;
	struct run_stat stat = {};
	pte_t pteval, flush_pte = __pte(0);

	/* mlock() sets the flag before it takes the PTL. */
	if (READ_ONCE(vma->vm_flags) & VM_LOCKED)
		return;

	for (; address < part->end; address += PAGE_SIZE, ptep++, src++) {
		struct folio *folio = *src;
		bool installed;

		if (!folio)
			continue;
		pteval = ptep_get(ptep);
		if (!pte_present(pteval) || pte_pfn(pteval) != folio_pfn(folio))
			continue;
		/* Leave these to try_to_migrate(). */
		if (unlikely(pte_unused(pteval) || PageHWPoison(&folio->page)))
			continue;

		installed = run_install_pte(vma, address, ptep, folio, &pteval);
		if (defer)
			ferry_unmapped(unmaps, folio, mm, pteval);
		if (pte_accessible(mm, pteval)) {
			if (!flush_end)
				flush_start = address;
			flush_end = address + PAGE_SIZE;
			if (!pte_dirty(flush_pte))
				flush_pte = pteval;
		}
		if (!installed)
			continue;

		/* As folio_remove_rmap_pte() does; without VM_LOCKED. */
		run_stat_add(&stat, folio,
			     -atomic_add_negative(-1, &folio->_mapcount));
		folio_put(folio);
	}
	run_stat_flush(&stat);
	if (!flush_end)
		return;
	if (defer)
		set_tlb_ubc_flush_pending(mm, flush_pte, flush_start, flush_end);
	else if (IS_ENABLED(CONFIG_ARCH_WANT_BATCHED_UNMAP_TLB_FLUSH))
		flush_tlb_range(vma, flush_start, flush_end);
}

static void run_install_vma(struct ferry_run *run, struct vm_area_struct *vma,
			    bool anon, struct ferry_unmaps *unmaps)
{
	struct mmu_notifier_range notify;
	struct run_range range;

	if (!run_clip(&range, run, vma, anon))
		return;
	mmu_notifier_range_init(&notify, MMU_NOTIFY_CLEAR, 0, vma->vm_mm,
				range.start, range.end);
	mmu_notifier_invalidate_range_start(&notify);
	run_walk_tables(&range, run_install_ptes, unmaps);
	mmu_notifier_invalidate_range_end(&notify);
	/* Migration entries count as RSS, so the walk has not changed it. */
	update_hiwater_rss(vma->vm_mm);
}

/**
 * ferry_run_install() - replace the PTEs that map a run by migration entries
 * @run: the run; its source folios are locked
 * @anon_vma: their anon_vma; NULL if they are file folios
 * @unmaps: see __try_to_migrate()
 *
 * Folios that are still mapped afterwards may have some migration entries, which
 * the caller must restore.
 */
void ferry_run_install(struct ferry_run *run, struct anon_vma *anon_vma,
		       struct ferry_unmaps *unmaps)
{
	pgoff_t first = run->start + run->first, last = run->start + run->last;
	struct anon_vma_chain *avc;
	struct vm_area_struct *vma;

	if (anon_vma) {
		anon_vma_lock_read(anon_vma);
		anon_rmap_tree_foreach(avc, anon_vma, first, last) {
			cond_resched();
			/* See __try_to_migrate() on exec(). */
			if (!vma_is_temporary_stack(avc->vma))
				run_install_vma(run, avc->vma, true, unmaps);
		}
		anon_vma_unlock_read(anon_vma);
		return;
	}
	i_mmap_lock_read(run->mapping);
	mapping_rmap_tree_foreach(vma, run->mapping, first, last) {
		cond_resched();
		run_install_vma(run, vma, false, unmaps);
	}
	i_mmap_unlock_read(run->mapping);
}

static void run_restore_ptes(const struct run_range *part, pte_t *ptep, void *arg)
{
	struct vm_area_struct *vma = part->vma;
	struct ferry_run *run = part->run;
	unsigned long address = part->start;
	unsigned int slot = part->slot;
	struct run_stat stat = {};
	bool *left = arg;

	if (READ_ONCE(vma->vm_flags) & VM_LOCKED) {
		*left = true;
		return;
	}
	for (; address < part->end; address += PAGE_SIZE, ptep++, slot++) {
		struct folio *dst = run->dst[slot];
		rmap_t rmap_flags = RMAP_NONE;
		softleaf_t entry;
		pte_t pteval;

		if (!dst)
			continue;
		pteval = ptep_get(ptep);
		if (pte_none(pteval) || pte_present(pteval))
			continue;
		entry = softleaf_from_pte(pteval);
		if (!softleaf_is_migration(entry) ||
		    softleaf_to_pfn(entry) != folio_pfn(run->src[slot]))
			continue;

		folio_get(dst);
		pteval = restore_migration_pte(dst, &dst->page, vma, pteval,
					       &rmap_flags);
		/* As folio_add_anon_rmap_pte() and folio_add_file_rmap_pte() do. */
		run_stat_add(&stat, dst, atomic_inc_and_test(&dst->_mapcount));
		if (rmap_flags & RMAP_EXCLUSIVE)
			SetPageAnonExclusive(&dst->page);
		set_pte_at(vma->vm_mm, address, ptep, pteval);
		trace_remove_migration_pte(address, pte_val(pteval), 0);
		update_mmu_cache(vma, address, ptep);
	}
	run_stat_flush(&stat);
}

static void run_restore_vma(struct ferry_run *run, struct vm_area_struct *vma,
			    bool anon, bool *left)
{
	struct run_range range;

	cond_resched();
	if (run_clip(&range, run, vma, anon))
		run_walk_tables(&range, run_restore_ptes, left);
	else
		*left = true;
}

/**
 * ferry_run_restore() - replace the migration entries of a run
 * @run: the run; its destination folios have the mapping and index of the source
 * @anon_vma: their anon_vma; NULL if they are file folios
 *
 * An entry that names a source folio is replaced by a PTE that maps its
 * destination. fork() may have copied entries, so all VMAs are visited.
 *
 * Return: whether there may be entries left, which the caller must restore.
 */
bool ferry_run_restore(struct ferry_run *run, struct anon_vma *anon_vma)
{
	pgoff_t first = run->start + run->first, last = run->start + run->last;
	struct anon_vma_chain *avc;
	struct vm_area_struct *vma;
	bool left = false;

	if (anon_vma) {
		anon_vma_lock_read(anon_vma);
		anon_rmap_tree_foreach(avc, anon_vma, first, last)
			run_restore_vma(run, avc->vma, true, &left);
		anon_vma_unlock_read(anon_vma);
		return left;
	}
	i_mmap_lock_read(run->mapping);
	mapping_rmap_tree_foreach(vma, run->mapping, first, last)
		run_restore_vma(run, vma, false, &left);
	i_mmap_unlock_read(run->mapping);
	return left;
}
