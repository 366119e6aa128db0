/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: hooks of migrc, which defers the TLB flushes of migration.
 *
 * Folios all of whose translations are read-only are migrated without a TLB
 * flush, so CPUs may go on to read the old folios through stale translations. A
 * group retains the old folios together with the deferred flush, and they are
 * freed when a flush that covers them has completed.
 * Anything that would make a new folio differ from the old one flushes first:
 * see ferry_flush_before_write().
 *
 * O1 to O12 are the obligations of docs/migrc.rst.
 *
 * Context: ferry_unmapped() and ferry_flush_before_write() are called with the
 * PTL held. The hooks around a flush of an address space may be; they take the
 * lock of a hash bucket inside it, see c-glue/migrc/spaces.c. All other hooks,
 * including those around a flush of a batch, are called where the caller may
 * sleep.
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
struct ferry_unmaps;

/* Hooks that a test can disable, to check that their absence is detected. */
enum ferry_hook {
	FERRY_HOOK_NONE,
	FERRY_HOOK_WRITABLE,
	FERRY_HOOK_CHANGING,
	FERRY_HOOK_RETAIN,
	FERRY_HOOK_REUSE,
	FERRY_HOOK_SWAP,
	FERRY_HOOK_FORCE,
	FERRY_HOOK_MOVE,
	FERRY_HOOK_BATCHED,
	FERRY_HOOK_BOUND,
	FERRY_HOOK_AGE,
	FERRY_HOOK_FILE,
	FERRY_HOOK_EVERY,
	FERRY_HOOK_MORE,
	FERRY_NR_HOOKS
};

#ifdef CONFIG_FERRY_MIGRC

/* Number of address spaces of a group whose flushes it tracks. */
#define FERRY_MAX_MMS		16

/* A group has a bit for each hash bucket of other ones: c-glue/migrc/spaces.c. */
#define FERRY_STALE_BITS	10

/* A group has a bit for each hash bucket of mappings: c-glue/migrc/file.c. */
#define FERRY_FILE_BITS		8

struct ferry_group;

/**
 * struct ferry_space - an address space of a group, in a hash table
 * @mm: identifies the address space; never dereferenced, since it may be freed
 * @group: the group, while @node is linked
 * @node: entry in the bucket that a flush of @mm searches
 * @stale: the address space is counted in @group->unflushed
 */
struct ferry_space {
	struct mm_struct *mm;
	struct ferry_group *group;
	struct hlist_node node;
	bool stale;
};

/**
 * struct ferry_unmaps - translations cleared for a group
 * @refused: reasons to flush the batch at once, from its first ineligible
 *	translation: bits of FERRY_REFUSED_*; 0 if there is none
 * @nr_mms: number of the address spaces in @spaces
 * @opens: sum of the open counts of the buckets in @files
 * @files: hash buckets of the mapped files
 * @more: hash buckets of the address spaces that @spaces has no room for
 * @spaces: the first address spaces
 */
struct ferry_unmaps {
	unsigned int refused;
	unsigned int nr_mms;
	unsigned int opens;
	DECLARE_BITMAP(files, 1 << FERRY_FILE_BITS);
	DECLARE_BITMAP(more, 1 << FERRY_STALE_BITS);
	struct ferry_space spaces[FERRY_MAX_MMS];
};

/* c-glue/migrc/debug.c */
#ifdef CONFIG_FERRY_MIGRC_DEBUG
bool ferry_hook_disabled(enum ferry_hook hook);
void ferry_hold_reclaim(void);
void ferry_hold_batch(const struct ferry_group *group);
void ferry_forget_batched(struct mm_struct *mm);
#else
static inline bool ferry_hook_disabled(enum ferry_hook hook)
{
	return false;
}

static inline void ferry_hold_reclaim(void) { }
static inline void ferry_hold_batch(const struct ferry_group *group) { }
static inline void ferry_forget_batched(struct mm_struct *mm) { }
#endif

/* On while migrc is enabled, and after that until no folio is retained. */
DECLARE_STATIC_KEY_FALSE(ferry_migrc_key);

/* c-glue/migrc/migrc.c */
struct ferry_unmaps *ferry_group_unmaps(struct ferry_group *group);
void ferry_note_pending(struct ferry_unmaps *unmaps, const struct folio *folio,
			struct mm_struct *mm, unsigned long address,
			pte_t pteval);
void ferry_drain_all(void);
void ferry_retention_disable(void);
void ferry_retention_enable(void);

/* c-glue/migrc/pressure.c */
void ferry_help_allocation(gfp_t gfp, unsigned int order,
			   const struct alloc_context *ac,
			   unsigned int alloc_flags);
