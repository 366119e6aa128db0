// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: the counters of copies, crews and runs, in /sys/kernel/mm/ferry/stats/.
 *
 * No locks: a sum may miss concurrent increments.
 */
#include <linux/cpumask.h>
#include <linux/ferry_counters.h>

DEFINE_PER_CPU(unsigned long[FERRY_NR_STATS], ferry_stats);

static const char * const ferry_stat_names[FERRY_NR_STATS] = {
	[FERRY_BATCHES]			= "batches",
	[FERRY_PAGES_CALLER]		= "pages_caller",
	[FERRY_PAGES_HELPER]		= "pages_helper",
	[FERRY_PAGES_DMA]		= "pages_dma",
	[FERRY_HELPER_USEC]		= "helper_usec",
	[FERRY_SERIAL_SMALL]		= "serial_small",
	[FERRY_SERIAL_BUSY]		= "serial_busy",
	[FERRY_SERIAL_ALONE]		= "serial_alone",
	[FERRY_REFUSED_PINNED]		= "refused_pinned",
	[FERRY_REFUSED_PRIVATE]		= "refused_private",
	[FERRY_REFUSED_MAPPING]		= "refused_mapping",
	[FERRY_REFUSED_MOVABLE_OPS]	= "refused_movable_ops",
	[FERRY_REFUSED_FULL]		= "refused_full",
	[FERRY_COPY_FAILED]		= "copy_failed",
	[FERRY_DMA_FAILED]		= "dma_failed",
	[FERRY_DMA_LATE]		= "dma_late",
#ifdef CONFIG_FERRY_CREW
	[FERRY_CREWS]			= "crews",
	[FERRY_CREW_PAGES_CALLER]	= "crew_pages_caller",
	[FERRY_CREW_PAGES_HELPER]	= "crew_pages_helper",
	[FERRY_CREW_SMALL]		= "crew_small",
	[FERRY_CREW_ALONE]		= "crew_alone",
	[FERRY_CREW_BUSY]		= "crew_busy",
#endif
#ifdef CONFIG_FERRY_RUNS
	[FERRY_RUNS]			= "runs",
	[FERRY_RUN_PAGES]		= "run_pages",
	[FERRY_RUN_LEFT]		= "run_left",
	[FERRY_RUN_AHEAD]		= "run_ahead",
	[FERRY_RUN_SORTS]		= "run_sorts",
#endif
};

/* Returns the sum of a counter over all CPUs, those offline among them. */
unsigned long ferry_stat_sum(enum ferry_stat stat)
{
	unsigned long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu(ferry_stats, cpu)[stat];
	return sum;
}

int __init ferry_create_stats(struct kobject *kobj)
{
	return ferry_create_counters(kobj, "stats", ferry_stat_names,
				     (unsigned long __percpu *)ferry_stats,
				     FERRY_NR_STATS);
}
