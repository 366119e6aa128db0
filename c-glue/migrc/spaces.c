// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: tracks the address spaces of retained groups, so that a flush of a
 * whole address space finds only the groups that wait for it.
 *
 * An mm only identifies an address space here and is never dereferenced: it
 * may be freed, and another mm may have the same address. That is safe: no CPU
 * uses translations of a freed mm, so a flush of the other mm counts for it.
 *
 * Lock order:
 *
 * 1. a PTL, or the lock of the ledger, see rust/migrc;
 * 2. ferry_buckets[].lock.
 *
 * The lock of a bucket protects its list, and @stale of the spaces that hash
 * to it. A group on a list is not freed: its owner removes it from all lists
 * first.
 */
#include <linux/atomic.h>
#include <linux/bitmap.h>
#include <linux/ferry_group.h>
#include <linux/hash.h>
#include <linux/init.h>
#include <linux/list.h>
#include <linux/spinlock.h>

#include <asm/tlbflush.h>

/* flush_tlb_batched_pending() */
#include "internal.h"

/*
 * @stale: number of spaces whose group is not flushed; once for all spaces that a
 *	group has in @more. Raised with the PTL of the cleared entry held,
 *	before its next holder may write. If two mms share a bucket, the cost
 *	is a flush or a search of the list.
 * @spaces: spaces of retained groups
 */
struct ferry_bucket {
	atomic_t stale;
	spinlock_t lock;
	struct hlist_head spaces;
};

static struct ferry_bucket ferry_buckets[1 << FERRY_STALE_BITS];

static unsigned int ferry_bucket_number(const struct mm_struct *mm)
{
	return hash_ptr(mm, FERRY_STALE_BITS);
}

static struct ferry_bucket *ferry_bucket_of(const struct mm_struct *mm)
{
	return &ferry_buckets[ferry_bucket_number(mm)];
}

static int __init ferry_spaces_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(ferry_buckets); i++)
		spin_lock_init(&ferry_buckets[i].lock);
	return 0;
}
core_initcall(ferry_spaces_init);

/*
 * Notes that a translation of an address space was cleared. Called with the
 * PTL held.
 */
void ferry_note_space(struct ferry_unmaps *unmaps, struct mm_struct *mm)
{
	unsigned int i, bucket = ferry_bucket_number(mm);
	struct ferry_space *space;

	for (i = 0; i < unmaps->nr_mms; i++) {
		if (unmaps->spaces[i].mm == mm)
			return;
	}
	if (i == FERRY_MAX_MMS && (ferry_hook_disabled(FERRY_HOOK_MORE) ||
				   __test_and_set_bit(bucket, unmaps->more)))
		return;
	atomic_inc(&ferry_buckets[bucket].stale);
	ferry_note_mm(unmaps, mm);
	if (i == FERRY_MAX_MMS)
		return;
	space = &unmaps->spaces[unmaps->nr_mms++];
	space->mm = mm;
	space->stale = true;
}

/* Returns whether a group has address spaces whose flushes it does not track. */
static bool ferry_has_more(const struct ferry_unmaps *unmaps)
{
	return !bitmap_empty(unmaps->more, 1 << FERRY_STALE_BITS);
}

/*
 * Adds a group to the lists that flushes of its address spaces search. Its
 * @seq is set.
 */
void ferry_group_link(struct ferry_group *group)
{
	struct ferry_unmaps *unmaps = &group->unmaps;
	unsigned int i;

	/* With more address spaces, flushes of single ones never complete it. */
	atomic_set(&group->unflushed, unmaps->nr_mms + ferry_has_more(unmaps));
	for (i = 0; i < unmaps->nr_mms; i++) {
		struct ferry_space *space = &unmaps->spaces[i];
		struct ferry_bucket *bucket = ferry_bucket_of(space->mm);

		space->group = group;
		spin_lock(&bucket->lock);
		hlist_add_head(&space->node, &bucket->spaces);
		spin_unlock(&bucket->lock);
	}
}

/* Undoes ferry_group_link(). On return only the caller uses the group. */
void ferry_group_unlink(struct ferry_group *group)
{
	struct ferry_unmaps *unmaps = &group->unmaps;
	unsigned int i;

	for (i = 0; i < unmaps->nr_mms; i++) {
		struct ferry_space *space = &unmaps->spaces[i];
		struct ferry_bucket *bucket = ferry_bucket_of(space->mm);

		spin_lock(&bucket->lock);
		hlist_del_init(&space->node);
		spin_unlock(&bucket->lock);
	}
}

/* Removes the address spaces of a group that is not linked, after its flush. */
void ferry_forget_spaces(struct ferry_unmaps *unmaps)
{
	unsigned int i;

	for (i = 0; i < unmaps->nr_mms; i++) {
		if (unmaps->spaces[i].stale)
			atomic_dec(&ferry_bucket_of(unmaps->spaces[i].mm)->stale);
	}
	for_each_set_bit(i, unmaps->more, 1 << FERRY_STALE_BITS)
		atomic_dec(&ferry_buckets[i].stale);
}

/*
 * Notes that a whole address space was flushed, see ferry_after_mm_flush().
 * May be called with a PTL held.
 *
 * The first load of the counter may miss a group that another CPU is
 * retaining. That is safe: the group then waits for another flush.
 */
void ferry_mm_flushed(struct mm_struct *mm, u64 before)
{
	struct ferry_bucket *bucket = ferry_bucket_of(mm);
	struct ferry_space *space;
	struct hlist_node *next;
	bool complete = false;

	ferry_note_mm_flush(mm);
	if (!before || !atomic_read(&bucket->stale))
		return;
	spin_lock(&bucket->lock);
	hlist_for_each_entry_safe(space, next, &bucket->spaces, node) {
		struct ferry_group *group = space->group;
		int nr = ferry_hook_disabled(FERRY_HOOK_EVERY) ? FERRY_MAX_MMS : 1;

		if (space->mm != mm || group->seq >= before)
			continue;
		hlist_del_init(&space->node);
		space->stale = false;
		atomic_dec(&bucket->stale);
		/*
		 * Full barrier: orders the flush before the freeing that
		 * ferry_group_unread() permits.
		 */
		if (atomic_sub_return(nr, &group->unflushed) <= 0)
			complete = true;
	}
	spin_unlock(&bucket->lock);
	if (complete)
		ferry_migrc_complete();
}

/*
 * Returns whether all address spaces of a group were flushed since it was
 * linked.
 */
bool ferry_group_unread(const struct ferry_group *group)
{
	return atomic_read_acquire(&group->unflushed) <= 0;
}

/*
 * See ferry_flush_before_write(). The counter only excludes address spaces
 * that need no flush: flush_tlb_batched_pending() decides exactly, under the
 * PTL, whether an address space is unflushed.
 */
void ferry_flush_stale(struct mm_struct *mm)
{
	int batched;

	if (!atomic_read(&ferry_bucket_of(mm)->stale))
		return;
	batched = atomic_read(&mm->tlb_flush_batched);
	flush_tlb_batched_pending(mm);
	if (atomic_read(&mm->tlb_flush_batched) != batched)
		ferry_count_migrc(FERRY_MIGRC_FLUSHED_FIRST, 1);
}
