// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: C part of crews: transfers the context of one task to another,
 * migrates parts of a list, and wraps list functions for Rust.
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
#include <linux/sched/task_stack.h>

#include <trace/events/migrate.h>

#include <ferry_trace.h>

/* try_to_unmap_flush(), struct migration_target_control */
#include "internal.h"

/* Bits of current->flags that mm/ tests during migration. */
#define FERRY_CONTEXT_FLAGS						\
	(PF_MEMALLOC | PF_MEMALLOC_NOFS | PF_MEMALLOC_NOIO | PF_MEMALLOC_PIN)

/*
 * For lockdep: a helper that works in the context of another task holds this
 * map, and that task acquires it before it waits. One map for each set of
 * allocation scopes: a task that may enter reclaim may take locks that a task
 * in reclaim may not.
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

/* Gets the context of the calling task. The caller must put it. */
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
 * Returns whether the allowed nodes of the calling task have changed since
 * @context was taken. Costs a static branch while there is no cpuset.
 *
 * Context: the task that @context was taken from, any context.
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
 * Enters the context of a task. Changes of that task's cpuset are not
 * followed: the task sees ferry_context_changed() and dismisses its helpers.
 *
 * Context: kernel threads, may sleep.
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
	/* Not the saved mask, which may have changed. */
	set_mems_allowed(cpuset_mems_allowed(current));
	memalloc_flags_restore(saved->flags);
	set_active_memcg(saved->memcg);
	lock_map_release(ferry_context_map(context));
}

/* Tells lockdep that the task will wait for all helpers in its context. */
void ferry_context_wait(const struct ferry_context *context)
{
	lock_map_acquire(ferry_context_map(context));
	lock_map_release(ferry_context_map(context));
}

/* ferry_call_share() copies each member: a new one needs a copy as well. */
static_assert(sizeof(struct migration_target_control) ==
	      sizeof(struct {
			int nid;
			nodemask_t *nmask;
			gfp_t gfp_mask;
			enum migrate_reason reason;
	      }));

/*
 * Returns the private data of alloc_migration_target() and
 * alloc_demote_folio().
 */
static struct migration_target_control
ferry_target_control(const struct ferry_call_target *target)
{
	return (struct migration_target_control){
		.nid		= target->nid,
		/* Read-only. */
		.nmask		= target->has_nodes ?
				  (nodemask_t *)&target->nodes : NULL,
		.gfp_mask	= target->gfp_mask,
		.reason		= target->reason,
	};
}

/*
 * Copies a call for which ferry_callback_is_shared() is true, with its private
 * data on the caller's stack: a worker must not need that stack, as the caller
 * may die in an oops. ferry_call_unshare() releases the copy.
 */
void ferry_call_share(const struct migrate_control *call,
		      struct ferry_shared_call *shared)
{
	const struct migration_target_control *mtc;
	const struct migration_mpol *mpol;

	*shared = (struct ferry_shared_call){ .call = *call };
	shared->call.private = 0;

	switch (call->shared) {
	case MIGRATE_SHARED_NODE:
		shared->target.nid = call->private;
		break;
	case MIGRATE_SHARED_MPOL:
		mpol = (const struct migration_mpol *)call->private;
		mpol_get(mpol->pol);
		shared->pol = mpol->pol;
		shared->ilx = mpol->ilx;
		break;
	case MIGRATE_SHARED_TARGET:
		mtc = (const struct migration_target_control *)call->private;
		shared->target.nid = mtc->nid;
		shared->target.gfp_mask = mtc->gfp_mask;
		shared->target.reason = mtc->reason;
		shared->target.has_nodes = mtc->nmask;
		if (mtc->nmask)
			shared->target.nodes = *mtc->nmask;
		break;
	case MIGRATE_NOT_SHARED:
		/* ferry_callback_is_shared() refuses these. */
		WARN_ON_ONCE(1);
		break;
	}
}

/* Puts the reference to the memory policy, which may free it. */
void ferry_call_unshare(struct ferry_shared_call *shared)
{
	mpol_put(shared->pol);
}

/*
 * Migrates a part of a list. Folios that are not migrated, and hugetlb folios,
 * stay on it. Several tasks may call this at a time, for different parts.
 * Waits only for memory: if the call may wait for more, this is the first pass
 * of migrate_pages_sync(), and ferry_migrate_rest() migrates the remaining
 * folios.
 *
 * Returns the number of folios that were not migrated, or an error code.
 */
