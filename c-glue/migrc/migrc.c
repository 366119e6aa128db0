// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what migrc does under the locks of others, and what of the architecture
 * and of the page allocator Rust does not know. Nothing is decided here but what
 * must be, where a translation is cleared.
 *
 * Locks: ferry_disable_lock, of ferry_retention_disable() and
 * ferry_retention_enable() alone. c-glue/migrc/spaces.c knows which address spaces
 * may be read by stale translations.
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
#include <linux/sched/sysctl.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>

/* try_to_unmap_flush(), struct alloc_context */
#include "internal.h"
#include "page_alloc.h"

DEFINE_STATIC_KEY_FALSE(ferry_migrc_key);
unsigned int ferry_max_pages __read_mostly = FERRY_DEFAULT_MAX_PAGES;
unsigned int ferry_max_node_percent __read_mostly =
	FERRY_DEFAULT_MAX_NODE_PERCENT;
unsigned int ferry_max_age_ms __read_mostly = FERRY_DEFAULT_MAX_AGE_MS;
bool ferry_migrc_enabled __read_mostly;

/* Groups that there are, and tasks that free what they have recalled from some. */
atomic_t ferry_groups;

/*
 * Pages kept, by node: exact, for the limit; NR_FERRY_RETAINED, by zone, is what
 * watermarks look at, and lags behind by what each CPU has not folded in.
 */
static atomic_t ferry_kept[MAX_NUMNODES];

/*
 * The number of operations during which no folio may be retained, see
 * ferry_retention_disable(). Written under the lock.
 */
static DEFINE_MUTEX(ferry_disable_lock);
unsigned int ferry_disabled;

/* When retained folios were last freed, in jiffies. For ferry_drain_before_oom(). */
static unsigned long ferry_last_release;

static unsigned int ferry_check_pte(struct ferry_unmaps *unmaps,
				const struct folio *folio, struct mm_struct *mm,
				pte_t pteval)
{
	unsigned int refused = 0;

	if (pte_write(pteval) && !ferry_hook_disabled(FERRY_HOOK_WRITABLE))
		refused |= BIT(FERRY_REFUSED_WRITABLE);
	/*
	 * It may be writable in a TLB even if it was write-protected since, by
	 * fork() for instance, which flushes later. Each of these would do for
	 * what is known to; together they are for what is not.
	 */
	if (!ferry_hook_disabled(FERRY_HOOK_FORK)) {
		if (pte_dirty(pteval))
			refused |= BIT(FERRY_REFUSED_DIRTY);
		if (mm_tlb_flush_pending(mm))
			refused |= BIT(FERRY_REFUSED_CHANGING);
	}
	if (!folio_test_anon(folio))
		refused |= ferry_judge_file(unmaps, folio);
	else if (folio_test_swapcache(folio))
		refused |= BIT(FERRY_REFUSED_SWAPCACHE);
	if (folio_test_large(folio) || folio_is_zone_device(folio))
		refused |= BIT(FERRY_REFUSED_LARGE);
	if (folio_test_hwpoison(folio))
		refused |= BIT(FERRY_REFUSED_POISONED);
	return refused;
}

/*
 * See ferry_unmapped(). The address space is counted before the lock is given up,
 * so who takes it next, to write, knows that it must flush.
 */
void ferry_note_unmapped(struct ferry_unmaps *unmaps, const struct folio *folio,
			 struct mm_struct *mm, pte_t pteval)
{
	unsigned int refused, why;

	/* No TLB has it. */
	if (!pte_accessible(mm, pteval))
		return;
	ferry_note_folio(folio);
	if (ferry_hook_disabled(FERRY_HOOK_BATCHED))
		atomic_dec(&mm->tlb_flush_batched);
	refused = ferry_check_pte(unmaps, folio, mm, pteval);
	if (!ferry_note_space(unmaps, mm))
		refused |= BIT(FERRY_REFUSED_MMS);
	if (!refused)
		ferry_count_migrc(FERRY_MIGRC_ELIGIBLE, 1);
	for (why = 0; refused >> why; why++) {
		if (refused & BIT(why))
			ferry_count_refused(why, 1);
	}
	unmaps->refused |= refused;
}

