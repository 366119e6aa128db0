// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: settings and counters of migrc, in /sys/kernel/mm/ferry/migrc/.
 *
 * Locks: ferry_migrc_lock serialises enabling and disabling.
 */
#include <linux/atomic.h>
#include <linux/cleanup.h>
#include <linux/ferry_counters.h>
#include <linux/ferry_glue.h>
#include <linux/ferry_group.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sysfs.h>

static DEFINE_MUTEX(ferry_migrc_lock);

static DEFINE_PER_CPU(unsigned long [FERRY_NR_REFUSALS], ferry_refused);
static DEFINE_PER_CPU(unsigned long [FERRY_NR_DRAINS], ferry_drained);
static DEFINE_PER_CPU(unsigned long [FERRY_NR_MIGRC_EVENTS], ferry_events);

/* Counts a batch. */
void ferry_count_refused(enum ferry_refusal why)
{
	this_cpu_inc(ferry_refused[why]);
}

/* Counts pages. */
void ferry_count_drained(enum ferry_drain why, unsigned int nr)
{
	this_cpu_add(ferry_drained[why], nr);
}

void ferry_count_migrc(enum ferry_migrc_event what, unsigned int nr)
{
	this_cpu_add(ferry_events[what], nr);
}

/*
 * Returns whether pages are wiped on allocation or free: retention would delay
 * that.
 */
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

/*
 * On return nothing is retained or will be; other tasks may still be freeing
 * folios that were. May sleep.
 */
static void ferry_migrc_stop(void)
{
	WRITE_ONCE(ferry_migrc_enabled, false);
	/* Pairs with ferry_group_alloc(). */
	smp_mb();
	ferry_recall_batches(FERRY_DRAIN_OFF);
	ferry_migrc_drain(FERRY_DRAIN_OFF);
	/*
	 * A batch that still has a group flushes all translations that it
	 * clears, or is recalled.
	 */
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
	/* Folios retained under the old limit would stay. */
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

static ssize_t max_node_percent_show(struct kobject *kobj,
				     struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_max_node_percent));
}

static ssize_t max_node_percent_store(struct kobject *kobj,
				      struct kobj_attribute *attr,
				      const char *buf, size_t count)
{
	return ferry_store_limit(buf, count, &ferry_max_node_percent, 1, 100);
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

static ssize_t files_show(struct kobject *kobj, struct kobj_attribute *attr,
			  char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(ferry_migrc_files));
}

static ssize_t files_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	bool on;
	int rc = kstrtobool(buf, &on);

	if (rc)
		return rc;
	WRITE_ONCE(ferry_migrc_files, on);
	/* On return no folio of a file is retained, or will be. */
	if (!on)
		ferry_drain();
	return count;
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
static struct kobj_attribute ferry_files_attr = __ATTR_RW(files);
static struct kobj_attribute ferry_max_pages_attr = __ATTR_RW(max_pages);
static struct kobj_attribute ferry_max_node_percent_attr =
	__ATTR_RW(max_node_percent);
static struct kobj_attribute ferry_max_age_attr = __ATTR_RW(max_age_ms);
static struct kobj_attribute ferry_drain_attr = __ATTR_WO(drain);

static ssize_t retained_bytes_show(struct kobject *kobj,
				   struct kobj_attribute *attr, char *buf)
{
	int nid, len = 0;

	for_each_online_node(nid)
		len += sysfs_emit_at(buf, len, "%d %lu\n", nid,
				     ferry_kept_pages(nid) * PAGE_SIZE);
	return len;
}

static struct kobj_attribute ferry_retained_attr = __ATTR_RO(retained_bytes);

static struct attribute *ferry_migrc_list[] = {
	&ferry_enabled_attr.attr,
	&ferry_files_attr.attr,
	&ferry_max_pages_attr.attr,
	&ferry_max_node_percent_attr.attr,
	&ferry_max_age_attr.attr,
	&ferry_drain_attr.attr,
	&ferry_retained_attr.attr,
	NULL
};

static const struct attribute_group ferry_migrc_group = {
	.attrs	= ferry_migrc_list,
};

static const char * const ferry_refusal_names[FERRY_NR_REFUSALS] = {
	[FERRY_REFUSED_WRITABLE]	= "writable",
	[FERRY_REFUSED_CHANGING]	= "changing",
	[FERRY_REFUSED_FILE]		= "file",
	[FERRY_REFUSED_WRITTEN]		= "file_open_for_writing",
	[FERRY_REFUSED_HUGE]		= "huge",
	[FERRY_REFUSED_SWAPCACHE]	= "swapcache",
	[FERRY_REFUSED_POISONED]	= "poisoned",
	[FERRY_REFUSED_MEMORY]		= "no_memory",
};

static const char * const ferry_drain_names[FERRY_NR_DRAINS] = {
	[FERRY_DRAIN_BOUND]	= "bound",
	[FERRY_DRAIN_AGE]	= "age",
	[FERRY_DRAIN_PRESSURE]	= "pressure",
	[FERRY_DRAIN_WRITE]	= "write",
	[FERRY_DRAIN_FLUSH]	= "flush",
	[FERRY_DRAIN_ASKED]	= "asked",
	[FERRY_DRAIN_OFF]	= "off",
};

static const char * const ferry_event_names[FERRY_NR_MIGRC_EVENTS] = {
	[FERRY_MIGRC_ELIGIBLE]		= "eligible",
	[FERRY_MIGRC_DEFERRED]		= "deferred_pages",
	[FERRY_MIGRC_FLUSHED_FIRST]	= "flushed_first",
};

static int __init ferry_create_migrc(struct kobject *migrc)
{
	int rc = sysfs_create_group(migrc, &ferry_migrc_group);

	if (!rc)
		rc = ferry_create_counters(migrc, NULL, ferry_event_names,
					   ferry_events, FERRY_NR_MIGRC_EVENTS);
	if (!rc)
		rc = ferry_create_counters(migrc, "refused",
					   ferry_refusal_names, ferry_refused,
					   FERRY_NR_REFUSALS);
	if (!rc)
		rc = ferry_create_counters(migrc, "drained_pages",
					   ferry_drain_names, ferry_drained,
					   FERRY_NR_DRAINS);
	return rc ?: ferry_migrc_debug_init(migrc);
}

static int __init ferry_migrc_init(void)
{
	struct kobject *migrc;
	int rc;

	if (!ferry_kobj)
		return -ENOMEM;
	migrc = kobject_create_and_add("migrc", ferry_kobj);
	if (!migrc)
		return -ENOMEM;
	rc = ferry_create_migrc(migrc);
	if (rc)
		kobject_put(migrc);
	return rc;
}
late_initcall(ferry_migrc_init);