int ferry_migrate_chunk(const struct ferry_shared_call *shared,
			struct list_head *folios,
			struct migrate_pages_stats *stats)
{
	struct migration_mpol mpol = { .pol = shared->pol, .ilx = shared->ilx };
	struct migration_target_control mtc;
	struct migrate_control mc = shared->call;
	bool first = mc.mode != MIGRATE_ASYNC;
	int rc = -EINVAL;

	mc.mode = MIGRATE_ASYNC;
	mc.stats = (struct migrate_pages_stats){};
	if (first)
		mc.flags |= MIGRATE_FIRST_PASS;
	switch (mc.shared) {
	case MIGRATE_SHARED_NODE:
		mc.private = shared->target.nid;
		break;
	case MIGRATE_SHARED_MPOL:
		mc.private = (unsigned long)&mpol;
		break;
	case MIGRATE_SHARED_TARGET:
		mtc = ferry_target_control(&shared->target);
		mc.private = (unsigned long)&mtc;
		break;
	case MIGRATE_NOT_SHARED:
		/* ferry_callback_is_shared() refuses these. */
		WARN_ON_ONCE(1);
		goto out;
	}
	rc = migrate_batches(folios, &mc);

	/* A helper has no later flush of its own. */
	try_to_unmap_flush();
	if (first) {
		/* Remaining folios are tried again, and counted then. */
		mc.stats = (struct migrate_pages_stats){
			.nr_succeeded		= mc.stats.nr_succeeded,
			.nr_thp_succeeded	= mc.stats.nr_thp_succeeded,
		};
		rc = min(rc, 0);
	}
out:
	*stats = mc.stats;
	return rc;
}

/*
 * Migrates the folios that ferry_migrate_chunk() has left, in the calling
 * task.
 */
int ferry_migrate_rest(const struct migrate_control *call,
		       struct list_head *folios,
		       struct migrate_pages_stats *stats)
{
	struct migrate_control mc = *call;
	int rc;

	mc.stats = (struct migrate_pages_stats){};
	rc = migrate_batches(folios, &mc);
	*stats = mc.stats;
	return rc;
}

/* First step of migrate_folios(), for a call that did not come from it. */
void ferry_trace_migrate_start(const struct migrate_control *call)
{
	trace_mm_migrate_pages_start(call->mode, call->reason);
}

/* Last step of migrate_folios(), for a call that did not come from it. */
void ferry_migrate_account(const struct migrate_control *call,
			   const struct migrate_pages_stats *stats)
{
	struct migrate_control mc = *call;

	mc.stats = *stats;
	migrate_account(&mc);
}

/*
 * Returns whether at least half of the stack is free. Reclaim may be deep in its
 * stack, and a crew adds frames between migrate_folios() and migrate_batches().
 */
static bool ferry_has_stack(void)
{
	unsigned long here = (unsigned long)__builtin_frame_address(0);

	return here - (unsigned long)end_of_stack(current) >= THREAD_SIZE / 2;
}

/*
 * Returns whether the calling task may have a crew now. A real-time task may
 * not, since idle CPUs may not stay idle for long. A task in reclaim, or with
 * PF_MEMALLOC, may only for demotion and DAMON: its helpers then have
 * PF_MEMALLOC as well, so neither they nor a task that waits for them enters
 * reclaim (the allocation mask of large folios would allow it).
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
 * Returns whether the policy determines the node of each folio independently
 * of the CPU. Otherwise alloc_migration_target_by_mpol() prefers the node of
 * the current CPU, and a worker may run on any.
 */
static bool ferry_mpol_names_node(const struct migration_mpol *mpol)
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
static bool ferry_mpol_names_node(const struct migration_mpol *mpol)
{
	return false;
}
#endif

/*
 * Returns whether a call that has a crew may be helped now, according to the
 * settings or the flags of the caller. For a helper the right to ask is not
 * checked: the caller checks it for itself.
 *
 * Context: any.
 */
bool ferry_still_wanted(const struct migrate_control *call)
{
	return ferry_wanted(call->flags, call->reason);
}

/*
 * Returns whether the caller declares that other tasks may call its callbacks,
 * and the node of each destination folio does not depend on the CPU.
 *
 * Context: any.
 */
bool ferry_callback_is_shared(const struct migrate_control *call)
{
	switch (call->shared) {
	case MIGRATE_SHARED_TARGET:
	case MIGRATE_SHARED_NODE:
		return true;
	case MIGRATE_SHARED_MPOL:
		return ferry_mpol_names_node((const struct migration_mpol *)
					     call->private);
	case MIGRATE_NOT_SHARED:
		break;
	}
	return false;
}

/*
 * Returns the node in the private data of alloc_migration_target() or
 * alloc_demote_folio().
 */
int ferry_target_node(unsigned long private)
{
	return ((const struct migration_target_control *)private)->nid;
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
