/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: hooks in move_pages(2) and mbind(2).
 *
 * Context: the calling task, may sleep.
 */
#ifndef _LINUX_FERRY_SYSCALL_H
#define _LINUX_FERRY_SYSCALL_H

#include <linux/compat.h>
#include <linux/mempolicy.h>

#include "ferry.h"

/* No caller can ask for help until the uapi header defines the flag. */
#ifndef MPOL_MF_MOVE_MT
#define MPOL_MF_MOVE_MT	0
#endif

#ifdef CONFIG_FERRY

/* c-glue/sysfs/knobs.c */
bool ferry_mt_hold(void);
void ferry_mt_release(void);

/**
 * ferry_mt_flag() - return the flag MPOL_MF_MOVE_MT if it is valid
 * @flags: flags of a system call
 *
 * Return: MPOL_MF_MOVE_MT if it is set together with MPOL_MF_MOVE or
 * MPOL_MF_MOVE_ALL, else 0.
 */
static inline int ferry_mt_flag(unsigned long flags)
{
	if (flags & (MPOL_MF_MOVE | MPOL_MF_MOVE_ALL))
		return flags & MPOL_MF_MOVE_MT;
	return 0;
}

/**
 * ferry_mt_begin() - begin the migration of a system call
 * @flags: flags of the system call
 *
 * If the caller asks for help with MPOL_MF_MOVE_MT and may have it, keeps the
 * hooks enabled until ferry_mt_end(). May sleep.
 *
 * Return: flags for &struct migrate_control, also to be passed to
 * ferry_mt_end().
 */
static inline unsigned int ferry_mt_begin(unsigned long flags)
{
	if (likely(!(flags & MPOL_MF_MOVE_MT)))
		return 0;
	return ferry_mt_hold() ? MIGRATE_MT : 0;
}

/* Releases the hooks that ferry_mt_begin() keeps enabled, if any. */
static inline void ferry_mt_end(unsigned int mt)
{
	if (unlikely(mt))
		ferry_mt_release();
}

#else /* !CONFIG_FERRY */

static inline int ferry_mt_flag(unsigned long flags)
{
	return 0;
}

static inline unsigned int ferry_mt_begin(unsigned long flags)
{
	return 0;
}

static inline void ferry_mt_end(unsigned int mt) { }

#endif /* CONFIG_FERRY */

#ifdef CONFIG_FERRY_CREW

/**
 * struct ferry_move_pages - arguments of do_pages_move()
 * @mm: address space
 * @task_nodes: nodes that its pages may be migrated to
 * @nr_pages: number of pages
 * @pages: user array of their addresses
 * @nodes: user array of destination nodes
 * @status: user array that receives the status of each page
 * @all: MPOL_MF_MOVE_ALL is set
 * @mt: MPOL_MF_MOVE_MT is set and honoured
 */
struct ferry_move_pages {
	struct mm_struct *mm;
	const nodemask_t *task_nodes;
	unsigned long nr_pages;
	unsigned long pages;
	unsigned long nodes;
	unsigned long status;
	bool all;
	bool mt;
};

/* rust/crew/hooks.rs */
bool ferry_crew_move_pages(const struct ferry_move_pages *args, int *err);

/**
 * ferry_move_pages() - do the work of do_pages_move() with a crew
 * @mm: as for do_pages_move(), like the next six
 * @task_nodes: "
 * @nr_pages: "
 * @pages: "
 * @nodes: "
 * @status: "
 * @flags: "
 * @err: receives the return value of do_pages_move()
 *
 * Context: may sleep.
 *
 * Return: whether the work is done; if not, nothing was changed.
 */
static inline bool ferry_move_pages(struct mm_struct *mm,
				    const nodemask_t *task_nodes,
				    unsigned long nr_pages,
				    const void __user * __user *pages,
				    const int __user *nodes,
				    int __user *status, int flags, int *err)
{
	unsigned int mt = ferry_mt_begin(flags);
	bool done = false;

	if (ferry_wanted(mt, MR_SYSCALL) && !in_compat_syscall() &&
	    (mt || nr_pages > READ_ONCE(ferry_short_pages))) {
		const struct ferry_move_pages args = {
			.mm		= mm,
			.task_nodes	= task_nodes,
			.nr_pages	= nr_pages,
			.pages		= (unsigned long)pages,
			.nodes		= (unsigned long)nodes,
			.status		= (unsigned long)status,
			.all		= flags & MPOL_MF_MOVE_ALL,
			.mt		= mt,
		};

		done = ferry_crew_move_pages(&args, err);
	}
	ferry_mt_end(mt);
	return done;
}

#else /* !CONFIG_FERRY_CREW */

static inline bool ferry_move_pages(struct mm_struct *mm,
				    const nodemask_t *task_nodes,
				    unsigned long nr_pages,
				    const void __user * __user *pages,
				    const int __user *nodes,
				    int __user *status, int flags, int *err)
{
	return false;
}

#endif /* CONFIG_FERRY_CREW */
#endif /* _LINUX_FERRY_SYSCALL_H */
