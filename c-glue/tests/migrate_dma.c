// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: KUnit suite ferry_migrate_dma: with MIGRATE_DMA, migrate_folios()
 * copies a folio by a DMA engine, or leaves it where it is.
 *
 * Locks: the lock of each folio of a private file.
 */
#include <kunit/test.h>
#include <linux/ferry_glue.h>
#include <linux/file.h>
#include <linux/highmem.h>
#include <linux/migrate.h>
#include <linux/shmem_fs.h>
#include <linux/string.h>
#include <linux/suspend.h>
#include <linux/swap.h>

/* folio_isolate_lru() */
#include "internal.h"

#define FOLIOS		100
#define CHANNELS	2

struct file_and_list {
	struct file *file;
	struct list_head folios;
	unsigned int timeout_ms;
	/* Old addresses of the folios; not dereferenced, they may be freed. */
	const struct folio *was[FOLIOS];
};

static struct folio *new_folio(struct folio *src, unsigned long private)
{
	return folio_alloc(GFP_HIGHUSER_MOVABLE, folio_order(src));
}

static struct folio *folio_at(struct kunit *test, pgoff_t index)
{
	struct file_and_list *has = test->priv;
	struct folio *folio = shmem_read_folio(has->file->f_mapping, index);

	KUNIT_ASSERT_FALSE(test, IS_ERR(folio));
	return folio;
}

/* Fills the list with isolated folios of a shmem file, with content. */
static int migrate_dma_init(struct kunit *test)
{
	struct file_and_list *has;
	struct folio *folio;
	pgoff_t i;

	has = kunit_kzalloc(test, sizeof(*has), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, has);
	INIT_LIST_HEAD(&has->folios);
	test->priv = has;
	has->timeout_ms = ferry_get(FERRY_SET_DMA_TIMEOUT_MS);
	has->file = shmem_kernel_file_setup("ferry_migrate_dma",
					    FOLIOS * PAGE_SIZE,
					    EMPTY_VMA_FLAGS);
	KUNIT_ASSERT_FALSE(test, IS_ERR(has->file));
	for (i = 0; i < FOLIOS; i++) {
		folio = folio_at(test, i);
		folio_lock(folio);
		memset(folio_address(folio), i + 1, PAGE_SIZE);
		folio_mark_dirty(folio);
		folio_unlock(folio);
		folio_put(folio);
	}
	lru_add_drain_all();
	for (i = 0; i < FOLIOS; i++) {
		folio = folio_at(test, i);
		has->was[i] = folio;
		KUNIT_ASSERT_TRUE(test, folio_isolate_lru(folio));
		node_stat_add_folio(folio, NR_ISOLATED_ANON +
				    folio_is_file_lru(folio));
		list_add_tail(&folio->lru, &has->folios);
		/* The list has its own reference. */
		folio_put(folio);
	}
	return 0;
}

static void migrate_dma_exit(struct kunit *test)
{
	const struct ferry_soft_manners good = { .descriptors = 64 };
	struct file_and_list *has = test->priv;

	if (!has)
		return;
	putback_movable_pages(&has->folios);
	if (!IS_ERR_OR_NULL(has->file))
		fput(has->file);
	ferry_soft_behave(&good);
	ferry_set(FERRY_SET_DMA_TIMEOUT_MS, has->timeout_ms);
	KUNIT_EXPECT_EQ(test, ferry_set(FERRY_SET_DMA_CHANNELS, 0), 0);
	ferry_dma_taken(false);
}

static unsigned long copied_by_dma(void)
{
	return ferry_stat_sum(FERRY_PAGES_DMA);
}

/* Returns the number of migrated folios. Checks the content of all. */
static unsigned int count_moved(struct kunit *test)
{
	struct file_and_list *has = test->priv;
	unsigned int moved = 0;
	pgoff_t i;

	for (i = 0; i < FOLIOS; i++) {
		struct folio *folio = folio_at(test, i);

		KUNIT_EXPECT_NULL_MSG(test, memchr_inv(folio_address(folio),
						       i + 1, PAGE_SIZE),
				      "folio %lu has changed", i);
		moved += folio != has->was[i];
		folio_put(folio);
	}
	return moved;
}

