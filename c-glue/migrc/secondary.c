// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: counts, for tests, the notifications that a device with a TLB of its
 * own receives, such as an IOMMU that shares page tables with a process:
 * migration must make it drop a translation when that is cleared, regardless of
 * when CPUs are flushed (O7). A virtual machine is also notified of each range
 * before any of its translations change.
 *
 * Locks: ferry_secondary_lock serialises registration; inside it the locks of
 * mmu_notifier_get(). The callbacks only count, in atomics. The notifier of cleared
 * translations is called with the PTL held. That of ranges is called before the PTL
 * is taken, and must not sleep if the range is not blockable.
 */
#include <linux/atomic.h>
#include <linux/ferry_group.h>
#include <linux/kobject.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

static DEFINE_MUTEX(ferry_secondary_lock);
/*
 * Notifiers of the process that registered them; NULL if there are none. One is
 * notified of cleared translations and the other of ranges: a notifier must not have
 * both callbacks.
 */
static struct mmu_notifier *ferry_secondary, *ferry_secondary_ranges;
/* Numbers of notifications of cleared translations, and of ranges. */
static atomic_long_t ferry_secondary_told, ferry_secondary_told_ranges;

static void ferry_secondary_invalidate(struct mmu_notifier *secondary,
				       struct mm_struct *mm,
				       unsigned long start, unsigned long end)
{
	atomic_long_inc(&ferry_secondary_told);
}

static int ferry_secondary_range_start(struct mmu_notifier *secondary,
				       const struct mmu_notifier_range *range)
{
	atomic_long_inc(&ferry_secondary_told_ranges);
	return 0;
}

static struct mmu_notifier *ferry_secondary_alloc(struct mm_struct *mm)
{
	struct mmu_notifier *secondary = kzalloc_obj(*secondary);

	return secondary ?: ERR_PTR(-ENOMEM);
}

static void ferry_secondary_free(struct mmu_notifier *secondary)
{
	kfree(secondary);
}

static const struct mmu_notifier_ops ferry_secondary_ops = {
	.arch_invalidate_secondary_tlbs	= ferry_secondary_invalidate,
	.alloc_notifier			= ferry_secondary_alloc,
	.free_notifier			= ferry_secondary_free,
};

static const struct mmu_notifier_ops ferry_secondary_ranges_ops = {
	.invalidate_range_start		= ferry_secondary_range_start,
	.alloc_notifier			= ferry_secondary_alloc,
	.free_notifier			= ferry_secondary_free,
};

static ssize_t secondary_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return sysfs_emit(buf, "%ld\n",
			  atomic_long_read(&ferry_secondary_told));
}

/* 1: registers a device of the writing process; 0: unregisters it. */
static ssize_t secondary_store(struct kobject *kobj,
			       struct kobj_attribute *attr, const char *buf,
			       size_t count)
{
	struct mmu_notifier *secondary, *ranges;
	bool attach;
	int rc = kstrtobool(buf, &attach);

	if (rc)
		return rc;
	guard(mutex)(&ferry_secondary_lock);
	if (!attach) {
		if (ferry_secondary) {
			mmu_notifier_put(ferry_secondary);
			mmu_notifier_put(ferry_secondary_ranges);
		}
		ferry_secondary = NULL;
		ferry_secondary_ranges = NULL;
		return count;
	}
	if (ferry_secondary)
		return -EBUSY;
	secondary = mmu_notifier_get(&ferry_secondary_ops, current->mm);
	if (IS_ERR(secondary))
		return PTR_ERR(secondary);
	ranges = mmu_notifier_get(&ferry_secondary_ranges_ops, current->mm);
	if (IS_ERR(ranges)) {
		mmu_notifier_put(secondary);
		return PTR_ERR(ranges);
	}
	ferry_secondary = secondary;
	ferry_secondary_ranges = ranges;
	return count;
}

static ssize_t secondary_ranges_show(struct kobject *kobj,
				     struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%ld\n",
			  atomic_long_read(&ferry_secondary_told_ranges));
}

struct kobj_attribute ferry_secondary_attr = __ATTR_RW(secondary);
struct kobj_attribute ferry_secondary_ranges_attr = __ATTR_RO(secondary_ranges);
