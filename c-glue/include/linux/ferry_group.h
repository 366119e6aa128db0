/* SPDX-License-Identifier: GPL-2.0-only */
/* Ferry: groups of retained folios, shared by rust/migrc/ and c-glue/migrc/. */
#ifndef _LINUX_FERRY_GROUP_H
#define _LINUX_FERRY_GROUP_H

#include <linux/kobject.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "ferry_migrc.h"

#ifdef CONFIG_FERRY_MIGRC

/* migrc/max_pages, per node: 128 MB, or 64 mainline batches */
#define FERRY_DEFAULT_MAX_PAGES		32768
/* migrc/max_node_percent: percentage of the managed pages of each node */
#define FERRY_DEFAULT_MAX_NODE_PERCENT	1
/* migrc/max_age_ms */
#define FERRY_DEFAULT_MAX_AGE_MS	1000

/*
 * Reasons to flush a translation or a batch at once, see docs/admin-guide.rst
 */
enum ferry_refusal {
	FERRY_REFUSED_WRITABLE,
	FERRY_REFUSED_CHANGING,
	FERRY_REFUSED_FILE,
	FERRY_REFUSED_WRITTEN,
	FERRY_REFUSED_HUGE,
	FERRY_REFUSED_SWAPCACHE,
	FERRY_REFUSED_POISONED,
	FERRY_REFUSED_MEMORY,
	FERRY_NR_REFUSALS
};

/* Reasons to release retained folios. */
enum ferry_drain {
	FERRY_DRAIN_BOUND,
	FERRY_DRAIN_AGE,
	FERRY_DRAIN_PRESSURE,
	FERRY_DRAIN_WRITE,
	FERRY_DRAIN_FLUSH,
	FERRY_DRAIN_ASKED,
	FERRY_DRAIN_OFF,
	FERRY_NR_DRAINS
};

/* Further counters. */
enum ferry_migrc_event {
	FERRY_MIGRC_ELIGIBLE,	/* translations before an ineligible one */
	FERRY_MIGRC_DEFERRED,	/* pages retained */
	FERRY_MIGRC_FLUSHED_FIRST, /* flushes before a write */
	FERRY_NR_MIGRC_EVENTS
};

/**
 * struct ferry_group - retained folios, and the TLB flush that they wait for
 * @unmaps: translations that the batch cleared
 * @arch: CPUs that may have stale translations
 * @lock: protects @folios, @nr_pages and @recalled while the batch is in
 *	flight
 * @folios: retained folios
 * @nr_pages: number of their pages
 * @recalled: the batch must not retain any more folios
 * @number: result of ferry_batch_number() before the batch unmapped folios
 * @batch: entry of the list of batches in flight, see c-glue/migrc/file.c
 * @unflushed: number of address spaces not flushed since the group was linked
 * @pending: the flush is deferred
 * @seq: sequence number of the group, assigned when it is retained
 * @since_ns: time when it was retained
 * @owed: a drain flushes and frees the group; protected by the lock of the
 *	ledger
 * @flushes: sum of the flush counts of its address spaces when it was created
 * @abandoned: work that flushes and frees the group if its owner has dropped
 *	it
 */
struct ferry_group {
	struct ferry_unmaps unmaps;
	struct arch_tlbflush_unmap_batch arch;
	/* Taken by the migrating task and by tasks that recall the batch. */
	spinlock_t lock;
	struct list_head folios;
	u32 nr_pages;
	bool recalled;
	u32 number;
	struct list_head batch;
	atomic_t unflushed;
	bool pending;
	u64 seq;
	s64 since_ns;
	bool owed;
	unsigned int flushes;
	struct work_struct abandoned;
};

/* c-glue/migrc/migrc.c */
extern unsigned int ferry_max_pages;
extern unsigned int ferry_max_node_percent;
extern unsigned int ferry_max_age_ms;
extern bool ferry_migrc_enabled;
extern atomic_t ferry_groups;
extern unsigned int ferry_disabled;
extern unsigned long ferry_last_release;

struct ferry_group *ferry_group_alloc(void);
void ferry_group_free(struct ferry_group *group);
bool ferry_group_defer(struct ferry_group *group);
bool ferry_group_keep(struct ferry_group *group, struct folio *src,
		      struct folio *dst);
void ferry_group_owe(const struct ferry_group *group);
void ferry_flush_owed(void);
unsigned int ferry_free_folios(struct list_head *folios);
unsigned int ferry_group_release(struct ferry_group *group);
void ferry_group_abandon(struct ferry_group *group);

unsigned int ferry_kept_pages(int nid);
unsigned int ferry_fullest_node(unsigned int *limit);

/* c-glue/migrc/spaces.c */
void ferry_note_space(struct ferry_unmaps *unmaps, struct mm_struct *mm);
void ferry_group_link(struct ferry_group *group);
void ferry_group_unlink(struct ferry_group *group);
bool ferry_group_unread(const struct ferry_group *group);
void ferry_forget_spaces(struct ferry_unmaps *unmaps);

/* c-glue/migrc/file.c */
extern bool ferry_migrc_files;

unsigned int ferry_batch_number(void);
bool ferry_batch_begins(struct ferry_group *group);
bool ferry_batch_settles(struct ferry_group *group);
void ferry_batch_flushed(struct ferry_group *group);
void ferry_recall_batches(enum ferry_drain why);
unsigned int ferry_check_file(struct ferry_unmaps *unmaps,
			      const struct folio *folio);
bool ferry_group_has_file(const struct ferry_group *group, unsigned int file);
void ferry_forget_files(struct ferry_unmaps *unmaps);

/* c-glue/migrc/knobs.c */
void ferry_count_refused(enum ferry_refusal why);
void ferry_count_drained(enum ferry_drain why, unsigned int nr);
void ferry_count_migrc(enum ferry_migrc_event what, unsigned int nr);

/* c-glue/migrc/debug.c */
#ifdef CONFIG_FERRY_MIGRC_DEBUG
int ferry_migrc_debug_init(struct kobject *migrc);
bool ferry_drain_at_random(void);
void ferry_note_mm_flush(const struct mm_struct *mm);
void ferry_note_page(const struct folio *folio, unsigned long pfn);
void ferry_note_mm(struct ferry_unmaps *unmaps, const struct mm_struct *mm);
void ferry_note_copy(struct folio *src, struct folio *dst);
void ferry_group_check(struct ferry_group *group);

/* c-glue/migrc/secondary.c */
extern struct kobj_attribute ferry_secondary_attr;
extern struct kobj_attribute ferry_secondary_ranges_attr;
#else
static inline int ferry_migrc_debug_init(struct kobject *migrc)
{
	return 0;
}

static inline bool ferry_drain_at_random(void)
{
	return false;
}

static inline void ferry_note_mm_flush(const struct mm_struct *mm) { }
static inline void ferry_note_page(const struct folio *folio,
				   unsigned long pfn) { }
static inline void ferry_note_mm(struct ferry_unmaps *unmaps,
				 const struct mm_struct *mm) { }
static inline void ferry_note_copy(struct folio *src, struct folio *dst) { }
static inline void ferry_group_check(struct ferry_group *group) { }
#endif

/* rust/migrc/hooks.rs */
int ferry_migrc_prepare(void);
unsigned int ferry_migrc_drain(enum ferry_drain why);
void ferry_migrc_drain_file(unsigned int file);

#endif /* CONFIG_FERRY_MIGRC */
#endif /* _LINUX_FERRY_GROUP_H */
