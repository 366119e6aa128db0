/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: runs, small folios that are unmapped, remapped and freed together.
 *
 * A run is a set of folios of one size that follow each other in the list, belong
 * to one anon_vma or file, and have indices in one window: FERRY_RUN_SLOTS folios,
 * but at most FERRY_RUN_MAX_PAGES pages. Folios that a PMD may map are in no run.
 * Mainline walks the reverse mapping of each folio, once to unmap it and once to
 * remap it. A run needs two walks for all its folios. Each takes the rmap lock once
 * and searches for VMAs once. It takes the PTL once for each 32 pages, or for each
 * folio that is larger. The first walk calls the notifiers of a VMA once. Statistics
 * are updated once for all folios, which join the LRU lists and are freed in batches.
 *
 * A walk may skip any folio: mainline's functions then unmap or remap it alone.
 *
 * Context: the task that migrates, which may sleep. Lock order:
 *
 * 1. the folio locks of the batch;
 * 2. the lock of the anon_vma or i_mmap, for reading;
 * 3. the critical section of the MMU notifiers of a VMA;
 * 4. one PTL at a time.
 */
#ifndef _LINUX_FERRY_RUN_H
#define _LINUX_FERRY_RUN_H

#include <linux/bitops.h>
#include <linux/compat.h>
#include <linux/ferry.h>
#include <linux/folio_batch.h>
#include <linux/jump_label.h>
#include <linux/minmax.h>
#include <linux/pgtable.h>

#include "migrate_batch.h"

#ifdef CONFIG_FERRY_RUNS

/* Maximum number of folios in a window */
#define FERRY_RUN_SLOTS		32
/*
 * Maximum number of pages in a window. A window is aligned to its size, and seldom
 * spans two page tables.
 */
#define FERRY_RUN_MAX_PAGES	128
/* Runs and lists with fewer pages are left to mainline's path. */
#define FERRY_RUN_MIN_PAGES	4

/**
 * struct ferry_run - folios of one window
 * @mapping: the &folio->mapping of each of them, with its FOLIO_MAPPING_* bits
 * @start: index of the first page in the window
 * @pages: pages in the window
 * @order: order of each folio
 * @slots: bitmap of the filled slots
 * @src: source folios by slot, in order of their indices
 * @dst: their destination folios
 */
struct ferry_run {
	struct address_space *mapping;
	pgoff_t start;
	unsigned int pages;
	unsigned int order;
	unsigned long slots;
	struct folio *src[FERRY_RUN_SLOTS];
	struct folio *dst[FERRY_RUN_SLOTS];
};

/*
 * PTEs that a walk has cleared under one PTL and that a TLB may hold: their range,
 * one that is PROT_NONE, and one that is not. Each is a dirty one if there is any.
 */
struct ferry_run_flush {
	unsigned long start;
	/* 0 if there are no PTEs. */
	unsigned long end;
	pte_t prot_none;
	pte_t other;
};

/* Adds a PTE. Addresses ascend. */
static inline void ferry_run_flush_add(struct ferry_run_flush *flush,
				       unsigned long address, pte_t pte)
{
	if (unlikely(!flush->end))
		flush->start = address;
	flush->end = address + PAGE_SIZE;
	if (unlikely(pte_protnone(pte))) {
		if (!pte_dirty(flush->prot_none))
			flush->prot_none = pte;
	} else if (!pte_dirty(flush->other)) {
		flush->other = pte;
	}
}

/*
 * Returns the PTE to pass to set_tlb_ubc_flush_pending(), which ignores a PROT_NONE
 * PTE whose flush has ended: one that is not PROT_NONE if there is any. It is dirty
 * if any PTE was.
 */
static inline pte_t ferry_run_flush_pte(const struct ferry_run_flush *flush)
{
	if (!pte_present(flush->other))
		return flush->prot_none;
	return pte_dirty(flush->prot_none) ? pte_mkdirty(flush->other) :
					     flush->other;
}

/* For each slot of @run that has a folio. The body may remove the folio. */
#define ferry_run_for_each(slot, run) \
	for_each_set_bit(slot, &(run)->slots, FERRY_RUN_SLOTS)

/* Returns the number of folios. */
static inline unsigned int ferry_run_nr(const struct ferry_run *run)
{
	return hweight32(run->slots);
}

/* Returns the number of pages in a window of folios of this order. */
static inline unsigned int ferry_run_pages(unsigned int order)
{
	return min(FERRY_RUN_SLOTS << order, FERRY_RUN_MAX_PAGES);
}

/* Returns the offset of the first page of a slot from the start of the window. */
static inline unsigned int ferry_run_offset(const struct ferry_run *run,
					    unsigned int slot)
{
	return slot << run->order;
}

/* When lists are migrated in runs: runs/enabled */
enum ferry_runs {
	FERRY_RUNS_AUTO,	/* whenever idle CPUs may take part */
	FERRY_RUNS_ALWAYS,
	FERRY_RUNS_NEVER,
};

/* On with FERRY_RUNS_ALWAYS */
DECLARE_STATIC_KEY_FALSE(ferry_runs_key);
extern int ferry_runs_word;

/* c-glue/runs/run.c */
void __ferry_run_unmap(struct migrate_batch *batch, struct ferry_run *run,
		       struct list_head *from);
