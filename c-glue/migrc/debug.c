// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: checks of migrc. While both folios exist, each old folio is compared
 * with its new one before it is flushed. They must not differ, unless the
 * address spaces that could see the old folio were flushed before. Tests can
 * disable single hooks and stretch short windows, to show that these checks
 * detect the errors.
 *
 * No locks. Folios may be freed during the comparison, or change legitimately,
 * so a difference is checked again and counts only if the folios are still the
 * same.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/ferry_group.h>
#include <linux/hash.h>
#include <linux/highmem.h>
#include <linux/jhash.h>
#include <linux/jiffies.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/limits.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/shrinker.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/swap.h>
#include <linux/sysfs.h>

/* At most FERRY_STALE_BITS, see ferry_count_flushes(). */
#define FERRY_FLUSH_BITS	8

/* Flushes of whole address spaces, by a hash of the address of the mm. */
static atomic_t ferry_mm_flushes[1 << FERRY_FLUSH_BITS];
static atomic_t ferry_mismatches;
static atomic_t ferry_compared;
static enum ferry_hook ferry_hook_out;
static unsigned int ferry_drain_one_in;
static unsigned int ferry_hold_reclaim_ms;
static unsigned int ferry_hold_batch_ms;
static bool ferry_feign_progress;

static const char * const ferry_hook_names[FERRY_NR_HOOKS] = {
	[FERRY_HOOK_NONE]	= "none",
	[FERRY_HOOK_WRITABLE]	= "writable",
	[FERRY_HOOK_CHANGING]	= "changing",
	[FERRY_HOOK_RETAIN]	= "retain",
	[FERRY_HOOK_REUSE]	= "reuse",
	[FERRY_HOOK_SWAP]	= "swap",
	[FERRY_HOOK_FORCE]	= "force",
	[FERRY_HOOK_MOVE]	= "move",
	[FERRY_HOOK_BATCHED]	= "batched",
	[FERRY_HOOK_BOUND]	= "bound",
	[FERRY_HOOK_AGE]	= "age",
	[FERRY_HOOK_FILE]	= "file",
	[FERRY_HOOK_EVERY]	= "every",
	[FERRY_HOOK_MORE]	= "more",
};

bool ferry_hook_disabled(enum ferry_hook hook)
{
	return unlikely(READ_ONCE(ferry_hook_out) == hook);
}

/* Returns whether a test wants this group to be drained at once. */
bool ferry_drain_at_random(void)
{
	unsigned int one_in = READ_ONCE(ferry_drain_one_in);

	return one_in && !get_random_u32_below(one_in);
}

/*
 * Delays reclaim between unmap and flush. A task that faults in this window
 * finds a folio in the swap cache for which CPUs may have stale translations.
 * Dirty folios are flushed one by one while they are locked, without this
 * delay.
 */
void ferry_hold_reclaim(void)
{
	unsigned int ms = READ_ONCE(ferry_hold_reclaim_ms);

	might_sleep();
	if (unlikely(ms) && current->flags & PF_MEMALLOC && !current->tlb_ubc.writable)
		msleep(ms);
}

/*
 * Keeps a migrated batch in flight before it is retained, for hold_batch_ms or
 * until 0 is written.
 */
void ferry_hold_batch(const struct ferry_group *group)
{
	unsigned long start = jiffies;

	might_sleep();
	while (group->pending &&
	       time_before(jiffies, start +
			   msecs_to_jiffies(READ_ONCE(ferry_hold_batch_ms))))
		msleep(20);
}

/* One object always remains, so that each shrink scans one. */
static unsigned long ferry_count_objects(struct shrinker *shrinker,
					 struct shrink_control *sc)
{
	return READ_ONCE(ferry_feign_progress) ? 2 : SHRINK_EMPTY;
}

/* Reports one page too many to direct reclaim. */
static unsigned long ferry_scan_objects(struct shrinker *shrinker,
					struct shrink_control *sc)
{
	if (!current_is_kswapd())
		mm_account_reclaimed_pages(1);
	return 1;
}

