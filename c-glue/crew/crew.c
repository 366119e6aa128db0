// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what the crew needs that Rust cannot reach: the context of one task
 * carried to another, parts of a migration, and lists of folios.
 */
#include <linux/cpuset.h>
#include <linux/ferry_glue.h>
#include <linux/init.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/rt.h>
#include <linux/sched/stat.h>
#include <linux/sched/task_stack.h>
#include <linux/vmstat.h>

#include <trace/events/migrate.h>

#include <ferry_trace.h>

/* try_to_unmap_flush(), struct migration_target_control */
#include "internal.h"

/* What mm/ looks at in current->flags on the path of a migration. */
#define FERRY_CONTEXT_FLAGS						\
	(PF_MEMALLOC | PF_MEMALLOC_NOFS | PF_MEMALLOC_NOIO | PF_MEMALLOC_PIN)

/*
 * For lockdep: who works in another task's context holds this, and that task
 * takes it before it waits. One for each set of scopes: what may be locked by a
 * task that may enter reclaim may not by one that is in it.
 */
#define FERRY_CONTEXT_MAPS	8

static struct lockdep_map ferry_context_maps[FERRY_CONTEXT_MAPS];

static __maybe_unused struct lockdep_map *
ferry_context_map(const struct ferry_context *context)
{
	unsigned int nr = 0;

	if (context->flags & PF_MEMALLOC)
		nr |= BIT(0);
	if (context->flags & PF_MEMALLOC_NOFS)
		nr |= BIT(1);
	if (context->flags & PF_MEMALLOC_NOIO)
		nr |= BIT(2);
	return &ferry_context_maps[nr];
}

static int __init ferry_context_init(void)
{
	static struct lock_class_key keys[FERRY_CONTEXT_MAPS];
	int i;

	for (i = 0; i < FERRY_CONTEXT_MAPS; i++)
		lockdep_init_map(&ferry_context_maps[i], "ferry_context",
				 &keys[i], 0);
	return 0;
}
core_initcall(ferry_context_init);

/* The context of the calling task. To be put. */
void ferry_context_get(struct ferry_context *context)
{
	*context = (struct ferry_context){
		.memcg	= get_mem_cgroup_from_mm(NULL),
		.flags	= current->flags & FERRY_CONTEXT_FLAGS,
	};
	do {
		context->mems_seq = read_mems_allowed_begin();
		context->mems_allowed = cpuset_current_mems_allowed;
	} while (ferry_context_changed(context));
}

/*
 * Returns whether the nodes of the calling task, which the context is of, were
 * changed since. Costs a static branch while there is no cpuset. Any context.
 */
bool ferry_context_changed(const struct ferry_context *context)
{
	return read_mems_allowed_retry(context->mems_seq);
}

void ferry_context_put(struct ferry_context *context)
{
	mem_cgroup_put(context->memcg);
}

/*
 * For kernel threads that may sleep. A change of the task's cpuset meanwhile is
 * not followed: the task sees ferry_context_changed(), and dismisses its helpers.
 */
void ferry_context_enter(const struct ferry_context *context,
			 struct ferry_context *saved)
{
	*saved = (struct ferry_context){};
	if (WARN_ON_ONCE(!(current->flags & PF_KTHREAD)))
		return;
	lock_map_acquire(ferry_context_map(context));
	saved->memcg = set_active_memcg(context->memcg);
	saved->flags = memalloc_flags_save(context->flags);
	set_mems_allowed(context->mems_allowed);
}

void ferry_context_leave(const struct ferry_context *context,
			 const struct ferry_context *saved)
{
	if (!(current->flags & PF_KTHREAD))
		return;
	/* Not what it was before: that may have changed. */
	set_mems_allowed(cpuset_mems_allowed(current));
	memalloc_flags_restore(saved->flags);
	set_active_memcg(saved->memcg);
	lock_map_release(ferry_context_map(context));
}

/* Tells lockdep that the task will wait for all who have entered its context. */
void ferry_context_wait(const struct ferry_context *context)
{
	lock_map_acquire(ferry_context_map(context));
	lock_map_release(ferry_context_map(context));
}

/* ferry_call_share() copies each member: a new one needs a copy, too. */
static_assert(sizeof(struct migration_target_control) ==
	      sizeof(struct {
			int nid;
			nodemask_t *nmask;
			gfp_t gfp_mask;
			enum migrate_reason reason;
	      }));

/* Returns the private data of alloc_migration_target() and alloc_demote_folio(). */
static struct migration_target_control
ferry_target_control(const struct ferry_call_target *target)
{
	return (struct migration_target_control){
		.nid		= target->nid,
		/* Only read. */
		.nmask		= target->has_nodes ?
				  (nodemask_t *)&target->nodes : NULL,
		.gfp_mask	= target->gfp_mask,
		.reason		= target->reason,
	};
}

/*
 * Copies a call for which ferry_callback_is_shared() is true, and its private
 * data, which is on the stack of its caller: a worker must not need that stack, as
 * the caller may die in an oops. ferry_call_unshare() releases the copy.
 */