/* When its address spaces were flushed, or never had stale translations. */
void ferry_group_free(struct ferry_group *group)
{
	WARN_ON_ONCE(!list_empty(&group->folios) || !list_empty(&group->batch));
	ferry_forget_spaces(&group->unmaps);
	ferry_forget_files(&group->unmaps);
	kfree(group);
	/* Pairs with ferry_help_before_oom(), which reads when the folios were freed. */
	atomic_fetch_dec_release(&ferry_groups);
}

/*
 * A group without folios. NULL: there is no memory, migrc is off, or this task is
 * migrating for one: destinations are allocated between two unmaps, which may
 * reclaim, which may demote. What that unmaps is noted in the other, and flushed.
 */
struct ferry_group *ferry_group_alloc(void)
{
	struct ferry_group *group;

	/* ferry_disabled is a hint here: ferry_batch_begins() decides. */
	if (!READ_ONCE(ferry_migrc_enabled) || READ_ONCE(ferry_disabled))
		return NULL;
	if (current->tlb_ubc.unmaps && !ferry_hook_disabled(FERRY_HOOK_NESTED))
		return NULL;

	/* Migration may be what memory is made free by: leave the reserves. */
	group = kzalloc_obj(*group,
			    GFP_NOWAIT | __GFP_NOWARN | __GFP_NOMEMALLOC);
	if (!group) {
		ferry_count_refused(FERRY_REFUSED_MEMORY, 1);
		return NULL;
	}
	spin_lock_init(&group->lock);
	INIT_LIST_HEAD(&group->folios);
	INIT_LIST_HEAD(&group->batch);
	group->number = ferry_batch_number();
	/*
	 * Full barrier; with that of ferry_migrc_stop(): a batch that sees migrc
	 * enabled has a number from before the recall.
	 */
	if (atomic_inc_return(&ferry_groups) && READ_ONCE(ferry_migrc_enabled))
		return group;
	ferry_group_free(group);
	return NULL;
}

/*
 * From now on what this task unmaps is noted for a group; NULL: for none. What it
 * unmapped before, for reclaim, is flushed: it is not the group's.
 */
void ferry_group_watch(struct ferry_group *group)
{
	if (group)
		try_to_unmap_flush();
	current->tlb_ubc.unmaps = group ? &group->unmaps : NULL;
}

static void ferry_merge_arch(struct arch_tlbflush_unmap_batch *into,
			     const struct arch_tlbflush_unmap_batch *from)
{
	cpumask_or(&into->cpumask, &into->cpumask, &from->cpumask);
	into->unmapped_pages |= from->unmapped_pages;
}

/*
 * Leaves the flush that this task owes to a group. If it must not be left, it is
 * made, and the answer is false; as it is if there is nothing to flush. May sleep.
 */
bool ferry_group_defer(struct ferry_group *group)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;

	tlb_ubc->unmaps = NULL;
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

/* Returns how many pages a node may keep. */
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

/*
 * Keeps an old folio, unless its node has no room, or the batch was recalled: then the
 * answer is false.
 */
bool ferry_group_keep(struct ferry_group *group, struct folio *src,
		      struct folio *dst)
{
	atomic_t *kept = &ferry_kept[folio_nid(src)];

	/* Flushed as it was unmapped, or by whoever refused it. */
	if (folio_test_large(src) || folio_is_zone_device(src))
		return true;
	if (ferry_hook_disabled(FERRY_HOOK_RETAIN)) {
		/* As whoever has it next would. */
		clear_page(folio_address(src));
		return true;
	}
	if (atomic_inc_return(kept) > ferry_node_limit(folio_nid(src)) &&
	    !ferry_hook_disabled(FERRY_HOOK_BOUND)) {
		atomic_dec(kept);
		return false;
	}
	guard(spinlock)(&group->lock);
	if (group->recalled) {
		atomic_dec(kept);
		return false;
	}
	/* Pageblocks are isolated while retention is disabled, and then only. */
	VM_WARN_ON_ONCE(is_migrate_isolate_page(&src->page));
	folio_get(src);
	ferry_note_copy(src, dst);
	list_add_tail(&src->lru, &group->folios);
	group->nr_pages++;
	mod_zone_page_state(folio_zone(src), NR_FERRY_RETAINED, 1);
	return true;
}