static int ferry_register_shrinker(void)
{
	struct shrinker *shrinker = shrinker_alloc(0, "ferry-feign");

	if (!shrinker)
		return -ENOMEM;
	shrinker->count_objects = ferry_count_objects;
	shrinker->scan_objects = ferry_scan_objects;
	shrinker->batch = 1;
	/* Half of the objects are scanned, however low the priority. */
	shrinker->seeks = 0;
	shrinker_register(shrinker);
	return 0;
}

/*
 * Undoes set_tlb_ubc_flush_pending() for an address space, if a test wants code that
 * changes mappings not to flush first. Called with the PTL held.
 */
void ferry_forget_batched(struct mm_struct *mm)
{
	if (ferry_hook_disabled(FERRY_HOOK_BATCHED))
		atomic_dec(&mm->tlb_flush_batched);
}

static atomic_t *ferry_flushes_of(const struct mm_struct *mm)
{
	return &ferry_mm_flushes[hash_ptr(mm, FERRY_FLUSH_BITS)];
}

/* Called when a whole address space was flushed, before anything changes. */
void ferry_note_mm_flush(const struct mm_struct *mm)
{
	/* Full barrier: before writes that the flush permits. */
	atomic_inc_return(ferry_flushes_of(mm));
}

/* Returns the sum of flushes of the address spaces of a group; it wraps. */
static unsigned int ferry_count_flushes(const struct ferry_unmaps *unmaps)
{
	unsigned int i, sum = 0;

	for (i = 0; i < unmaps->nr_mms; i++)
		sum += atomic_read(ferry_flushes_of(unmaps->spaces[i].mm));
	/*
	 * hash_ptr() returns the highest bits of a product, so the index of a
	 * counter is the start of the number of a bucket.
	 */
	for_each_set_bit(i, unmaps->more, 1 << FERRY_STALE_BITS)
		sum += atomic_read(&ferry_mm_flushes[i >> (FERRY_STALE_BITS -
							   FERRY_FLUSH_BITS)]);
	return sum;
}

/*
 * Called when the first translation of an address space is cleared for a
 * group. A task that flushes the whole address space after that, even before
 * other translations are cleared, may write the pages cleared by then without
 * another flush.
 */
void ferry_note_mm(struct ferry_unmaps *unmaps, const struct mm_struct *mm)
{
	container_of(unmaps, struct ferry_group, unmaps)->flushes +=
		atomic_read(ferry_flushes_of(mm));
}

static unsigned long ferry_identity(const struct folio *folio)
{
	return hash_long((unsigned long)folio->mapping ^
			 hash_long(folio->index + 1, 64), 64);
}

/* Folios with more pages are not compared. */
#define FERRY_MAX_NOTED		(BITS_PER_LONG / 2)

/* Returns the private word of a folio whose pages all have unflushed PTEs. */
static unsigned long ferry_all_noted(const struct folio *folio)
{
	return BIT(folio_nr_pages(folio)) - 1;
}

/*
 * Notes that a PTE of a page stays unflushed. The folio is compared if that is so
 * for all its pages: others may be written without another flush.
 *
 * Called for a folio that is locked, isolated and being unmapped, whose private
 * word is unused unless a flag says otherwise. If the folio is not migrated, the
 * bits stay until the next migration, until the folio enters the swap cache, or
 * until it is freed. The content of a KSM folio does not change.
 */
void ferry_note_page(const struct folio *folio, unsigned long pfn)
{
	unsigned long private = (unsigned long)folio->private;

	if (folio_test_anon(folio) && !folio_test_ksm(folio) &&
	    !folio_test_swapcache(folio) && !folio_test_private(folio) &&
	    folio_nr_pages(folio) <= FERRY_MAX_NOTED)
		((struct folio *)folio)->private =
			(void *)(private | BIT(pfn - folio_pfn(folio)));
}

/*
 * Records the new folio of an old one, in fields that a retained folio does
 * not use.
 */
void ferry_note_copy(struct folio *src, struct folio *dst)
{
	bool noted = folio_nr_pages(src) <= FERRY_MAX_NOTED &&
		     (unsigned long)src->private == ferry_all_noted(src);

	src->private = NULL;
	if (!noted || !folio_try_get(dst))
		return;
	src->private = dst;
	src->index = ferry_identity(dst);
	folio_put(dst);
}

