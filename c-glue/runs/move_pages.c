// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: isolates many pages of a move_pages(2) call at a time.
 *
 * do_pages_move() isolates one page at a time. After each one, ferry_isolate_ahead()
 * isolates up to 64 of the following pages with the same destination. It stops before
 * a page that cannot be isolated, or that an LRU cache may hold. do_pages_move() then
 * tries that page, so it alone determines statuses and errors.
 *
 * Locks: see c-glue/isolate/isolate.c.
 */
#include <linux/ferry_counters.h>
#include <linux/ferry_glue.h>
#include <linux/ferry_run.h>
#include <linux/minmax.h>
#include <linux/uaccess.h>

/* Maximum number of pages isolated ahead */
#define MOVE_PAGES_AHEAD	64

/*
 * Isolates nothing if an element is not resident, because do_pages_move() may end
 * before it reads that element. do_pages_move() stores no status between two pages
 * that it queues for one node, so arrays that overlap the statuses give the same
 * result as in mainline.
 */
int __ferry_isolate_ahead(struct mm_struct *mm, const void __user *pages,
			  const int __user *nodes, unsigned long nr, int node,
			  struct list_head *pagelist, bool all, bool drained)
{
	unsigned long addrs[MOVE_PAGES_AHEAD];
	int to[MOVE_PAGES_AHEAD], isolated;
	struct ferry_addr_list list = {
		.mm		= mm,
		.pages		= addrs,
		.node		= node,
		.all		= all,
		.wait		= true,
		.settled	= !drained,
	};

	nr = min(nr, MOVE_PAGES_AHEAD);
	if (copy_from_user_nofault(to, nodes, nr * sizeof(*to)))
		return 0;
	while (list.nr < nr && to[list.nr] == node)
		list.nr++;
	if (!list.nr ||
	    copy_from_user_nofault(addrs, pages, list.nr * sizeof(*addrs)))
		return 0;
	isolated = ferry_isolate_pages(&list, pagelist);
	ferry_count(FERRY_RUN_AHEAD, isolated);
	return isolated;
}
