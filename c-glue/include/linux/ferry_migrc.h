/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: the hooks of migrc, by which migration leaves TLB flushes for later.
 *
 * Folios all of whose translations are read-only and clean are migrated without
 * a flush. By what is left in their TLBs, CPUs may go on to read the old folios.
 * These are kept, in a group with the flush that they wait for, and freed when
 * one that covers it has completed. Whatever would make a new folio differ from
 * the old one flushes first: see ferry_flush_before_write().
 *
 * O1 to O12 are the obligations of docs/migrc.rst.
 *
 * Locks: ferry_unmapped() and ferry_flush_before_write() are called with the PTL held. So
 * may be the hooks around a flush of an address space, which take the lock of a
 * bucket inside of it, see c-glue/migrc/spaces.c. All other hooks, also those
 * around a flush of a batch, are called where the caller may sleep.
 */
#ifndef _LINUX_FERRY_MIGRC_H
#define _LINUX_FERRY_MIGRC_H

#include <linux/jump_label.h>
#include <linux/migrate.h>
#include <linux/mm_inline.h>
#include <linux/sched.h>
#include <linux/vmstat.h>

#include "ferry.h"

struct alloc_context;

/* What a test can take out, to see that it would be missed. */
enum ferry_hook {
	FERRY_HOOK_NONE,
	FERRY_HOOK_WRITABLE,
	FERRY_HOOK_FORK,
	FERRY_HOOK_RETAIN,
	FERRY_HOOK_REUSE,
	FERRY_HOOK_SWAP,
	FERRY_HOOK_FORCE,
	FERRY_HOOK_BATCHED,
	FERRY_HOOK_NESTED,
	FERRY_HOOK_BOUND,
	FERRY_HOOK_AGE,
	FERRY_HOOK_FILE,
	FERRY_HOOK_EVERY,
	FERRY_NR_HOOKS
};

#ifdef CONFIG_FERRY_MIGRC

/* Address spaces that a group can have, to be told of their flushes. */
#define FERRY_MAX_MMS		16

/* A group has a bit for each bucket of files, by a hash of the mapping: migrc_file.c. */
#define FERRY_FILE_BITS		8

struct ferry_group;

/**
 * struct ferry_space - an address space of a group, on a list by its hash
 * @mm:		its name; never followed, it may be gone
 * @group:	the group, while @node is linked
 * @node:	on the list of spaces that a flush of @mm looks at
 * @stale:	counted as unflushed
 */
struct ferry_space {
	struct mm_struct *mm;
	struct ferry_group *group;
	struct hlist_node node;
	bool stale;
};

/**
 * struct ferry_unmaps - the translations that were cleared for a group
 * @refused:	why they cannot be left unflushed: bits of FERRY_REFUSED_*
 * @nr_mms:	the number of their address spaces
 * @opens:	how often files with these bits of @files were opened, in all
 * @files:	the files, by hash
 * @spaces:	the address spaces
 */
struct ferry_unmaps {
	unsigned int refused;
	unsigned int nr_mms;
	unsigned int opens;
	DECLARE_BITMAP(files, 1 << FERRY_FILE_BITS);
	struct ferry_space spaces[FERRY_MAX_MMS];
};

/* c-glue/migrc/debug.c */
#ifdef CONFIG_FERRY_MIGRC_DEBUG
bool ferry_hook_disabled(enum ferry_hook hook);
void ferry_hold_reclaim(void);
void ferry_hold_batch(const struct ferry_group *group);
#else
static inline bool ferry_hook_disabled(enum ferry_hook hook)
{
	return false;
}

static inline void ferry_hold_reclaim(void) { }
static inline void ferry_hold_batch(const struct ferry_group *group) { }
#endif

/* On while migrc is, and until nothing is retained after that. */
DECLARE_STATIC_KEY_FALSE(ferry_migrc_key);

/* c-glue/migrc/migrc.c */
void ferry_note_unmapped(struct ferry_unmaps *unmaps, const struct folio *folio,
			 struct mm_struct *mm, pte_t pteval);
void ferry_help_allocation(gfp_t gfp, unsigned int order,
			   const struct alloc_context *ac,
			   unsigned int alloc_flags);
void ferry_help_kswapd(struct pglist_data *pgdat, int order,
		       int highest_zoneidx);
void ferry_help_reclaim(const struct alloc_context *ac);
bool ferry_help_before_oom(unsigned long since);
void ferry_drain_all(void);
void ferry_retention_disable(void);
void ferry_retention_enable(void);

/* c-glue/migrc/spaces.c */
void ferry_flush_stale(struct mm_struct *mm);
void ferry_mm_flushed(struct mm_struct *mm, u64 before);

/* rust/hooks.rs */
void ferry_migrc_begin(struct ferry_batch *batch);
void ferry_migrc_flush(struct ferry_batch *batch);
void ferry_migrc_keep(struct ferry_batch *batch, struct folio *src,
		      struct folio *dst);
