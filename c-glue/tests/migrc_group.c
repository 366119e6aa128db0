// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: KUnit suite ferry_migrc_group: a new group defers no flush that its
 * task owed before.
 *
 * Locks: none.
 */
#include <kunit/test.h>
#include <linux/cpumask.h>
#include <linux/ferry_group.h>
#include <linux/mm_types_task.h>
#include <linux/sched.h>
#include <linux/smp.h>

static void test_pending_flush(struct kunit *test)
{
	struct tlbflush_unmap_batch *tlb_ubc = &current->tlb_ubc;
	bool enabled = READ_ONCE(ferry_migrc_enabled);
	struct ferry_group *group;

	/* As if the task had unmapped a page of a process on this CPU. */
	cpumask_set_cpu(get_cpu(), &tlb_ubc->arch.cpumask);
	put_cpu();
	tlb_ubc->flush_required = true;

	/* The static key stays off, so no other task allocates a group. */
	WRITE_ONCE(ferry_migrc_enabled, true);
	group = ferry_group_alloc();
	WRITE_ONCE(ferry_migrc_enabled, enabled);
	KUNIT_ASSERT_NOT_NULL(test, group);

	KUNIT_EXPECT_FALSE(test, tlb_ubc->flush_required);
	KUNIT_EXPECT_TRUE(test, cpumask_empty(&group->arch.cpumask));
	KUNIT_EXPECT_FALSE(test, ferry_group_defer(group));
	ferry_group_free(group);
}

static struct kunit_case migrc_group_cases[] = {
	KUNIT_CASE(test_pending_flush),
	{}
};

static struct kunit_suite migrc_group_suite = {
	.name = "ferry_migrc_group",
	.test_cases = migrc_group_cases,
};
kunit_test_suite(migrc_group_suite);