static void ferry_check_folio(const struct ferry_group *group,
			      struct folio *src)
{
	struct folio *dst = src->private;
	u32 was, is;

	src->private = NULL;
	if (!dst || !folio_try_get(dst))
		return;
	/* The destination cannot be split while it is referenced. */
	if (folio_order(dst) != folio_order(src) ||
	    src->index != ferry_identity(dst))
		goto put;
	atomic_inc(&ferry_compared);
	if (!memcmp(folio_address(src), folio_address(dst), folio_size(src)))
		goto put;
	was = jhash2(folio_address(src), folio_size(src) / 4, 0);
	is = jhash2(folio_address(dst), folio_size(src) / 4, 0);
	/*
	 * After the content: writes are flushed for, and counted, before they
	 * are made.
	 */
	smp_rmb();
	if (src->index != ferry_identity(dst) ||
	    group->flushes != ferry_count_flushes(&group->unmaps))
		goto put;
	atomic_inc(&ferry_mismatches);
	WARN(1, "ferry: folio changed while an old one may be read: pfn %lx has %08x, old pfn %lx has %08x\n",
	     folio_pfn(dst), is, folio_pfn(src), was);
put:
	folio_put(dst);
}

/*
 * Compares the folios of a group before its flush. Called with the ledger
 * locked.
 */
void ferry_group_check(struct ferry_group *group)
{
	struct folio *src;

	if (group->flushes != ferry_count_flushes(&group->unmaps))
		return;
	list_for_each_entry(src, &group->folios, lru)
		ferry_check_folio(group, src);
}

static ssize_t hook_out_show(struct kobject *kobj, struct kobj_attribute *attr,
			     char *buf)
{
	return sysfs_emit(buf, "%s\n",
			  ferry_hook_names[READ_ONCE(ferry_hook_out)]);
}

static ssize_t hook_out_store(struct kobject *kobj, struct kobj_attribute *attr,
			      const char *buf, size_t count)
{
	int hook = sysfs_match_string(ferry_hook_names, buf);

	if (hook < 0)
		return hook;
	WRITE_ONCE(ferry_hook_out, hook);
	return count;
}

static ssize_t ferry_store_uint(const char *buf, size_t count,
				unsigned int *into, unsigned int most)
{
	unsigned int value;
	int rc = kstrtouint(buf, 10, &value);

	if (rc)
		return rc;
	if (value > most)
		return -EINVAL;
	WRITE_ONCE(*into, value);
	return count;
}

static ssize_t drain_one_in_show(struct kobject *kobj,
				 struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_drain_one_in));
}

static ssize_t drain_one_in_store(struct kobject *kobj,
				  struct kobj_attribute *attr, const char *buf,
				  size_t count)
{
	return ferry_store_uint(buf, count, &ferry_drain_one_in, UINT_MAX);
}

static ssize_t hold_reclaim_ms_show(struct kobject *kobj,
				    struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_hold_reclaim_ms));
}

static ssize_t hold_reclaim_ms_store(struct kobject *kobj,
				     struct kobj_attribute *attr,
				     const char *buf, size_t count)
{
	return ferry_store_uint(buf, count, &ferry_hold_reclaim_ms, 1000);
}

static ssize_t hold_batch_ms_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_hold_batch_ms));
}

static ssize_t hold_batch_ms_store(struct kobject *kobj,
				   struct kobj_attribute *attr, const char *buf,
				   size_t count)
{
	return ferry_store_uint(buf, count, &ferry_hold_batch_ms, 60000);
}

static ssize_t feign_progress_show(struct kobject *kobj,
				   struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(ferry_feign_progress));
}

static ssize_t feign_progress_store(struct kobject *kobj,
				    struct kobj_attribute *attr,
				    const char *buf, size_t count)
{
	bool on;
	int rc = kstrtobool(buf, &on);

	if (rc)
		return rc;
	WRITE_ONCE(ferry_feign_progress, on);
	return count;
}

static ssize_t mismatches_show(struct kobject *kobj,
			       struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", atomic_read(&ferry_mismatches));
}