/* Has this task owe the flush of a group, see ferry_flush_owed(). */
void ferry_group_owe(const struct ferry_group *group)
{
	ferry_merge_arch(&current->tlb_ubc.arch, &group->arch);
	current->tlb_ubc.flush_required = true;
}

/*
 * Completes what CPUs may have of the groups whose flush this task owes (O4). Their masks
 * stay, for tasks that flush for them meanwhile. With interrupts on.
 */
void ferry_flush_owed(void)
{
	try_to_unmap_flush();
}

/*
 * Frees folios that were kept (O1: after the flush). Returns how many, of one page each.
 * May sleep.
 */
unsigned int ferry_free_folios(struct list_head *folios)
{
	struct folio_batch fbatch;
	struct folio *folio, *next;
	unsigned int nr = 0;

	folio_batch_init(&fbatch);
	list_for_each_entry_safe(folio, next, folios, lru) {
		list_del(&folio->lru);
		if (ferry_hook_disabled(FERRY_HOOK_EVERY))
			clear_page(folio_address(folio));
		mod_zone_page_state(folio_zone(folio), NR_FERRY_RETAINED, -1);
		atomic_dec(&ferry_kept[folio_nid(folio)]);
		nr++;
		if (!folio_batch_add(&fbatch, folio))
			folios_put(&fbatch);
	}
	if (folio_batch_count(&fbatch))
		folios_put(&fbatch);
	/* Not before they are free: an earlier attempt to allocate did not find them. */
	WRITE_ONCE(ferry_last_release, jiffies);
	return nr;
}

/* As that, of a group that is not in flight. */
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
 * A group that keeps folios has lost its owner, which is a bug. A workqueue flushes
 * and frees it: the context may be one that must not wait for other CPUs. Until then
 * drains, and tasks that open a file for writing, find it only if its batch is in flight.
 * Context: any but NMI and interrupts.
 */
void ferry_group_abandon(struct ferry_group *group)
{
	WARN_ONCE(1, "ferry: a group was dropped before it was flushed\n");
	INIT_WORK(&group->abandoned, ferry_flush_abandoned);
	queue_work(system_dfl_wq, &group->abandoned);
}

/* Pages of a node that are kept. */
unsigned int ferry_kept_pages(int nid)
{
	return atomic_read(&ferry_kept[nid]);
}

/* See ferry_drain(). */
void ferry_drain_all(void)
{
	/*
	 * Pairs with the full barrier of ferry_group_alloc(): a group that is not
	 * seen here sees all that the caller of this function has written before.
	 */
	smp_mb();
	if (!atomic_read(&ferry_groups))
		return;
	ferry_recall_batches(FERRY_DRAIN_ASKED);
	ferry_migrc_drain(FERRY_DRAIN_ASKED);
}

/**
 * ferry_retention_disable() - retain no folios until this is undone
 *
 * Called before pageblocks are isolated. From the return of this function to the
 * matching ferry_retention_enable() no folio is retained, of any node, and no
 * batch keeps one. Other tasks may still be freeing some that were. Calls nest: only
 * the first one drains.
 *
 * A batch reads ferry_disabled under the lock under which it is added to the list of
 * batches in flight. If it reads 0, ferry_recall_batches() finds it there, or the drain
 * finds its group. If ferry_drain_all() does not recall since there is no group, a later
 * group is allocated, by a full barrier, before its batch reads ferry_disabled, and so it
 * reads the value written here. CPUs that go offline meanwhile change nothing: a flush
 * does not wait for these.
 *
 * Context: process context, may sleep. Not called by a task that migrates a batch.
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
 * Called when no pageblock is isolated any more for the caller.
 *
 * Context: process context, may sleep. It does not wait for a drain: while the
 * caller's own call holds the count up, no other call is the first.
 */
void ferry_retention_enable(void)
{
	guard(mutex)(&ferry_disable_lock);
	WRITE_ONCE(ferry_disabled, ferry_disabled - 1);
}

/*
 * Returns how many pages the node with the least room for more keeps, and how many
 * it may.
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

/* Returns how many pages of a zone are retained. */
static unsigned long ferry_retained_pages(struct zone *zone)
{
	/* The node first: its counter is one word, the zone's a word for each CPU. */
	if (!ferry_kept_pages(zone_to_nid(zone)))
		return 0;
	return zone_page_state_snapshot(zone, NR_FERRY_RETAINED);
}