void ferry_migrc_end(struct ferry_batch *batch);
u64 ferry_migrc_now(void);
void ferry_migrc_complete(void);
u64 ferry_migrc_covering(const struct arch_tlbflush_unmap_batch *arch);
void ferry_migrc_covered(u64 flush);

/**
 * ferry_unmapped() - a translation was cleared and not flushed
 * @folio: to what it led
 * @mm: whose it was
 * @pteval: what it was
 *
 * Under the lock of its page table, when the flush was noted as pending: what
 * may be left unflushed is judged by what no CPU can change any more (O3).
 */
static inline void ferry_unmapped(const struct folio *folio,
				  struct mm_struct *mm, pte_t pteval)
{
	if (static_branch_unlikely(&ferry_migrc_key) &&
	    unlikely(current->tlb_ubc.unmaps))
		ferry_note_unmapped(current->tlb_ubc.unmaps, folio, mm, pteval);
}

/* Reasons for which a batch may be left unflushed: nobody needs its memory now. */
#define FERRY_MIGRC_REASONS						\
	(BIT(MR_DEMOTION) | BIT(MR_DAMON) | BIT(MR_NUMA_MISPLACED) |	\
	 BIT(MR_SYSCALL) | BIT(MR_MEMPOLICY_MBIND))

/* Before the first folio of a batch is unmapped. May sleep. */
static inline void ferry_defer_begin(struct ferry_batch *batch,
				     enum migrate_mode mode,
				     enum migrate_reason reason)
{
	batch->group = NULL;
	if (static_branch_unlikely(&ferry_migrc_key) &&
	    mode == MIGRATE_ASYNC && BIT(reason) & FERRY_MIGRC_REASONS)
		ferry_migrc_begin(batch);
}

/*
 * When all of its folios are: flushes now, or leaves it for later. May sleep.
 * Return: whether it was done.
 */
static inline bool ferry_unmap_flush(struct ferry_batch *batch)
{
	ferry_batch_unmapped(batch);
	if (likely(!batch->group))
		return false;
	ferry_migrc_flush(batch);
	return true;
}

/*
 * When a folio is migrated, before its last reference goes: it stays if there may
 * be translations of it (O1). May sleep.
 */
static inline void ferry_retain_folio(struct ferry_batch *batch, struct folio *src,
			      struct folio *dst, int was_mapped)
{
	if (unlikely(batch->group) && was_mapped)
		ferry_migrc_keep(batch, src, dst);
}

/* When all that were not migrated are what they were. May sleep. */
static inline void ferry_defer_end(struct ferry_batch *batch)
{
	if (unlikely(batch->group)) {
		ferry_hold_batch(batch->group);
		ferry_migrc_end(batch);
	}
}

/**
 * ferry_flush_before_write() - content is about to change that may be read elsewhere
 * @mm: of whose pages
 * @hook: by whom
 *
 * Under the lock of the page table that has the page, with interrupts on. When
 * this returns no CPU reads an old folio in place of that page in @mm (O3).
 */
static inline void ferry_flush_before_write(struct mm_struct *mm, enum ferry_hook hook)
{
	if (static_branch_unlikely(&ferry_migrc_key) && !ferry_hook_disabled(hook))
		ferry_flush_stale(mm);
}

/* As above, before FOLL_FORCE: what may only be read is written with no fault. */
static inline void ferry_flush_forced(struct mm_struct *mm, pte_t pte,
				      unsigned int gup_flags)
{
	if (gup_flags & FOLL_WRITE && !pte_write(pte))
		ferry_flush_before_write(mm, FERRY_HOOK_FORCE);
}

/*
 * Around a flush of all of an address space. It counts for groups that were
 * retained before it began (O4). An address space without a group pays two calls
 * and a few loads, and takes no lock.
 */
static inline u64 ferry_before_mm_flush(void)
{
	return static_branch_unlikely(&ferry_migrc_key) ? ferry_migrc_now() : 0;
}

static inline void ferry_after_mm_flush(struct mm_struct *mm, u64 before)
{
	if (static_branch_unlikely(&ferry_migrc_key) && before)
		ferry_mm_flushed(mm, before);
}

/*
 * Around what write-protects all of an address space and flushes it in the end, of
 * which nothing else tells: fork(). Meanwhile TLBs have more than page tables.
 */
static inline void ferry_before_protect(struct mm_struct *mm)
{
	inc_tlb_flush_pending(mm);
}

static inline void ferry_after_protect(struct mm_struct *mm)
{
	dec_tlb_flush_pending(mm);
}

/*
 * Around the flush of a batch, which counts for each of its CPUs (O4). If none of
 * them is owed a flush, this costs a call and a load for each word of the mask.
 */
static inline u64
ferry_before_batch_flush(const struct arch_tlbflush_unmap_batch *arch)
{
	if (!static_branch_unlikely(&ferry_migrc_key))
		return 0;
	ferry_hold_reclaim();
	return ferry_migrc_covering(arch);
}

static inline void ferry_after_batch_flush(u64 flush)
{
	if (static_branch_unlikely(&ferry_migrc_key) && flush)
		ferry_migrc_covered(flush);
}

