// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: selects the folios of runs, and moves a run through the phases of a
 * batch.
 *
 * Locks: the folio locks of the batch, see ferry_run.h, and inside them one at a
 * time the lock of an LRU list and that of the deferred split queue.
 */
#include <linux/ferry_counters.h>
#include <linux/ferry_lru.h>
#include <linux/ferry_migrc.h>
#include <linux/ferry_promotion.h>
#include <linux/ferry_run.h>
#include <linux/gfp.h>
#include <linux/mempolicy.h>
#include <linux/memremap.h>
#include <linux/page_owner.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "internal.h"
#include "page_alloc.h"

/*
 * Returns whether folios with this mapping may be in a run: those of a file, and
 * anonymous ones that KSM has not merged.
 */
static bool run_may_map(const struct address_space *mapping)
{
	unsigned long flags = (unsigned long)mapping & FOLIO_MAPPING_FLAGS;

	return mapping && !(flags & ~FOLIO_MAPPING_ANON);
}

/*
 * Returns whether a large folio may be in a run. Its index must be aligned: mremap()
 * can move anonymous memory so that new large folios have other indices. Folios that
 * are marked as partially mapped are left to mainline's path, which splits them if they
 * may be, and so are those with pages that a walk would leave.
 */
static bool run_may_large(struct folio *folio, pgoff_t index)
{
	unsigned long nr = folio_nr_pages(folio);

	return nr <= FERRY_RUN_MAX_PAGES && IS_ALIGNED(index, nr) &&
	       folio_test_large_rmappable(folio) &&
	       !folio_test_pmd_mappable(folio) &&
	       !folio_test_partially_mapped(folio) &&
	       !folio_contain_hwpoisoned_page(folio) &&
	       !folio_maybe_dma_pinned(folio);
}

/*
 * Returns whether a folio may be in a run. Without the folio lock the result is a
 * hint. The caller's reference keeps the folio from being split. A page with
 * movable_ops is not mapped.
 */
static inline bool run_may_have(struct folio *folio,
				const struct address_space *mapping, pgoff_t index)
{
	return run_may_map(mapping) && folio_mapped(folio) &&
	       !folio_test_mlocked(folio) && !folio_test_writeback(folio) &&
	       !folio_is_zone_device(folio) &&
	       (!folio_test_large(folio) || run_may_large(folio, index));
}

/* Returns the slot of the page at @offset from the start of the window. */
static unsigned int run_slot(const struct ferry_run *run, unsigned int offset)
{
	return offset >> run->order;
}

static bool run_is_anon(const struct ferry_run *run)
{
	return (unsigned long)run->mapping & FOLIO_MAPPING_ANON;
}

/*
 * Returns whether @folio, with this mapping and index, has the size of the run and a
 * free slot in it.
 */
static inline bool run_joins(const struct ferry_run *run,
			     const struct folio *folio,
			     const struct address_space *mapping, pgoff_t index)
{
	return mapping == run->mapping && index - run->start < run->pages &&
	       folio_order(folio) == run->order &&
	       !(run->slots & BIT(run_slot(run, index - run->start)));
}

/* Adds a folio to its slot, which is free. Starts a new run if @run is empty. */
static void run_add(struct ferry_run *run, struct address_space *mapping,
		    pgoff_t index, struct folio *src, struct folio *dst)
{
	unsigned int slot;

	if (!run->slots) {
		run->mapping = mapping;
		run->order = folio_order(src);
		run->pages = ferry_run_pages(run->order);
		run->start = ALIGN_DOWN(index, run->pages);
	}
	slot = run_slot(run, index - run->start);
	run->src[slot] = src;
	run->dst[slot] = dst;
	run->slots |= BIT(slot);
}

/* Locks the source folios, and removes those that are not as they were. */
static void run_lock(struct ferry_run *run)
{
	unsigned int slot;

	ferry_run_for_each(slot, run) {
		pgoff_t index = run->start + ferry_run_offset(run, slot);
		struct folio *src = run->src[slot];

		if (folio_trylock(src)) {
			if (src->mapping == run->mapping &&
			    src->index == index &&
			    run_may_have(src, run->mapping, index))
				continue;
			folio_unlock(src);
		}
		run->slots &= ~BIT(slot);
	}
}

