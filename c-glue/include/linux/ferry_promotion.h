/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: promotion of page cache that is mapped nowhere. The hooks in mainline
 * functions, and what its Rust part and its C part have in common.
 *
 * ferry_folio_accessed() may run under a lock of page tables, or with interrupts
 * off: it only records, what tasks access. No lock is taken, nothing is allocated, and no reference
 * is kept.
 */
#ifndef _LINUX_FERRY_PROMOTION_H
#define _LINUX_FERRY_PROMOTION_H

#include <linux/jump_label.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/nodemask.h>

struct kobj_attribute;

#ifdef CONFIG_FERRY_PAGECACHE_PROMOTION

/* promotion/rate_mbps: in MB of 2^20 bytes, as that of NUMA balancing */
#define FERRY_DEFAULT_PROMOTION_MBPS	256

/* promotion/max_isolated: as many pages as a batch of mainline's has */
#define FERRY_DEFAULT_MAX_ISOLATED	512

/* Why a folio that was recorded is not promoted. */
enum ferry_promotion_refusal {
	FERRY_UNPROMOTED_NONE,		/* it is */
	FERRY_UNPROMOTED_GONE,		/* freed, moved, or isolated by others */
	FERRY_UNPROMOTED_OFF_LRU,	/* isolated just then */
	FERRY_UNPROMOTED_NOT_FILE,	/* of another kind by now */
	FERRY_UNPROMOTED_MAPPED,	/* NUMA balancing sees its accesses */
	FERRY_UNPROMOTED_DIRTY,
	FERRY_UNPROMOTED_WRITEBACK,
	FERRY_UNPROMOTED_DROPBEHIND,
	FERRY_UNPROMOTED_LOCKED,
	FERRY_UNPROMOTED_UNEVICTABLE,
	FERRY_UNPROMOTED_COLD,		/* not known to be in use any more */
	FERRY_UNPROMOTED_BUSY,		/* others have references */
	FERRY_UNPROMOTED_NO_ROOM,	/* the target is full, or too slow */
	FERRY_UNPROMOTED_FAILED,	/* migration did */
	FERRY_NR_UNPROMOTED
};

enum ferry_promotion_event {
	FERRY_PROMOTION_CANDIDATES,	/* folios found hot */
	FERRY_PROMOTION_PROMOTED,	/* pages */
	FERRY_PROMOTION_LOST,		/* accesses: no room to record them */
	FERRY_PROMOTION_RATE_LIMITED,	/* folios that wait, by rate_mbps */
	FERRY_PROMOTION_BRAKED,		/* folios that wait, by the brake */
	FERRY_PROMOTION_CAME_BACK,	/* folios that were demoted or read again */
	FERRY_NR_PROMOTION_EVENTS
};

/**
 * struct ferry_cached - where a folio of the page cache is
 * @file:	only a name, as the next
 * @index:	in pages
 * @pfn:	its first page
 * @order:	of the folio
 */
struct ferry_cached {
	unsigned long file;
	unsigned long index;
	unsigned long pfn;
	unsigned int order;
};

DECLARE_STATIC_KEY_FALSE(ferry_promotion_key);
/* Nodes with memory of a lower tier than the top one. */
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

/* rust/hooks.rs */
unsigned int ferry_promotion_record(unsigned int cpu, unsigned long pfn,
				    int from, int to);
void ferry_promotion_promoted(const struct ferry_cached *cached);
void ferry_promotion_demoted(const struct ferry_cached *cached, bool from_top);
int ferry_promotion_start(void);
void ferry_promotion_stop(void);
unsigned int ferry_promotion_brake(void);

/**
 * ferry_folio_accessed() - a folio that is known to be in use is accessed
 * @folio: the folio, of which the caller has a reference or may not be freed
 *
 * For any context.
 */
static inline void ferry_folio_accessed(struct folio *folio)
{
	if (static_branch_unlikely(&ferry_promotion_key) &&
	    node_isset(folio_nid(folio), ferry_lower_nodes))
		ferry_record_access(folio);
}

/* A folio was migrated to another; both are locked. */
static inline void ferry_folio_migrated(const struct folio *src,
					const struct folio *dst, int reason)
{
	if (static_branch_unlikely(&ferry_promotion_key))
		ferry_record_migration(src, dst, reason);
}

/* Of no address space, as it is mapped nowhere? */
static inline bool ferry_no_vma(const struct vm_area_struct *vma)
{
	return !vma;
}

#else /* !CONFIG_FERRY_PAGECACHE_PROMOTION */

static inline void ferry_folio_accessed(struct folio *folio) { }

static inline void ferry_folio_migrated(const struct folio *src,
					const struct folio *dst, int reason) { }

static inline void ferry_tiers_changed(void) { }

static inline bool ferry_no_vma(const struct vm_area_struct *vma)
{
	return false;
}

#endif /* CONFIG_FERRY_PAGECACHE_PROMOTION */
#endif /* _LINUX_FERRY_PROMOTION_H */
