// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: adds the folios of a run to the LRU lists.
 *
 * Locks: the lock of an lruvec, with interrupts disabled.
 */
#include <linux/ferry_run.h>
#include <linux/memcontrol.h>
#include <linux/mm_inline.h>

#include <trace/events/pagemap.h>

#include "internal.h"

/* Folios that were added to a list whose size is not yet updated */
struct lru_added {
	enum lru_list lru;
	enum zone_type zid;
	long nr_pages;
};

static void lru_added_flush(struct lru_added *added, struct lruvec *lruvec)
{
	if (added->nr_pages)
		update_lru_size(lruvec, added->lru, added->zid, added->nr_pages);
	added->nr_pages = 0;
}

/**
 * ferry_run_add_lru() - add new folios to the LRU lists
 * @fbatch: the folios, not large, at least one, to which the caller has
 *	references; emptied
 *
 * Does what lru_add() does, but updates the size of each list once.
 */
void ferry_run_add_lru(struct folio_batch *fbatch)
{
	unsigned int i, nr = folio_batch_count(fbatch), others = 0;
	struct lru_added added = {};
	struct lruvec *lruvec = NULL;
	unsigned long flags;

	for (i = 0; i < nr; i++) {
		struct folio *folio = fbatch->folios[i];
		enum zone_type zid = folio_zonenum(folio);
		enum lru_list lru;

		if (!lruvec || !folio_matches_lruvec(folio, lruvec)) {
			if (lruvec)
				lru_added_flush(&added, lruvec);
			folio_lruvec_relock_irqsave(folio, &lruvec, &flags);
		}
		/* Leave what is not common to lru_add(). */
		if (!folio_evictable(folio) || folio_test_unevictable(folio)) {
			folio_get(folio);
			fbatch->folios[others++] = folio;
			continue;
		}
		lru = folio_lru_list(folio);
		if (!lru_gen_add_folio(lruvec, folio, false)) {
			if (added.lru != lru || added.zid != zid) {
				lru_added_flush(&added, lruvec);
				added.lru = lru;
				added.zid = zid;
			}
			added.nr_pages++;
			list_add(&folio->lru, &lruvec->lists[lru]);
		}
		trace_mm_lru_insertion(folio);
		folio_set_lru(folio);
	}
	lru_added_flush(&added, lruvec);
	lruvec_unlock_irqrestore(lruvec, flags);
	fbatch->nr = others;
	if (others)
		folio_batch_add_lru(fbatch);
}