/* Unlocks the source folio of a slot, which is mapped as before, and removes it. */
static void run_release(struct ferry_run *run, unsigned int slot)
{
	folio_unlock(run->src[slot]);
	run->slots &= ~BIT(slot);
}

/* Returns the only node of an MPOL_BIND policy, else NUMA_NO_NODE. */
static int run_bound_node(const struct mempolicy *pol)
{
#ifdef CONFIG_NUMA
	int nid = first_node(pol->nodes);

	/* A task's policy may be rebound meanwhile. */
	if (pol->mode == MPOL_BIND && nid < MAX_NUMNODES &&
	    next_node(nid, pol->nodes) >= MAX_NUMNODES)
		return nid;
#endif
	return NUMA_NO_NODE;
}

/*
 * Allocates base pages for the run together, if its folios are to go to one node. May
 * return fewer than the run has: the callback allocates the others. Returns their
 * number. The source folios are locked; does not sleep for memory.
 */
static unsigned int run_alloc_pages(const struct migrate_control *mc,
				    const struct ferry_run *run,
				    struct page **pages)
{
	const struct migration_target_control *mtc = (void *)mc->private;
	const struct migration_mpol *mmpol = (void *)mc->private;
	const nodemask_t *nodes = NULL;
	gfp_t gfp;
	int nid;

	if (run->order || mc->put_new_folio)
		return 0;
	switch (mc->shared) {
	case MIGRATE_SHARED_TARGET:
		gfp = mtc->gfp_mask;
		nid = mtc->nid;
		nodes = mtc->nmask;
		break;
	case MIGRATE_SHARED_MPOL:
		/* As alloc_migration_target_by_mpol(), for base pages. */
		gfp = GFP_HIGHUSER_MOVABLE;
		nid = run_bound_node(mmpol->pol);
		break;
	default:
		return 0;
	}
	if (nid == NUMA_NO_NODE || !(gfp & __GFP_HIGHMEM) ||
	    (nodes && !node_isset(nid, *nodes)))
		return 0;

	/* Only what is free: the callback reclaims, warns and tries other nodes. */
	gfp &= ~__GFP_DIRECT_RECLAIM;
	gfp |= __GFP_THISNODE | __GFP_NOMEMALLOC | __GFP_NOWARN;
	return __alloc_pages_bulk(current_gfp_context(gfp), nid, NULL,
				  ferry_run_nr(run), pages);
}

/*
 * Allocates destination folios, and locks them. Removes source folios that get
 * none. Returns false if there is no memory for more folios of this size.
 */
static bool run_alloc(const struct migrate_control *mc, struct ferry_run *run)
{
	struct page *pages[FERRY_RUN_SLOTS] = {};
	unsigned int nr = run_alloc_pages(mc, run, pages);
	bool enough = true;
	unsigned int slot;

	ferry_run_for_each(slot, run) {
		struct folio *src = run->src[slot], *dst = NULL;

		if (nr)
			dst = page_folio(pages[--nr]);
		else if (enough)
			dst = mc->get_new_folio(src, mc->private);
		if (dst && folio_trylock(dst)) {
			run->dst[slot] = dst;
			continue;
		}
		if (dst)
			migrate_folio_undo_dst(dst, false, mc);
		else
			enough = false;
		run_release(run, slot);
	}
	return enough;
}

/*
 * Takes a reference to the anon_vma for each folio. Returns NULL, without a
 * reference, if no folio is mapped any more.
 */
static struct anon_vma *run_get_anon_vma(struct ferry_run *run)
{
	struct anon_vma *anon_vma = NULL;
	unsigned int slot;

