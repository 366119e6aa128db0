/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: hooks in mm/migrate.c for batches and crews.
 *
 * A batch is the set of folios that migrate_pages_batch() unmaps together. Its
 * hooks run in the context of the migrating task, which may sleep. It holds
 * the folio locks of every pair on the two lists, and no other mm lock.
 *
 * A crew is the set of tasks that migrate the list of one migrate_pages() call
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
#include <linux/vmstat.h>

#ifdef CONFIG_FERRY

/**
 * struct ferry_batch - a batch, on the stack of migrate_pages_batch()
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
	bool no_cpu;
#ifdef CONFIG_FERRY_MIGRC
	void *group;
#endif
};

/**
 * struct ferry_migrate_args - arguments of a migrate_pages() call
 * @get_new_folio: allocates destination folios
 * @put_new_folio: frees unused destination folios; may be NULL
 * @private: data of both callbacks
 * @mode: migration mode
 * @mt: bits of MIGRATE_HOW
 * @reason: migration reason
 */
struct ferry_migrate_args {
	new_folio_t *get_new_folio;
	free_folio_t *put_new_folio;
	unsigned long private;
	enum migrate_mode mode;
	enum migrate_mode mt;
	enum migrate_reason reason;
};

/**
 * FERRY_SHARED_CALLBACK() - let crews call a static callback of
 * migrate_pages()
 * @name: the callback; it may be called by any task, and by several tasks at
 *	once, while its private data is valid
 *
 * Follows the definition of the callback and publishes its address, with which
 * ferry_callback_is_shared() compares the callback of a call.
 */
#define FERRY_SHARED_CALLBACK(name)	new_folio_t *const ferry_##name = name

/**
 * struct ferry_mpol - layout of struct migration_mpol, which is private to
 * mm/mempolicy.c
 * @pol: allocation policy, with a reference
 * @ilx: interleave index
 */
struct ferry_mpol {
	struct mempolicy *pol;
	pgoff_t ilx;
};

/**
 * FERRY_SHARED_BY_MPOL() - FERRY_SHARED_CALLBACK() for callbacks that take a
 * policy
 * @name: the callback
 * @type: type of its private data, which must have the layout of &struct
 *	ferry_mpol
 */
#define FERRY_SHARED_BY_MPOL(name, type)				\
	FERRY_SHARED_CALLBACK(name);					\
	static_assert(sizeof(type) == sizeof(struct ferry_mpol) &&	\
		      offsetof(type, pol) ==				\
			offsetof(struct ferry_mpol, pol) &&		\
		      offsetof(type, ilx) ==				\
			offsetof(struct ferry_mpol, ilx))

/* mm/migrate.c, mm/mempolicy.c, mm/vmscan.c */
extern new_folio_t *const ferry_alloc_misplaced_dst_folio;
extern new_folio_t *const ferry_alloc_migration_target_by_mpol;
extern new_folio_t *const ferry_alloc_demote_folio;

/*
 * Set in the low bits of dst->migrate_info, beside FOLIO_WAS_MAPPED and
 * FOLIO_WAS_MLOCKED (struct anon_vma is aligned to 8 bytes on 64-bit): the
 * folio is posted, and ferry_folio_copied() must be called before it is
 * remapped. migrate_folio_move() takes the bit together with the other two and
 * does not set it again: a second attempt copies again, since the source may
 * have been written meanwhile.
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
static inline bool ferry_wanted(enum migrate_mode mt, enum migrate_reason reason)
{
	if (!static_branch_unlikely(&ferry_copy_key.key))
		return false;
	if (READ_ONCE(ferry_reasons) & BIT(reason))
		return true;
	return (mt & MIGRATE_DMA) || (mt && ferry_may_ask());
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

/* rust/copy/hooks.rs, rust/crew/hooks.rs */
void ferry_copy_begin(struct ferry_batch *batch);
void ferry_copy_post(struct ferry_batch *batch, struct list_head *dst_folios,
		     struct list_head *src_folios);
int ferry_copy_take(struct ferry_batch *batch, struct folio *src,
		    struct folio *dst);
void ferry_copy_end(struct ferry_batch *batch, int reason);
unsigned int ferry_copy_price(struct list_head *from);

bool ferry_crew_migrate(const struct ferry_migrate_args *call, struct list_head *from,
			struct list_head *ret_folios,
			struct migrate_pages_stats *stats, int *nr_failed);