/* Would what is retained of a zone lift it above a watermark? */
static bool ferry_would_lift(struct zone *zone, unsigned int order,
			     unsigned long mark, int highest_zoneidx,
			     unsigned int alloc_flags)
{
	unsigned long retained = ferry_retained_pages(zone);

	if (!retained)
		return false;
	/* Pages that come back may merge. */
	if (order)
		return true;
	return !zone_watermark_ok(zone, 0, mark, highest_zoneidx,
				  alloc_flags) &&
	       __zone_watermark_ok(zone, 0, mark, highest_zoneidx, alloc_flags,
				   zone_page_state(zone, NR_FREE_PAGES) +
				   retained);
}

/* Frees what is retained, for kswapd or an allocation. May sleep. */
static void ferry_free_retained(void)
{
	ferry_migrc_drain(FERRY_DRAIN_PRESSURE);
	/*
	 * Pages that a CPU has at hand do not count for watermarks, and do not
	 * merge.
	 */
	migrate_disable();
	drain_local_pages(NULL);
	migrate_enable();
}

/* See ferry_drain_for_kswapd(). */
void ferry_help_kswapd(struct pglist_data *pgdat, int order,
		       int highest_zoneidx)
{
	int i;

	for (i = 0; i <= highest_zoneidx; i++) {
		struct zone *zone = &pgdat->node_zones[i];
		unsigned long mark;

		/* As pgdat_balanced() has it. */
		if (sysctl_numa_balancing_mode & NUMA_BALANCING_MEMORY_TIERING)
			mark = promo_wmark_pages(zone);
		else
			mark = high_wmark_pages(zone);
		if (managed_zone(zone) &&
		    ferry_would_lift(zone, order, mark, highest_zoneidx, 0)) {
			ferry_free_retained();
			return;
		}
	}
}

/* Would an allocation be helped? */
static bool ferry_would_help(unsigned int order, const struct alloc_context *ac,
			     unsigned int alloc_flags)
{
	struct zoneref *z = ac->preferred_zoneref;
	struct zone *zone;

	for_next_zone_zonelist_nodemask(zone, z, ac->highest_zoneidx,
					ac->nodemask) {
		unsigned long mark =
			wmark_pages(zone, alloc_flags & ALLOC_WMARK_MASK);

		if (ferry_would_lift(zone, order, mark, ac->highest_zoneidx,
				     alloc_flags))
			return true;
	}
	return false;
}

/* See ferry_drain_for_alloc(). */
void ferry_help_allocation(gfp_t gfp, unsigned int order,
			   const struct alloc_context *ac,
			   unsigned int alloc_flags)
{
	/* Who reclaims gets along without. */
	if (!(gfp & __GFP_DIRECT_RECLAIM) || current->flags & PF_MEMALLOC)
		return;
	if (!ferry_would_help(order, ac, alloc_flags))
		return;
	ferry_free_retained();
}

/* Returns whether folios are retained that an allocation could use. */
static bool ferry_has_retained(const struct alloc_context *ac)
{
	struct zoneref *z = ac->preferred_zoneref;
	struct zone *zone;

	for_next_zone_zonelist_nodemask(zone, z, ac->highest_zoneidx,
					ac->nodemask) {
		if (ferry_retained_pages(zone))
			return true;
	}
	return false;
}

/* See ferry_drain_for_reclaim(). */
void ferry_help_reclaim(const struct alloc_context *ac)
{
	if (ferry_has_retained(ac))
		ferry_free_retained();
}

/* See ferry_drain_before_oom(). */
bool ferry_help_before_oom(unsigned long since)
{
	/* Pairs with ferry_group_free(): sees when the folios of past groups were freed. */
	if (!atomic_read_acquire(&ferry_groups) &&
	    time_before(READ_ONCE(ferry_last_release), since))
		return false;
	ferry_recall_batches(FERRY_DRAIN_PRESSURE);
	ferry_migrc_drain(FERRY_DRAIN_PRESSURE);
	/* Other tasks have freed to the lists of other CPUs. */
	drain_all_pages(NULL);
	return true;
}
