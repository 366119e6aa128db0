/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: the hooks in mainline functions.
 *
 * A batch is what migrate_pages_batch() unmaps together. All its hooks run in
 * the context of the migrating task: it may sleep, holds the folio locks of
 * every pair on the two lists, and nothing else of mm.
 *
 * A crew is the tasks that migrate the list of one migrate_pages() in chunks;
 * ferry_crew() runs in the context of its caller.
 *
 * ferry_copy_key is on while vm.mt_page_copy is 1, while a call with MIGRATE_MT
 * runs, while DMA channels are taken, and up to a second after that. It may change
 * between any two hooks of a batch.
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
 * struct ferry_batch - one batch, on the stack of migrate_pages_batch()
 * @board:	where its folios are posted to be copied; NULL: nowhere
 * @start_ns:	when its first folio was about to be unmapped; 0: not Ferry's
 * @flush_ns:	how long the TLB flush took; until it has ended, when it began
 * @first_ns:	how long after @start_ns the first was mapped again; 0: not yet
 * @copy_ns:	for how long the migrating task copied, or waited for copies
 * @switches:	how often the migrating task had been switched from at @start_ns
 * @from:	node of the first folio that was unmapped
 * @to:		node that it goes to
 * @next:	how many of the posted folios were taken back
 * @folios:	how many of those have their content
 * @pages:	base pages posted
 * @failed:	base pages of folios that could not be read
 * @left:	of folios that DMA engines did not answer for, or did not take
 *		and no CPU may
 * @helpers:	helpers called
 * @channels:	of DMA engines that were to carry some of them
 * @helped:	base pages copied by helpers; known in the end
 * @carried:	base pages copied by DMA engines; known in the end
 * @all_folios:	folios that were unmapped
 * @all_pages:	base pages of these
 * @nontemporal: they are copied past the caches
 * @no_cpu:	MIGRATE_DMA: no CPU is to read them; set whatever is on
 * @group:	what keeps the folios that are left unflushed; NULL: none are
 */
struct ferry_batch {
	void *board;
	s64 start_ns;
	s64 flush_ns;
	s64 first_ns;
	s64 copy_ns;
	unsigned long switches;
	s32 from;
	s32 to;
	u32 next;
	u32 folios;
	u32 pages;
	u32 failed;
	u32 left;
	u32 helpers;
	u32 channels;
	u32 helped;
	u32 carried;
	u32 all_folios;
	u32 all_pages;
	bool nontemporal;
	bool no_cpu;
#ifdef CONFIG_FERRY_MIGRC
	void *group;
#endif
};

/**
 * struct ferry_migrate_args - what a migrate_pages() was asked to do
 * @get_new_folio:	allocates destinations
 * @put_new_folio:	frees them, if not NULL
 * @private:		for both
 * @mode:		of the migration
 * @mt:			of MIGRATE_HOW
 * @reason:		for it
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
 * FERRY_SHARED_CALLBACK() - let crews run a static callback of migrate_pages()
 * @name: the callback: any task may call it, and several tasks at once, while
 *	its private data is valid
 *
 * Follows the definition of the callback. ferry_callback_is_shared() compares
 * the callback of a call with the address that this makes known.
 */
#define FERRY_SHARED_CALLBACK(name)	new_folio_t *const ferry_##name = name

/**
 * struct ferry_mpol - struct migration_mpol, which mm/mempolicy.c has for itself
 * @pol: policy to allocate by, with a reference
 * @ilx: where to interleave
 */
struct ferry_mpol {
	struct mempolicy *pol;
	pgoff_t ilx;
};

/**
 * FERRY_SHARED_BY_MPOL() - FERRY_SHARED_CALLBACK() where a policy is the data
 * @name: the callback
 * @type: of its private data, for which crews have &struct ferry_mpol
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
 * folio is posted, and its content will be there when ferry_folio_copied()
 * says so. migrate_folio_move() takes the bit with the other two, and does not
 * put it back: a second attempt copies again, since the source may have been
 * written meanwhile.
 */
#define FERRY_FOLIO_POSTED	BIT(2)

extern struct static_key_false_deferred ferry_copy_key;
/* A bit for each reason that vm.mt_page_copy holds for; 0 while that is off. */
extern unsigned int ferry_reasons;

/* c-glue/sysfs/knobs.c */
bool ferry_may_ask(void);

/*
 * May idle CPUs take part, as the switch says, or a caller that may ask for them?
 * Read without a lock: nothing depends on when a change is seen. What helpers need
 * was published before the key was switched on, and is kept.
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
 * Lists of at most so many small folios are left to their callers as they are:
 * to look at them closer takes longer than could be spared.
 */
extern unsigned int ferry_short_pages;

/* How many folios a list has, if it is that short; or 0. */
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

/* rust/hooks.rs */
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
 * ferry_batch_price() - what each page of a folio is to cost in the next batch
 * @from: what is to be migrated
 * @mt: whether its caller asks for it
 * @reason: for the migration
 *
 * Return: parts of a unit, of which there are 1024; 0: a unit, as in mainline.
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
 * ferry_batch_cost() - what a folio adds to a batch of migrate_pages()
 * @folio: a folio to be migrated, not hugetlb
 * @price: what ferry_batch_price() said before the first folio of the batch
 *
 * The batch ends at NR_MAX_BATCHED_MIGRATION units, so that its folios are not
 * unmapped for long. Large folios cost less than their pages if several threads
 * copy them: one huge folio is too little to call helpers for.
 */
static inline unsigned int ferry_batch_cost(const struct folio *folio,
					    unsigned int price)
{
	unsigned long nr_pages = folio_nr_pages(folio);

	return price ? DIV_ROUND_UP(nr_pages * price, 1024) : nr_pages;
}

