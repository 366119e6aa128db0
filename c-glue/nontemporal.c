// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: the knob /sys/kernel/mm/ferry/copy/nontemporal, which says for which
 * migrations the caches are passed by.
 *
 * Locks: ferry_nontemporal_lock, under which the value and what the engine
 * knows of it change together.
 */
#include <linux/ferry_glue.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/sysfs.h>

static DEFINE_MUTEX(ferry_nontemporal_lock);

static const char * const ferry_nontemporal_names[] = {
	[FERRY_NT_NEVER]	= "never",
	[FERRY_NT_DEMOTION]	= "demotion",
	[FERRY_NT_ALWAYS]	= "always",
};

/* As the engine has it from the start, too. */
static enum ferry_nontemporal ferry_nontemporal_now = FERRY_NT_DEMOTION;

static ssize_t nontemporal_show(struct kobject *kobj,
				struct kobj_attribute *attr, char *buf)
{
	enum ferry_nontemporal now = READ_ONCE(ferry_nontemporal_now);
	int i, len = 0;

	for (i = 0; i < ARRAY_SIZE(ferry_nontemporal_names); i++)
		len += sysfs_emit_at(buf, len, i == now ? "%s[%s]" : "%s%s",
				     len ? " " : "",
				     ferry_nontemporal_names[i]);
	return len + sysfs_emit_at(buf, len, "\n");
}

static ssize_t nontemporal_store(struct kobject *kobj,
				 struct kobj_attribute *attr, const char *buf,
				 size_t count)
{
	int value = sysfs_match_string(ferry_nontemporal_names, buf);

	if (value < 0)
		return value;
	guard(mutex)(&ferry_nontemporal_lock);
	ferry_set_nontemporal(value);
	WRITE_ONCE(ferry_nontemporal_now, value);
	return count;
}

struct kobj_attribute ferry_nontemporal_attr = __ATTR_RW(nontemporal);
