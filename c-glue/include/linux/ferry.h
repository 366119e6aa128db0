/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: hooks in mm/migrate.c for batches and crews.
 *
 * A batch is the set of folios that migrate_pages_batch() unmaps together, or a
 * hugetlb folio. Its hooks run in the context of the migrating task, which may
 * sleep. It holds the folio locks of every pair, and no other mm lock, except
 * for the i_mmap_rwsem of a hugetlb folio that a file has.
 *
 * A crew is the set of tasks that migrate the list of one migrate_folios() call
 * in chunks. ferry_crew() runs in the context of the caller.
 *
 * ferry_copy_key is on while vm.mt_page_copy is 1, while a call with
 * MIGRATE_MT runs, while DMA channels are taken, and for up to a second after
 * that. It may change between any two hooks of a batch.
 */
#ifndef _LINUX_FERRY_H
#define _LINUX_FERRY_H

#include <linux/buffer_head.h>
#include <linux/jump_label_ratelimit.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/timekeeping.h>

#include "ferry_counters.h"

#ifdef CONFIG_FERRY

/**
 * struct ferry_batch - part of a &struct migrate_batch
 * @table: copy table that the folios are posted on; NULL if they are not
 *	posted
 * @start_ns: time just before the first folio is unmapped; 0 if Ferry does not
 *	handle the batch
 * @flush_ns: duration of the TLB flush; until the flush ends, its start time
 * @first_ns: time from @start_ns until the first folio is remapped; 0 before
 *	that
 * @switches: context switches of the migrating task before @start_ns
 * @from: node of the first folio that is unmapped
 * @to: node of its destination folio
 * @folios: folios unmapped
 * @pages: base pages of these
 * @helpers: helpers called
 * @channels: DMA channels that were assigned a part of the batch
 * @nontemporal: copies bypass the caches
 * @alone: a hugetlb folio, whose flush is a part of its unmap
 * @no_cpu: MIGRATE_DMA: no CPU may read the folios; valid even if Ferry does
 *	not handle the batch
 * @group: group of the deferred TLB flush; NULL if the batch is flushed at
 *	once
 */
struct ferry_batch {
	void *table;
	s64 start_ns;
	s64 flush_ns;
	s64 first_ns;
	unsigned long switches;
	s32 from;
	s32 to;
	u32 folios;
	u32 pages;
	u32 helpers;
	u32 channels;
	bool nontemporal;
	bool alone;
	bool no_cpu;
#ifdef CONFIG_FERRY_MIGRC
	void *group;
#endif
};

/*
 * A bit of the state that __migrate_folio_record() stores in the destination,
 * beside FOLIO_WAS_MAPPED and FOLIO_WAS_MLOCKED (struct anon_vma is aligned to
 * 8 bytes on 64-bit): the folio is posted, and ferry_folio_copied() must be
 * called before it is remapped. migrate_folio_move() takes the bit together
 * with the other two and does not set it again: a second attempt copies again,
 * since the source may have been written meanwhile.
 */
#define FERRY_FOLIO_POSTED	BIT(2)

extern struct static_key_false_deferred ferry_copy_key;
/*
 * The migration reasons that vm.mt_page_copy applies to, a bit each; 0 if it
 * is off.
 */
extern unsigned int ferry_reasons;

/* c-glue/sysfs/knobs.c */
bool ferry_may_ask(void);

/*
 * Returns whether idle CPUs may take part: vm.mt_page_copy applies to @reason,
 * or the caller asks for help and may have it. Lockless: a late view of a
 * change is harmless. All data that helpers need is published before the key
 * is enabled, and is never freed.
 */
static inline bool ferry_wanted(unsigned int flags, enum migrate_reason reason)
{
	if (!static_branch_unlikely(&ferry_copy_key.key))
		return false;
	if (READ_ONCE(ferry_reasons) & BIT(reason))
		return true;
	return (flags & MIGRATE_DMA) ||
	       ((flags & MIGRATE_MT) && ferry_may_ask());
}

/*
 * Ferry leaves lists of at most this many small folios to their callers,
 * because examining such a list costs more than it can gain.
 */
extern unsigned int ferry_short_pages;

/*
 * Returns the number of folios if the list is short and has no large folio,
 * else 0.
 */
static inline unsigned int ferry_is_short(const struct list_head *list)
{
	unsigned int most = READ_ONCE(ferry_short_pages), nr = 0;
	const struct folio *folio;

	list_for_each_entry(folio, list, lru) {
		if (nr++ == most || folio_test_large(folio))
			return 0;
	}
	return nr;
}

