// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: the part of migrc that runs under locks of mm/, and its interface to
 * the architecture. rust/migrc/ decides, other than whether the flush of a
 * cleared PTE may be deferred, which must be decided with the PTL held. Each
 * condition is a flag, so there is nothing to compute for Rust.
 *
 * Locks: ferry_retention_disable() and ferry_retention_enable() take the mutex
 * ferry_disable_lock, inside mf_mutex, the memory hotplug lock and
 * cma->alloc_mutex. A drain takes its spinlocks inside it.
 * c-glue/migrc/spaces.c tracks the address spaces that may have stale
 * translations.
 */
#include <linux/atomic.h>
#include <linux/cleanup.h>
#include <linux/ferry_group.h>
#include <linux/folio_batch.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/page-isolation.h>
#include <linux/rmap.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>

/* try_to_unmap_flush() */
#include "internal.h"

DEFINE_STATIC_KEY_FALSE(ferry_migrc_key);
unsigned int ferry_max_pages __read_mostly = FERRY_DEFAULT_MAX_PAGES;
unsigned int ferry_max_node_percent __read_mostly =
	FERRY_DEFAULT_MAX_NODE_PERCENT;
unsigned int ferry_max_age_ms __read_mostly = FERRY_DEFAULT_MAX_AGE_MS;
bool ferry_migrc_enabled __read_mostly;

/* Number of groups, plus the tasks that are freeing recalled folios. */
atomic_t ferry_groups;

/*
 * Retained pages by node: exact, for the limit. NR_FERRY_RETAINED, by zone, is
 * read by watermark checks and lags behind by the per-CPU differences.
 */
static atomic_t ferry_kept[MAX_NUMNODES];

/*
 * The number of operations during which no folio may be retained, see
 * ferry_retention_disable(). Written under the lock.
 */
static DEFINE_MUTEX(ferry_disable_lock);
unsigned int ferry_disabled;

/*
 * Time when retained folios were last freed, in jiffies; for
 * ferry_drain_before_oom().
 */
unsigned long ferry_last_release;

/*
 * Returns whether the flush of a folio's PTEs may be deferred. A huge page is
 * usually mapped by a PMD, which is flushed when it is cleared: the folio would be
 * retained for a flush that is complete.
 */
static bool ferry_may_retain(const struct folio *folio)
{
	return folio_order(folio) < PMD_ORDER && !folio_is_zone_device(folio);
}

static unsigned int ferry_check_pte(struct ferry_unmaps *unmaps,
				const struct folio *folio, struct mm_struct *mm,
				unsigned long address, pte_t pteval)
{
	unsigned int refused = 0;

	if (pte_write(pteval) && !ferry_hook_disabled(FERRY_HOOK_WRITABLE))
		refused |= BIT(FERRY_REFUSED_WRITABLE);
	/*
	 * The entry may be writable in a TLB even if it was write-protected
	 * since, for example by fork(), which flushes later.
	 */
	if (pte_flush_pending(mm, address, address + PAGE_SIZE) &&
	    !ferry_hook_disabled(FERRY_HOOK_CHANGING))
		refused |= BIT(FERRY_REFUSED_CHANGING);
	if (!folio_test_anon(folio))
		refused |= ferry_check_file(unmaps, folio);
	else if (folio_test_swapcache(folio))
		refused |= BIT(FERRY_REFUSED_SWAPCACHE);
	if (!ferry_may_retain(folio))
		refused |= BIT(FERRY_REFUSED_HUGE);
	if (folio_test_hwpoison(folio) ||
	    (folio_test_large(folio) && folio_test_has_hwpoisoned(folio)))
		refused |= BIT(FERRY_REFUSED_POISONED);
	return refused;
}

/*
 * Records a translation that a TLB may hold. Called with the PTL held. The
 * address space is counted before the PTL is released, so its next holder,
 * which may write, sees that it must flush.
 */