/* Returns the number of migrated folios as reported by migrate_folios(). */
static unsigned int migrate(struct kunit *test)
{
	struct migrate_control mc = {
		.get_new_folio	= new_folio,
		.mode		= MIGRATE_SYNC,
		.reason		= MR_SYSCALL,
		.flags		= MIGRATE_DMA,
	};
	struct file_and_list *has = test->priv;
	int left = migrate_folios(&has->folios, &mc);
	unsigned int moved = mc.stats.nr_succeeded;

	KUNIT_EXPECT_EQ(test, left + moved, FOLIOS);
	KUNIT_EXPECT_EQ(test, list_empty(&has->folios), !left);
	KUNIT_EXPECT_EQ(test, count_moved(test), moved);
	return moved;
}

static void open_channels(struct kunit *test)
{
	KUNIT_ASSERT_EQ(test, ferry_dma_prepare(), 0);
	KUNIT_ASSERT_EQ(test, ferry_set(FERRY_SET_DMA_CHANNELS, CHANNELS), 0);
	/* An emulator on a busy host is slow. */
	KUNIT_ASSERT_EQ(test, ferry_set(FERRY_SET_DMA_TIMEOUT_MS, 60000), 0);
	ferry_dma_taken(true);
}

static void test_by_engine(struct kunit *test)
{
	unsigned long before = copied_by_dma();

	open_channels(test);
	KUNIT_EXPECT_EQ(test, migrate(test), FOLIOS);
	KUNIT_EXPECT_EQ(test, copied_by_dma() - before, FOLIOS);
}

static void test_no_channel(struct kunit *test)
{
	unsigned long before = copied_by_dma();

	KUNIT_ASSERT_EQ(test, ferry_dma_prepare(), 0);
	ferry_dma_taken(true);
	KUNIT_EXPECT_EQ(test, migrate(test), 0);
	KUNIT_EXPECT_EQ(test, copied_by_dma(), before);
}

static void test_engine_fails(struct kunit *test)
{
	const struct ferry_soft_manners bad = {
		.descriptors	= 64,
		.fail_ppm	= 1000000,
	};

	open_channels(test);
	ferry_soft_behave(&bad);
	KUNIT_EXPECT_EQ(test, migrate(test), 0);
}

/*
 * Some copies fail at first: all folios migrated in the end were copied by the
 * engine.
 */
static void test_engine_fails_at_times(struct kunit *test)
{
	const struct ferry_soft_manners bad = {
		.descriptors	= 64,
		.fail_ppm	= 300000,
		.reverse	= true,
	};
	unsigned long before = copied_by_dma();
	unsigned int moved;

	open_channels(test);
	ferry_soft_behave(&bad);
	moved = migrate(test);
	KUNIT_EXPECT_GT(test, moved, 0);
	KUNIT_EXPECT_GE(test, copied_by_dma() - before, moved);
}

static void test_suspending(struct kunit *test)
{
	open_channels(test);
	ferry_dma_pm(NULL, PM_SUSPEND_PREPARE, NULL);
	KUNIT_EXPECT_EQ(test, migrate(test), 0);
	ferry_dma_pm(NULL, PM_POST_SUSPEND, NULL);
	KUNIT_EXPECT_EQ(test, migrate(test), FOLIOS);
}

static struct kunit_case migrate_dma_cases[] = {
	KUNIT_CASE(test_by_engine),
	KUNIT_CASE(test_no_channel),
	KUNIT_CASE(test_engine_fails),
	KUNIT_CASE(test_engine_fails_at_times),
	KUNIT_CASE(test_suspending),
	{ }
};

static struct kunit_suite migrate_dma_suite = {
	.name		= "ferry_migrate_dma",
	.init		= migrate_dma_init,
	.exit		= migrate_dma_exit,
	.test_cases	= migrate_dma_cases,
};
kunit_test_suite(migrate_dma_suite);
