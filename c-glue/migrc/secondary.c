// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: for tests of migrc, what devices with TLBs of their own are told, as
 * IOMMUs that share page tables with a process: migration must have them drop a
 * translation when it is cleared, whenever CPUs are to be flushed (O7).
 *
 * Locks: ferry_secondary_lock, for who comes and goes; inside it those that
 * mmu_notifier_get() takes. What is told is counted under the lock of a page
 * table, and takes none.
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
/* Of the process that has asked for it; NULL: there is none. */
static struct mmu_notifier *ferry_secondary;
/* How often it was told. */
static atomic_long_t ferry_secondary_told;

static void ferry_secondary_invalidate(struct mmu_notifier *secondary,
				       struct mm_struct *mm,
				       unsigned long start, unsigned long end)
{
	atomic_long_inc(&ferry_secondary_told);
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

static ssize_t secondary_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return sysfs_emit(buf, "%ld\n",
			  atomic_long_read(&ferry_secondary_told));
}

/* 1: the process that writes it has a device from now on; 0: nobody has. */
static ssize_t secondary_store(struct kobject *kobj,
			       struct kobj_attribute *attr, const char *buf,
			       size_t count)
{
	struct mmu_notifier *secondary;
	bool attach;
	int rc = kstrtobool(buf, &attach);

	if (rc)
		return rc;
	guard(mutex)(&ferry_secondary_lock);
	if (!attach) {
		if (ferry_secondary)
			mmu_notifier_put(ferry_secondary);
		ferry_secondary = NULL;
		return count;
	}
	if (ferry_secondary)
		return -EBUSY;
	secondary = mmu_notifier_get(&ferry_secondary_ops, current->mm);
	if (IS_ERR(secondary))
		return PTR_ERR(secondary);
	ferry_secondary = secondary;
	return count;
}

struct kobj_attribute ferry_secondary_attr = __ATTR_RW(secondary);
