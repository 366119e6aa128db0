// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: what the crew needs that Rust cannot reach: the context of one task
 * carried to another, and lists of folios.
 */
#include <linux/cpuset.h>
#include <linux/ferry.h>
#include <linux/list.h>
#include <linux/memcontrol.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/rt.h>
#include <linux/uaccess.h>

#include <ferry_trace.h>

/* What mm/ looks at in current->flags on the path of a migration. */
#define FERRY_CONTEXT_FLAGS						\
	(PF_MEMALLOC | PF_MEMALLOC_NOFS | PF_MEMALLOC_NOIO | PF_MEMALLOC_PIN)

/* The context of the calling task. To be put. */
void ferry_context_get(struct ferry_context *context)
{
	unsigned int seq;

	*context = (struct ferry_context){
		.memcg	= get_mem_cgroup_from_mm(NULL),
		.flags	= current->flags & FERRY_CONTEXT_FLAGS,
	};
	do {
		seq = read_mems_allowed_begin();
		context->mems_allowed = cpuset_current_mems_allowed;
	} while (read_mems_allowed_retry(seq));
}

void ferry_context_put(struct ferry_context *context)
{
	mem_cgroup_put(context->memcg);
}

/*
 * For kernel threads that may sleep. A change of the task's cpuset meanwhile is
 * not followed, as it is not by an allocation that has begun.
 */
void ferry_context_enter(const struct ferry_context *context,
			 struct ferry_context *saved)
{
	*saved = (struct ferry_context){};
	if (WARN_ON_ONCE(!(current->flags & PF_KTHREAD)))
		return;
	saved->memcg = set_active_memcg(context->memcg);
	saved->flags = memalloc_flags_save(context->flags);
	set_mems_allowed(context->mems_allowed);
}

void ferry_context_leave(const struct ferry_context *saved)
{
	if (!(current->flags & PF_KTHREAD))
		return;
	/* Not what it was before: that may have changed. */
	set_mems_allowed(cpuset_mems_allowed(current));
	memalloc_flags_restore(saved->flags);
	set_active_memcg(saved->memcg);
}

/* As do_move_pages_to_node() calls migrate_pages(). */
void ferry_move_call(struct ferry_call *call, void *target)
{
	*call = (struct ferry_call){
		.get_new_folio	= alloc_migration_target,
		.private	= (unsigned long)target,
		.mode		= MIGRATE_SYNC,
		.reason		= MR_SYSCALL,
	};
}

/*
 * May the calling task have a crew? Not in reclaim, where others must not wait
 * for a task that has not the same rights; and not if it is real-time, to which
 * idle CPUs may not be idle for long.
 */
bool ferry_may_crew(void)
{
	return !(current->flags & PF_MEMALLOC) && !rt_or_dl_task(current);
}

bool ferry_need_resched(void)
{
	return need_resched();
}

/* An address without the tag that its process may put into it. */
unsigned long ferry_untag(struct mm_struct *mm, unsigned long addr)
{
	guard(mmap_read_lock)(mm);

	return untagged_addr_remote(mm, addr);
}

/* May a page go to the node? As do_pages_move() asks. */
int ferry_check_node(int node, const nodemask_t *allowed)
{
	if (node < 0 || node >= MAX_NUMNODES)
		return -ENODEV;
	if (!node_state(node, N_MEMORY))
		return -ENODEV;
	if (!node_isset(node, *allowed))
		return -EACCES;
	return 0;
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

void ferry_trace_crew(const struct ferry_crew_report *report)
{
	trace_ferry_crew(report);
}
