// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: wrappers of inline functions and macros for Rust, and the
 * tracepoints. No policy.
 */
#include <linux/ferry_glue.h>
#include <linux/highmem.h>
#include <linux/hugetlb.h>
#include <linux/instrumented.h>
#include <linux/kmsan.h>
#include <linux/memory-tiers.h>
#include <linux/memory_hotplug.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/workqueue.h>

#ifdef CONFIG_ARM64_MTE
#include <asm/mte.h>
#endif

#include "internal.h"

/*
 * The names of the migration reasons; the tracepoints of that header are
 * created in mm/migrate.c.
 */
#include <trace/events/migrate.h>

#define CREATE_TRACE_POINTS
#include <ferry_trace.h>

/* FERRY_FOLIO_POSTED is in the low bits of a pointer to a struct anon_vma. */
static_assert(__alignof__(struct anon_vma) >= 8);

bool ferry_folio_has_movable_ops(const struct folio *folio)
{
	return page_has_movable_ops(&folio->page);
}

/*
 * Returns whether the mapping belongs to a regular file, not to a directory or
 * to metadata of a file system.
 */
bool ferry_mapping_is_regular(struct address_space *mapping)
{
	return mapping->host && S_ISREG(mapping->host->i_mode);
}

/*
 * Returns the migrate_folio operation; NULL if there is none, or if the
 * content is inaccessible to the kernel.
 */
const void *ferry_mapping_migrate_op(struct address_space *mapping)
{
	if (mapping_inaccessible(mapping))
		return NULL;
	return READ_ONCE(mapping->a_ops)->migrate_folio;
}

bool ferry_folio_test_private(const struct folio *folio)
{
	return folio_test_private(folio);
}

bool ferry_folio_test_hugetlb(const struct folio *folio)
{
	return folio_test_hugetlb(folio);
}

/*
 * Returns whether the copy of a hugetlb folio's first page copies MTE tags of
 * all its pages.
 */
bool ferry_hugetlb_has_tags(const struct folio *folio)
{
#ifdef CONFIG_ARM64_MTE
	return system_supports_mte() &&
	       folio_test_hugetlb_mte_tagged((struct folio *)folio);
#else
	return false;
#endif
}

bool ferry_folio_test_anon(const struct folio *folio)
{
	return folio_test_anon(folio);
}

int ferry_folio_ref_count(const struct folio *folio)
{
	return folio_ref_count(folio);
}

unsigned long ferry_folio_nr_pages(const struct folio *folio)
{
	return folio_nr_pages(folio);
}

unsigned long ferry_folio_index(const struct folio *folio)
{
	return READ_ONCE(folio->index);
}

int ferry_folio_nid(const struct folio *folio)
{
	return folio_nid(folio);
}

void ferry_folio_mark_posted(struct folio *dst)
{
	/* hugetlb keeps its flags in this word. */
	if (folio_test_hugetlb(dst))
		return;
	dst->migrate_info |= FERRY_FOLIO_POSTED;
}

/* Same as in __migrate_folio_extract(); for tests. */
bool ferry_folio_take_posted(struct folio *dst)
{
	bool posted = dst->migrate_info & FERRY_FOLIO_POSTED;

	dst->migrate_info = 0;
	return posted;
}

int ferry_folio_expected_ref_count(const struct folio *folio)
{
	return folio_expected_ref_count(folio);
}

/*
 * Copies pages including their metadata: MTE tags, KMSAN shadow. Returns 0, or
 * an error if a page could not be read, which is reported as poisoned.
 *
 * Context: any.
 */
int ferry_folio_copy_pages(struct folio *dst, struct folio *src,
			   unsigned long first, unsigned long nr)
{
	for (; nr; nr--, first++) {
		if (copy_mc_highpage(folio_page(dst, first),
				     folio_page(src, first)))
			return -EHWPOISON;
	}
	return 0;
}

/*
 * Same as above with non-temporal stores, where available. A folio is
 * contiguous in the direct map, as there is no high memory.
 */
