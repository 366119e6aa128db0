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
#include <linux/leafops.h>
#include <linux/memcontrol.h>
#include <linux/mmu_notifier.h>
#include <linux/rmap.h>

#include <asm/tlbflush.h>

#include <trace/events/migrate.h>

#include "internal.h"

/* Maximum number of pages for which a PTL is held, unless one folio is larger */
#define RUN_PTL_PAGES	32

/* Mapped base pages to be added to the statistics of a folio's node and cgroup */
struct run_stat {
	struct folio *folio;
	int nr;
};

/* Consecutive pages of a large folio whose PTEs in one page table were replaced */
struct run_span {
	struct folio *folio;
	struct page *page;
	int nr;
};

/* The part of a run that a VMA maps */
struct run_range {
	struct ferry_run *run;
	struct vm_area_struct *vma;
	unsigned long start;
	unsigned long end;
	/* Offset of the page at @start from the first page of the window */
	unsigned int offset;
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
	if (stat->nr && (folio_nid(stat->folio) != folio_nid(folio) ||
			 folio_memcg(stat->folio) != folio_memcg(folio)))
		run_stat_flush(stat);
	stat->folio = folio;
	stat->nr += nr;
}

/* Removes the mappings of a span, and the references that they had. */
static void run_span_unmap(struct run_span *span, struct vm_area_struct *vma)
{
	if (!span->nr)
		return;
	folio_remove_rmap_ptes(span->folio, span->page, span->nr, vma);
	folio_put_refs(span->folio, span->nr);
	span->nr = 0;
}

/* Adds a page to the span. Unmaps the span first if the page does not follow it. */
static void run_span_add(struct run_span *span, struct folio *folio,
			 struct page *page, struct vm_area_struct *vma)
{
	if (span->nr && (span->folio != folio || span->page + span->nr != page))
		run_span_unmap(span, vma);
	if (!span->nr) {
		span->folio = folio;
		span->page = page;
	}
	span->nr++;
}

/* Returns the index of the first page of the lowest filled slot. */
static pgoff_t run_first(const struct ferry_run *run)
{
	return run->start + ferry_run_offset(run, __ffs(run->slots));
}

/* Returns the index of the last page of the highest filled slot. */
static pgoff_t run_last(const struct ferry_run *run)
{
	return run->start + ferry_run_offset(run, __fls(run->slots) + 1) - 1;
}

/* Sets the part of the run that @vma maps. Returns false if there is none. */
static bool run_clip(struct run_range *range, struct ferry_run *run,
		     struct vm_area_struct *vma, bool anon)
{
	pgoff_t first = run_first(run);
	unsigned long nr = run_last(run) - first + 1;
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
		.offset = first - run->start,
	};
	return true;
}

typedef void run_table_fn(const struct run_range *part, pte_t *ptep, void *arg);

/*
 * Trims a part to the folios that are in it as a whole, if @whole. Returns whether any
 * folio of the run is in it.
 */
static bool run_trim(struct run_range *part, bool whole)
{
	unsigned int nr = (part->end - part->start) >> PAGE_SHIFT;
	unsigned int first = part->offset, end = first + nr, slot;
	struct ferry_run *run = part->run;

	if (whole) {
		first = ALIGN(first, 1 << run->order);
		end = ALIGN_DOWN(end, 1 << run->order);
		part->start += (first - part->offset) * PAGE_SIZE;
		part->end = part->start + (end - first) * PAGE_SIZE;
		part->offset = first;
	}
	for (slot = first >> run->order; slot << run->order < end; slot++) {
		if (run->slots & BIT(slot))
			return true;
	}
	return false;
}

/*
 * Splits the range into parts of one page table each, and calls @fn for each with the
 * PTL held. Skips parts without folios or without a page table. If @whole, @fn gets no
 * folio that reaches beyond its part: a walk never unmaps a part of a folio, because
 * the folio would be queued for a split.
 */
static void run_walk_tables(const struct run_range *range, bool whole,
			    run_table_fn *fn, void *arg)
{
	unsigned int step = max(RUN_PTL_PAGES, 1 << range->run->order);
	struct mm_struct *mm = range->vma->vm_mm;
	struct run_range next = *range, part;
	spinlock_t *ptl;
	pmd_t *pmd;
	pte_t *ptep;

	for (; next.start < range->end; next.start = next.end) {
		next.end = pmd_addr_end(next.start, range->end);
		next.end = min(next.end, next.start +
			       (step - next.offset % step) * PAGE_SIZE);
		part = next;
		next.offset += (next.end - next.start) >> PAGE_SHIFT;
		if (range->run->order && !run_trim(&part, whole))
			continue;

		pmd = mm_find_pmd(mm, part.start);
		ptep = pmd ? pte_offset_map_lock(mm, pmd, part.start, &ptl) : NULL;
		if (ptep) {
			fn(&part, ptep, arg);
			pte_unmap_unlock(ptep, ptl);
		}
	}
}

