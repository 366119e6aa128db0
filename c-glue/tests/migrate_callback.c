// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: KUnit suite ferry_migrate_callback: a crew shares a list only if the
 * callback of migrate_pages() is the one that mainline uses for the reason.
 *
 * Locks: the lock of each folio of a private file, while it is filled.
 */
#include <kunit/test.h>
#include <linux/delay.h>
#include <linux/ferry_glue.h>
#include <linux/ferry_syscall.h>
#include <linux/file.h>
#include <linux/mempolicy.h>
#include <linux/migrate.h>
#include <linux/sched.h>
#include <linux/shmem_fs.h>
#include <linux/swap.h>
#include <linux/topology.h>
#include <linux/vmstat.h>

/* alloc_migration_target(), folio_isolate_lru() */
#include "internal.h"

/* Enough for several chunks. */
#define FOLIOS		512

/*
 * @held: the test keeps the hooks enabled, like MPOL_MF_MOVE_MT, until it
 *	ends.
 */
struct cached_list {
	struct file *file;
	struct list_head folios;
	bool held;
};

/* Private data of own_callback(), of a type that no mainline callback takes. */
struct own_data {
	struct task_struct *task;
	unsigned int calls;
	unsigned int calls_elsewhere;
};

/* Must run in the task that calls migrate_pages(). */
static struct folio *own_callback(struct folio *src, unsigned long private)
{
	struct own_data *data = (struct own_data *)private;

	data->calls++;
	data->calls_elsewhere += current != data->task;
	return folio_alloc(GFP_HIGHUSER_MOVABLE, folio_order(src));
}

static void free_own(struct folio *dst, unsigned long private)
{
	folio_put(dst);
}

/* Fills the list with isolated folios of a shmem file. */
static int migrate_callback_init(struct kunit *test)
{
	struct cached_list *list;
	struct folio *folio;
	pgoff_t i;

	list = kunit_kzalloc(test, sizeof(*list), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, list);
	INIT_LIST_HEAD(&list->folios);
	test->priv = list;
	list->file = shmem_kernel_file_setup("ferry_migrate_callback",
					     FOLIOS * PAGE_SIZE, EMPTY_VMA_FLAGS);
	KUNIT_ASSERT_FALSE(test, IS_ERR(list->file));
	for (i = 0; i < FOLIOS; i++) {
		folio = shmem_read_folio(list->file->f_mapping, i);
		KUNIT_ASSERT_FALSE(test, IS_ERR(folio));
		folio_put(folio);
	}
	lru_add_drain_all();
	for (i = 0; i < FOLIOS; i++) {
		folio = shmem_read_folio(list->file->f_mapping, i);
		KUNIT_ASSERT_FALSE(test, IS_ERR(folio));
		KUNIT_ASSERT_TRUE(test, folio_isolate_lru(folio));
		node_stat_add_folio(folio, NR_ISOLATED_ANON +
				    folio_is_file_lru(folio));
		list_add_tail(&folio->lru, &list->folios);
		/* The list has its own reference. */
		folio_put(folio);
	}
	list->held = ferry_mt_hold();
	KUNIT_ASSERT_TRUE(test, list->held);
	return 0;
}

static void migrate_callback_exit(struct kunit *test)
{
	struct cached_list *list = test->priv;

	if (!list)
		return;
	if (list->held)
		ferry_mt_release();
	putback_movable_pages(&list->folios);
	if (!IS_ERR_OR_NULL(list->file))
		fput(list->file);
}

/* Returns the number of times a crew was considered. */
static unsigned long crews_considered(void)
{
	static unsigned long events[NR_VM_EVENT_ITEMS];

	all_vm_events(events);
	return events[FERRY_CREWS] + events[FERRY_CREW_SMALL] +
	       events[FERRY_CREW_ALONE] + events[FERRY_CREW_BUSY];
}

