// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: the knobs and counters of migrc, in /sys/kernel/mm/ferry/migrc/.
 *
 * Locks: ferry_migrc_lock, of who switches it on and off.
 */
#include <linux/atomic.h>
#include <linux/cleanup.h>
#include <linux/delay.h>
#include <linux/ferry_glue.h>
#include <linux/ferry_group.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sysfs.h>

static DEFINE_MUTEX(ferry_migrc_lock);

/* Translations refused, pages drained, and pages deferred. */
static DEFINE_PER_CPU(unsigned long [FERRY_NR_REFUSALS], ferry_refused);
static DEFINE_PER_CPU(unsigned long [FERRY_NR_DRAINS], ferry_drained);
static DEFINE_PER_CPU(unsigned long, ferry_eligible);
static DEFINE_PER_CPU(unsigned long, ferry_deferred);
static DEFINE_PER_CPU(unsigned long, ferry_flushed_first);

void ferry_count_refused(enum ferry_refusal why, unsigned int nr)
{
	this_cpu_add(ferry_refused[why], nr);
}

void ferry_count_drained(enum ferry_drain why, unsigned int nr)
{
	this_cpu_add(ferry_drained[why], nr);
}

void ferry_count_eligible(void)
{
	this_cpu_inc(ferry_eligible);
}

void ferry_count_deferred(unsigned int nr)
{
	this_cpu_add(ferry_deferred, nr);
}

void ferry_count_flushed_first(void)
{
	this_cpu_inc(ferry_flushed_first);
}

/* What allocation and freeing do to a page would be late, or seen too early. */
static bool ferry_pages_are_wiped(void)
{
	return want_init_on_free() || page_poisoning_enabled_static() ||
	       debug_pagealloc_enabled_static();
}

static int ferry_migrc_start(void)
{
	int rc;

	if (ferry_pages_are_wiped())
		return -EOPNOTSUPP;
	rc = ferry_migrc_prepare();
	if (rc)
		return rc;
	static_branch_enable(&ferry_migrc_key);
	WRITE_ONCE(ferry_migrc_enabled, true);
	return 0;
}

/* When this returns nothing is retained, nor will be. May sleep. */
static void ferry_migrc_stop(void)
{
	WRITE_ONCE(ferry_migrc_enabled, false);
	/* With that of ferry_group_alloc(): a group is seen here, or sees this. */
	smp_mb();
	for (;;) {
		ferry_migrc_drain(FERRY_DRAIN_OFF);
		/* Those of batches that are being migrated. */
		if (!atomic_read(&ferry_groups))
			break;
		fsleep(1000);
	}
	static_branch_disable(&ferry_migrc_key);
}

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(ferry_migrc_enabled));
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	bool on;
	int rc = kstrtobool(buf, &on);

	if (rc)
		return rc;
	guard(mutex)(&ferry_migrc_lock);
	if (on == ferry_migrc_enabled)
		return count;
	if (!on)
		ferry_migrc_stop();
	else
		rc = ferry_migrc_start();
	return rc ?: count;
}

static ssize_t ferry_store_limit(const char *buf, size_t count,
				 unsigned int *limit, unsigned int least,
				 unsigned int most)
{
	unsigned int value;

	if (kstrtouint(buf, 10, &value) || value < least || value > most)
		return -EINVAL;
	WRITE_ONCE(*limit, value);
	/* What is retained by the old limit would stay by it. */
	ferry_drain();
	return count;
}

static ssize_t max_pages_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_max_pages));
}

static ssize_t max_pages_store(struct kobject *kobj,
			       struct kobj_attribute *attr, const char *buf,
			       size_t count)
{
	return ferry_store_limit(buf, count, &ferry_max_pages, 1, 1 << 24);
}

static ssize_t max_age_ms_show(struct kobject *kobj,
			       struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_max_age_ms));
}

static ssize_t max_age_ms_store(struct kobject *kobj,
				struct kobj_attribute *attr, const char *buf,
				size_t count)
{
	return ferry_store_limit(buf, count, &ferry_max_age_ms, 1, 60000);
}

static ssize_t drain_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	bool now;

	if (kstrtobool(buf, &now) || !now)
		return -EINVAL;
	ferry_drain();
	return count;
}

static struct kobj_attribute ferry_enabled_attr = __ATTR_RW(enabled);
static struct kobj_attribute ferry_max_pages_attr = __ATTR_RW(max_pages);
static struct kobj_attribute ferry_max_age_attr = __ATTR_RW(max_age_ms);
static struct kobj_attribute ferry_drain_attr = __ATTR_WO(drain);

/* A counter, in a file of its own. */
struct ferry_counter_attr {
	struct kobj_attribute attr;
	unsigned long __percpu *counter;
};

static ssize_t ferry_counter_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	unsigned long __percpu *counter =
		container_of(attr, struct ferry_counter_attr, attr)->counter;
	unsigned long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += *per_cpu_ptr(counter, cpu);
	return sysfs_emit(buf, "%lu\n", sum);
}