/*
 * Replaces a PTE that maps @page, a page of @folio, with a migration entry. Returns
 * false if the PTE still maps the page. Stores its old value in @old in either case.
 */
static bool run_install_pte(struct vm_area_struct *vma, unsigned long address,
			    pte_t *ptep, struct folio *folio, struct page *page,
			    pte_t *old)
{
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
	trace_set_migration_pte(address, pte_val(pteval), folio_order(folio));
	return true;
}

/* @order is the order of the run; the constant 0 for base pages. */
static __always_inline void run_install_part(const struct run_range *part,
					     pte_t *ptep,
					     struct ferry_unmaps *unmaps,
					     unsigned int order)
{
	struct vm_area_struct *vma = part->vma;
	unsigned long address = part->start;
	unsigned int offset = part->offset;
	struct ferry_run *run = part->run;
	struct mm_struct *mm = vma->vm_mm;
	bool defer = should_defer_flush(mm, TTU_BATCH_FLUSH);
	struct ferry_run_flush flush = {};
	struct run_stat stat = {};
	struct run_span span = {};
	pte_t pteval;

	/* mlock() sets the flag before it takes the PTL. */
	if (READ_ONCE(vma->vm_flags) & VM_LOCKED)
		return;

	for (; address < part->end; address += PAGE_SIZE, ptep++, offset++) {
		unsigned int slot = offset >> order;
		struct folio *folio;
		struct page *page;
		bool installed;

		if (!(run->slots & BIT(slot)))
			continue;
		folio = run->src[slot];
		page = folio_page(folio, offset & (BIT(order) - 1));
		pteval = ptep_get(ptep);
		if (!pte_present(pteval) || pte_pfn(pteval) != page_to_pfn(page))
			continue;
		/* Leave these to try_to_migrate(). */
		if (unlikely(pte_unused(pteval) || PageHWPoison(page)))
			continue;

		installed = run_install_pte(vma, address, ptep, folio, page,
					    &pteval);
		if (pte_may_be_in_tlb(mm, pteval, address, address + PAGE_SIZE)) {
			if (defer && unmaps)
				ferry_note_pending(unmaps, folio, mm, address,
						   pteval);
			ferry_run_flush_add(&flush, address, pteval);
		}
		if (!installed)
			continue;

		if (order) {
			run_span_add(&span, folio, page, vma);
			continue;
		}
		/* As folio_remove_rmap_pte() does; without VM_LOCKED. */
		run_stat_add(&stat, folio,
			     -atomic_add_negative(-1, &folio->_mapcount));
		folio_put(folio);
	}
	run_span_unmap(&span, vma);
	run_stat_flush(&stat);
	if (!flush.end)
		return;
	if (defer) {
		set_tlb_ubc_flush_pending(mm, ferry_run_flush_pte(&flush),
					  flush.start, flush.end);
		if (unmaps)
			ferry_forget_batched(mm);
	} else if (IS_ENABLED(CONFIG_ARCH_WANT_BATCHED_UNMAP_TLB_FLUSH)) {
		flush_tlb_range(vma, flush.start, flush.end);
	}
}

static void run_install_ptes(const struct run_range *part, pte_t *ptep, void *arg)
{
	if (part->run->order)
		run_install_part(part, ptep, arg, part->run->order);
	else
		run_install_part(part, ptep, arg, 0);
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
	run_walk_tables(&range, true, run_install_ptes, unmaps);
	mmu_notifier_invalidate_range_end(&notify);
	/* Migration entries count as RSS, so the walk has not changed it. */
	update_hiwater_rss(vma->vm_mm);
}

