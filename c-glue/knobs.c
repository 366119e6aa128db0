// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: its knobs, in /proc/sys/vm/ and /sys/kernel/mm/ferry/copy/, and what is
 * counted for each reason.
 *
 * Locks: ferry_knobs_lock, of all writers, under which a value and what follows
 * from it change together; inside it, what the allocation and the patching of a
 * static key take.
 */
#include <linux/ferry_counters.h>
#include <linux/ferry_glue.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysctl.h>
#include <linux/sysfs.h>

#define FERRY_ALL_REASONS	(BIT(MR_NEVER) - 1)

DEFINE_STATIC_KEY_FALSE(ferry_copy_key);
unsigned int ferry_reasons __read_mostly;
/* Follows from settings, see ferry_set(). */
unsigned int ferry_short_pages __read_mostly;

/* Those of the switch, while it is on. */
static unsigned int ferry_chosen = FERRY_ALL_REASONS;

static DEFINE_MUTEX(ferry_knobs_lock);

static const int ferry_max_threads = FERRY_MAX_THREADS;
static int mt_page_copy;
static int limit_mt_num = FERRY_DEFAULT_THREADS;
static int push_0_pull_1;
static int mt_page_crew = 1;

/* A caller has asked for help, whatever the switch says. */
static bool ferry_mt_allowed;

static int ferry_switch(bool on)
{
	int rc = on ? ferry_prepare() : 0;

	if (rc)
		return rc;
	WRITE_ONCE(ferry_reasons, on ? ferry_chosen : 0);
	if (on || ferry_mt_allowed)
		static_branch_enable(&ferry_copy_key);
	else
		static_branch_disable(&ferry_copy_key);
	return 0;
}

/*
 * From now on calls that ask for help can have it, unless there is no memory
 * for it: it was but a hint. May sleep.
 */
void ferry_allow_mt(void)
{
	/* With one thread nobody is helped. */
	if (READ_ONCE(limit_mt_num) != 1)
		ferry_allow();
}

/*
 * From now on calls that name how they want to be done are looked at: those that
 * ask for help, and those that only DMA engines may copy for. May sleep.
 */
void ferry_allow(void)
{
	if (READ_ONCE(ferry_mt_allowed))
		return;
	guard(mutex)(&ferry_knobs_lock);
	if (ferry_mt_allowed || ferry_prepare())
		return;
	static_branch_enable(&ferry_copy_key);
	WRITE_ONCE(ferry_mt_allowed, true);
}

static int ferry_sysctl(const struct ctl_table *table, int write, void *buffer,
			size_t *lenp, loff_t *ppos)
{
	int *knob = table->data;
	int value, rc;
	/* Parsed into a copy: the knob changes only if the engine did. */
	const struct ctl_table copy = {
		.procname	= table->procname,
		.data		= &value,
		.maxlen		= sizeof(value),
		.mode		= table->mode,
		.extra1		= table->extra1,
		.extra2		= table->extra2,
	};

	guard(mutex)(&ferry_knobs_lock);

	value = *knob;
	rc = proc_dointvec_minmax(&copy, write, buffer, lenp, ppos);
	if (rc || !write)
		return rc;

	if (knob == &limit_mt_num)
		ferry_set(FERRY_SET_LIMIT, value);
	else if (knob == &push_0_pull_1)
		ferry_set(FERRY_SET_PULL, value);
	else if (knob == &mt_page_crew)
		ferry_set(FERRY_SET_CREW, value);
	else
		rc = ferry_switch(value);
	if (!rc)
		WRITE_ONCE(*knob, value);
	return rc;
}

#define FERRY_SYSCTL(knob, least, most)					\
	{								\
		.procname	= #knob,				\
		.data		= &knob,				\
		.maxlen		= sizeof(knob),				\
		.mode		= 0644,					\
		.proc_handler	= ferry_sysctl,				\
		.extra1		= least,				\
		.extra2		= most,					\
	}

static const struct ctl_table ferry_sysctls[] = {
	FERRY_SYSCTL(mt_page_copy, SYSCTL_ZERO, SYSCTL_ONE),
	FERRY_SYSCTL(limit_mt_num, SYSCTL_ONE, (void *)&ferry_max_threads),
	FERRY_SYSCTL(push_0_pull_1, SYSCTL_ZERO, SYSCTL_ONE),
	FERRY_SYSCTL(mt_page_crew, SYSCTL_ZERO, SYSCTL_ONE),
};

