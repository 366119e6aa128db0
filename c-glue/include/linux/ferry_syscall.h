/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: the hooks in system calls that migrate pages, move_pages(2) and
 * mbind(2).
 *
 * They run in the context of the calling task, which may sleep.
 */
#ifndef _LINUX_FERRY_SYSCALL_H
#define _LINUX_FERRY_SYSCALL_H

#include <linux/compat.h>
#include <linux/mempolicy.h>

#include "ferry.h"

#ifdef CONFIG_FERRY

/**
 * struct ferry_move_pages - what do_pages_move() was asked to do
 * @mm:		whose pages
 * @task_nodes:	where they may go
 * @nr_pages:	how many
 * @pages:	their addresses, in user space
 * @nodes:	where each is to go, in user space
 * @status:	what became of each, in user space
 * @all:	MPOL_MF_MOVE_ALL
 * @mt:		MPOL_MF_MOVE_MT
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

/* c-glue/sysfs/knobs.c */
bool ferry_mt_hold(void);
void ferry_mt_release(void);

/* rust/hooks.rs */
bool ferry_crew_move_pages(const struct ferry_move_pages *args, int *err);

/* mm/migrate.c */
int ferry_add_folio(struct folio *folio, int node, struct list_head *pagelist,
		    bool migrate_all);

/**
 * ferry_mt_flag() - may a system call have MPOL_MF_MOVE_MT?
 * @flags: its flags
 *
 * Return: the flag, if it is there with one of those that it goes with; or 0.
 */
static inline int ferry_mt_flag(unsigned long flags)
{
	if (flags & (MPOL_MF_MOVE | MPOL_MF_MOVE_ALL))
		return flags & MPOL_MF_MOVE_MT;
	return 0;
}

/**
 * ferry_mt_begin() - begin the migration of a system call
 * @flags: its flags
 *
 * If the caller asks for help by MPOL_MF_MOVE_MT and may have it, the hooks are
 * held for it until ferry_mt_end(). May sleep.
 *
 * Return: the bits for the mode of migrate_pages(), and for ferry_mt_end().
 */
static inline enum migrate_mode ferry_mt_begin(unsigned long flags)
{
	if (likely(!(flags & MPOL_MF_MOVE_MT)))
		return 0;
	return ferry_mt_hold() ? MIGRATE_MT : 0;
}

/* Gives up the hooks that ferry_mt_begin() holds, if any. */
static inline void ferry_mt_end(enum migrate_mode mt)
{
	if (unlikely(mt))
		ferry_mt_release();
}

/**
 * ferry_move_pages() - the work of do_pages_move()
 * @mm:		as of do_pages_move(), like the next six
 * @task_nodes:	"
 * @nr_pages:	"
 * @pages:	"
 * @nodes:	"
 * @status:	"
 * @flags:	"
 * @err:	what do_pages_move() is to return
 *
 * To be called with the LRU caches disabled. May sleep.
 *
 * Return: whether it was done; if not, nothing was changed.
 */
static inline bool ferry_move_pages(struct mm_struct *mm,
				    const nodemask_t *task_nodes,
				    unsigned long nr_pages,
				    const void __user * __user *pages,
				    const int __user *nodes,
				    int __user *status, int flags, int *err)
{
	enum migrate_mode mt = ferry_mt_begin(flags);
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

#else /* !CONFIG_FERRY */

static inline bool ferry_move_pages(struct mm_struct *mm,
				    const nodemask_t *task_nodes,
				    unsigned long nr_pages,
				    const void __user * __user *pages,
				    const int __user *nodes,
				    int __user *status, int flags, int *err)
{
	return false;
}

static inline int ferry_mt_flag(unsigned long flags)
{
	return 0;
}

static inline enum migrate_mode ferry_mt_begin(unsigned long flags)
{
	return 0;
}

static inline void ferry_mt_end(enum migrate_mode mt) { }

#endif /* CONFIG_FERRY */
#endif /* _LINUX_FERRY_SYSCALL_H */