	ferry_run_for_each(slot, run) {
		anon_vma = folio_get_anon_vma(run->src[slot]);
		if (anon_vma)
			break;
	}
	/* The first reference keeps it in memory. */
	if (anon_vma)
		atomic_add(ferry_run_nr(run) - 1, &anon_vma->refcount);
	return anon_vma;
}

/* Gives up a run whose folios are not mapped any more. */
static void run_give_up(struct migrate_batch *batch, struct ferry_run *run)
{
	unsigned int slot;

	ferry_run_for_each(slot, run) {
		migrate_folio_undo_dst(run->dst[slot], true, batch->mc);
		run_release(run, slot);
	}
}

/* Moves the folios of a run that are unmapped to the batch, and restores the others. */
static void run_unmapped(struct migrate_batch *batch, struct ferry_run *run,
			 struct anon_vma *anon_vma)
{
	unsigned int slot, left = 0, unmapped;

	ferry_run_for_each(slot, run) {
		struct folio *src = run->src[slot], *dst = run->dst[slot];

		if (folio_mapped(src)) {
			migrate_folio_undo_src(src, true, anon_vma, true, NULL);
			migrate_folio_undo_dst(dst, true, batch->mc);
			left++;
			continue;
		}
		__migrate_folio_record(dst, FOLIO_WAS_MAPPED, anon_vma);
		list_move_tail(&src->lru, &batch->src);
		list_add_tail(&dst->lru, &batch->dst);
	}
	unmapped = ferry_run_nr(run) - left;
	ferry_count(FERRY_RUNS, 1);
	ferry_count(FERRY_RUN_PAGES, unmapped << run->order);
	ferry_count(FERRY_RUN_LEFT, left << run->order);
	run->slots = 0;
	batch->run = run;
}

/*
 * Unmaps a run. Folios that are not unmapped stay on their list. Returns false if
 * there is no memory for more folios of this size.
 */
static bool run_unmap(struct migrate_batch *batch, struct ferry_run *run)
{
	struct anon_vma *anon_vma = NULL;
	bool enough = true;

	if (ferry_run_nr(run) << run->order >= FERRY_RUN_MIN_PAGES)
		run_lock(run);
	else
		run->slots = 0;
	if (run->slots)
		enough = run_alloc(batch->mc, run);
	if (!run->slots)
		return enough;

	if (run_is_anon(run)) {
		anon_vma = run_get_anon_vma(run);
		if (!anon_vma) {
			run_give_up(batch, run);
			return enough;
		}
	}
	ferry_run_install(run, anon_vma, ferry_batch_unmaps(&batch->ferry));
	run_unmapped(batch, run, anon_vma);
	return enough;
}

void __ferry_run_unmap(struct migrate_batch *batch, struct ferry_run *run,
		       struct list_head *from)
{
	unsigned int max_order = MAX_PAGE_ORDER;
	struct folio *folio, *next;
	unsigned long nr = 0;

	list_for_each_entry(folio, from, lru) {
		nr += folio_nr_pages(folio);
		if (nr >= FERRY_RUN_MIN_PAGES)
			break;
	}
	if (nr < FERRY_RUN_MIN_PAGES)
		return;

	run->slots = 0;
	list_for_each_entry_safe(folio, next, from, lru) {
		/* Without the folio lock both may change: run_lock() looks again. */
		struct address_space *mapping = READ_ONCE(folio->mapping);
		pgoff_t index = READ_ONCE(folio->index);

		if (run->slots && !run_joins(run, folio, mapping, index)) {
			cond_resched();
			if (!run_unmap(batch, run)) {
				if (!run->order)
					return;
				/* There may be memory for smaller folios. */
				max_order = run->order - 1;
			}
		}
		if (folio_order(folio) <= max_order &&
		    run_may_have(folio, mapping, index))
			run_add(run, mapping, index, folio, NULL);
	}
	if (run->slots)
		run_unmap(batch, run);
}

bool __ferry_run_take(struct migrate_batch *batch, struct folio *src,
		      struct folio *dst, struct anon_vma *anon_vma)
{
	struct ferry_run *run = batch->run;