/**
 * ferry_drain() - flush and free all retained folios
 *
 * Before a page is taken offline or found poisoned: all that was retained when
 * this was called is free, or being freed by another task, and all that was
 * unmapped will not be retained. A batch that is unmapped later may be: see
 * ferry_retention_disable(). Waits for no other task. May sleep.
 */
static inline void ferry_drain(void)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_drain_all();
}

/**
 * ferry_drain_for_kswapd() - kswapd is about to see whether it has done enough
 * @pgdat: its node
 * @order: what it reclaims for
 * @highest_zoneidx: in which zones
 *
 * Drains if that would be enough: not to reclaim more than was asked for. May
 * sleep.
 */
static inline void ferry_drain_for_kswapd(struct pglist_data *pgdat, int order,
					  int highest_zoneidx)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_help_kswapd(pgdat, order, highest_zoneidx);
}

/* Returns the retained pages of all zones: free for a task that may drain. */
static inline unsigned long ferry_all_retained_pages(void)
{
	return global_zone_page_state(NR_FERRY_RETAINED);
}

/**
 * ferry_drain_for_alloc() - an allocation is in trouble
 * @gfp: its flags
 * @order: its order
 * @ac: its zones
 * @alloc_flags: of the next attempt
 *
 * Nothing is done for one that may not wait (O5). Of others, those of order 0
 * drain if that would do; higher ones in any case.
 */
static inline void ferry_drain_for_alloc(gfp_t gfp, unsigned int order,
					 const struct alloc_context *ac,
					 unsigned int alloc_flags)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_help_allocation(gfp, order, ac, alloc_flags);
}

/**
 * ferry_drain_for_reclaim() - an allocation fails though reclaim has freed pages
 * @ac: its zones
 *
 * Frees all that is retained of these zones, so that no more is reclaimed in its
 * place. Batches in flight are not recalled. This does not prevent an OOM kill: the
 * OOM killer may be called after reclaim that has freed pages or none, see
 * ferry_drain_before_oom(). May sleep.
 */
static inline void ferry_drain_for_reclaim(const struct alloc_context *ac)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_help_reclaim(ac);
}

/**
 * ferry_drain_before_oom() - an allocation has failed, and the OOM killer is next
 * @since: when the allocation began, in jiffies
 *
 * Recalls batches in flight and frees all that is retained: without migrc these pages
 * would have been free when the allocation was last tried. Waits for no other task.
 * May sleep.
 *
 * Return: whether the allocation must be tried again before a task is killed. True if
 * there was a batch in flight or a retained folio, or if any task has freed retained
 * folios since @since, which may be after the last try. The caller tries again once
 * for each decision to call the OOM killer, since other tasks may migrate all the time.
 */
static inline bool ferry_drain_before_oom(unsigned long since)
{
	return static_branch_unlikely(&ferry_migrc_key) &&
	       ferry_help_before_oom(since);
}

#else /* !CONFIG_FERRY_MIGRC */

static inline void ferry_unmapped(const struct folio *folio,
				  struct mm_struct *mm, pte_t pteval) { }

static inline void ferry_defer_begin(struct ferry_batch *batch,
				     enum migrate_mode mode,
				     enum migrate_reason reason) { }

static inline bool ferry_unmap_flush(struct ferry_batch *batch)
{
	ferry_batch_unmapped(batch);
	return false;
}

static inline void ferry_retain_folio(struct ferry_batch *batch, struct folio *src,
			      struct folio *dst, int was_mapped) { }

static inline void ferry_defer_end(struct ferry_batch *batch) { }

static inline void ferry_flush_before_write(struct mm_struct *mm, enum ferry_hook hook)
{
}

static inline void ferry_flush_forced(struct mm_struct *mm, pte_t pte,
				      unsigned int gup_flags)
{
}

static inline u64 ferry_before_mm_flush(void)
{
	return 0;
}

static inline void ferry_after_mm_flush(struct mm_struct *mm, u64 before) { }

static inline void ferry_before_protect(struct mm_struct *mm) { }

static inline void ferry_after_protect(struct mm_struct *mm) { }

#define ferry_before_batch_flush(arch)	0

static inline void ferry_after_batch_flush(u64 flush) { }

static inline void ferry_drain(void) { }

static inline void ferry_drain_for_kswapd(struct pglist_data *pgdat, int order,
					  int highest_zoneidx) { }

static inline void ferry_retention_disable(void) { }

static inline void ferry_retention_enable(void) { }

static inline unsigned long ferry_all_retained_pages(void)
{
	return 0;
}

static inline void ferry_drain_for_alloc(gfp_t gfp, unsigned int order,
					 const struct alloc_context *ac,
					 unsigned int alloc_flags) { }

static inline void ferry_drain_for_reclaim(const struct alloc_context *ac) { }

static inline bool ferry_drain_before_oom(unsigned long since)
{
	return false;
}

#endif /* CONFIG_FERRY_MIGRC */
#endif /* _LINUX_FERRY_MIGRC_H */