/* rust/copy/hooks.rs */
void ferry_copy_begin(struct ferry_batch *batch);
void ferry_copy_post(struct ferry_batch *batch, struct list_head *dst_folios,
		     struct list_head *src_folios);
void ferry_copy_post_hugetlb(struct ferry_batch *batch, struct folio *dst,
			     struct folio *src);
int ferry_copy_take(struct ferry_batch *batch, struct folio *src,
		    struct folio *dst);
void ferry_copy_end(struct ferry_batch *batch, int reason);
unsigned int ferry_copy_price(struct list_head *from);

/**
 * ferry_batch_price() - cost of each page in the next batch
 * @from: folios to migrate
 * @mc: how to migrate them
 *
 * Return: the cost in 1/1024 units; 0 means one unit, as in mainline.
 */
static inline unsigned int ferry_batch_price(struct list_head *from,
					     const struct migrate_control *mc)
{
	if (!ferry_wanted(mc->flags, mc->reason) || list_empty(from) ||
	    list_is_singular(from) || ferry_is_short(from))
		return 0;
	return ferry_copy_price(from);
}

/**
 * ferry_batch_cost() - cost that a folio adds to a batch
 * @folio: the folio to migrate, not hugetlb
 * @price: result of ferry_batch_price() before the first folio of the batch
 *
 * A batch ends at NR_MAX_BATCHED_MIGRATION units, which bounds the time that
 * its folios are unmapped. If several threads copy, a large folio costs less
 * than its number of pages, since one huge folio does not amortise calling
 * helpers.
 */
static inline unsigned int ferry_batch_cost(const struct folio *folio,
					    unsigned int price)
{
	unsigned long nr_pages = folio_nr_pages(folio);

	if (likely(!price))
		return nr_pages;
	return DIV_ROUND_UP(nr_pages * price, 1024);
}

/* Called before the first folio of a batch from the list is unmapped. */
static inline void ferry_batch_begin(struct ferry_batch *batch,
				     const struct list_head *from,
				     const struct migrate_control *mc)
{
	batch->table = NULL;
	batch->start_ns = 0;
	batch->no_cpu = mc->flags & MIGRATE_DMA;
	if (ferry_wanted(mc->flags, mc->reason)) {
		unsigned int small = batch->no_cpu ? 0 : ferry_is_short(from);

		if (small) {
			ferry_count(FERRY_SERIAL_SMALL, small);
			return;
		}
		*batch = (struct ferry_batch){
			.no_cpu = mc->flags & MIGRATE_DMA,
		};
		ferry_copy_begin(batch);
	}
}

/* Called when all folios of a batch are unmapped, before the TLB flush. */
static inline void ferry_batch_unmapped(struct ferry_batch *batch)
{
	if (unlikely(batch->start_ns))
		batch->flush_ns = ktime_get();
}

/**
 * ferry_batch_post() - post the eligible folios of a batch to be copied
 * @batch: the batch
 * @dst_folios: destination folios, locked, not visible to other tasks
 * @src_folios: their source folios in the same order, locked and unmapped
 *
 * Called after the TLB flush, before any folio is remapped. Marks each posted
 * destination folio with FERRY_FOLIO_POSTED.
 */
static inline void ferry_batch_post(struct ferry_batch *batch,
				    struct list_head *dst_folios,
				    struct list_head *src_folios)
{
	if (static_branch_unlikely(&ferry_copy_key.key) && batch->start_ns)
		ferry_copy_post(batch, dst_folios, src_folios);
}

/**
 * ferry_folio_copied() - wait until a folio is copied
 * @batch: the batch
 * @src: the next source folio on the list
 * @dst: its destination folio
 * @state: the state that was stored in @dst
 *
 * Takes part in copying until this folio is copied. Must be called for each
 * folio of the batch once, in list order. If @src and @dst are not the pair
 * that was posted next, this warns and waits until no task copies a folio of
 * the batch; the caller then copies this folio and all later ones.
 *
 * Return: 1 if the folio is copied, 0 if the caller must copy it, -EHWPOISON
 * if it cannot be read, -EIO if a DMA engine has not completed its copy,
 * -EOPNOTSUPP if no engine has copied it and no CPU may.
 */
static inline int ferry_folio_copied(struct ferry_batch *batch,
				     struct folio *src, struct folio *dst,
				     int state)
{
	if (state & FERRY_FOLIO_POSTED)
		return ferry_copy_take(batch, src, dst);
	return unlikely(batch->no_cpu) ? -EOPNOTSUPP : 0;
}