/* Returns whether a source folio is still mapped. */
static bool run_mapped(const struct ferry_run *run)
{
	unsigned int slot;

	ferry_run_for_each(slot, run) {
		if (folio_mapped(run->src[slot]))
			return true;
	}
	return false;
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
	pgoff_t first = run_first(run), last = run_last(run);
	struct anon_vma_chain *avc;
	struct vm_area_struct *vma;

	if (anon_vma) {
		anon_vma_lock_read(anon_vma);
		anon_rmap_tree_foreach(avc, anon_vma, first, last) {
			cond_resched();
			if (!run_mapped(run))
				break;
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
		if (!run_mapped(run))
			break;
		run_install_vma(run, vma, false, unmaps);
	}
	i_mmap_unlock_read(run->mapping);
}

/* Returns whether the PTE is a migration entry, and stores it in @entry. */
static bool run_migration_entry(pte_t pteval, softleaf_t *entry)
{
	if (pte_none(pteval) || pte_present(pteval))
		return false;
	*entry = softleaf_from_pte(pteval);
	return softleaf_is_migration(*entry);
}

/*
 * Adds the mappings and references of consecutive pages of a large folio, from @page
 * on, at most @most. Stops at the first PTE that does not name the next page, or whose
 * entry is shared and @entry is not, or the reverse. Returns the number of pages.
 */
static unsigned int run_add_rmap(struct vm_area_struct *vma, unsigned long address,
				 pte_t *ptep, softleaf_t entry, unsigned int most,
				 struct folio *folio, struct page *page,
				 rmap_t flags)
{
	bool shared = softleaf_is_migration_read(entry);
	unsigned long pfn = softleaf_to_pfn(entry);
	unsigned int nr = 1;

	while (nr < most && run_migration_entry(ptep_get(ptep + nr), &entry) &&
	       softleaf_to_pfn(entry) == pfn + nr &&
	       softleaf_is_migration_read(entry) == shared)
		nr++;
	folio_ref_add(folio, nr);
	if (folio_test_anon(folio))
		folio_add_anon_rmap_ptes(folio, page, nr, vma, address, flags);
	else
		folio_add_file_rmap_ptes(folio, page, nr, vma);
	return nr;
}

/* @order is the order of the run; the constant 0 for base pages. */
static __always_inline void run_restore_part(const struct run_range *part,
					     pte_t *ptep, bool *left,
					     unsigned int order)
{
	unsigned int offset = part->offset, most;
	/* Pages from here on to which run_add_rmap() has added mappings */
	unsigned int added = 0;
	struct vm_area_struct *vma = part->vma;
	struct ferry_run *run = part->run;
	unsigned long address = part->start;
	struct run_stat stat = {};

	if (READ_ONCE(vma->vm_flags) & VM_LOCKED) {
		*left = true;
		return;
	}
	for (; address < part->end; address += PAGE_SIZE, ptep++, offset++) {
		unsigned int slot = offset >> order, nr = offset & (BIT(order) - 1);
		rmap_t rmap_flags = RMAP_NONE;
		struct folio *dst;
		softleaf_t entry;
		struct page *page;
		pte_t pteval;

		if (!(run->slots & BIT(slot)))
			continue;
		pteval = ptep_get(ptep);
		if (!run_migration_entry(pteval, &entry) ||
		    softleaf_to_pfn(entry) != folio_pfn(run->src[slot]) + nr)
			continue;

		dst = run->dst[slot];
		page = folio_page(dst, nr);
		pteval = restore_migration_pte(dst, page, vma, pteval, entry,
					       &rmap_flags);
		if (order && added) {
			added--;
		} else if (order) {
			most = min((part->end - address) >> PAGE_SHIFT,
				   (1 << order) - nr);
			added = run_add_rmap(vma, address, ptep, entry, most, dst,
					     page, rmap_flags) - 1;
		} else {
			/* As folio_add_anon_rmap_pte() and its file variant do. */
			folio_get(dst);
			run_stat_add(&stat, dst,
				     atomic_inc_and_test(&dst->_mapcount));
			if (rmap_flags & RMAP_EXCLUSIVE)
				SetPageAnonExclusive(page);
		}
		set_pte_at(vma->vm_mm, address, ptep, pteval);
		trace_remove_migration_pte(address, pte_val(pteval), order);
		update_mmu_cache(vma, address, ptep);
	}
	run_stat_flush(&stat);
}

static void run_restore_ptes(const struct run_range *part, pte_t *ptep, void *arg)
{
	if (part->run->order)
		run_restore_part(part, ptep, arg, part->run->order);
	else
		run_restore_part(part, ptep, arg, 0);
}

static void run_restore_vma(struct ferry_run *run, struct vm_area_struct *vma,
			    bool anon, bool *left)
{
	struct run_range range;

	cond_resched();
	if (run_clip(&range, run, vma, anon))
		run_walk_tables(&range, false, run_restore_ptes, left);
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
	pgoff_t first = run_first(run), last = run_last(run);
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