/* Migrates the list with a private callback, in this task alone. */
static void migrate_alone(struct kunit *test, free_folio_t *put_new_folio,
			  enum migrate_reason reason)
{
	struct own_data data = { .task = current };
	struct cached_list *list = test->priv;
	unsigned long before = crews_considered();
	unsigned int moved = 0;

	KUNIT_EXPECT_EQ(test,
			migrate_pages(&list->folios, own_callback, put_new_folio,
				      (unsigned long)&data,
				      MIGRATE_SYNC | MIGRATE_MT, reason, &moved),
			0);
	KUNIT_EXPECT_EQ(test, moved, FOLIOS);
	KUNIT_EXPECT_EQ(test, data.calls, FOLIOS);
	KUNIT_EXPECT_EQ(test, data.calls_elsewhere, 0);
	KUNIT_EXPECT_EQ(test, crews_considered(), before);
}

static void test_own_callback(struct kunit *test)
{
	migrate_alone(test, NULL, MR_SYSCALL);
}

static void test_own_callback_misplaced(struct kunit *test)
{
	migrate_alone(test, NULL, MR_NUMA_MISPLACED);
}

static void test_own_callback_and_free(struct kunit *test)
{
	migrate_alone(test, free_own, MR_DAMON);
}

/* Uses a mainline callback with a reason for which mainline has another. */
static void test_other_reason(struct kunit *test)
{
	struct migration_target_control mtc = {
		.nid = numa_mem_id(),
		.gfp_mask = GFP_HIGHUSER_MOVABLE,
		.reason = MR_NUMA_MISPLACED,
	};
	struct cached_list *list = test->priv;
	unsigned long before = crews_considered();

	KUNIT_EXPECT_EQ(test,
			migrate_pages(&list->folios, alloc_migration_target,
				      NULL, (unsigned long)&mtc,
				      MIGRATE_ASYNC | MIGRATE_MT, MR_NUMA_MISPLACED,
				      NULL),
			0);
	KUNIT_EXPECT_EQ(test, crews_considered(), before);
}

/* Checks that the events that the other tests read are counted. */
static void test_mainline_callback(struct kunit *test)
{
	struct migration_target_control mtc = {
		.nid = numa_mem_id(),
		.gfp_mask = GFP_HIGHUSER_MOVABLE,
		.reason = MR_SYSCALL,
	};
	struct cached_list *list = test->priv;
	unsigned long before = crews_considered();

	KUNIT_EXPECT_EQ(test,
			migrate_pages(&list->folios, alloc_migration_target,
				      NULL, (unsigned long)&mtc,
				      MIGRATE_SYNC | MIGRATE_MT, MR_SYSCALL,
				      NULL),
			0);
	KUNIT_EXPECT_GT(test, crews_considered(), before);
}

#ifdef CONFIG_NUMA
/* Returns whether a crew may run mbind()'s callback for this policy. */
static bool mpol_is_shared(unsigned short mode, const nodemask_t *nodes)
{
	struct mempolicy pol = { .mode = mode, .nodes = *nodes };
	struct ferry_mpol mpol = { .pol = &pol };
	struct ferry_migrate_args call = {
		.get_new_folio	= ferry_alloc_migration_target_by_mpol,
		.private	= (unsigned long)&mpol,
		.reason		= MR_MEMPOLICY_MBIND,
	};

	return ferry_callback_is_shared(&call);
}

/*
 * Checks that only the caller uses a policy that prefers the node of the CPU.
 */