void ferry_note_pending(struct ferry_unmaps *unmaps, const struct folio *folio,
			struct mm_struct *mm, unsigned long address,
			pte_t pteval)
{
	unsigned int refused, why;

	/* A refused batch is flushed as a whole: other PTEs need no record. */
	if (unmaps->refused)
		return;
	ferry_note_page(folio, pte_pfn(pteval));
	refused = ferry_check_pte(unmaps, folio, mm, address, pteval);
	if (!refused) {
		ferry_note_space(unmaps, mm);
		ferry_count_migrc(FERRY_MIGRC_ELIGIBLE, 1);
		return;
	}
	for (why = 0; refused >> why; why++) {
		if (refused & BIT(why))
			ferry_count_refused(why);
	}
	unmaps->refused = refused;
}

/*
 * Called when the address spaces of the group were flushed, or never had stale
 * translations.
 */
void ferry_group_free(struct ferry_group *group)
{
	WARN_ON_ONCE(!list_empty(&group->folios) || !list_empty(&group->batch));
	ferry_forget_spaces(&group->unmaps);
	ferry_forget_files(&group->unmaps);
	kfree(group);
	/*
	 * Pairs with ferry_help_before_oom(), which reads the time of the last
	 * release.
	 */
	atomic_fetch_dec_release(&ferry_groups);
}

/*
 * Allocates a group without folios. Returns NULL if there is no memory or if
 * migrc is disabled. Flushes what this task has cleared before, since it does
 * not belong to the group: pages that it reclaims, or a batch for which it
 * allocates a destination folio, which may reclaim and demote. May sleep.
 */
struct ferry_group *ferry_group_alloc(void)
{
	struct ferry_group *group;

	/* ferry_disabled is a hint here: ferry_batch_begins() decides. */
	if (!READ_ONCE(ferry_migrc_enabled) || READ_ONCE(ferry_disabled))
		return NULL;

	/* Migration may serve to free memory: leave the reserves. */
	group = kzalloc_obj(*group,
			    GFP_NOWAIT | __GFP_NOWARN | __GFP_NOMEMALLOC);
	if (!group) {
		ferry_count_refused(FERRY_REFUSED_MEMORY);
		return NULL;
	}
	spin_lock_init(&group->lock);
	INIT_LIST_HEAD(&group->folios);
	INIT_LIST_HEAD(&group->batch);
	group->number = ferry_batch_number();
	/*
	 * Full barrier; pairs with ferry_migrc_stop(): a batch that sees migrc
	 * enabled has a number from before the recall.
	 */
	if (atomic_inc_return(&ferry_groups) && READ_ONCE(ferry_migrc_enabled)) {
		try_to_unmap_flush();
		return group;
	}
	ferry_group_free(group);
	return NULL;
}

struct ferry_unmaps *ferry_group_unmaps(struct ferry_group *group)
{
	return &group->unmaps;
}

static void ferry_merge_arch(struct arch_tlbflush_unmap_batch *into,
			     const struct arch_tlbflush_unmap_batch *from)
{
	cpumask_or(&into->cpumask, &into->cpumask, &from->cpumask);
	into->unmapped_pages |= from->unmapped_pages;
}

/*
 * Moves the pending flush of this task to a group. If it must not be deferred,
 * flushes and returns false. Returns false if there is nothing to flush. May
 * sleep.
 *
 * All that is pending is the batch's: ferry_group_alloc() has flushed the rest,
 * and what the batch nests (reclaim, a split, another batch) flushes before it
 * returns. A nested batch that moved nothing need not: its translations were
 * restored, and the group then waits for more CPUs than it must.
 */
bool ferry_group_defer(struct ferry_group *group)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	if (!tlb_ubc->flush_required)
		return false;
	if (!group->unmaps.refused && group->unmaps.nr_mms) {
		ferry_merge_arch(&group->arch, &tlb_ubc->arch);
		group->pending = ferry_batch_begins(group);
	}
	if (!group->pending) {
		try_to_unmap_flush();
		return false;
	}
	cpumask_clear(&tlb_ubc->arch.cpumask);
	tlb_ubc->arch.unmapped_pages = false;
	tlb_ubc->flush_required = false;
	tlb_ubc->writable = false;
	return true;
}

