// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: adds the folios of a run to the LRU lists.
 *
 * Locks: the lock of an lruvec, with interrupts disabled.
 */
#include <linux/ferry_lru.h>
#include <linux/ferry_run.h>
#include <linux/memcontrol.h>

#include <trace/events/pagemap.h>

#include "internal.h"

/**
 * ferry_run_add_lru() - add new folios to the LRU lists
 * @fbatch: the folios, at least one, to which the caller has references; emptied
 *
 * Does what lru_add() does, but updates the size of each list once.
 */
void ferry_run_add_lru(struct folio_batch *fbatch)
{
	unsigned int i, nr = folio_batch_count(fbatch), others = 0;
	struct ferry_lru_sum sum = {};
	struct lruvec *lruvec = NULL;
	unsigned long flags;

	for (i = 0; i < nr; i++) {
		struct folio *folio = fbatch->folios[i];
		enum lru_list lru;

		if (!lruvec || !folio_matches_lruvec(folio, lruvec)) {
			if (lruvec)
				ferry_lru_sum_flush(&sum, lruvec);
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
			ferry_lru_sum_add(&sum, lruvec, folio, lru, 1);
			list_add(&folio->lru, &lruvec->lists[lru]);
		}
		trace_mm_lru_insertion(folio);
		folio_set_lru(folio);
	}
	ferry_lru_sum_flush(&sum, lruvec);
	lruvec_unlock_irqrestore(lruvec, flags);
	fbatch->nr = others;
	if (others)
		folio_batch_add_lru(fbatch);
}
