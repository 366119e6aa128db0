// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: frees what migrc retains when memory is short: for kswapd, for an
 * allocation, and before the OOM killer is called.
 *
 * Locks: those of rust/migrc/, in ferry_migrc_drain().
 *
 * Context: the page allocator's slow path, and kswapd; both may sleep.
 */
#include <linux/ferry_group.h>
#include <linux/ferry_migrc.h>
#include <linux/gfp.h>
#include <linux/jiffies.h>
#include <linux/mmzone.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/sysctl.h>
#include <linux/vmstat.h>

/* struct alloc_context */
#include "internal.h"
#include "page_alloc.h"

/* Returns the number of retained pages of a zone. */
static unsigned long ferry_retained_pages(struct zone *zone)
{
	/*
	 * The node first: its counter is one word, the zone has one for each
	 * CPU.
	 */
	if (!ferry_kept_pages(zone_to_nid(zone)))
		return 0;
	return zone_page_state_snapshot(zone, NR_FERRY_RETAINED);
}

/*
 * Returns whether freeing the retained pages of a zone lifts it above a
 * watermark, or, for a higher order, whether it has any.
 */
static bool ferry_would_lift(struct zone *zone, unsigned int order,
			     unsigned long mark, int highest_zoneidx,
			     unsigned int alloc_flags)
{
	unsigned long retained = ferry_retained_pages(zone);

	if (!retained)
		return false;
	/* Freed pages may merge. */
	if (order)
		return true;
	return !zone_watermark_ok(zone, 0, mark, highest_zoneidx,
				  alloc_flags) &&
	       __zone_watermark_ok(zone, 0, mark, highest_zoneidx, alloc_flags,
				   zone_page_state(zone, NR_FREE_PAGES) +
				   retained);
}

/* Frees all retained folios, for kswapd or an allocation. May sleep. */
static void ferry_free_retained(void)
{
	ferry_migrc_drain(FERRY_DRAIN_PRESSURE);
	/*
	 * Pages on per-CPU lists do not count for watermarks, and do not
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

		/* As in pgdat_balanced(). */
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

/* Returns whether a drain would help an allocation. */
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
	/* Tasks in reclaim use the reserves. */
	if (!(gfp & __GFP_DIRECT_RECLAIM) || current->flags & PF_MEMALLOC)
		return;
	if (!ferry_would_help(order, ac, alloc_flags))
		return;
	ferry_free_retained();
}

/* Returns whether there are retained folios that an allocation could use. */
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
	/*
	 * Pairs with ferry_group_free(): sees the time when past groups freed
	 * folios.
	 */
	if (!atomic_read_acquire(&ferry_groups) &&
	    time_before(READ_ONCE(ferry_last_release), since))
		return false;
	ferry_recall_batches(FERRY_DRAIN_PRESSURE);
	ferry_migrc_drain(FERRY_DRAIN_PRESSURE);
	/* Other tasks have freed to the per-CPU lists of other CPUs. */
	drain_all_pages(NULL);
	return true;
}
