/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: promotion of page cache without mappings. Declares the hooks in
 * mainline functions and the interface between the Rust and the C part.
 *
 * Context: ferry_folio_accessed() may be called with a PTL held or with
 * interrupts disabled. It only records the access: it takes no lock, allocates
 * no memory and keeps no reference.
 */
#ifndef _LINUX_FERRY_PROMOTION_H
#define _LINUX_FERRY_PROMOTION_H

#include <linux/jump_label.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/nodemask.h>

struct kobj_attribute;

#ifdef CONFIG_FERRY_PAGECACHE_PROMOTION

/* promotion/rate_mbps: in MB of 2^20 bytes, like the limit of NUMA balancing */
#define FERRY_DEFAULT_PROMOTION_MBPS	256

/* promotion/max_isolated: the pages of a mainline batch */
#define FERRY_DEFAULT_MAX_ISOLATED	512

/* Reasons not to promote a recorded folio. */
enum ferry_promotion_refusal {
	FERRY_UNPROMOTED_NONE,		/* promoted */
	FERRY_UNPROMOTED_GONE,		/* freed, moved, isolated elsewhere */
	FERRY_UNPROMOTED_OFF_LRU,	/* isolated meanwhile */
	FERRY_UNPROMOTED_NOT_FILE,	/* now of another type */
	FERRY_UNPROMOTED_MAPPED,	/* NUMA balancing sees its accesses */
	FERRY_UNPROMOTED_DIRTY,		/* and the filesystem may not move it */
	FERRY_UNPROMOTED_POLICY,	/* the file has a memory policy */
	FERRY_UNPROMOTED_WRITEBACK,
	FERRY_UNPROMOTED_DROPBEHIND,
	FERRY_UNPROMOTED_LOCKED,
	FERRY_UNPROMOTED_UNEVICTABLE,
	FERRY_UNPROMOTED_COLD,		/* no longer known to be in use */
	FERRY_UNPROMOTED_BUSY,		/* has extra references */
	FERRY_UNPROMOTED_NO_ROOM,	/* target node full or too slow */
	FERRY_UNPROMOTED_FAILED,	/* migration failed */
	FERRY_NR_UNPROMOTED
};

enum ferry_promotion_event {
	FERRY_PROMOTION_CANDIDATES,	/* folios found hot */
	FERRY_PROMOTION_PROMOTED,	/* pages */
	FERRY_PROMOTION_LOST,		/* accesses: no room to record them */
	FERRY_PROMOTION_RATE_LIMITED,	/* folios delayed by rate_mbps */
	FERRY_PROMOTION_BRAKED,		/* folios delayed by the back-off */
	FERRY_PROMOTION_CAME_BACK,	/* folios demoted or read again */
	FERRY_NR_PROMOTION_EVENTS
};

/**
 * struct ferry_cached - position of a page cache folio
 * @file: identifies the mapping; never dereferenced
 * @index: offset in the file, in pages
 * @pfn: first page frame number
 * @order: order of the folio
 */
struct ferry_cached {
	unsigned long file;
	unsigned long index;
	unsigned long pfn;
	unsigned int order;
};

DECLARE_STATIC_KEY_FALSE(ferry_promotion_key);
/* Nodes below the top memory tier. */
extern nodemask_t ferry_lower_nodes;

/* c-glue/promotion/promotion.c */
void ferry_record_access(struct folio *folio);
void ferry_record_migration(const struct folio *src, const struct folio *dst,
			    int reason);
void ferry_tiers_changed(void);
struct folio *ferry_folio_get_pfn(unsigned long pfn, int nid);
enum ferry_promotion_refusal ferry_unpromoted(struct folio *folio,
					      struct ferry_cached *cached);
bool ferry_has_room(int nid, unsigned int pages);
bool ferry_isolate_promoted(struct folio *folio, int nid,
			    struct list_head *list);
unsigned int ferry_promote(struct list_head *list, int nid);
unsigned long ferry_top_tier_pages(void);

/* c-glue/promotion/knobs.c */
extern struct kobj_attribute ferry_promotion_attr;
extern unsigned int ferry_max_isolated;
extern bool ferry_promotion_enabled;
unsigned int ferry_promotion_mbps(void);
void ferry_count_unpromoted(enum ferry_promotion_refusal why, unsigned int nr);
void ferry_count_promotion(enum ferry_promotion_event what, unsigned int nr);

/* rust/promotion/hooks.rs */
unsigned int ferry_promotion_record(unsigned int cpu, unsigned long pfn,
				    int from, int to);
void ferry_promotion_promoted(const struct ferry_cached *cached);
void ferry_promotion_demoted(const struct ferry_cached *cached, bool from_top);
int ferry_promotion_start(void);
void ferry_promotion_stop(void);
unsigned int ferry_promotion_brake(void);

/**
 * ferry_folio_accessed() - record an access to a folio that is already in use
 * @folio: the folio; the caller holds a reference or otherwise keeps it from
 *	being freed
 *
 * Context: any.
 */
static inline void ferry_folio_accessed(struct folio *folio)
{
	if (static_branch_unlikely(&ferry_promotion_key) &&
	    node_isset(folio_nid(folio), ferry_lower_nodes))
		ferry_record_access(folio);
}

/* Records that a folio was migrated. Both folios are locked. */
static inline void ferry_folio_migrated(const struct folio *src,
					const struct folio *dst, int reason)
{
	if (static_branch_unlikely(&ferry_promotion_key))
		ferry_record_migration(src, dst, reason);
}

#else /* !CONFIG_FERRY_PAGECACHE_PROMOTION */

static inline void ferry_folio_accessed(struct folio *folio) { }

static inline void ferry_folio_migrated(const struct folio *src,
					const struct folio *dst, int reason) { }

static inline void ferry_tiers_changed(void) { }

#endif /* CONFIG_FERRY_PAGECACHE_PROMOTION */
#endif /* _LINUX_FERRY_PROMOTION_H */
