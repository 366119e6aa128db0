/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: the hooks in mm/vmscan.c, by which kswapd and proactive reclaim gather
 * long lists to demote, and have a crew demote one part while they shrink the
 * next.
 *
 * They run in reclaim, which may sleep. ferry_gather_more() decides between two
 * holds of the lock of the lruvec, and all others are called without it. What
 * they keep is in the caller's scan_control: nobody else sees it.
 */
#ifndef _LINUX_FERRY_RECLAIM_H
#define _LINUX_FERRY_RECLAIM_H

#include <linux/list.h>
#include <linux/swap.h>

#include "ferry.h"

/*
 * Folios of a list that are scanned together to demote, at most: 8 MB
 * of pages, so that starting a crew, and waiting for the last of its chunks, are
 * a small part of it.
 */
#define FERRY_DEMOTION_BATCH	2048UL

/* Pages of it that are shrunk before what they had to demote is handed over. */
#define FERRY_DEMOTION_PART	128UL

/**
 * struct ferry_parts - a long list that is shrunk part by part
 * @shrink:	shrinks the next part, in the task that has the list; false: there
 *		is none that it shrinks so. May sleep
 * @rest:	the list: isolated folios that were not shrunk yet
 * @demote:	isolated folios of the last part that are to be demoted; to be
 *		emptied before the next
 */
struct ferry_parts {
	bool (*shrink)(struct ferry_parts *parts);
	struct list_head *rest;
	struct list_head demote;
};

#ifdef CONFIG_FERRY

/**
 * struct ferry_gather - what reclaim isolates of a list, to be shrunk together
 * @step:	what mainline scans of it together
 * @wanted:	so many pages, at most, but for the last folio
 * @left:	what was to be scanned, and is not yet
 * @taken:	pages isolated
 * @scanned:	pages looked at
 * @seq:	of generations, by type: what was the oldest
 * @failed:	much of a long list could not be demoted: from then on, they are
 *		short
 * @demote:	where shrink_folio_list() leaves what is to be demoted; NULL: it
 *		demotes that itself
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

/* rust/hooks.rs */
bool ferry_crew_demote(const struct ferry_migrate_args *call, struct ferry_parts *parts,
		       struct list_head *left, unsigned int *nr_demoted);

/* May idle CPUs take part in demotion? */
static inline bool ferry_helps_demotion(void)
{
	return ferry_wanted(0, MR_DEMOTION);
}

/* Are long lists to be gathered for demotion? */
static inline bool ferry_gathers_demotion(const struct ferry_gather *gather)
{
	return ferry_helps_demotion() && !gather->failed;
}

/*
 * How much proactive reclaim that may demote tries next, of the rest: mainline
 * takes a quarter, and so ends with many short lists. Not all at once but in the
 * end: of several nodes each may give as much.
 */
static inline unsigned long ferry_demotion_try(unsigned long rest)
{
	unsigned long most = rest > FERRY_DEMOTION_BATCH / 4 ? rest / 4 * 3 :
							       rest;

	return max(rest / 4, min(most, FERRY_DEMOTION_BATCH));
}

/*
 * Begins a list. No more is isolated under the lock of the lruvec than mainline
 * does, at a time.
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

/* Is it to be a long list? */
static inline bool ferry_gathers_list(const struct ferry_gather *gather)
{
	return gather->wanted > gather->step;
}

/* A list of generations ends with the oldest: notes which these are. */
static inline void ferry_gather_seq(struct ferry_gather *gather,
				    const unsigned long *min_seq)
{
	memcpy(gather->seq, min_seq, sizeof(gather->seq));
}

/* Is another the oldest now? */
static inline bool ferry_gather_ends(const struct ferry_gather *gather,
				     int type, unsigned long min_seq)
{
	return min_seq != gather->seq[type];
}

/* Is there more to isolate? If not, the counts become those of all of it. */
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

/* What was to be scanned and was not, as large folios were enough. */
static inline unsigned long ferry_gather_rest(struct ferry_gather *gather)
{
	unsigned long rest = gather->left;

	gather->left = 0;
	return gather->scanned ? rest : 0;
}

/*
 * Folios of a list could not be demoted, and are left, perhaps to be reclaimed
 * from the upper tier: no more of a long list than a short one can have, its
 * oldest. To reclaim all would be to break the order of the LRU, so the rest
 * goes to @kept.
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

/* Has a long list as many dirty folios, not queued, as a short one can have? */
static inline bool ferry_gathered_dirty(const struct ferry_gather *gather,
					unsigned long nr_unqueued_dirty)
{
	return ferry_gathers_list(gather) &&
	       nr_unqueued_dirty >= gather->step;
}

/* Begins, or ends with NULL, a part whose demotion is left to others. */
static inline void ferry_leave_demotion(struct ferry_gather *gather,
					struct ferry_parts *parts)
{
	gather->demote = parts ? &parts->demote : NULL;
}

/* Moves all of a list to the end of another, in reverse. */
static inline void ferry_reverse(struct list_head *from, struct list_head *to)
{
	while (!list_empty(from))
		list_move_tail(from->prev, to);
}

/* Leaves what is to be demoted to them, the oldest first. */
static inline void ferry_demote_later(const struct ferry_gather *gather,
				      struct list_head *demote_folios)
{
	if (gather->demote)
		ferry_reverse(demote_folios, gather->demote);
}

/* Moves the next part, from the end of the list; false: there is none. */
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

/* Adds what became of a part. */
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
 * ferry_demote_parts() - have a crew demote while a list is shrunk
 * @parts:		the list
 * @get_new_folio:	as of migrate_pages(), like the next
 * @private:		"
 * @left:		gets what could not be demoted, the oldest last
 * @nr_demoted:		is set to the pages that were
 *
 * May sleep.
 *
 * Return: whether it was; if not, nothing was changed. What is not shrunk then
 * is still on the list.
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