/**
 * ferry_batch_price() - cost of each page in the next batch
 * @from: folios to migrate
 * @mt: bits of MIGRATE_HOW
 * @reason: migration reason
 *
 * Return: the cost in 1/1024 units; 0 means one unit, as in mainline.
 */
static inline unsigned int ferry_batch_price(struct list_head *from,
					     enum migrate_mode mt,
					     enum migrate_reason reason)
{
	if (!ferry_wanted(mt, reason) || list_empty(from) ||
	    list_is_singular(from) || ferry_is_short(from))
		return 0;
	return ferry_copy_price(from);
}

/**
 * ferry_batch_cost() - cost that a folio adds to a batch of migrate_pages()
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

	return price ? DIV_ROUND_UP(nr_pages * price, 1024) : nr_pages;
}

/* Split folios that wait for the next batch. */
struct ferry_splits {
	struct list_head rest;
};

/*
 * If large destination folios cannot be allocated, the large folios of a batch
 * are split and migrated as one more batch. Limits that batch to @max folios,
 * as in mainline.
 */
static inline void ferry_cut_splits(struct list_head *splits,
				    struct ferry_splits *more, unsigned int max)
{
	struct list_head *pos;
	LIST_HEAD(head);

	INIT_LIST_HEAD(&more->rest);
	if (!static_branch_unlikely(&ferry_copy_key.key))
		return;
	list_for_each(pos, splits) {
		if (--max)
			continue;
		list_cut_position(&head, splits, pos);
		list_splice_init(splits, &more->rest);
		list_splice(&head, splits);
		break;
	}
}

static inline bool ferry_more_splits(struct list_head *splits,
				     struct ferry_splits *more)
{
	list_splice_init(&more->rest, splits);
	return !list_empty(splits);
}

/*
 * Bit in the mode of a migrate_pages() call: a crew member migrates a part of
 * a list. A separate argument would need a wrapper around the present
 * function, and the compiler would then emit mm/migrate.c in another order
 * even without CONFIG_FERRY.
 */
#define FERRY_MIGRATE_PART	BIT(9)

/**
 * struct ferry_part - a part of a list, migrated by a crew member
 * @stats: result of the part, not added to the system's counters
 * @first: this is the first pass of migrate_pages_sync() over the part: folios
 *	that it would split stay on the list
 */
struct ferry_part {
	struct migrate_pages_stats stats;
	bool first;
};

/**
 * ferry_part_of() - return the part that a migrate_pages() call is for
 * @mode: mode of the call; FERRY_MIGRATE_PART is cleared
 * @ret_succeeded: last argument of the call
 *
 * Return: the part, or NULL if the call is for a whole list.
 */
static inline struct ferry_part *ferry_part_of(enum migrate_mode *mode,
					       unsigned int *ret_succeeded)
{
	if (likely(!(*mode & FERRY_MIGRATE_PART)))
		return NULL;
	*mode &= ~FERRY_MIGRATE_PART;
	return container_of((int *)ret_succeeded, struct ferry_part,
			    stats.nr_succeeded);
}

/**
 * ferry_part_done() - store the result of a part
 * @part: the part; NULL for a whole list
 * @stats: its result
 *
 * Return: whether the call is for a part, and so is complete.
 */
static inline bool ferry_part_done(struct ferry_part *part,
				   const struct migrate_pages_stats *stats)
{
	if (part)
		part->stats = *stats;
	return part;
}

/* Returns the number of passes over a batch of a list or a part. */
static inline int ferry_nr_pass(const struct ferry_part *part, int nr_pass,
				int nr_first)
{
	return part && part->first ? nr_first : nr_pass;
}

/* Returns the list for split folios; NULL if folios must not be split. */
static inline struct list_head *ferry_splits(const struct ferry_part *part,
					     struct list_head *splits)
{
	return part && part->first ? NULL : splits;
}

/* Returns whether a folio that would be split stays on the list unsplit. */
static inline bool ferry_split_later(const struct list_head *splits)
{
	return !splits;
}

/**
 * ferry_crew() - migrate a list with a crew
 * @from: the list
 * @get_new_folio: as for migrate_pages(), like the next four
 * @put_new_folio: "
 * @private: "
 * @mode: "
 * @mt: bits of MIGRATE_HOW
 * @reason: "
 * @ret_folios: receives folios that failed or were not tried, in list order
 * @stats: increased by the result
 * @nr_failed: increased by the number of failures, or set to an error code
 *
 * Context: process context, may sleep.
 *
 * Return: whether the crew handled the list; if not, nothing was changed.
 */