	/* A poisoned source is kept, see migrate_folio_done(). */
	if (folio_is_zone_device(src) || folio_is_zone_device(dst) ||
	    !run_may_map(dst->mapping) ||
	    (folio_test_large(dst) && !run_may_large(dst, dst->index)) ||
	    batch->mc->reason == MR_MEMORY_FAILURE)
		return false;
	/* The walk relies on the references that the folios have. */
	if (WARN_ON_ONCE(folio_test_anon(dst) && !anon_vma))
		return false;
	if (run->slots && !run_joins(run, dst, dst->mapping, dst->index))
		__ferry_run_end(batch);
	run_add(run, dst->mapping, dst->index, src, dst);
	list_del(&src->lru);
	return true;
}

/*
 * Adds the destination folios to the LRU lists before they are mapped, as
 * migrate_folio_move() does.
 */
static void run_add_lru(struct ferry_run *run)
{
	struct folio_batch lru;
	unsigned int slot;

	folio_batch_init(&lru);
	ferry_run_for_each(slot, run) {
		/* It knows the age of folios that a page fault adds. */
		if (lru_gen_in_fault())
			folio_add_lru(run->dst[slot]);
		else if (!folio_batch_add(&lru, run->dst[slot]))
			ferry_run_add_lru(&lru);
	}
	if (folio_batch_count(&lru))
		ferry_run_add_lru(&lru);
}

/* Restores the remaining PTEs if @left, and unlocks the destination folios. */
static void run_release_dst(struct migrate_batch *batch, struct ferry_run *run,
			    bool left)
{
	unsigned int slot;

	ferry_run_for_each(slot, run) {
		struct folio *src = run->src[slot], *dst = run->dst[slot];

		if (left)
			remove_migration_ptes(src, dst, 0);
		/* Memory may have been discarded while it had migration entries. */
		if (run->order && folio_test_anon(dst) &&
		    folio_mapcount_is_partial(dst))
			deferred_split_folio(dst, true);
		ferry_folio_migrated(src, dst, batch->mc->reason);
		folio_unlock(dst);
		folio_set_owner_migrate_reason(dst, batch->mc->reason);
		folio_put(dst);
	}
}

/* Frees the source folios. */
static void run_release_src(struct migrate_batch *batch, struct ferry_run *run,
			    struct anon_vma *anon_vma)
{
	struct ferry_isolated_sum isolated = {};
	long nr_pages = 1 << run->order;
	struct folio_batch unused;
	unsigned int slot;

	folio_batch_init(&unused);
	ferry_run_for_each(slot, run) {
		struct folio *src = run->src[slot];

		folio_unlock(src);
		ferry_retain_folio(&batch->ferry, src, run->dst[slot], true);
		if (batch->mc->reason != MR_DEMOTION)
			ferry_isolated_add(&isolated, src, -nr_pages);
		/* The folio is on no LRU list, and its cgroup charge has moved. */
		if (!folio_put_testzero(src))
			continue;
		if (run->order)
			folio_unqueue_deferred_split(src);
		if (!folio_batch_add(&unused, src))
			free_unref_folios(&unused);
	}
	if (anon_vma) {
		/* Relaxed: put_anon_vma() orders the release of all references. */
		atomic_sub(ferry_run_nr(run) - 1, &anon_vma->refcount);
		put_anon_vma(anon_vma);
	}
	ferry_isolated_flush(&isolated);
	if (folio_batch_count(&unused))
		free_unref_folios(&unused);
}

void __ferry_run_end(struct migrate_batch *batch)
{
	struct ferry_run *run = batch->run;
	struct anon_vma *anon_vma = NULL;
	bool left;

	if (run_is_anon(run))
		anon_vma = (void *)run->mapping - FOLIO_MAPPING_ANON;
	run_add_lru(run);
	left = ferry_run_restore(run, anon_vma);
	ferry_folio_done(&batch->ferry);
	run_release_dst(batch, run, left);
	/* The destinations may be freed by now; they are only compared below. */
	run_release_src(batch, run, anon_vma);
	run->slots = 0;
}