/* Base pages that helpers copied or migrated, by reason. */
static DEFINE_PER_CPU(unsigned long [MR_NEVER], ferry_helped);

void ferry_count_helped(int reason, unsigned long nr_pages)
{
	if (reason >= 0 && reason < MR_NEVER)
		this_cpu_add(ferry_helped[reason], nr_pages);
}

#ifdef CONFIG_SYSFS

static const char * const ferry_reason_names[MR_NEVER] = {
	[MR_COMPACTION]		= "compaction",
	[MR_MEMORY_FAILURE]	= "memory_failure",
	[MR_MEMORY_HOTPLUG]	= "memory_hotplug",
	[MR_SYSCALL]		= "syscall",
	[MR_MEMPOLICY_MBIND]	= "mbind",
	[MR_NUMA_MISPLACED]	= "numa_misplaced",
	[MR_CONTIG_RANGE]	= "contig_range",
	[MR_LONGTERM_PIN]	= "longterm_pin",
	[MR_DEMOTION]		= "demotion",
	[MR_DAMON]		= "damon",
};

static ssize_t reasons_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	unsigned int chosen = READ_ONCE(ferry_chosen);
	int i, len = 0;

	for (i = 0; i < MR_NEVER; i++) {
		if (chosen & BIT(i))
			len += sysfs_emit_at(buf, len, "%s%s", len ? " " : "",
					     ferry_reason_names[i]);
	}
	return len + sysfs_emit_at(buf, len, "%s\n", len ? "" : "none");
}

/* Names, "all" or "none", between spaces or commas. 0, or -EINVAL. */
static int ferry_parse_reasons(char *text, unsigned int *chosen)
{
	bool any = false;
	char *name;
	int i;

	*chosen = 0;
	while ((name = strsep(&text, " ,\t\n"))) {
		if (!*name)
			continue;
		any = true;
		if (!strcmp(name, "none"))
			continue;
		if (!strcmp(name, "all")) {
			*chosen = FERRY_ALL_REASONS;
			continue;
		}
		i = match_string(ferry_reason_names, MR_NEVER, name);
		if (i < 0)
			return -EINVAL;
		*chosen |= BIT(i);
	}
	return any ? 0 : -EINVAL;
}

static ssize_t reasons_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	char *text __free(kfree) = kstrndup(buf, count, GFP_KERNEL);
	unsigned int chosen;
	int rc;

	if (!text)
		return -ENOMEM;
	rc = ferry_parse_reasons(text, &chosen);
	if (rc)
		return rc;

	guard(mutex)(&ferry_knobs_lock);
	WRITE_ONCE(ferry_chosen, chosen);
	if (mt_page_copy)
		WRITE_ONCE(ferry_reasons, chosen);
	return count;
}

static struct kobj_attribute ferry_reasons_attr = __ATTR_RW(reasons);

/* /sys/kernel/mm/ferry/ */
struct kobject *ferry_kobj;

static int __init ferry_sysfs_init(void)
{
	struct kobject *ferry, *copy;
	int rc;

	ferry = kobject_create_and_add("ferry", mm_kobj);
	if (!ferry)
		return -ENOMEM;
	copy = kobject_create_and_add("copy", ferry);
	rc = copy ? sysfs_create_file(copy, &ferry_reasons_attr.attr) : -ENOMEM;
	if (!rc)
		rc = sysfs_create_group(copy, &ferry_settings_group);
	if (!rc)
		rc = ferry_create_counters(copy, "helped_pages",
					   ferry_reason_names, ferry_helped,
					   MR_NEVER);
	if (rc) {
		kobject_put(copy);
		kobject_put(ferry);
		return rc;
	}
	ferry_kobj = ferry;
	return 0;
}

#else

static int __init ferry_sysfs_init(void)
{
	return 0;
}

#endif /* CONFIG_SYSFS */

static int __init ferry_knobs_init(void)
{
	ferry_set(FERRY_SET_LIMIT, limit_mt_num);
	register_sysctl_init("vm", ferry_sysctls);
	return ferry_sysfs_init();
}
late_initcall(ferry_knobs_init);