static inline bool ferry_crew(struct list_head *from, new_folio_t get_new_folio,
			      free_folio_t put_new_folio, unsigned long private,
			      enum migrate_mode mode, enum migrate_mode mt,
			      enum migrate_reason reason,
			      struct list_head *ret_folios,
			      struct migrate_pages_stats *stats, int *nr_failed)
{
	/* Crew members would compete for DMA channels. */
	if (mt & MIGRATE_DMA)
		return false;
	if (ferry_wanted(mt, reason) &&
	    !list_empty(from) && !list_is_singular(from)) {
		const struct ferry_migrate_args call = {
			.get_new_folio	= get_new_folio,
			.put_new_folio	= put_new_folio,
			.private	= private,
			.mode		= mode,
			.mt		= mt,
			.reason		= reason,
		};

		if (ferry_is_short(from)) {
			count_vm_event(FERRY_CREW_SMALL);
			return false;
		}
		return ferry_crew_migrate(&call, from, ret_folios, stats,
					  nr_failed);
	}
	return false;
}

/* Called before the first folio of a batch from the list is unmapped. */
static inline void ferry_batch_begin(struct ferry_batch *batch,
				     const struct list_head *from,
				     enum migrate_mode mt,
				     enum migrate_reason reason)
{
	batch->table = NULL;
	batch->start_ns = 0;
	batch->no_cpu = mt & MIGRATE_DMA;
	if (ferry_wanted(mt, reason)) {
		unsigned int small = batch->no_cpu ? 0 : ferry_is_short(from);

		if (small) {
			count_vm_events(FERRY_SERIAL_SMALL, small);
			return;
		}
		*batch = (struct ferry_batch){ .no_cpu = mt & MIGRATE_DMA };
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
 * @state: low bits of the migrate_info of @dst
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

/* Called when a folio of a batch is remapped (@rc is 0) or has failed. */
static inline void ferry_folio_done(struct ferry_batch *batch, int rc)
{
	if (unlikely(batch->start_ns) && !batch->first_ns && !rc)
		batch->first_ns = ktime_get() - batch->start_ns;
}

/* Called when all folios of a batch are done. */
static inline void ferry_batch_end(struct ferry_batch *batch, int reason)
{
	if (unlikely(batch->start_ns))
		ferry_copy_end(batch, reason);
}

#else /* !CONFIG_FERRY */

struct ferry_batch { };

#define FERRY_SHARED_CALLBACK(name)
#define FERRY_SHARED_BY_MPOL(name, type)

#define FERRY_FOLIO_POSTED	0

static inline unsigned int ferry_batch_price(struct list_head *from,
					     enum migrate_mode mt,
					     enum migrate_reason reason)
{
	return 0;
}

static inline unsigned int ferry_batch_cost(const struct folio *folio,
					    unsigned int price)
{
	return folio_nr_pages(folio);
}

struct ferry_splits { };

static inline void ferry_cut_splits(struct list_head *splits,
				    struct ferry_splits *more,
				    unsigned int max) { }

static inline bool ferry_more_splits(struct list_head *splits,
				     struct ferry_splits *more)
{
	return false;
}

struct ferry_part;

static inline struct ferry_part *ferry_part_of(enum migrate_mode *mode,
					       unsigned int *ret_succeeded)
{
	return NULL;
}

static inline bool ferry_part_done(struct ferry_part *part,
				   const struct migrate_pages_stats *stats)
{
	return false;
}

static inline int ferry_nr_pass(const struct ferry_part *part, int nr_pass,
				int nr_first)
{
	return nr_pass;
}

static inline struct list_head *ferry_splits(const struct ferry_part *part,
					     struct list_head *splits)
{
	return splits;
}

static inline bool ferry_split_later(const struct list_head *splits)
{
	return false;
}

static inline bool ferry_crew(struct list_head *from, new_folio_t get_new_folio,
			      free_folio_t put_new_folio, unsigned long private,
			      enum migrate_mode mode, enum migrate_mode mt,
			      enum migrate_reason reason,
			      struct list_head *ret_folios,
			      struct migrate_pages_stats *stats, int *nr_failed)
{
	return false;
}

static inline void ferry_batch_begin(struct ferry_batch *batch,
				     const struct list_head *from,
				     enum migrate_mode mt,
				     enum migrate_reason reason) { }

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

static inline void ferry_folio_done(struct ferry_batch *batch, int rc) { }

static inline void ferry_batch_end(struct ferry_batch *batch, int reason) { }

#endif /* CONFIG_FERRY */
#endif /* _LINUX_FERRY_H */