/* Returns the maximum number of retained pages of a node. */
static unsigned int ferry_node_limit(int nid)
{
	const struct pglist_data *pgdat = NODE_DATA(nid);
	unsigned long managed = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++)
		managed += zone_managed_pages(&pgdat->node_zones[i]);
	return min(managed * READ_ONCE(ferry_max_node_percent) / 100,
		   READ_ONCE(ferry_max_pages));
}

/* Clears a folio, as the next user of its memory would; for tests. */
static void ferry_reuse(struct folio *folio)
{
	memset(folio_address(folio), 0, folio_size(folio));
}

/*
 * Retains an old folio. Returns false if its node is at the limit, or if the
 * batch was recalled.
 */
bool ferry_group_keep(struct ferry_group *group, struct folio *src,
		      struct folio *dst)
{
	atomic_t *kept = &ferry_kept[folio_nid(src)];
	int nr = folio_nr_pages(src);

	/* Flushed when it was unmapped, or when its PTEs were refused. */
	if (!ferry_may_retain(src))
		return true;
	if (ferry_hook_disabled(FERRY_HOOK_RETAIN)) {
		ferry_reuse(src);
		return true;
	}
	if (atomic_add_return(nr, kept) > ferry_node_limit(folio_nid(src)) &&
	    !ferry_hook_disabled(FERRY_HOOK_BOUND)) {
		atomic_sub(nr, kept);
		return false;
	}
	guard(spinlock)(&group->lock);
	if (group->recalled) {
		atomic_sub(nr, kept);
		return false;
	}
	/* Pageblocks are isolated only while retention is disabled. */
	VM_WARN_ON_ONCE(is_migrate_isolate_page(&src->page));
	folio_get(src);
	ferry_note_copy(src, dst);
	list_add_tail(&src->lru, &group->folios);
	group->nr_pages += nr;
	mod_zone_page_state(folio_zone(src), NR_FERRY_RETAINED, nr);
	return true;
}

/*
 * Adds the flush of a group to the pending flush of this task, see
 * ferry_flush_owed().
 */
void ferry_group_owe(const struct ferry_group *group)
{
	ferry_merge_arch(&current->tlb_ubc.arch, &group->arch);
	current->tlb_ubc.flush_required = true;
}

/*
 * Completes the flushes that this task owes to groups (O4). The CPU masks of
 * the groups stay, for tasks that flush for them meanwhile. Interrupts are
 * enabled.
 */
void ferry_flush_owed(void)
{
	try_to_unmap_flush();
}

/*
 * Frees retained folios after their flush (O1). Returns the number of their
 * pages. May sleep.
 */
unsigned int ferry_free_folios(struct list_head *folios)
{
	struct folio_batch fbatch;
	struct folio *folio, *next;
	unsigned int nr = 0;

	folio_batch_init(&fbatch);
	list_for_each_entry_safe(folio, next, folios, lru) {
		long pages = folio_nr_pages(folio);

		list_del(&folio->lru);
		if (ferry_hook_disabled(FERRY_HOOK_EVERY))
			ferry_reuse(folio);
		mod_zone_page_state(folio_zone(folio), NR_FERRY_RETAINED, -pages);
		atomic_sub(pages, &ferry_kept[folio_nid(folio)]);
		nr += pages;
		if (!folio_batch_add(&fbatch, folio))
			folios_put(&fbatch);
	}
	if (folio_batch_count(&fbatch))
		folios_put(&fbatch);
	/*
	 * Written after they are free: an earlier allocation attempt did not
	 * find them.
	 */
	WRITE_ONCE(ferry_last_release, jiffies);
	return nr;
}