void ferry_call_share(const struct ferry_migrate_args *call,
		      struct ferry_shared_call *shared)
{
	const struct migration_target_control *mtc;

	*shared = (struct ferry_shared_call){ .call = *call };
	shared->call.private = 0;

	switch (call->reason) {
	case MR_NUMA_MISPLACED:
		shared->target.nid = call->private;
		break;
	case MR_MEMPOLICY_MBIND:
		shared->mpol = *(const struct ferry_mpol *)call->private;
		mpol_get(shared->mpol.pol);
		break;
	case MR_SYSCALL:
	case MR_MEMORY_HOTPLUG:
	case MR_DAMON:
	case MR_DEMOTION:
		mtc = (const struct migration_target_control *)call->private;
		shared->target.nid = mtc->nid;
		shared->target.gfp_mask = mtc->gfp_mask;
		shared->target.reason = mtc->reason;
		shared->target.has_nodes = mtc->nmask;
		if (mtc->nmask)
			shared->target.nodes = *mtc->nmask;
		break;
	case MR_COMPACTION:
	case MR_MEMORY_FAILURE:
	case MR_CONTIG_RANGE:
	case MR_LONGTERM_PIN:
	case MR_NEVER:
	case MR_TYPES:
		/* ferry_callback_is_shared() refuses these. */
		WARN_ON_ONCE(1);
		break;
	}
}

/* Puts the reference to the memory policy, which may free it. */
void ferry_call_unshare(struct ferry_shared_call *shared)
{
	mpol_put(shared->mpol.pol);
}

static int ferry_migrate_part(const struct ferry_migrate_args *call,
			      unsigned long private, struct list_head *folios,
			      enum migrate_mode mode, struct ferry_part *part)
{
	unsigned int *ret_succeeded = (unsigned int *)&part->stats.nr_succeeded;

	return migrate_pages(folios, call->get_new_folio, call->put_new_folio,
			     private, mode | call->mt | FERRY_MIGRATE_PART,
			     call->reason, ret_succeeded);
}

/*
 * Migrates a part of a list; what is not migrated, and hugetlb, stays on it.
 * May be called by several tasks at a time, for different parts. Waits for
 * nothing but memory: if the call may wait for more, this is but the first pass
 * of migrate_pages_sync(), and what is left is for ferry_migrate_rest().
 *
 * Returns the number of folios that were not migrated, or an error code.
 */
int ferry_migrate_chunk(const struct ferry_shared_call *shared,
			struct list_head *folios,
			struct migrate_pages_stats *stats)
{
	struct ferry_part part = { .first = shared->call.mode != MIGRATE_ASYNC };
	struct ferry_mpol mpol = shared->mpol;
	struct migration_target_control mtc;
	unsigned long private = 0;
	int rc;

	switch (shared->call.reason) {
	case MR_NUMA_MISPLACED:
		private = shared->target.nid;
		break;
	case MR_MEMPOLICY_MBIND:
		private = (unsigned long)&mpol;
		break;
	case MR_SYSCALL:
	case MR_MEMORY_HOTPLUG:
	case MR_DAMON:
	case MR_DEMOTION:
		mtc = ferry_target_control(&shared->target);
		private = (unsigned long)&mtc;
		break;
	case MR_COMPACTION:
	case MR_MEMORY_FAILURE:
	case MR_CONTIG_RANGE:
	case MR_LONGTERM_PIN:
	case MR_NEVER:
	case MR_TYPES:
		/* ferry_callback_is_shared() refuses these. */
		WARN_ON_ONCE(1);
		*stats = part.stats;
		return -EINVAL;
	}
	rc = ferry_migrate_part(&shared->call, private, folios, MIGRATE_ASYNC,
				&part);

	/* Nobody else would, for a task that only helps. */
	try_to_unmap_flush();
	*stats = part.stats;
	if (!part.first)
		return rc;
	/* All that is left is tried again, and counted then. */
	stats->nr_failed_pages = 0;
	stats->nr_thp_failed = 0;
	stats->nr_thp_split = 0;
	stats->nr_split = 0;
	return min(rc, 0);
}

/* The same, for what ferry_migrate_chunk() has left; in the calling task. */
int ferry_migrate_rest(const struct ferry_migrate_args *call, struct list_head *folios,
		       struct migrate_pages_stats *stats)
{
	struct ferry_part part = {};
	int rc = ferry_migrate_part(call, call->private, folios, call->mode,
				    &part);

	*stats = part.stats;
	return rc;
}

/* What migrate_pages() does first, for a call that did not come from it. */
void ferry_trace_migrate_start(const struct ferry_migrate_args *call)
{
	trace_mm_migrate_pages_start(call->mode, call->reason);
}