/* Called when a folio of a batch is remapped. */
static inline void ferry_folio_done(struct ferry_batch *batch)
{
	if (unlikely(batch->start_ns) && !batch->first_ns)
		batch->first_ns = ktime_get() - batch->start_ns;
}

/* Called when all folios of a batch are done. */
static inline void ferry_batch_end(struct ferry_batch *batch, int reason)
{
	if (unlikely(batch->start_ns))
		ferry_copy_end(batch, reason);
}

/*
 * Called before a hugetlb folio is unmapped. Starts a batch of this folio alone;
 * ferry_batch_end() ends it, and is not needed if the folio was not unmapped.
 */
static inline void ferry_hugetlb_begin(struct ferry_batch *batch,
				       const struct migrate_control *mc)
{
	batch->start_ns = 0;
	if (ferry_wanted(mc->flags, mc->reason)) {
		*batch = (struct ferry_batch){ .alone = true };
		ferry_copy_begin(batch);
	}
}

/**
 * ferry_hugetlb_copied() - copy a hugetlb folio with the help of idle CPUs
 * @batch: as ferry_hugetlb_begin() left it
 * @src: the folio, locked and unmapped
 * @dst: its destination folio, locked, not visible to other tasks
 *
 * Return: 1 if the folio is copied, 0 if the caller must copy it, -EHWPOISON
 * if it cannot be read.
 */
static inline int ferry_hugetlb_copied(struct ferry_batch *batch,
				       struct folio *src, struct folio *dst)
{
	if (!static_branch_unlikely(&ferry_copy_key.key) || !batch->start_ns)
		return 0;
	ferry_batch_unmapped(batch);
	ferry_copy_post_hugetlb(batch, dst, src);
	return batch->table ? ferry_copy_take(batch, src, dst) : 0;
}

#else /* !CONFIG_FERRY */

struct ferry_batch { };

#define FERRY_FOLIO_POSTED	0

static inline unsigned int ferry_batch_price(struct list_head *from,
					     const struct migrate_control *mc)
{
	return 0;
}

static inline unsigned int ferry_batch_cost(const struct folio *folio,
					    unsigned int price)
{
	return folio_nr_pages(folio);
}

static inline void ferry_batch_begin(struct ferry_batch *batch,
				     const struct list_head *from,
				     const struct migrate_control *mc) { }

static inline void ferry_batch_unmapped(struct ferry_batch *batch) { }

static inline void ferry_batch_post(struct ferry_batch *batch,
				    struct list_head *dst_folios,
				    struct list_head *src_folios) { }

static inline int ferry_folio_copied(struct ferry_batch *batch,
				     struct folio *src, struct folio *dst,
				     int state)
{
	return 0;
}

static inline void ferry_folio_done(struct ferry_batch *batch) { }

static inline void ferry_batch_end(struct ferry_batch *batch, int reason) { }

static inline void ferry_hugetlb_begin(struct ferry_batch *batch,
				       const struct migrate_control *mc) { }

static inline int ferry_hugetlb_copied(struct ferry_batch *batch,
				       struct folio *src, struct folio *dst)
{
	return 0;
}

#endif /* CONFIG_FERRY */

#ifdef CONFIG_FERRY_CREW

/* rust/crew/hooks.rs */
bool ferry_crew_migrate(struct migrate_control *call, struct list_head *from,
			struct list_head *ret_folios, int *nr_failed);

/**
 * ferry_crew() - migrate a list with a crew
 * @from: the list; its hugetlb folios have been tried
 * @mc: how to migrate it; the statistics are increased by the result
 * @ret_folios: receives folios that failed or were not tried, in list order
 * @nr_failed: increased by the number of failures, or set to an error code
 *
 * Context: process context, may sleep.
 *
 * Return: whether the crew handled the list; if not, nothing was changed.
 */
static inline bool ferry_crew(struct list_head *from, struct migrate_control *mc,
			      struct list_head *ret_folios, int *nr_failed)
{
	/* Crew members would compete for DMA channels. */
	if (mc->flags & MIGRATE_DMA)
		return false;
	if (!ferry_wanted(mc->flags, mc->reason) ||
	    list_empty(from) || list_is_singular(from))
		return false;
	if (ferry_is_short(from)) {
		ferry_count(FERRY_CREW_SMALL, 1);
		return false;
	}
	return ferry_crew_migrate(mc, from, ret_folios, nr_failed);
}

#else /* !CONFIG_FERRY_CREW */

static inline bool ferry_crew(struct list_head *from, struct migrate_control *mc,
			      struct list_head *ret_folios, int *nr_failed)
{
	return false;
}

#endif /* CONFIG_FERRY_CREW */
#endif /* _LINUX_FERRY_H */
