/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: per-CPU counters, and words to choose from, as sysfs files.
 *
 * No locks: a sum may miss concurrent increments.
 */
#ifndef _LINUX_FERRY_COUNTERS_H
#define _LINUX_FERRY_COUNTERS_H

#include <linux/percpu.h>

struct kobject;

/* Files of /sys/kernel/mm/ferry/stats/. The unit is base pages, or as stated. */
enum ferry_stat {
	FERRY_BATCHES,		/* batches that the engine copied (count) */
	FERRY_PAGES_CALLER,	/* pages copied, by thread or DMA engine */
	FERRY_PAGES_HELPER,
	FERRY_PAGES_DMA,
	FERRY_HELPER_USEC,	/* CPU time of helpers, in microseconds */
	FERRY_SERIAL_SMALL,	/* left to the caller: the batch is short */
	FERRY_SERIAL_BUSY,	/* all lanes of the engine are in use */
	FERRY_SERIAL_ALONE,	/* no CPU may help, or none is worth it */
	FERRY_REFUSED_PINNED,	/* folios left to the caller, by reason */
	FERRY_REFUSED_PRIVATE,
	FERRY_REFUSED_MAPPING,
	FERRY_REFUSED_MOVABLE_OPS,
	FERRY_REFUSED_FULL,
	FERRY_COPY_FAILED,	/* pages whose source cannot be read */
	FERRY_DMA_FAILED,	/* copies in which an engine failed (count) */
	FERRY_DMA_LATE,		/* copies not completed in time (count) */
#ifdef CONFIG_FERRY_CREW
	FERRY_CREWS,		/* lists that a crew migrated (count) */
	FERRY_CREW_PAGES_CALLER, /* pages of these, by the migrating thread */
	FERRY_CREW_PAGES_HELPER,
	FERRY_CREW_SMALL,	/* lists left to the caller (count): too short */
	FERRY_CREW_ALONE,	/* no CPU may help, or none is worth it (count) */
	FERRY_CREW_BUSY,	/* all lanes of crews are in use (count) */
#endif
#ifdef CONFIG_FERRY_RUNS
	FERRY_RUNS,		/* runs (count) */
	FERRY_RUN_PAGES,	/* pages unmapped in runs */
	FERRY_RUN_LEFT,		/* pages that a run could not unmap */
	FERRY_RUN_AHEAD,	/* pages that move_pages() isolated ahead */
	FERRY_RUN_SORTS,	/* lists sorted to make longer runs (count) */
#endif
	FERRY_NR_STATS
};

DECLARE_PER_CPU(unsigned long[FERRY_NR_STATS], ferry_stats);

/* Adds to a counter of this CPU. For any context but NMI. */
static inline void ferry_count(enum ferry_stat stat, unsigned long nr)
{
	this_cpu_add(ferry_stats[stat], nr);
}

/* c-glue/sysfs/stats.c */
unsigned long ferry_stat_sum(enum ferry_stat stat);
int ferry_create_stats(struct kobject *kobj);

/* c-glue/sysfs/settings.c */
ssize_t ferry_show_word(char *buf, const char * const *words,
			unsigned int chosen);

/* c-glue/sysfs/counters.c */
int ferry_create_counters(struct kobject *kobj, const char *folder,
			  const char * const *names,
			  unsigned long __percpu *counters, unsigned int nr);

#endif /* _LINUX_FERRY_COUNTERS_H */