void ferry_help_kswapd(struct pglist_data *pgdat, int order,
		       int highest_zoneidx);
void ferry_help_reclaim(const struct alloc_context *ac);
bool ferry_help_before_oom(unsigned long since);

/* c-glue/migrc/spaces.c */
void ferry_flush_stale(struct mm_struct *mm);
void ferry_mm_flushed(struct mm_struct *mm, u64 before);

/* rust/migrc/hooks.rs */
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
 * ferry_unmapped() - record a translation that was cleared without a flush
 * @unmaps: translations of the batch; NULL if its flush is not deferred
 * @folio: folio that it mapped
 * @mm: its address space
 * @address: address of the translation
 * @pteval: its value
 *
 * Called with the PTL held, under which the flush is noted as pending. No CPU
 * can change @pteval any more, so it decides whether the flush may be deferred
 * (O3).
 */
static inline void ferry_unmapped(struct ferry_unmaps *unmaps,
				  const struct folio *folio,
				  struct mm_struct *mm, unsigned long address,
				  pte_t pteval)
{
	if (likely(!unmaps))
		return;
	ferry_note_pending(unmaps, folio, mm, address, pteval);
	ferry_forget_batched(mm);
}

/* Returns what records the translations of a batch; NULL if nothing does. */
static inline struct ferry_unmaps *
ferry_batch_unmaps(const struct ferry_batch *batch)
{
	return unlikely(batch->group) ? ferry_group_unmaps(batch->group) : NULL;
}

/*
 * Migration reasons whose flush may be deferred: the freed memory is not
 * urgent.
 */
#define FERRY_MIGRC_REASONS						\
	(BIT(MR_DEMOTION) | BIT(MR_DAMON) | BIT(MR_NUMA_MISPLACED) |	\
	 BIT(MR_SYSCALL) | BIT(MR_MEMPOLICY_MBIND))

/*
 * Returns whether a batch may have a flush to defer. A fault of NUMA balancing
 * migrates one folio. In the address space of the fault its PTEs are PROT_NONE, and
 * owe no flush unless pte_flush_pending(), and such a flush must not be deferred.
 */
static inline bool ferry_may_defer(const struct list_head *from,
				 enum migrate_reason reason)
{
	return reason != MR_NUMA_MISPLACED || !list_is_singular(from) ||
	       folio_maybe_mapped_shared(list_first_entry(from, struct folio,
							  lru));
}

/* Called before the first folio of a batch is unmapped. May sleep. */
static inline void ferry_defer_begin(struct ferry_batch *batch,
				     const struct list_head *from,
				     enum migrate_mode mode,
				     enum migrate_reason reason)
{
	batch->group = NULL;
	if (static_branch_unlikely(&ferry_migrc_key) &&
	    mode == MIGRATE_ASYNC && BIT(reason) & FERRY_MIGRC_REASONS &&
	    ferry_may_defer(from, reason))
		ferry_migrc_begin(batch);
}

/*
 * Called when all folios of a batch are unmapped. Flushes now or defers the
 * flush. May sleep.
 *
 * Return: whether the flush is done or deferred; if not, the caller must
 * flush.
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
 * Called when a folio is migrated, before its last reference is dropped.
 * Retains it if stale translations may exist (O1). May sleep.
 */
static inline void ferry_retain_folio(struct ferry_batch *batch, struct folio *src,
			      struct folio *dst, int was_mapped)
{
	if (unlikely(batch->group) && was_mapped)
		ferry_migrc_keep(batch, src, dst);
}

/* Called when all folios that failed are mapped as before. May sleep. */
static inline void ferry_defer_end(struct ferry_batch *batch)
{
	if (unlikely(batch->group)) {
		ferry_hold_batch(batch->group);
		ferry_migrc_end(batch);
	}
}

/**
 * ferry_flush_before_write() - flush before content changes that may be read
 * stale
 * @mm: address space whose page changes
 * @hook: the calling hook
 *
 * Called with the PTL of the page held and interrupts enabled. When this
 * returns, no CPU reads an old folio in place of that page in @mm (O3).
 */
static inline void ferry_flush_before_write(struct mm_struct *mm, enum ferry_hook hook)
{
	if (static_branch_unlikely(&ferry_migrc_key) && !ferry_hook_disabled(hook))
		ferry_flush_stale(mm);
}

/* As above, for FOLL_FORCE, which writes read-only mappings without a fault. */
static inline void ferry_flush_forced(struct mm_struct *mm, pte_t pte,
				      unsigned int gup_flags)
{
	if (gup_flags & FOLL_WRITE && !pte_write(pte))
		ferry_flush_before_write(mm, FERRY_HOOK_FORCE);
}

