// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: CPU state and CPU time for Rust. The state of a CPU is a hint, read
 * without locks: the CPU may get busy, or go offline, right after.
 * queue_work_on() then runs the work there later, or elsewhere.
 */
#include <linux/cgroup.h>
#include <linux/cpumask.h>
#include <linux/ferry_glue.h>
#include <linux/irqflags.h>
#include <linux/kernel_stat.h>
#include <linux/nodemask.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/cputime.h>
#include <linux/sched/isolation.h>
#include <linux/sched/rt.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/sched/topology.h>
#include <linux/swap.h>
#include <linux/topology.h>

bool ferry_cpu_online(int cpu)
{
	return cpu_online(cpu);
}

/* Returns whether a CPU may run a helper if it is idle. Cheap. */
bool ferry_cpu_may_help(int cpu)
{
	guard(rcu)();

	return cpu_online(cpu) && housekeeping_cpu(cpu, HK_TYPE_DOMAIN) &&
	       housekeeping_cpu(cpu, HK_TYPE_WQ);
}

/* Returns whether the CPU is idle or offline now. */
bool ferry_cpu_idle(int cpu)
{
	return !cpu_online(cpu) || idle_cpu(cpu);
}

/*
 * Returns whether helpers of the calling task may run on a CPU. User tasks may
 * use the CPUs of their cpuset, or the subset of their affinity mask, and so
 * may their helpers. Kernel threads may use all.
 */
bool ferry_cpu_allowed(int cpu)
{
	return (current->flags & PF_KTHREAD) ||
	       cpumask_test_cpu(cpu, current->cpus_ptr);
}

/* Returns whether the calling task is kswapd. */
bool ferry_task_is_kswapd(void)
{
	return current_is_kswapd();
}

/*
 * Returns whether the calling task is in reclaim or has PF_MEMALLOC for
 * another reason.
 */
bool ferry_task_reclaims(void)
{
	return current->flags & PF_MEMALLOC;
}

/*
 * Returns whether the calling task's cgroup, or an ancestor of it, has a CPU
 * quota (cpu.max). A quota does not throttle helpers, which run in the root
 * cgroup. Costs a static branch while no cgroup has a quota, and does not
 * depend on the depth of the cgroup otherwise.
 *
 * Context: any.
 */
bool ferry_task_has_quota(void)
{
	/* RCU keeps a task group that the task leaves meanwhile. */
	guard(rcu)();
	return cfs_task_bw_constrained(current);
}

/*
 * Returns whether the calling task has a fatal signal pending.
 *
 * Context: any.
 */
bool ferry_task_is_killed(void)
{
	return fatal_signal_pending(current);
}

/*
 * Returns the lowest of the weight of the calling task, by its nice value, and
 * the weights of its cgroup and that cgroup's ancestors, by cpu.weight. The
 * default of each is 1024, which is also the weight of a real-time task: neither
 * applies to it.
 *
 * Context: any.
 */
unsigned int ferry_task_weight(void)
{
	if (rt_or_dl_task(current))
		return 1024;
	/* RCU keeps a task group that the task leaves meanwhile. */
	guard(rcu)();
	return sched_task_weight(current);
}

/*
 * Returns whether there are CPUs that may run helpers, but not the calling
 * task.
 */
bool ferry_task_confined(void)
{
	int cpu;

	if (current->flags & PF_KTHREAD)
		return false;
	guard(rcu)();
	/* Most tasks may run on all CPUs; the loop then has no iterations. */
	for_each_cpu_andnot(cpu, cpu_online_mask, current->cpus_ptr) {
		if (housekeeping_cpu(cpu, HK_TYPE_DOMAIN))
			return true;
	}
	return false;
}

int ferry_cpu_to_node(int cpu)
{
	return cpu_possible(cpu) ? cpu_to_node(cpu) : NUMA_NO_NODE;
}

/*
 * Returns the first CPU of the physical core; @cpu itself for an invalid CPU.
 */
int ferry_cpu_core(int cpu)
{
	int first;

	if (!cpu_possible(cpu))
		return cpu;
	first = cpumask_first(topology_sibling_cpumask(cpu));
	return first < nr_cpu_ids ? first : cpu;
}

/* Returns the first online CPU that shares the LLC with @cpu. May be slow. */
int ferry_cpu_llc(int cpu)
{
	int first;

	if (!cpu_possible(cpu))
		return cpu;
	for_each_online_cpu(first) {
		if (first >= cpu || cpus_share_cache(first, cpu))
			return min(first, cpu);
	}
	return cpu;
}

unsigned int ferry_nr_nodes(void)
{
	return nr_node_ids;
}

/* Both nodes are below ferry_nr_nodes(). */
int ferry_node_distance(int from, int to)
{
	return node_distance(from, to);
}

/* Returns the run time of the calling task in ns. Takes the runqueue lock. */
u64 ferry_runtime(void)
{
	return task_sched_runtime(current);
}

/* Returns the number of context switches of the calling task. */
unsigned long ferry_task_switches(void)
{
	return current->nvcsw + current->nivcsw;
}

/* Returns the number of involuntary context switches of the calling task. */
unsigned long ferry_task_preemptions(void)
{
	return current->nivcsw;
}

/*
 * Charges CPU time of workers to the cgroup of the calling task, for which
 * they worked. No time is counted twice: workers cannot be moved out of the
 * root cgroup, to which no time is charged, since it shows the time of the
 * CPUs (cgroup_account_cputime(), root_cgroup_cputime()).
 */
void ferry_charge_cgroup(u64 ns)
{
#ifdef CONFIG_CGROUPS
	struct cgroup *cgrp;

	guard(rcu)();
	/* The tick adds to the same per-CPU sums. */
	guard(irqsave)();
	cgrp = task_dfl_cgroup(current);
	if (!cgroup_parent(cgrp))
		return;
	__cgroup_account_cputime(cgrp, ns);
	__cgroup_account_cputime_field(cgrp, CPUTIME_SYSTEM, ns);
#endif
}

/*
 * Returns whether another task waits for this CPU. need_resched() alone does
 * not tell: it is clear again when a preempted task resumes.
 */
bool ferry_others_want_cpu(void)
{
	return ferry_need_resched() || !single_task_running();
}