bool __ferry_run_take(struct migrate_batch *batch, struct folio *src,
		      struct folio *dst, struct anon_vma *anon_vma);
void __ferry_run_end(struct migrate_batch *batch);

/* c-glue/runs/sort.c */
void __ferry_run_sort(struct list_head *list);

/* c-glue/runs/lru.c */
void ferry_run_add_lru(struct folio_batch *fbatch);

/* c-glue/runs/rmap.c */
void ferry_run_install(struct ferry_run *run, struct anon_vma *anon_vma,
		       struct ferry_unmaps *unmaps);
bool ferry_run_restore(struct ferry_run *run, struct anon_vma *anon_vma);

/* c-glue/runs/move_pages.c */
int __ferry_isolate_ahead(struct mm_struct *mm, const void __user *pages,
			  const int __user *nodes, unsigned long nr, int node,
			  struct list_head *pagelist, bool all, bool drained);

/* Returns whether a migration may have runs. */
static inline bool ferry_runs_wanted(unsigned int flags, enum migrate_reason reason)
{
	return static_branch_unlikely(&ferry_runs_key) ||
	       (ferry_wanted(flags, reason) &&
		READ_ONCE(ferry_runs_word) != FERRY_RUNS_NEVER);
}

/* Sorts the list if that makes longer runs. */
static inline void ferry_run_sort(struct list_head *list,
				  const struct migrate_control *mc)
{
	if (ferry_runs_wanted(mc->flags, mc->reason))
		__ferry_run_sort(list);
}

/*
 * Unmaps the folios of @from that are in runs, and moves them to the batch, which
 * then has @run.
 */
static inline void ferry_run_unmap(struct migrate_batch *batch,
				   struct ferry_run *run, struct list_head *from)
{
	/* In other modes the task may lock only one folio. */
	if (batch->mode == MIGRATE_ASYNC &&
	    ferry_runs_wanted(batch->mc->flags, batch->mc->reason))
		__ferry_run_unmap(batch, run, from);
}

/**
 * ferry_run_take() - hand a moved folio to the run in progress
 * @batch: the batch
 * @src: a folio whose contents and state have moved to @dst
 * @dst: the destination, which is on no list
 * @anon_vma: anon_vma to which the folio has a reference, which passes to the
 *	run; NULL if it is a file folio
 * @state: the state that was stored in @dst
 *
 * Return: whether the run will remap, unlock and free the folio.
 */
static inline bool ferry_run_take(struct migrate_batch *batch,
				  struct folio *src, struct folio *dst,
				  struct anon_vma *anon_vma, int state)
{
	if (!batch->run || (state & ~FERRY_FOLIO_POSTED) != FOLIO_WAS_MAPPED)
		return false;
	return __ferry_run_take(batch, src, dst, anon_vma);
}

/* Returns whether folios of the run have moved, and are not yet remapped. */
static inline bool ferry_run_waits(const struct migrate_batch *batch)
{
	return batch->run && batch->run->slots;
}

/* Remaps and frees the folios of the run. */
static inline void ferry_run_end(struct migrate_batch *batch)
{
	if (ferry_run_waits(batch))
		__ferry_run_end(batch);
}

/**
 * ferry_isolate_ahead() - isolate more pages of a move_pages(2) call
 * @mm: address space
 * @pages: user array of addresses
 * @nodes: user array of destination nodes
 * @nr: number of elements of both
 * @node: destination node of the preceding page, which was isolated
 * @pagelist: receives the folios
 * @all: MPOL_MF_MOVE_ALL is set
 * @drained: no LRU cache of a CPU holds folios
 *
 * Context: may sleep.
 *
 * Return: the number of leading pages that were isolated; 0 for 32-bit callers, or
 * if migrations have no runs.
 */
static inline int ferry_isolate_ahead(struct mm_struct *mm,
				      const void __user * __user *pages,
				      const int __user *nodes, unsigned long nr,
				      int node, struct list_head *pagelist,
				      bool all, bool drained)
{
	if (!nr || !ferry_runs_wanted(0, MR_SYSCALL) || in_compat_syscall())
		return 0;
	return __ferry_isolate_ahead(mm, pages, nodes, nr, node, pagelist, all,
				     drained);
}

#else /* !CONFIG_FERRY_RUNS */

struct ferry_run { };

static inline void ferry_run_sort(struct list_head *list,
				  const struct migrate_control *mc) { }

static inline void ferry_run_unmap(struct migrate_batch *batch,
				   struct ferry_run *run,
				   struct list_head *from) { }

static inline bool ferry_run_take(struct migrate_batch *batch,
				  struct folio *src, struct folio *dst,
				  struct anon_vma *anon_vma, int state)
{
	return false;
}

static inline bool ferry_run_waits(const struct migrate_batch *batch)
{
	return false;
}

static inline void ferry_run_end(struct migrate_batch *batch) { }

static inline int ferry_isolate_ahead(struct mm_struct *mm,
				      const void __user * __user *pages,
				      const int __user *nodes, unsigned long nr,
				      int node, struct list_head *pagelist,
				      bool all, bool drained)
{
	return 0;
}

#endif /* CONFIG_FERRY_RUNS */
#endif /* _LINUX_FERRY_RUN_H */