/* What it does last. */
void ferry_migrate_account(const struct migrate_pages_stats *stats,
			   enum migrate_mode mode, enum migrate_reason reason)
{
	count_vm_events(PGMIGRATE_SUCCESS, stats->nr_succeeded);
	count_vm_events(PGMIGRATE_FAIL, stats->nr_failed_pages);
	count_vm_events(THP_MIGRATION_SUCCESS, stats->nr_thp_succeeded);
	count_vm_events(THP_MIGRATION_FAIL, stats->nr_thp_failed);
	count_vm_events(THP_MIGRATION_SPLIT, stats->nr_thp_split);
	trace_mm_migrate_pages(stats->nr_succeeded, stats->nr_failed_pages,
			       stats->nr_thp_succeeded, stats->nr_thp_failed,
			       stats->nr_thp_split, stats->nr_split, mode,
			       reason);
}

/* The caller of a crew calls migrate_pages() inside of migrate_pages(). */
static bool ferry_has_stack(void)
{
	unsigned long here = (unsigned long)__builtin_frame_address(0);

	return here - (unsigned long)end_of_stack(current) >= THREAD_SIZE / 2;
}

/*
 * May the calling task have a crew, now? Not if it is real-time, to which idle
 * CPUs may not be idle for long. In reclaim, or as if in it, only to demote and
 * for DAMON: a helper then has PF_MEMALLOC as well, on which rests that neither
 * it nor who waits for it enters reclaim (the mask of large folios would allow
 * it).
 */
bool ferry_may_crew(enum migrate_reason reason, bool mt)
{
	if (!ferry_wanted(mt ? MIGRATE_MT : 0, reason) || rt_or_dl_task(current))
		return false;
	if (current->flags & PF_MEMALLOC)
		return (reason == MR_DEMOTION || reason == MR_DAMON) &&
		       ferry_has_stack();
	return true;
}

#ifdef CONFIG_NUMA
/*
 * Returns whether the policy names the node of each folio by itself, wherever
 * the task runs. alloc_migration_target_by_mpol() else prefers the node of the
 * CPU that it runs on, and a worker may be moved to any.
 */
static bool ferry_mpol_names_node(const struct ferry_mpol *mpol)
{
	const struct mempolicy *pol = mpol->pol;

	switch (pol->mode) {
	case MPOL_PREFERRED:
	case MPOL_INTERLEAVE:
	case MPOL_WEIGHTED_INTERLEAVE:
		return !nodes_empty(pol->nodes);
	case MPOL_BIND:
	case MPOL_PREFERRED_MANY:
		return nodes_weight(pol->nodes) == 1;
	default:
		return false;
	}
}
#else
static bool ferry_mpol_names_node(const struct ferry_mpol *mpol)
{
	return false;
}
#endif

/*
 * Returns whether a call that has a crew may be helped now, by the switch and its
 * reasons, or as its caller asks. Of a helper the right to ask is not checked:
 * the caller does that for itself. For any context.
 */
bool ferry_still_wanted(const struct ferry_migrate_args *call)
{
	return ferry_wanted(call->mt, call->reason);
}

/*
 * Returns whether the callback is the one that mainline has for the call's
 * reason, so that the type of the private data is known, and gives the same
 * folios in any task on any CPU. Only the caller knows what other callbacks
 * need. For any context.
 */
bool ferry_callback_is_shared(const struct ferry_migrate_args *call)
{
	new_folio_t *shared = NULL;

	switch (call->reason) {
	case MR_SYSCALL:
	case MR_MEMORY_HOTPLUG:
	case MR_DAMON:
		shared = alloc_migration_target;
		break;
	case MR_DEMOTION:
		shared = ferry_alloc_demote_folio;
		break;
	case MR_MEMPOLICY_MBIND:
		if (IS_ENABLED(CONFIG_NUMA))
			shared = ferry_alloc_migration_target_by_mpol;
		break;
	case MR_NUMA_MISPLACED:
		if (IS_ENABLED(CONFIG_NUMA_BALANCING))
			shared = ferry_alloc_misplaced_dst_folio;
		break;
	case MR_COMPACTION:
	case MR_MEMORY_FAILURE:
	case MR_CONTIG_RANGE:
	case MR_LONGTERM_PIN:
	case MR_NEVER:
	case MR_TYPES:
		break;
	}
	if (call->get_new_folio != shared || call->put_new_folio)
		return false;
	return call->reason != MR_MEMPOLICY_MBIND ||
	       ferry_mpol_names_node((const struct ferry_mpol *)call->private);
}

/* Of the private data of alloc_migration_target(), and of alloc_demote_folio(). */
int ferry_target_node(unsigned long private)
{
	return ((const struct migration_target_control *)private)->nid;
}

/*
 * Returns whether another task waits for this CPU. The flags alone do not tell: a
 * task that was preempted comes back with them cleared.
 */
bool ferry_others_want_cpu(void)
{
	return ferry_need_resched() || !single_task_running();
}

void ferry_list_splice_tail_init(struct list_head *list, struct list_head *head)
{
	list_splice_tail_init(list, head);
}

void ferry_list_cut_position(struct list_head *list, struct list_head *head,
			     struct list_head *entry)
{
	list_cut_position(list, head, entry);
}

void ferry_list_del_init(struct list_head *entry)
{
	list_del_init(entry);
}

void ferry_report_crew(const struct ferry_crew_report *report)
{
	ferry_count_helped(report->reason, report->helped_pages);
	trace_ferry_crew(report);
}
