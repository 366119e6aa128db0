// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: settings in /proc/sys/vm/ and /sys/kernel/mm/ferry/copy/, and the
 * counters by migration reason.
 *
 * Locks: ferry_knobs_lock, taken by all writers, under which a value and its
 * consequences change together. Inside it, locks of memory allocation and of
 * static key patching.
 */
#include <linux/capability.h>
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

/*
 * Counts the users of the hooks: vm.mt_page_copy while it is on, DMA channels
 * while some are taken, and each call with MIGRATE_MT while it runs. The key
 * is disabled up to a second after the last user has left, so that repeated
 * calls, or an unprivileged loop, do not patch the kernel's code for each
 * call.
 */
DEFINE_STATIC_KEY_DEFERRED_FALSE(ferry_copy_key, HZ);
unsigned int ferry_reasons __read_mostly;
/* Derived from settings, see ferry_set(). */
unsigned int ferry_short_pages __read_mostly;

/* The reasons that apply while vm.mt_page_copy is on. */
static unsigned int ferry_chosen = FERRY_ALL_REASONS;

static DEFINE_MUTEX(ferry_knobs_lock);

static const int ferry_max_threads = FERRY_MAX_THREADS;

/*
 * Set once lanes and queues are allocated; they are never freed. Rust
 * publishes them.
 */
static bool ferry_prepared;

/* Set while DMA channels hold the key. */
static bool ferry_dma_holds;

/* One of enum ferry_mt_flag. */
static int ferry_mt_word;

static DEFINE_PER_CPU(unsigned long [FERRY_NR_HELP_REFUSALS], ferry_refused);

void ferry_count_help_refusal(enum ferry_help_refusal why)
{
	this_cpu_inc(ferry_refused[why]);
}

/* Allocates the resources of helpers, once. Returns 0 or -ENOMEM. May sleep. */
static int ferry_prepare_once(void)
{
	int rc;

	lockdep_assert_held(&ferry_knobs_lock);
	rc = ferry_prepare();
	if (!rc)
		WRITE_ONCE(ferry_prepared, true);
	return rc;
}

/* The same, and takes a reference on the key. */
static int ferry_hold(void)
{
	int rc = ferry_prepare_once();

	if (!rc)
		static_branch_deferred_inc(&ferry_copy_key);
	return rc;
}

static void ferry_release(void)
{
	static_branch_slow_dec_deferred(&ferry_copy_key);
}

static int ferry_switch(bool on)
{
	bool was_on = ferry_get(FERRY_SET_COPY);

	if (on && !was_on) {
		int rc = ferry_hold();

		if (rc)
			return rc;
	}
	WRITE_ONCE(ferry_reasons, on ? ferry_chosen : 0);
	if (!on && was_on)
		ferry_release();
	return 0;
}

/*
 * Returns whether the calling task may have help with MPOL_MF_MOVE_MT. Any
 * context.
 */
bool ferry_may_ask(void)
{
	switch (READ_ONCE(ferry_mt_word)) {
	case FERRY_MT_ALLOW:
		return true;
	case FERRY_MT_PRIVILEGED:
		/*
		 * Nothing fails without the capability, so it is not audited.
		 */
		return ns_capable_noaudit(&init_user_ns, CAP_SYS_NICE);
	default:
		return false;
	}
}

/**
 * ferry_mt_hold() - begin a call that asks for help
 *
 * MPOL_MF_MOVE_MT is a hint: a caller that may not have help, or for which
 * there is no memory, continues without.
 *
 * Context: process context, may sleep.
 *
 * Return: whether helpers may take part, until ferry_mt_release().
 */
bool ferry_mt_hold(void)
{
	if (!ferry_may_ask()) {
		ferry_count_help_refusal(FERRY_UNHELPED_MT_FLAG);
		return false;
	}
	if (READ_ONCE(ferry_prepared)) {
		static_branch_deferred_inc(&ferry_copy_key);
		return true;
	}
	guard(mutex)(&ferry_knobs_lock);
	return !ferry_hold();
}

void ferry_mt_release(void)
{
	ferry_release();
}

/*
 * Allocates the resources of helpers before DMA channels are taken. Returns 0
 * or -ENOMEM.
 */
int ferry_dma_prepare(void)
{
	guard(mutex)(&ferry_knobs_lock);
	return ferry_prepare_once();
}

/*
 * Notes that DMA channels are taken, after ferry_dma_prepare(), or that none
 * is left. Calls with MIGRATE_DMA depend on no setting, and are handled while
 * there are channels. May sleep.
 */
void ferry_dma_taken(bool taken)
{
	guard(mutex)(&ferry_knobs_lock);
	if (taken == ferry_dma_holds)
		return;
	if (taken)
		static_branch_deferred_inc(&ferry_copy_key);
	else
		ferry_release();
	ferry_dma_holds = taken;
}

