// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what Rust cannot reach by itself. Inline functions and macros made
 * callable, the sysctl table, the tracepoints. Nothing is decided here.
 */
#include <linux/ferry_glue.h>
#include <linux/highmem.h>
#include <linux/init.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sysctl.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>

/* The names of the reasons; its own tracepoints are in mm/migrate.c. */
#include <trace/events/migrate.h>

#define CREATE_TRACE_POINTS
#include <ferry_trace.h>

/* FERRY_FOLIO_POSTED is in the low bits of a pointer to one. */
static_assert(__alignof__(struct anon_vma) >= 8);

DEFINE_STATIC_KEY_FALSE(ferry_copy_key);
bool ferry_copy_on __read_mostly;

bool ferry_folio_has_movable_ops(const struct folio *folio)
{
	return page_has_movable_ops(&folio->page);
}

/* Of a regular file? Not of a directory, nor what a file system keeps. */
bool ferry_mapping_is_regular(struct address_space *mapping)
{
	return mapping->host && S_ISREG(mapping->host->i_mode);
}

/* Its own way to migrate a folio; NULL: none, or its content is private. */
const void *ferry_mapping_migrate_op(struct address_space *mapping)
{
	if (mapping_inaccessible(mapping))
		return NULL;
	return READ_ONCE(mapping->a_ops)->migrate_folio;
}

bool ferry_folio_test_private(const struct folio *folio)
{
	return folio_test_private(folio);
}

bool ferry_folio_test_anon(const struct folio *folio)
{
	return folio_test_anon(folio);
}

int ferry_folio_ref_count(const struct folio *folio)
{
	return folio_ref_count(folio);
}

unsigned long ferry_folio_nr_pages(const struct folio *folio)
{
	return folio_nr_pages(folio);
}

unsigned long ferry_folio_index(const struct folio *folio)
{
	return READ_ONCE(folio->index);
}

int ferry_folio_nid(const struct folio *folio)
{
	return folio_nid(folio);
}

void ferry_folio_mark_posted(struct folio *dst)
{
	dst->migrate_info |= FERRY_FOLIO_POSTED;
}

/* As __migrate_folio_extract() does; for tests. */
bool ferry_folio_take_posted(struct folio *dst)
{
	bool posted = dst->migrate_info & FERRY_FOLIO_POSTED;

	dst->migrate_info = 0;
	return posted;
}

int ferry_folio_expected_ref_count(const struct folio *folio)
{
	return folio_expected_ref_count(folio);
}

/*
 * Carries what goes with the bytes: MTE tags, KMSAN shadow. 0, or not if some
 * page could not be read, which is reported as poisoned. Any context.
 */
int ferry_folio_copy_pages(struct folio *dst, struct folio *src,
			   unsigned long first, unsigned long nr)
{
	for (; nr; nr--, first++) {
		if (copy_mc_highpage(folio_page(dst, first),
				     folio_page(src, first)))
			return -EHWPOISON;
	}
	return 0;
}

struct folio *ferry_folio_alloc(gfp_t gfp, unsigned int order)
{
	return folio_alloc(gfp, order);
}

void ferry_folio_get(struct folio *folio)
{
	folio_get(folio);
}

void ferry_folio_put(struct folio *folio)
{
	folio_put(folio);
}

bool ferry_folio_trylock(struct folio *folio)
{
	return folio_trylock(folio);
}

void *ferry_folio_address(const struct folio *folio)
{
	return folio_address(folio);
}

void ferry_count_vm_events(enum vm_event_item item, unsigned long nr)
{
	count_vm_events(item, nr);
}

void ferry_preempt_disable(void)
{
	preempt_disable();
}

void ferry_preempt_enable(void)
{
	preempt_enable();
}

void ferry_cond_resched(void)
{
	cond_resched();
}

struct workqueue_struct *ferry_alloc_workqueue(const char *name,
					       unsigned int flags)
{
	return alloc_workqueue("%s", flags, 0, name);
}

void ferry_trace_batch(const struct ferry_batch *batch, int reason,
		       s64 unmapped_ns)
{
	trace_ferry_batch(batch, reason, unmapped_ns);
}

static const int ferry_max_threads = FERRY_MAX_THREADS;
static int mt_page_copy;
static int limit_mt_num = FERRY_DEFAULT_THREADS;
static int push_0_pull_1;
static int mt_page_crew = 1;

/* Writers of all knobs: a value and what follows from it change together. */
static DEFINE_MUTEX(ferry_sysctl_lock);

/* A caller has asked for help, whatever the switch says. */
static bool ferry_mt_allowed;

static int ferry_switch(bool on)
{
	int rc = on ? ferry_prepare() : 0;

	if (rc)
		return rc;
	WRITE_ONCE(ferry_copy_on, on);
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
	if (READ_ONCE(ferry_mt_allowed))
		return;
	guard(mutex)(&ferry_sysctl_lock);
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

	guard(mutex)(&ferry_sysctl_lock);

	value = *knob;
	rc = proc_dointvec_minmax(&copy, write, buffer, lenp, ppos);
	if (rc || !write)
		return rc;

	if (knob == &limit_mt_num)
		ferry_limit(value);
	else if (knob == &push_0_pull_1)
		ferry_pull(value);
	else if (knob == &mt_page_crew)
		ferry_crew_enable(value);
	else
		rc = ferry_switch(value);
	if (!rc)
		*knob = value;
	return rc;
}

static const struct ctl_table ferry_sysctls[] = {
	{
		.procname	= "mt_page_copy",
		.data		= &mt_page_copy,
		.maxlen		= sizeof(mt_page_copy),
		.mode		= 0644,
		.proc_handler	= ferry_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
	{
		.procname	= "limit_mt_num",
		.data		= &limit_mt_num,
		.maxlen		= sizeof(limit_mt_num),
		.mode		= 0644,
		.proc_handler	= ferry_sysctl,
		.extra1		= SYSCTL_ONE,
		.extra2		= (void *)&ferry_max_threads,
	},
	{
		.procname	= "push_0_pull_1",
		.data		= &push_0_pull_1,
		.maxlen		= sizeof(push_0_pull_1),
		.mode		= 0644,
		.proc_handler	= ferry_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
	{
		.procname	= "mt_page_crew",
		.data		= &mt_page_crew,
		.maxlen		= sizeof(mt_page_crew),
		.mode		= 0644,
		.proc_handler	= ferry_sysctl,
		.extra1		= SYSCTL_ZERO,
		.extra2		= SYSCTL_ONE,
	},
};

static int __init ferry_init(void)
{
	register_sysctl_init("vm", ferry_sysctls);
	return 0;
}
late_initcall(ferry_init);