static ssize_t compared_show(struct kobject *kobj, struct kobj_attribute *attr,
			     char *buf)
{
	return sysfs_emit(buf, "%d\n", atomic_read(&ferry_compared));
}

/*
 * Disables interrupts, except with PREEMPT_RT, which forbids allocations then.
 */
static DEFINE_SPINLOCK(ferry_atomic_lock);

/*
 * Allocates all free memory of a node and frees it again, like a context that
 * must not wait: under a spinlock, and without waking kswapd, which may wait.
 */
static ssize_t take_atomic_store(struct kobject *kobj,
				 struct kobj_attribute *attr, const char *buf,
				 size_t count)
{
	int nid, order = MAX_PAGE_ORDER;
	struct page *page, *next;
	unsigned long flags;
	LIST_HEAD(taken);

	if (kstrtoint(buf, 10, &nid) || !numa_valid_node(nid) ||
	    !node_state(nid, N_MEMORY))
		return -EINVAL;
	while (order >= 0) {
		spin_lock_irqsave(&ferry_atomic_lock, flags);
		page = alloc_pages_node(nid, __GFP_HIGH | __GFP_THISNODE |
					__GFP_NOWARN, order);
		spin_unlock_irqrestore(&ferry_atomic_lock, flags);
		if (page) {
			set_page_private(page, order);
			list_add(&page->lru, &taken);
		} else {
			order--;
		}
		cond_resched();
	}
	list_for_each_entry_safe(page, next, &taken, lru) {
		order = page_private(page);
		set_page_private(page, 0);
		__free_pages(page, order);
	}
	return count;
}

/* Allocates the pageblock of a page frame in one piece, and frees it again. */
static ssize_t take_contig_store(struct kobject *kobj,
				 struct kobj_attribute *attr, const char *buf,
				 size_t count)
{
	unsigned long pfn;
	int rc = kstrtoul(buf, 10, &pfn);

	if (rc)
		return rc;
	pfn = pageblock_start_pfn(pfn);
	if (!pfn_to_online_page(pfn))
		return -EINVAL;
	rc = alloc_contig_range(pfn, pfn + pageblock_nr_pages, ACR_FLAGS_NONE,
				GFP_KERNEL | __GFP_NOWARN);
	if (rc)
		return rc;
	free_contig_range(pfn, pageblock_nr_pages);
	return count;
}

static struct kobj_attribute ferry_hook_out_attr = __ATTR_RW(hook_out);
static struct kobj_attribute ferry_drain_one_in_attr = __ATTR_RW(drain_one_in);
static struct kobj_attribute ferry_hold_reclaim_ms_attr =
	__ATTR_RW(hold_reclaim_ms);
static struct kobj_attribute ferry_hold_batch_ms_attr =
	__ATTR_RW(hold_batch_ms);
static struct kobj_attribute ferry_feign_progress_attr =
	__ATTR_RW(feign_progress);
static struct kobj_attribute ferry_mismatches_attr = __ATTR_RO(mismatches);
static struct kobj_attribute ferry_compared_attr = __ATTR_RO(compared);
static struct kobj_attribute ferry_take_atomic_attr = __ATTR_WO(take_atomic);
static struct kobj_attribute ferry_take_contig_attr = __ATTR_WO(take_contig);

static struct attribute *ferry_debug_list[] = {
	&ferry_hook_out_attr.attr,
	&ferry_drain_one_in_attr.attr,
	&ferry_hold_reclaim_ms_attr.attr,
	&ferry_hold_batch_ms_attr.attr,
	&ferry_feign_progress_attr.attr,
	&ferry_mismatches_attr.attr,
	&ferry_compared_attr.attr,
	&ferry_take_atomic_attr.attr,
	&ferry_take_contig_attr.attr,
	&ferry_secondary_attr.attr,
	&ferry_secondary_ranges_attr.attr,
	NULL
};

static const struct attribute_group ferry_debug_group = {
	.name	= "debug",
	.attrs	= ferry_debug_list,
};

int ferry_migrc_debug_init(struct kobject *migrc)
{
	int rc = ferry_register_shrinker();

	return rc ?: sysfs_create_group(migrc, &ferry_debug_group);
}
