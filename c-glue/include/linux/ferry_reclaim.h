/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: hooks in mm/vmscan.c, with which kswapd and proactive reclaim gather
 * long lists to demote, and let a crew demote one part while they shrink the
 * next.
 *
 * Context: reclaim, may sleep. ferry_gather_more() is called between two
 * critical sections of the lruvec lock, and all hooks are called without it.
 * Their state is in the caller's scan_control and is not shared.
 */
#ifndef _LINUX_FERRY_RECLAIM_H
#define _LINUX_FERRY_RECLAIM_H

#include <linux/list.h>
#include <linux/swap.h>

#include "ferry.h"

/*
 * Maximum number of pages that are scanned together for demotion: 8 MB, so
 * that starting a crew, and waiting for its last chunk, are a small part of
 * the work.
 */
#define FERRY_DEMOTION_BATCH	2048UL

/* Pages that are shrunk before the ones to demote are handed to the crew. */
#define FERRY_DEMOTION_PART	128UL

/**
 * struct ferry_parts - a long list that is shrunk in parts
 * @shrink: shrinks the next part, in the task that owns the list; returns
 *	false if no part is left. May sleep
 * @rest: isolated folios that are not shrunk yet
 * @demote: isolated folios of the last part to demote; must be emptied before
 *	the next part
 */
struct ferry_parts {
	bool (*shrink)(struct ferry_parts *parts);
	struct list_head *rest;
	struct list_head demote;
};

#ifdef CONFIG_FERRY

/**
 * struct ferry_gather - state of reclaim while it isolates a long list
 * @step: pages that mainline scans at a time
 * @wanted: maximum number of pages, exceeded by the last folio only
 * @left: pages that remain to be scanned
 * @taken: pages isolated
 * @scanned: pages scanned
 * @seq: oldest generation at the start, by type
 * @failed: a large part of a long list could not be demoted; later lists are
 *	short
 * @demote: where shrink_folio_list() leaves the folios to demote; NULL if it
 *	demotes them itself
 */
struct ferry_gather {
	unsigned long step;
	unsigned long wanted;
	unsigned long left;
	unsigned long taken;
	unsigned long scanned;
	unsigned long seq[ANON_AND_FILE];
	bool failed;
	struct list_head *demote;
};

/* rust/crew/hooks.rs */
bool ferry_crew_demote(const struct ferry_migrate_args *call, struct ferry_parts *parts,
		       struct list_head *left, unsigned int *nr_demoted);

/* Returns whether idle CPUs may take part in demotion. */
static inline bool ferry_helps_demotion(void)
{
	return ferry_wanted(0, MR_DEMOTION);
}

/* Returns whether reclaim gathers long lists for demotion. */
static inline bool ferry_gathers_demotion(const struct ferry_gather *gather)
{
	return ferry_helps_demotion() && !gather->failed;
}

/*
 * Returns the number of pages that proactive reclaim with demotion tries next.
 * Mainline tries a quarter of the rest, and so ends with many short lists. The
 * whole rest is tried at the end only, since each of several nodes may reclaim
 * as much.
 */
static inline unsigned long ferry_demotion_try(unsigned long rest)
{
	unsigned long most = rest > FERRY_DEMOTION_BATCH / 4 ? rest / 4 * 3 :
							       rest;

	return max(rest / 4, min(most, FERRY_DEMOTION_BATCH));
}

/*
 * Begins a list. Each critical section of the lruvec lock isolates no more
 * than mainline does.
 */
static inline void ferry_gather(struct ferry_gather *gather,
				unsigned long *nr_to_scan, unsigned long step)
{
	gather->step = step;
	gather->wanted = *nr_to_scan;
	gather->left = *nr_to_scan;
	gather->taken = 0;
	gather->scanned = 0;
	*nr_to_scan = min(*nr_to_scan, step);
}

/* Returns whether the list is longer than a mainline list. */
static inline bool ferry_gathers_list(const struct ferry_gather *gather)
{
	return gather->wanted > gather->step;
}

/* Records the oldest generations, at the end of which the list ends. */
static inline void ferry_gather_seq(struct ferry_gather *gather,
				    const unsigned long *min_seq)
{
	memcpy(gather->seq, min_seq, sizeof(gather->seq));
}

/* Returns whether another generation is the oldest now. */
static inline bool ferry_gather_ends(const struct ferry_gather *gather,
				     int type, unsigned long min_seq)
{
	return min_seq != gather->seq[type];
}

/* Returns whether there is more to isolate. If not, stores the totals. */
static inline bool ferry_gather_more(struct ferry_gather *gather,
				     unsigned long *nr_to_scan,
				     unsigned long *nr_taken,
				     unsigned long *nr_scanned)
{
	gather->left -= *nr_to_scan;
	gather->taken += *nr_taken;
	gather->scanned += *nr_scanned;
	*nr_to_scan = min(gather->left, gather->step);
	if (*nr_to_scan && *nr_scanned && gather->taken < gather->wanted)
		return true;
	*nr_taken = gather->taken;
	*nr_scanned = gather->scanned;
	return false;
}

/* Returns the pages that were not scanned because large folios were enough. */
static inline unsigned long ferry_gather_rest(struct ferry_gather *gather)
{
	unsigned long rest = gather->left;

	gather->left = 0;
	return gather->scanned ? rest : 0;
}

/*
 * Called when folios of a list could not be demoted, and may be reclaimed from
 * the upper tier. Leaves the oldest of a long list on @left, as many as a
 * short list can have. Reclaiming all of them would violate the LRU order, so
 * the rest goes to @kept.
 */
static inline void ferry_demotion_failed(struct ferry_gather *gather,
					 struct list_head *left,
					 struct list_head *kept)
{
	unsigned long nr = gather->step;
	struct list_head *pos;
	LIST_HEAD(rest);