/*
 * Called around a flush of a whole address space, which covers groups that
 * were retained before it began (O4). An address space without a group costs
 * two calls and a few loads, and takes no lock.
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
 * Called around fork(), which write-protects a whole address space and flushes
 * it at the end without another indication. Meanwhile TLBs may hold more
 * permissions than the page tables.
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
 * Called around the flush of a batch, which covers each of its CPUs (O4). If
 * no group waits for these CPUs, this costs a call and a load for each word of
 * the mask.
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
 * Called when a setting changes. On return, all folios that were retained at the
 * call are free or being freed by another task, and batches already unmapped
 * will not retain folios. Batches that are unmapped later may: see
 * ferry_retention_disable().
 *
 * Context: process context, may sleep. Does not wait for other tasks.
 */
static inline void ferry_drain(void)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_drain_all();
}

/**
 * ferry_drain_for_kswapd() - drain before kswapd checks whether its node is
 * balanced
 * @pgdat: node of kswapd
 * @order: order that it reclaims for
 * @highest_zoneidx: highest zone that it reclaims for
 *
 * For order 0, drains if that lifts a zone above its watermark; for a higher
 * order, if one of the zones has retained pages. This avoids that kswapd
 * reclaims too much.
 *
 * Context: process context, may sleep.
 */
static inline void ferry_drain_for_kswapd(struct pglist_data *pgdat, int order,
					  int highest_zoneidx)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_help_kswapd(pgdat, order, highest_zoneidx);
}

/*
 * Returns the retained pages of all zones, which a task that may drain can
 * free.
 */
static inline unsigned long ferry_all_retained_pages(void)
{
	return global_zone_page_state(NR_FERRY_RETAINED);
}

/**
 * ferry_drain_for_alloc() - drain for an allocation that has failed
 * @gfp: its flags
 * @order: its order
 * @ac: its zones
 * @alloc_flags: flags of the next attempt
 *
 * Does nothing if the allocation may not sleep (O5), or is made in reclaim.
 * For order 0, drains if that lifts a zone above its watermark; for a higher
 * order, if one of the zones has retained pages.
 */
static inline void ferry_drain_for_alloc(gfp_t gfp, unsigned int order,
					 const struct alloc_context *ac,
					 unsigned int alloc_flags)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_help_allocation(gfp, order, ac, alloc_flags);
}

/**
 * ferry_drain_for_reclaim() - drain for an allocation that fails after reclaim
 * @ac: its zones
 *
 * Frees all retained folios if these zones have any, so that no more memory is
 * reclaimed in their place. Does not recall batches in flight. This does not
 * prevent an OOM kill: the OOM killer may be called whether or not reclaim has
 * freed pages, see ferry_drain_before_oom().
 *
 * Context: process context, may sleep.
 */
static inline void ferry_drain_for_reclaim(const struct alloc_context *ac)
{
	if (static_branch_unlikely(&ferry_migrc_key))
		ferry_help_reclaim(ac);
}

/**
 * ferry_drain_before_oom() - drain before the OOM killer is called
 * @since: time when the allocation began, in jiffies
 *
 * Recalls batches in flight and frees all retained folios. Without migrc these
 * pages would have been free when the allocation was last tried.
 *
 * Context: process context, may sleep. Does not wait for other tasks.
 *
 * Return: whether the allocation must be tried again before a task is killed.
 * True if there was a batch in flight or a retained folio, or if a task has
 * freed retained folios since @since, which may be after the last attempt. The
 * caller tries again once for each decision to call the OOM killer, since
 * other tasks may migrate at any time.
 */
static inline bool ferry_drain_before_oom(unsigned long since)
{
	return static_branch_unlikely(&ferry_migrc_key) &&
	       ferry_help_before_oom(since);
}

#else /* !CONFIG_FERRY_MIGRC */

static inline void ferry_note_pending(struct ferry_unmaps *unmaps,
				      const struct folio *folio,
				      struct mm_struct *mm,
				      unsigned long address, pte_t pteval) { }

static inline void ferry_forget_batched(struct mm_struct *mm) { }

static inline void ferry_unmapped(struct ferry_unmaps *unmaps,
				  const struct folio *folio,
				  struct mm_struct *mm, unsigned long address,
				  pte_t pteval) { }

static inline struct ferry_unmaps *
ferry_batch_unmaps(const struct ferry_batch *batch)
{
	return NULL;
}

static inline void ferry_defer_begin(struct ferry_batch *batch,
				     const struct list_head *from,
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