/* What is left of split folios when a batch of them is cut. */
struct ferry_splits {
	struct list_head rest;
};

/*
 * Large folios that could not be allocated at the other end are split, all of a
 * batch, and migrated as one batch more. Cut that to mainline's size.
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
 * In the mode of a migrate_pages(): for a part of a list, by a crew. An argument
 * would need a function around the present one, and with that the compiler emits
 * mm/migrate.c in another order even without CONFIG_FERRY.
 */
#define FERRY_MIGRATE_PART	BIT(9)

/**
 * struct ferry_part - a part of a list, migrated by a member of a crew
 * @stats:	gets what became of the folios, instead of the system's counters
 * @first:	it is the first pass of migrate_pages_sync() over them, and
 *		leaves on the list what that would split
 */
struct ferry_part {
	struct migrate_pages_stats stats;
	bool first;
};

/**
 * ferry_part_of() - is a migrate_pages() for a part of a list?
 * @mode: its mode, from which what says so is taken
 * @ret_succeeded: its last argument
 *
 * Return: NULL if it is for a whole list.
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
 * ferry_part_done() - tell of a part
 * @part: what it is; NULL: a whole list
 * @stats: what became of it
 *
 * Return: whether it is a part, for which there is no more to do.
 */
static inline bool ferry_part_done(struct ferry_part *part,
				   const struct migrate_pages_stats *stats)
{
	if (part)
		part->stats = *stats;
	return part;
}

/* How often a batch is gone through, of a list that may be a part. */
static inline int ferry_nr_pass(const struct ferry_part *part, int nr_pass,
				int nr_first)
{
	return part && part->first ? nr_first : nr_pass;
}

/* Where the pieces of split folios go; NULL: nothing is split. */
static inline struct list_head *ferry_splits(const struct ferry_part *part,
					     struct list_head *splits)
{
	return part && part->first ? NULL : splits;
}

/* Is a folio that is to be split to stay where it is, as if it had been? */
static inline bool ferry_split_later(const struct list_head *splits)
{
	return !splits;
}

/**
 * ferry_crew() - migrate a list together with other tasks
 * @from:		the list
 * @get_new_folio:	as of migrate_pages(), like the next four
 * @put_new_folio:	"
 * @private:		"
 * @mode:		"
 * @mt:			of MIGRATE_HOW
 * @reason:		"
 * @ret_folios:		gets what could not be migrated, in its order, and what
 *			was not tried
 * @stats:		added to
 * @nr_failed:		added to, or an error code
 *
 * May sleep.
 *
 * Return: whether it was done; if not, nothing was changed.
 */
static inline bool ferry_crew(struct list_head *from, new_folio_t get_new_folio,
			      free_folio_t put_new_folio, unsigned long private,
			      enum migrate_mode mode, enum migrate_mode mt,
			      enum migrate_reason reason,
			      struct list_head *ret_folios,
			      struct migrate_pages_stats *stats, int *nr_failed)
{
	/* Its members would take channels from each other. */
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

/* Before the first folio of a batch is unmapped, of those in a list. */
static inline void ferry_batch_begin(struct ferry_batch *batch,
				     const struct list_head *from,
				     enum migrate_mode mt,
				     enum migrate_reason reason)
{
	batch->board = NULL;
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

/* When every folio of a batch is unmapped, before their TLBs are flushed. */
static inline void ferry_batch_unmapped(struct ferry_batch *batch)
{
	if (unlikely(batch->start_ns))
		batch->flush_ns = ktime_get();
}

/**
 * ferry_batch_post() - let everybody copy what can be copied of a batch
 * @batch: the batch
 * @dst_folios: new folios, locked, seen by nobody else
 * @src_folios: their sources in the same order, locked and unmapped
 *
 * To be called when the TLBs are flushed and before any folio is switched.
 * Marks each destination that is posted.
 */
static inline void ferry_batch_post(struct ferry_batch *batch,
				    struct list_head *dst_folios,
				    struct list_head *src_folios)
{
	if (static_branch_unlikely(&ferry_copy_key.key) && batch->start_ns)
		ferry_copy_post(batch, dst_folios, src_folios);
}

/**
 * ferry_folio_copied() - wait until the content of a folio is in its destination
 * @batch: the batch
 * @src: the next source on the list
 * @dst: its destination
 * @state: low bits of the migrate_info of @dst
 *
 * Copies along, and waits, until that folio is copied. Must be called for the
 * folios of a batch in their order, each once. If @src and @dst are not the
 * pair that was posted next, this warns, and waits until no task copies a
 * folio of the batch: the caller copies this folio and all later ones.
 *
 * Return: 1 if it is, 0 if the caller must copy it, -EHWPOISON if it cannot be
 * read, -EIO if a DMA engine has not answered for its copy, -EOPNOTSUPP if no
 * engine has copied it and no CPU may.
 */
static inline int ferry_folio_copied(struct ferry_batch *batch,
				     struct folio *src, struct folio *dst,
				     int state)
{
	if (state & FERRY_FOLIO_POSTED)
		return ferry_copy_take(batch, src, dst);
	return unlikely(batch->no_cpu) ? -EOPNOTSUPP : 0;
}

/* When a folio of a batch is mapped again, or could not be migrated. */
static inline void ferry_folio_done(struct ferry_batch *batch, int rc)
{
	if (unlikely(batch->start_ns) && !batch->first_ns && !rc)
		batch->first_ns = ktime_get() - batch->start_ns;
}

/* When every folio of a batch is mapped again. */
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