	if (!ferry_gathers_list(gather))
		return;
	list_for_each_prev(pos, left) {
		if (nr--)
			continue;
		gather->failed = true;
		list_cut_position(&rest, left, pos);
		list_splice(&rest, kept);
		break;
	}
}

/*
 * Returns whether a long list has as many unqueued dirty folios as a short
 * list can.
 */
static inline bool ferry_gathered_dirty(const struct ferry_gather *gather,
					unsigned long nr_unqueued_dirty)
{
	return ferry_gathers_list(gather) &&
	       nr_unqueued_dirty >= gather->step;
}

/*
 * Begins a part whose demotion is left to the crew, or ends it if @parts is
 * NULL.
 */
static inline void ferry_leave_demotion(struct ferry_gather *gather,
					struct ferry_parts *parts)
{
	gather->demote = parts ? &parts->demote : NULL;
}

/* Moves a list to the tail of another, in reverse order. */
static inline void ferry_reverse(struct list_head *from, struct list_head *to)
{
	while (!list_empty(from))
		list_move_tail(from->prev, to);
}

/* Leaves the folios to demote to the crew, oldest first. */
static inline void ferry_demote_later(const struct ferry_gather *gather,
				      struct list_head *demote_folios)
{
	if (gather->demote)
		ferry_reverse(demote_folios, gather->demote);
}

/*
 * Moves the next part from the tail of the list. Returns false if it is empty.
 */
static inline bool ferry_cut_part(struct ferry_parts *parts,
				  struct list_head *part)
{
	unsigned long nr_pages = 0;

	while (!list_empty(parts->rest) && nr_pages < FERRY_DEMOTION_PART) {
		struct folio *folio = lru_to_folio(parts->rest);

		nr_pages += folio_nr_pages(folio);
		list_move(&folio->lru, part);
	}
	return nr_pages;
}

/* Adds the result of a part. */
static inline void ferry_add_stat(struct reclaim_stat *all,
				  const struct reclaim_stat *part)
{
	const unsigned int *from = (const unsigned int *)part;
	unsigned int *to = (unsigned int *)all;
	int i;

	/* Eleven counters, and nothing else. */
	BUILD_BUG_ON(sizeof(*all) != 11 * sizeof(*to));
	for (i = 0; i < sizeof(*all) / sizeof(*to); i++)
		to[i] += from[i];
}

/**
 * ferry_demote_parts() - let a crew demote while the caller shrinks the list
 * @parts: the list
 * @get_new_folio: as for migrate_pages(), like the next
 * @private: "
 * @left: receives the folios that could not be demoted, oldest last
 * @nr_demoted: receives the number of demoted pages
 *
 * Context: process context, may sleep.
 *
 * Return: whether a crew demoted; if not, nothing was changed. Folios that are
 * not shrunk on return are still on the list.
 */
static inline bool ferry_demote_parts(struct ferry_parts *parts,
				      new_folio_t get_new_folio,
				      unsigned long private,
				      struct list_head *left,
				      unsigned int *nr_demoted)
{
	const struct ferry_migrate_args call = {
		.get_new_folio	= get_new_folio,
		.private	= private,
		.mode		= MIGRATE_ASYNC,
		.reason		= MR_DEMOTION,
	};
	LIST_HEAD(failed);

	if (!ferry_helps_demotion() ||
	    !ferry_crew_demote(&call, parts, &failed, nr_demoted))
		return false;
	ferry_reverse(&failed, left);
	return true;
}

#else /* !CONFIG_FERRY */

struct ferry_gather { };

static inline bool ferry_helps_demotion(void)
{
	return false;
}

static inline bool ferry_gathers_demotion(const struct ferry_gather *gather)
{
	return false;
}

static inline unsigned long ferry_demotion_try(unsigned long rest)
{
	return rest / 4;
}

static inline void ferry_gather(struct ferry_gather *gather,
				unsigned long *nr_to_scan,
				unsigned long step) { }

static inline bool ferry_gathers_list(const struct ferry_gather *gather)
{
	return false;
}

static inline void ferry_gather_seq(struct ferry_gather *gather,
				    const unsigned long *min_seq) { }

static inline bool ferry_gather_ends(const struct ferry_gather *gather,
				     int type, unsigned long min_seq)
{
	return true;
}

static inline bool ferry_gather_more(struct ferry_gather *gather,
				     unsigned long *nr_to_scan,
				     unsigned long *nr_taken,
				     unsigned long *nr_scanned)
{
	return false;
}

static inline unsigned long ferry_gather_rest(struct ferry_gather *gather)
{
	return 0;
}

static inline void ferry_demotion_failed(struct ferry_gather *gather,
					 struct list_head *left,
					 struct list_head *kept) { }

static inline bool ferry_gathered_dirty(const struct ferry_gather *gather,
					unsigned long nr_unqueued_dirty)
{
	return false;
}

static inline void ferry_leave_demotion(struct ferry_gather *gather,
					struct ferry_parts *parts) { }

static inline void ferry_demote_later(const struct ferry_gather *gather,
				      struct list_head *demote_folios) { }

static inline bool ferry_cut_part(struct ferry_parts *parts,
				  struct list_head *part)
{
	return false;
}

static inline void ferry_add_stat(struct reclaim_stat *all,
				  const struct reclaim_stat *part) { }

static inline bool ferry_demote_parts(struct ferry_parts *parts,
				      new_folio_t get_new_folio,
				      unsigned long private,
				      struct list_head *left,
				      unsigned int *nr_demoted)
{
	return false;
}

#endif /* CONFIG_FERRY */
#endif /* _LINUX_FERRY_RECLAIM_H */