#define FERRY_COUNTER(_name, _counter)					\
	static struct ferry_counter_attr ferry_counter_##_name = {	\
		.attr	= __ATTR(_name, 0444, ferry_counter_show, NULL),	\
		.counter = &(_counter),					\
	}

FERRY_COUNTER(eligible, ferry_eligible);
FERRY_COUNTER(deferred_pages, ferry_deferred);
FERRY_COUNTER(flushed_first, ferry_flushed_first);

static ssize_t retained_pages_show(struct kobject *kobj,
				   struct kobj_attribute *attr, char *buf)
{
	int nid, len = 0;

	for_each_online_node(nid)
		len += sysfs_emit_at(buf, len, "%d %u\n", nid,
				     ferry_kept_pages(nid));
	return len;
}

static struct kobj_attribute ferry_retained_attr = __ATTR_RO(retained_pages);

static struct attribute *ferry_migrc_list[] = {
	&ferry_enabled_attr.attr,
	&ferry_max_pages_attr.attr,
	&ferry_max_age_attr.attr,
	&ferry_drain_attr.attr,
	&ferry_retained_attr.attr,
	&ferry_counter_eligible.attr.attr,
	&ferry_counter_deferred_pages.attr.attr,
	&ferry_counter_flushed_first.attr.attr,
	NULL
};

static const struct attribute_group ferry_migrc_group = {
	.attrs	= ferry_migrc_list,
};

#define FERRY_REFUSAL(name, why) FERRY_COUNTER(name, ferry_refused[why])

FERRY_REFUSAL(writable, FERRY_REFUSED_WRITABLE);
FERRY_REFUSAL(dirty, FERRY_REFUSED_DIRTY);
FERRY_REFUSAL(changing, FERRY_REFUSED_CHANGING);
FERRY_REFUSAL(file, FERRY_REFUSED_FILE);
FERRY_REFUSAL(large, FERRY_REFUSED_LARGE);
FERRY_REFUSAL(swapcache, FERRY_REFUSED_SWAPCACHE);
FERRY_REFUSAL(poisoned, FERRY_REFUSED_POISONED);
FERRY_REFUSAL(address_spaces, FERRY_REFUSED_MMS);
FERRY_REFUSAL(no_memory, FERRY_REFUSED_MEMORY);

static struct attribute *ferry_refused_list[] = {
	&ferry_counter_writable.attr.attr,
	&ferry_counter_dirty.attr.attr,
	&ferry_counter_changing.attr.attr,
	&ferry_counter_file.attr.attr,
	&ferry_counter_large.attr.attr,
	&ferry_counter_swapcache.attr.attr,
	&ferry_counter_poisoned.attr.attr,
	&ferry_counter_address_spaces.attr.attr,
	&ferry_counter_no_memory.attr.attr,
	NULL
};

static const struct attribute_group ferry_refused_group = {
	.name	= "refused",
	.attrs	= ferry_refused_list,
};

#define FERRY_DRAINED(name, why) FERRY_COUNTER(name, ferry_drained[why])

FERRY_DRAINED(bound, FERRY_DRAIN_BOUND);
FERRY_DRAINED(age, FERRY_DRAIN_AGE);
FERRY_DRAINED(pressure, FERRY_DRAIN_PRESSURE);
FERRY_DRAINED(write, FERRY_DRAIN_WRITE);
FERRY_DRAINED(flush, FERRY_DRAIN_FLUSH);
FERRY_DRAINED(asked, FERRY_DRAIN_ASKED);
FERRY_DRAINED(off, FERRY_DRAIN_OFF);

static struct attribute *ferry_drained_list[] = {
	&ferry_counter_bound.attr.attr,
	&ferry_counter_age.attr.attr,
	&ferry_counter_pressure.attr.attr,
	&ferry_counter_write.attr.attr,
	&ferry_counter_flush.attr.attr,
	&ferry_counter_asked.attr.attr,
	&ferry_counter_off.attr.attr,
	NULL
};

static const struct attribute_group ferry_drained_group = {
	.name	= "drained_pages",
	.attrs	= ferry_drained_list,
};

static const struct attribute_group *ferry_migrc_groups[] = {
	&ferry_migrc_group,
	&ferry_refused_group,
	&ferry_drained_group,
	NULL
};

static int __init ferry_migrc_init(void)
{
	struct kobject *migrc;
	int rc;

	if (!ferry_kobj)
		return -ENOMEM;
	migrc = kobject_create_and_add("migrc", ferry_kobj);
	if (!migrc)
		return -ENOMEM;
	rc = sysfs_create_groups(migrc, ferry_migrc_groups);
	if (!rc)
		rc = ferry_migrc_debug_init(migrc);
	if (rc)
		kobject_put(migrc);
	return rc;
}
late_initcall(ferry_migrc_init);
