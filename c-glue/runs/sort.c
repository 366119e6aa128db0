// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: sorts a list by mapping, order and index if that makes longer runs.
 *
 * The folios of a run must be neighbours in the list. Offlining, and DAMON by physical
 * address, list folios in the order of their frames, reclaim by age, and move_pages(2)
 * in any order that its caller chooses. Sorting takes several hundred instructions for
 * each folio, so the folios and their windows are counted first.
 *
 * The mapping and index of an isolated folio may change while it is not locked. Then
 * the order may be wrong, and runs are shorter.
 *
 * Locks: none. Context: process context; may sleep.
 */
#include <linux/bitmap.h>
#include <linux/ferry_counters.h>
#include <linux/ferry_run.h>
#include <linux/hash.h>
#include <linux/list_sort.h>
#include <linux/log2.h>
#include <linux/sched.h>

/* Lists with fewer folios are not sorted. */
#define SORT_MIN		16
/* Number of folios at the start of a list that show whether it is in order */
#define SORT_LOOK		64
/* Average length of runs from which a list is not sorted */
#define SORT_LONG_RUN		8
/* Minimum average number of folios in a window for which a list is sorted */
#define SORT_WINDOW		4
/* Size of the bitmap of windows, and approximate maximum size of the sample */
#define SORT_BITS		1024
#define SORT_SAMPLE		512
/* Number of folios or comparisons between two points to reschedule */
#define SORT_RESCHED		1024

/* Returns the hash of the window that a folio is in. */
static u32 sort_window(const struct folio *folio)
{
	unsigned long mapping = (unsigned long)READ_ONCE(folio->mapping);
	unsigned long order = folio_order(folio);
	unsigned long window = READ_ONCE(folio->index) >>
			       ilog2(ferry_run_pages(order));

	/* Mappings are further apart than orders. */
	return hash_long((mapping + order) ^ hash_long(window, BITS_PER_LONG), 32);
}

/*
 * Returns the number of runs that the list has in its order, among its first @nr
 * folios. Sets @nr to the number of folios that it has looked at.
 */
static unsigned long sort_runs(struct list_head *list, unsigned long *nr)
{
	unsigned long most = *nr, runs = 0;
	const struct folio *folio;
	u32 window = 0;

	*nr = 0;
	list_for_each_entry(folio, list, lru) {
		u32 next = sort_window(folio);

		runs += !*nr || next != window;
		window = next;
		if (++*nr == most)
			break;
		if (!(*nr % SORT_RESCHED))
			cond_resched();
	}
	return runs;
}

/*
 * Returns whether sorting would make the runs of a list of @nr folios at least twice
 * as long, and SORT_WINDOW or longer on average. @runs is their present number. Counts
 * windows in a sample: a folio is in it if the hash of its window has some bits clear.
 */
static bool sort_pays(struct list_head *list, unsigned long nr, unsigned long runs)
{
	u32 skip = roundup_pow_of_two(DIV_ROUND_UP(nr, SORT_SAMPLE)) - 1;
	unsigned long folios = 0, windows = 0;
	DECLARE_BITMAP(seen, SORT_BITS) = {};
	const struct folio *folio;

	list_for_each_entry(folio, list, lru) {
		u32 window = sort_window(folio);

		/* No other folio can be in a run. */
		if (window / SORT_BITS & skip || !folio_mapped(folio))
			continue;
		cond_resched();
		folios++;
		windows += !__test_and_set_bit(window % SORT_BITS, seen);
	}
	return folios && windows * SORT_WINDOW <= folios &&
	       (u64)windows * 2 * nr <= (u64)runs * folios;
}

static int sort_compare(void *priv, const struct list_head *a,
			const struct list_head *b)
{
	const struct folio *x = list_entry(a, struct folio, lru);
	const struct folio *y = list_entry(b, struct folio, lru);
	const struct address_space *x_mapping = READ_ONCE(x->mapping);
	const struct address_space *y_mapping = READ_ONCE(y->mapping);
	unsigned long *comparisons = priv;

	if (!(++*comparisons % SORT_RESCHED))
		cond_resched();
	if (x_mapping != y_mapping)
		return x_mapping > y_mapping;
	if (folio_order(x) != folio_order(y))
		return folio_order(x) > folio_order(y);
	return READ_ONCE(x->index) > READ_ONCE(y->index);
}

void __ferry_run_sort(struct list_head *list)
{
	unsigned long nr = SORT_LOOK, runs = sort_runs(list, &nr);
	unsigned long comparisons = 0;

	if (nr < SORT_MIN || runs * SORT_LONG_RUN <= nr)
		return;
	nr = ULONG_MAX;
	runs = sort_runs(list, &nr);
	if (!sort_pays(list, nr, runs))
		return;
	list_sort(&comparisons, list, sort_compare);
	ferry_count(FERRY_RUN_SORTS, 1);
}
