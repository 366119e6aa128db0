/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: statistics of folios that join or leave LRU lists together.
 */
#ifndef _LINUX_FERRY_LRU_H
#define _LINUX_FERRY_LRU_H

#include <linux/mm.h>
#include <linux/mm_inline.h>

/**
 * struct ferry_lru_sum - pages by which the size of an LRU list has changed
 * @lru: the list
 * @zid: zone of the pages
 * @nr_pages: pages added, less pages removed; not yet in the statistics
 */
struct ferry_lru_sum {
	enum lru_list lru;
	enum zone_type zid;
	long nr_pages;
};

/* Updates the statistics. Called with the lruvec lock held, as ferry_lru_sum_add(). */
static inline void ferry_lru_sum_flush(struct ferry_lru_sum *sum,
				       struct lruvec *lruvec)
{
	if (sum->nr_pages)
		update_lru_size(lruvec, sum->lru, sum->zid, sum->nr_pages);
	sum->nr_pages = 0;
}

/* Adds the pages of a folio to the sum (@sign 1), or subtracts them (-1). */
static inline void ferry_lru_sum_add(struct ferry_lru_sum *sum,
				     struct lruvec *lruvec, struct folio *folio,
				     enum lru_list lru, int sign)
{
	enum zone_type zid = folio_zonenum(folio);

	if (sum->lru != lru || sum->zid != zid) {
		ferry_lru_sum_flush(sum, lruvec);
		sum->lru = lru;
		sum->zid = zid;
	}
	sum->nr_pages += sign * folio_nr_pages(folio);
}

/**
 * struct ferry_isolated_sum - pages that were isolated from LRU lists or put back
 * @pgdat: their node
 * @item: NR_ISOLATED_ANON or NR_ISOLATED_FILE
 * @nr_pages: pages isolated, less pages put back or freed; not yet in the statistics
 */
struct ferry_isolated_sum {
	struct pglist_data *pgdat;
	enum node_stat_item item;
	long nr_pages;
};

/* Updates the statistics. */
static inline void ferry_isolated_flush(struct ferry_isolated_sum *sum)
{
	if (sum->nr_pages)
		mod_node_page_state(sum->pgdat, sum->item, sum->nr_pages);
	sum->nr_pages = 0;
}

/* Adds @nr pages of @folio to the sum, or subtracts them if @nr is negative. */
static inline void ferry_isolated_add(struct ferry_isolated_sum *sum,
				      struct folio *folio, long nr)
{
	enum node_stat_item item = NR_ISOLATED_ANON + folio_is_file_lru(folio);

	if (sum->pgdat != folio_pgdat(folio) || sum->item != item) {
		ferry_isolated_flush(sum);
		sum->pgdat = folio_pgdat(folio);
		sum->item = item;
	}
	sum->nr_pages += nr;
}

#endif /* _LINUX_FERRY_LRU_H */
