// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: KUnit suite ferry_migrate_callback: a crew shares a list only if its
 * caller declares that the callback is shared; and the caller of a pipeline is
 * told when its helpers are dismissed.
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

/* Must run in the task that calls migrate_folios(). */
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
	return ferry_stat_sum(FERRY_CREWS) + ferry_stat_sum(FERRY_CREW_SMALL) +
	       ferry_stat_sum(FERRY_CREW_ALONE) +
	       ferry_stat_sum(FERRY_CREW_BUSY);
}

/* Migrates the list with a private callback, in this task alone. */
static void migrate_alone(struct kunit *test, free_folio_t *put_new_folio,
			  enum migrate_reason reason)
{
	struct own_data data = { .task = current };
	struct migrate_control mc = {
		.get_new_folio	= own_callback,
		.put_new_folio	= put_new_folio,
		.private	= (unsigned long)&data,
		.mode		= MIGRATE_SYNC,
		.reason		= reason,
		.flags		= MIGRATE_MT,
	};
	struct cached_list *list = test->priv;
	unsigned long before = crews_considered();

	KUNIT_EXPECT_EQ(test, migrate_folios(&list->folios, &mc), 0);
	KUNIT_EXPECT_EQ(test, mc.stats.nr_succeeded, FOLIOS);
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

/* Migrates the list with alloc_migration_target(), and a declaration. */
static void migrate_to_here(struct kunit *test, enum migrate_shared shared)
{
	struct migration_target_control mtc = {
		.nid = numa_mem_id(),
		.gfp_mask = GFP_HIGHUSER_MOVABLE,
		.reason = MR_SYSCALL,
	};
	struct migrate_control mc = {
		.get_new_folio	= alloc_migration_target,
		.private	= (unsigned long)&mtc,
		.mode		= MIGRATE_SYNC,
		.reason		= MR_SYSCALL,
		.shared		= shared,
		.flags		= MIGRATE_MT,
	};
	struct cached_list *list = test->priv;

	KUNIT_EXPECT_EQ(test, migrate_folios(&list->folios, &mc), 0);
}

/* Checks that a callback is the caller's own unless the caller shares it. */
static void test_undeclared_callback(struct kunit *test)
{
	unsigned long before = crews_considered();

	migrate_to_here(test, MIGRATE_NOT_SHARED);
	KUNIT_EXPECT_EQ(test, crews_considered(), before);
}

/* Checks that the events that the other tests read are counted. */
static void test_shared_callback(struct kunit *test)
{
	unsigned long before = crews_considered();

	migrate_to_here(test, MIGRATE_SHARED_TARGET);
	KUNIT_EXPECT_GT(test, crews_considered(), before);
}

#ifdef CONFIG_NUMA
/* Returns whether a crew may run mbind()'s callback for this policy. */
static bool mpol_is_shared(unsigned short mode, const nodemask_t *nodes)
{
	struct mempolicy pol = { .mode = mode, .nodes = *nodes };
	struct migration_mpol mpol = { .pol = &pol };
	struct migrate_control call = {
		.private	= (unsigned long)&mpol,
		.reason		= MR_MEMPOLICY_MBIND,
		.shared		= MIGRATE_SHARED_MPOL,
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

/* Checks that a crew gets a copy of the private data. */
static void test_private_data(struct kunit *test)
{
	struct migration_target_control mtc = { .nid = 3, .gfp_mask = GFP_KERNEL };
	struct migrate_control call = {
		.private	= (unsigned long)&mtc,
		.shared		= MIGRATE_SHARED_TARGET,
	};
	struct ferry_shared_call shared;

	KUNIT_ASSERT_TRUE(test, ferry_callback_is_shared(&call));
	ferry_call_share(&call, &shared);
	KUNIT_EXPECT_EQ(test, shared.call.private, 0);
	KUNIT_EXPECT_EQ(test, shared.target.nid, mtc.nid);
	KUNIT_EXPECT_EQ(test, shared.target.gfp_mask, mtc.gfp_mask);
	ferry_call_unshare(&shared);

	call.private = 2;
	call.shared = MIGRATE_SHARED_NODE;
	KUNIT_ASSERT_TRUE(test, ferry_callback_is_shared(&call));
	ferry_call_share(&call, &shared);
	KUNIT_EXPECT_EQ(test, shared.target.nid, 2);
	ferry_call_unshare(&shared);
}

/* Checks that the time to unmap a batch does not count as TLB flush time. */
static void test_flush_time(struct kunit *test)
{
	const struct migrate_control mc = {
		.reason	= MR_SYSCALL,
		.flags	= MIGRATE_MT,
	};
	struct cached_list *list = test->priv;
	LIST_HEAD(dst_folios);
	LIST_HEAD(src_folios);
	struct ferry_batch batch;
	s64 unmapped;

	ferry_batch_begin(&batch, &list->folios, &mc);
	KUNIT_ASSERT_NE(test, batch.start_ns, 0);
	/* The time of the unmap. */
	fsleep(20 * USEC_PER_MSEC);
	unmapped = ktime_get();
	ferry_batch_unmapped(&batch);
	ferry_batch_post(&batch, &dst_folios, &src_folios);
	KUNIT_EXPECT_GE(test, batch.flush_ns, 0);
	KUNIT_EXPECT_LE(test, batch.flush_ns, ktime_get() - unmapped);
	ferry_batch_end(&batch, MR_SYSCALL);
}

#ifdef CONFIG_NUMA_MIGRATION
/*
 * Checks that a pipeline without helpers asks for no more folios, but once for
 * none, so that its caller releases what it holds.
 */
static void test_dismissed(struct kunit *test)
{
	const unsigned int limit = ferry_get(FERRY_SET_LIMIT);
	const unsigned int any_cpu = ferry_get(FERRY_SET_ANY_CPU);
	struct cached_list *list = test->priv;
	struct list_head *pos = &list->folios;
	LIST_HEAD(first);
	int i, asked;

	for (i = 0; i < FOLIOS / 2; i++)
		pos = pos->next;
	list_cut_position(&first, &list->folios, pos);
	ferry_set(FERRY_SET_LIMIT, 2);
	ferry_set(FERRY_SET_ANY_CPU, 1);
	asked = ferry_dismiss_midway(&first, &list->folios, FOLIOS / 2,
				     numa_mem_id(), &node_states[N_MEMORY]);
	ferry_set(FERRY_SET_LIMIT, limit);
	ferry_set(FERRY_SET_ANY_CPU, any_cpu);
	list_splice(&first, &list->folios);
	if (asked < 0)
		kunit_skip(test, "no CPU may help");
	KUNIT_EXPECT_EQ(test, asked, 0);
}
#endif

static struct kunit_case migrate_callback_cases[] = {
	KUNIT_CASE(test_own_callback),
	KUNIT_CASE(test_own_callback_misplaced),
	KUNIT_CASE(test_own_callback_and_free),
	KUNIT_CASE(test_undeclared_callback),
	KUNIT_CASE(test_shared_callback),
#ifdef CONFIG_NUMA
	KUNIT_CASE(test_policy_of_the_cpu),
#endif
	KUNIT_CASE(test_private_data),
	KUNIT_CASE(test_flush_time),
#ifdef CONFIG_NUMA_MIGRATION
	KUNIT_CASE(test_dismissed),
#endif
	{ }
};

static struct kunit_suite migrate_callback_suite = {
	.name		= "ferry_migrate_callback",
	.init		= migrate_callback_init,
	.exit		= migrate_callback_exit,
	.test_cases	= migrate_callback_cases,
};
kunit_test_suite(migrate_callback_suite);