/* The same for a group that is not in flight. */
unsigned int ferry_group_release(struct ferry_group *group)
{
	group->nr_pages = 0;
	return ferry_free_folios(&group->folios);
}

static void ferry_flush_abandoned(struct work_struct *work)
{
	struct ferry_group *group =
		container_of(work, struct ferry_group, abandoned);

	ferry_group_owe(group);
	ferry_flush_owed();
	ferry_batch_flushed(group);
	ferry_group_release(group);
	ferry_group_free(group);
}

/*
 * Called when a group with retained folios has lost its owner, which is a bug.
 * A workqueue flushes and frees it, since the context may not wait for other
 * CPUs. Until then, drains and tasks that open a file for writing find the
 * group only if its batch is in flight.
 *
 * Context: any but NMI and hard interrupts.
 */
void ferry_group_abandon(struct ferry_group *group)
{
	WARN_ONCE(1, "ferry: a group was dropped before it was flushed\n");
	INIT_WORK(&group->abandoned, ferry_flush_abandoned);
	queue_work(system_dfl_wq, &group->abandoned);
}

/* Returns the number of retained pages of a node. */
unsigned int ferry_kept_pages(int nid)
{
	return atomic_read(&ferry_kept[nid]);
}

/* See ferry_drain(). */
void ferry_drain_all(void)
{
	/*
	 * Pairs with the full barrier of ferry_group_alloc(): a group that is
	 * not seen here sees all earlier writes of the caller of this
	 * function.
	 */
	smp_mb();
	if (!atomic_read(&ferry_groups))
		return;
	ferry_recall_batches(FERRY_DRAIN_ASKED);
	ferry_migrc_drain(FERRY_DRAIN_ASKED);
}

/**
 * ferry_retention_disable() - disable retention of folios
 *
 * Called before pageblocks are isolated, and before a page is handled that has
 * an error or is taken offline. From the return of this function to the
 * matching ferry_retention_enable() no folio of any node is retained, and no
 * batch keeps one. Other tasks may still be freeing folios that were retained
 * before. Calls nest: only the first one drains.
 *
 * A batch reads ferry_disabled under the lock that protects the list of
 * batches in flight, to which it is added. If it reads 0,
 * ferry_recall_batches() finds the batch, or the drain finds its group. If
 * ferry_drain_all() does not recall because there is no group, a later group
 * is allocated, with a full barrier, before its batch reads ferry_disabled, so
 * it reads the value written here. CPUs that go offline meanwhile make no
 * difference: a flush does not wait for them.
 *
 * Context: process context, may sleep. Not called by a task that migrates a
 * batch.
 */
void ferry_retention_disable(void)
{
	guard(mutex)(&ferry_disable_lock);
	WRITE_ONCE(ferry_disabled, ferry_disabled + 1);
	if (ferry_disabled == 1)
		ferry_drain_all();
}

/**
 * ferry_retention_enable() - undo one ferry_retention_disable()
 *
 * Called when no pageblock is isolated for the caller any more, or when the page
 * was handled.
 *
 * Context: process context, may sleep. Does not wait for a drain: while the
 * caller's own call keeps the count above 0, no other call is the first.
 */
void ferry_retention_enable(void)
{
	guard(mutex)(&ferry_disable_lock);
	WRITE_ONCE(ferry_disabled, ferry_disabled - 1);
}

/*
 * Returns the number of retained pages of the node closest to its limit, and
 * stores that limit.
 */
unsigned int ferry_fullest_node(unsigned int *limit)
{
	unsigned int fullest = 0;
	long least = LONG_MAX;
	int nid;

	*limit = READ_ONCE(ferry_max_pages);
	for_each_online_node(nid) {
		unsigned int kept = ferry_kept_pages(nid);
		unsigned int most;
		long room;

		if (!kept)
			continue;
		most = ferry_node_limit(nid);
		room = (long)most - kept;
		if (room < least) {
			least = room;
			fullest = kept;
			*limit = most;
		}
	}
	return fullest;
}
