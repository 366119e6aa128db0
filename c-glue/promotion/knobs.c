// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: settings and counters of page cache promotion. It is enabled in
 * /sys/kernel/mm/numa/; the other files are in
 * /sys/kernel/mm/ferry/promotion/.
 *
 * Locks: ferry_promotion_lock serialises enabling and disabling.
 */
#include <linux/cleanup.h>
#include <linux/ferry_counters.h>
#include <linux/ferry_glue.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched/sysctl.h>
#include <linux/string_choices.h>
#include <linux/sysfs.h>

unsigned int ferry_max_isolated __read_mostly = FERRY_DEFAULT_MAX_ISOLATED;
bool ferry_promotion_enabled __read_mostly;

static unsigned int ferry_rate_mbps __read_mostly = FERRY_DEFAULT_PROMOTION_MBPS;

static DEFINE_MUTEX(ferry_promotion_lock);

static DEFINE_PER_CPU(unsigned long [FERRY_NR_UNPROMOTED], ferry_unpromoted_nr);
static DEFINE_PER_CPU(unsigned long [FERRY_NR_PROMOTION_EVENTS],
		      ferry_promotion_nr);

/* Counts folios; for FERRY_UNPROMOTED_FAILED, pages. */
void ferry_count_unpromoted(enum ferry_promotion_refusal why, unsigned int nr)
{
	this_cpu_add(ferry_unpromoted_nr[why], nr);
}

void ferry_count_promotion(enum ferry_promotion_event what, unsigned int nr)
{
	this_cpu_add(ferry_promotion_nr[what], nr);
}

/* Returns the limit in MB per second, before any back-off. */
unsigned int ferry_promotion_mbps(void)
{
	return min(READ_ONCE(ferry_rate_mbps), numa_promote_rate_limit());
}

static ssize_t pagecache_promotion_enabled_show(struct kobject *kobj,
						struct kobj_attribute *attr,
						char *buf)
{
	bool on = READ_ONCE(ferry_promotion_enabled);

	return sysfs_emit(buf, "%s\n", str_true_false(on));
}

static ssize_t pagecache_promotion_enabled_store(struct kobject *kobj,
						 struct kobj_attribute *attr,
						 const char *buf, size_t count)
{
	bool on;
	int rc = kstrtobool(buf, &on);

	if (rc)
		return rc;
	guard(mutex)(&ferry_promotion_lock);
	if (on == ferry_promotion_enabled)
		return count;
	WRITE_ONCE(ferry_promotion_enabled, on);
	if (!on) {
		static_branch_disable(&ferry_promotion_key);
		/* On return no folio is isolated for promotion, or will be. */
		ferry_promotion_stop();
		return count;
	}
	rc = ferry_promotion_start();
	if (rc) {
		WRITE_ONCE(ferry_promotion_enabled, false);
		return rc;
	}
	static_branch_enable(&ferry_promotion_key);
	return count;
}

/* A file in the attribute group of mm/memory-tiers.c. */
struct kobj_attribute ferry_promotion_attr =
	__ATTR_RW(pagecache_promotion_enabled);

static ssize_t ferry_store_uint(const char *buf, size_t count,
				unsigned int *knob, unsigned int least,
				unsigned int most)
{
	unsigned int value;

	if (kstrtouint(buf, 10, &value) || value < least || value > most)
		return -EINVAL;
	WRITE_ONCE(*knob, value);
	return count;
}

static ssize_t rate_mbps_show(struct kobject *kobj, struct kobj_attribute *attr,
			      char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_rate_mbps));
}

static ssize_t rate_mbps_store(struct kobject *kobj,
			       struct kobj_attribute *attr, const char *buf,
			       size_t count)
{
	return ferry_store_uint(buf, count, &ferry_rate_mbps, 0, 1 << 20);
}

static ssize_t max_isolated_show(struct kobject *kobj,
				 struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(ferry_max_isolated));
}

static ssize_t max_isolated_store(struct kobject *kobj,
				  struct kobj_attribute *attr, const char *buf,
				  size_t count)
{
	return ferry_store_uint(buf, count, &ferry_max_isolated, 1, 1 << 16);
}

static ssize_t brake_show(struct kobject *kobj, struct kobj_attribute *attr,
			  char *buf)
{
	return sysfs_emit(buf, "%u\n", ferry_promotion_brake());
}

static struct kobj_attribute ferry_rate_attr = __ATTR_RW(rate_mbps);
static struct kobj_attribute ferry_isolated_attr = __ATTR_RW(max_isolated);
static struct kobj_attribute ferry_brake_attr = __ATTR_RO(brake);

static struct attribute *ferry_promotion_list[] = {
	&ferry_rate_attr.attr,
	&ferry_isolated_attr.attr,
	&ferry_brake_attr.attr,
	NULL
};

static const struct attribute_group ferry_promotion_group = {
	.attrs	= ferry_promotion_list,
};

/* All but the first, which is no reason. */
static const char * const ferry_unpromoted_names[FERRY_NR_UNPROMOTED] = {
	[FERRY_UNPROMOTED_GONE]		= "gone",
	[FERRY_UNPROMOTED_OFF_LRU]	= "isolated",
	[FERRY_UNPROMOTED_NOT_FILE]	= "not_file",
	[FERRY_UNPROMOTED_MAPPED]	= "mapped",
	[FERRY_UNPROMOTED_DIRTY]	= "dirty",
	[FERRY_UNPROMOTED_POLICY]	= "policy",
	[FERRY_UNPROMOTED_WRITEBACK]	= "writeback",
	[FERRY_UNPROMOTED_DROPBEHIND]	= "dropbehind",
	[FERRY_UNPROMOTED_LOCKED]	= "locked",
	[FERRY_UNPROMOTED_UNEVICTABLE]	= "unevictable",
	[FERRY_UNPROMOTED_COLD]		= "cold",
	[FERRY_UNPROMOTED_BUSY]		= "busy",
	[FERRY_UNPROMOTED_NO_ROOM]	= "no_room",
	[FERRY_UNPROMOTED_FAILED]	= "failed",
};

static const char * const ferry_promotion_names[FERRY_NR_PROMOTION_EVENTS] = {
	[FERRY_PROMOTION_CANDIDATES]	= "candidates",
	[FERRY_PROMOTION_PROMOTED]	= "promoted_pages",
	[FERRY_PROMOTION_LOST]		= "lost",
	[FERRY_PROMOTION_RATE_LIMITED]	= "rate_limited",
	[FERRY_PROMOTION_BRAKED]	= "braked",
	[FERRY_PROMOTION_CAME_BACK]	= "came_back",
};

static int __init ferry_create_promotion(struct kobject *promotion)
{
	int rc = sysfs_create_group(promotion, &ferry_promotion_group);

	if (!rc)
		rc = ferry_create_counters(promotion, NULL,
					   ferry_promotion_names,
					   ferry_promotion_nr,
					   FERRY_NR_PROMOTION_EVENTS);
	if (!rc)
		rc = ferry_create_counters(promotion, "refused",
					   ferry_unpromoted_names + 1,
					   &ferry_unpromoted_nr[1],
					   FERRY_NR_UNPROMOTED - 1);
	return rc;
}

static int __init ferry_promotion_init(void)
{
	struct kobject *promotion;
	int rc;

	if (!ferry_kobj)
		return -ENOMEM;
	promotion = kobject_create_and_add("promotion", ferry_kobj);
	if (!promotion)
		return -ENOMEM;
	rc = ferry_create_promotion(promotion);
	if (rc)
		kobject_put(promotion);
	return rc;
}
late_initcall(ferry_promotion_init);