static void test_policy_of_the_cpu(struct kunit *test)
{
	nodemask_t none = NODE_MASK_NONE, one = nodemask_of_node(0);
	nodemask_t all = NODE_MASK_ALL;

	KUNIT_EXPECT_FALSE(test, mpol_is_shared(MPOL_LOCAL, &none));
	KUNIT_EXPECT_FALSE(test, mpol_is_shared(MPOL_PREFERRED, &none));
	KUNIT_EXPECT_TRUE(test, mpol_is_shared(MPOL_PREFERRED, &one));
	KUNIT_EXPECT_TRUE(test, mpol_is_shared(MPOL_BIND, &one));
	KUNIT_EXPECT_TRUE(test, mpol_is_shared(MPOL_PREFERRED_MANY, &one));
	KUNIT_EXPECT_TRUE(test, mpol_is_shared(MPOL_INTERLEAVE, &one));
	if (nodes_weight(all) == 1)
		return;
	KUNIT_EXPECT_FALSE(test, mpol_is_shared(MPOL_BIND, &all));
	KUNIT_EXPECT_FALSE(test, mpol_is_shared(MPOL_PREFERRED_MANY, &all));
	KUNIT_EXPECT_TRUE(test, mpol_is_shared(MPOL_INTERLEAVE, &all));
	KUNIT_EXPECT_TRUE(test, mpol_is_shared(MPOL_WEIGHTED_INTERLEAVE, &all));
}
#endif

/* Checks that each reason is refused, or that its private data is copied. */
static void test_every_reason(struct kunit *test)
{
	struct migration_target_control mtc = { .nid = 3, .gfp_mask = GFP_KERNEL };
	struct ferry_migrate_args call = { .private = (unsigned long)&mtc };
	new_folio_t *const callbacks[] = {
		alloc_migration_target,
		ferry_alloc_demote_folio,
	};
	struct ferry_shared_call shared;
	int reason, i, nr_shared = 0;

	for (reason = 0; reason <= MR_TYPES; reason++) {
		for (i = 0; i < ARRAY_SIZE(callbacks); i++) {
			call.reason = reason;
			call.get_new_folio = callbacks[i];
			if (!ferry_callback_is_shared(&call))
				continue;
			nr_shared++;
			ferry_call_share(&call, &shared);
			KUNIT_EXPECT_EQ(test, shared.target.nid, mtc.nid);
			KUNIT_EXPECT_EQ(test, shared.target.gfp_mask,
					mtc.gfp_mask);
			ferry_call_unshare(&shared);
		}
	}
	/* move_pages(2), offlining, DAMON; demotion. */
	KUNIT_EXPECT_EQ(test, nr_shared, 4);
}

/* Checks that the time to unmap a batch does not count as TLB flush time. */
static void test_flush_time(struct kunit *test)
{
	struct cached_list *list = test->priv;
	LIST_HEAD(dst_folios);
	LIST_HEAD(src_folios);
	struct ferry_batch batch;
	s64 unmapped;

	ferry_batch_begin(&batch, &list->folios, MIGRATE_MT, MR_SYSCALL);
	KUNIT_ASSERT_NE(test, batch.start_ns, 0);
	/* The time of the unmap. */
	fsleep(20 * USEC_PER_MSEC);
	unmapped = ktime_get();
	ferry_unmap_flush(&batch);
	ferry_batch_post(&batch, &dst_folios, &src_folios);
	KUNIT_EXPECT_GE(test, batch.flush_ns, 0);
	KUNIT_EXPECT_LE(test, batch.flush_ns, ktime_get() - unmapped);
	ferry_batch_end(&batch, MR_SYSCALL);
}

static struct kunit_case migrate_callback_cases[] = {
	KUNIT_CASE(test_own_callback),
	KUNIT_CASE(test_own_callback_misplaced),
	KUNIT_CASE(test_own_callback_and_free),
	KUNIT_CASE(test_other_reason),
	KUNIT_CASE(test_mainline_callback),
#ifdef CONFIG_NUMA
	KUNIT_CASE(test_policy_of_the_cpu),
#endif
	KUNIT_CASE(test_every_reason),
	KUNIT_CASE(test_flush_time),
	{ }
};

static struct kunit_suite migrate_callback_suite = {
	.name		= "ferry_migrate_callback",
	.init		= migrate_callback_init,
	.exit		= migrate_callback_exit,
	.test_cases	= migrate_callback_cases,
};
kunit_test_suite(migrate_callback_suite);