int ferry_folio_copy_pages_nt(struct folio *dst, struct folio *src,
			      unsigned long first, unsigned long nr)
{
#ifdef CONFIG_X86_64
	void *to = page_address(folio_page(dst, first));
	void *from = page_address(folio_page(src, first));
	unsigned long len = nr * PAGE_SIZE, left, i;

	if (!len)
		return 0;
	instrument_memcpy_before(to, from, len);
	left = ferry_copy_nt(to, from, len);
	instrument_memcpy_after(to, from, len, left);
	if (left) {
		i = first + nr - DIV_ROUND_UP(left, PAGE_SIZE);
		memory_failure_queue(page_to_pfn(folio_page(src, i)), 0);
		return -EHWPOISON;
	}
	for (i = first; i < first + nr; i++)
		kmsan_copy_page_meta(folio_page(dst, i), folio_page(src, i));
	return 0;
#else
	return ferry_folio_copy_pages(dst, src, first, nr);
#endif
}

/* Returns whether memory of @to is of a lower tier than memory of @from. */
bool ferry_demotes(int from, int to)
{
	nodemask_t lower;

	if (!node_online(from))
		return false;
	node_get_allowed_targets(NODE_DATA(from), &lower);
	return node_isset(to, lower);
}

struct folio *ferry_folio_alloc(gfp_t gfp, unsigned int order)
{
	return folio_alloc(gfp, order);
}

void ferry_folio_get(struct folio *folio)
{
	folio_get(folio);
}

void ferry_folio_put(struct folio *folio)
{
	folio_put(folio);
}

bool ferry_folio_trylock(struct folio *folio)
{
	return folio_trylock(folio);
}

void *ferry_folio_address(const struct folio *folio)
{
	return folio_address(folio);
}

void ferry_count_stat(enum ferry_stat stat, unsigned long nr)
{
	ferry_count(stat, nr);
}

void ferry_preempt_disable(void)
{
	preempt_disable();
}

void ferry_preempt_enable(void)
{
	preempt_enable();
}

void ferry_cond_resched(void)
{
	cond_resched();
}

/* Also true if the scheduler would let the task run on until the next tick. */
bool ferry_need_resched(void)
{
	return need_resched() || tif_test_bit(TIF_NEED_RESCHED_LAZY);
}

#ifdef CONFIG_FERRY_KUNIT_TEST
/* Same as resched_curr_lazy() for a task that may be preempted late. */
void ferry_set_need_resched(void)
{
	set_tsk_thread_flag(current, TIF_NEED_RESCHED_LAZY);
}
#endif

/*
 * Moves the folios in the per-CPU LRU caches to the LRU lists, and disables these
 * caches until ferry_lru_enable(). May sleep.
 */
void ferry_lru_disable(void)
{
	lru_cache_disable();
}

void ferry_lru_enable(void)
{
	lru_cache_enable();
}

/* No memory goes online or offline between the two calls. May sleep. */
void ferry_online_mems_begin(void)
{
	get_online_mems();
}

void ferry_online_mems_end(void)
{
	put_online_mems();
}

struct workqueue_struct *ferry_alloc_workqueue(const char *name,
					       unsigned int flags)
{
	return alloc_workqueue("%s", flags, 0, name);
}

/* Warns that folios are remapped in another order than they were posted in. */
void ferry_warn_order(void)
{
	WARN_ONCE(1, "ferry: the next folio to remap is not the next one posted\n");
}

/*
 * Allocates a workqueue for work that starts on the CPU that it is queued on,
 * and may then be moved by the scheduler to any other: an unbound workqueue
 * with a pool of workers for each CPU and non-strict affinity. Returns NULL
 * without memory. May sleep.
 */
struct workqueue_struct *ferry_alloc_workqueue_near(const char *name)
{
	struct workqueue_struct *wq = alloc_workqueue("%s", WQ_UNBOUND, 0, name);
	struct workqueue_attrs *attrs = alloc_workqueue_attrs();

	if (attrs)
		attrs->affn_scope = WQ_AFFN_CPU;
	if (wq && (!attrs || apply_workqueue_attrs(wq, attrs))) {
		destroy_workqueue(wq);
		wq = NULL;
	}
	free_workqueue_attrs(attrs);
	return wq;
}

void ferry_report_batch(const struct ferry_batch *batch,
			const struct ferry_copied *copied, int reason,
			s64 unmapped_ns)
{
	if (batch->folios)
		ferry_count_time(FERRY_TIME_UNMAPPED, unmapped_ns);
	if (batch->first_ns)
		ferry_count_time(FERRY_TIME_FIRST_FOLIO, batch->first_ns);
	if (!copied->pages)
		return;
	ferry_count_helped(reason, copied->helped);
	trace_ferry_batch(batch, copied, reason, unmapped_ns);
}
