// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: /sys/kernel/mm/ferry/runs/enabled. A batch reads the setting once, and
 * move_pages(2) before it isolates pages ahead. So a change takes effect soon, and
 * nothing waits for it.
 *
 * Locks: ferry_runs_lock serialises writers. Inside it, the lock of static key
 * patching.
 */
#include <linux/cleanup.h>
#include <linux/ferry_counters.h>
#include <linux/ferry_glue.h>
#include <linux/ferry_run.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/sysfs.h>

DEFINE_STATIC_KEY_FALSE(ferry_runs_key);
int ferry_runs_word __read_mostly;	/* one of enum ferry_runs */

static DEFINE_MUTEX(ferry_runs_lock);

static const char * const ferry_runs_words[] = {
	[FERRY_RUNS_AUTO]	= "auto",
	[FERRY_RUNS_ALWAYS]	= "always",
	[FERRY_RUNS_NEVER]	= "never",
	NULL
};

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return ferry_show_word(buf, ferry_runs_words, READ_ONCE(ferry_runs_word));
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	int word = __sysfs_match_string(ferry_runs_words, -1, buf);

	if (word < 0)
		return word;
	guard(mutex)(&ferry_runs_lock);
	WRITE_ONCE(ferry_runs_word, word);
	if (word == FERRY_RUNS_ALWAYS)
		static_branch_enable(&ferry_runs_key);
	else
		static_branch_disable(&ferry_runs_key);
	return count;
}

static struct kobj_attribute ferry_runs_enabled = __ATTR_RW(enabled);

static int __init ferry_runs_init(void)
{
	struct kobject *runs;
	int rc;

	if (!ferry_kobj)
		return -ENOMEM;
	runs = kobject_create_and_add("runs", ferry_kobj);
	if (!runs)
		return -ENOMEM;
	rc = sysfs_create_file(runs, &ferry_runs_enabled.attr);
	if (rc)
		kobject_put(runs);
	return rc;
}
late_initcall(ferry_runs_init);