static int ferry_sysctl(const struct ctl_table *table, int write, void *buffer,
			size_t *lenp, loff_t *ppos)
{
	enum ferry_setting which = (unsigned long)table->data;
	int value, rc;
	/*
	 * Parsed into a copy: the value changes only if the engine accepts it.
	 */
	const struct ctl_table copy = {
		.procname	= table->procname,
		.data		= &value,
		.maxlen		= sizeof(value),
		.mode		= table->mode,
		.extra1		= table->extra1,
		.extra2		= table->extra2,
	};

	guard(mutex)(&ferry_knobs_lock);

	value = ferry_get(which);
	rc = proc_dointvec_minmax(&copy, write, buffer, lenp, ppos);
	if (!rc && write && which == FERRY_SET_COPY)
		rc = ferry_switch(value);
	if (!rc && write)
		rc = ferry_set(which, value);
	return rc;
}

#define FERRY_SYSCTL(_name, which, least, most)				\
	{								\
		.procname	= _name,				\
		.data		= (void *)which,			\
		.maxlen		= sizeof(int),				\
		.mode		= 0644,					\
		.proc_handler	= ferry_sysctl,				\
		.extra1		= least,				\
		.extra2		= most,					\
	}

static const struct ctl_table ferry_sysctls[] = {
	FERRY_SYSCTL("mt_page_copy", FERRY_SET_COPY, SYSCTL_ZERO, SYSCTL_ONE),
	FERRY_SYSCTL("limit_mt_num", FERRY_SET_LIMIT, SYSCTL_ONE,
		     (void *)&ferry_max_threads),
	FERRY_SYSCTL("push_0_pull_1", FERRY_SET_PULL, SYSCTL_ZERO, SYSCTL_ONE),
#ifdef CONFIG_FERRY_CREW
	FERRY_SYSCTL("mt_page_crew", FERRY_SET_CREW, SYSCTL_ZERO, SYSCTL_ONE),
#endif
};

/* Base pages that helpers have copied or migrated, by reason. */
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

/*
 * Parses names, "all" or "none", separated by spaces or commas. Returns 0 or
 * -EINVAL.
 */
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
	if (ferry_get(FERRY_SET_COPY))
		WRITE_ONCE(ferry_reasons, chosen);
	return count;
}

static struct kobj_attribute ferry_reasons_attr = __ATTR_RW(reasons);

static const char * const ferry_mt_flag_words[] = {
	[FERRY_MT_ALLOW]	= "allow",
	[FERRY_MT_PRIVILEGED]	= "privileged",
	[FERRY_MT_IGNORE]	= "ignore",
	NULL
};

static ssize_t mt_flag_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return ferry_show_word(buf, ferry_mt_flag_words, READ_ONCE(ferry_mt_word));
}

static ssize_t mt_flag_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	int word = __sysfs_match_string(ferry_mt_flag_words, -1, buf);

	if (word < 0)
		return word;
	WRITE_ONCE(ferry_mt_word, word);
	return count;
}

static struct kobj_attribute ferry_mt_flag_attr = __ATTR_RW(mt_flag);

static ssize_t active_show(struct kobject *kobj, struct kobj_attribute *attr,
			   char *buf)
{
	return sysfs_emit(buf, "%d\n",
			  static_key_enabled(&ferry_copy_key.key));
}

static struct kobj_attribute ferry_active_attr = __ATTR_RO(active);

static const struct attribute * const ferry_knob_files[] = {
	&ferry_reasons_attr.attr,
	&ferry_mt_flag_attr.attr,
	&ferry_active_attr.attr,
	NULL
};

static const char * const ferry_refusal_names[FERRY_NR_HELP_REFUSALS] = {
	[FERRY_UNHELPED_MT_FLAG]		= "mt_flag",
	[FERRY_UNHELPED_CPU_QUOTA]	= "cpu_quota",
	[FERRY_UNHELPED_LOW_WEIGHT]	= "low_weight",
};

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
	rc = copy ? sysfs_create_files(copy, ferry_knob_files) : -ENOMEM;
	if (!rc)
		rc = ferry_create_stats(ferry);
	if (!rc)
		rc = sysfs_create_group(copy, &ferry_settings_group);
	if (!rc)
		rc = ferry_create_counters(copy, "helped_pages",
					   ferry_reason_names, ferry_helped,
					   MR_NEVER);
	if (!rc)
		rc = ferry_create_counters(copy, "refused",
					   ferry_refusal_names, ferry_refused,
					   FERRY_NR_HELP_REFUSALS);
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
	/* The default value: publishes ferry_short_pages. */
	ferry_set(FERRY_SET_MIN_KB, 0);
	register_sysctl_init("vm", ferry_sysctls);
	return ferry_sysfs_init();
}
late_initcall(ferry_knobs_init);
