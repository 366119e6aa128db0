// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: KUnit suite ferry_run_flush: the range of the PTEs that a run has cleared,
 * and the PTE that stands for them, when their flush is added to the batch.
 *
 * Locks: none.
 */
#include <kunit/test.h>
#include <linux/ferry_run.h>
#include <linux/mm.h>

static pte_t pte_of(vm_flags_t flags)
{
	return pfn_pte(1, vm_get_page_prot(flags));
}

/* Returns the PTE that stands for two. */
static pte_t flush_pte(pte_t first, pte_t second)
{
	struct ferry_run_flush flush = {};

	ferry_run_flush_add(&flush, 0, first);
	ferry_run_flush_add(&flush, PAGE_SIZE, second);
	return ferry_run_flush_pte(&flush);
}

/* A task that has made PTEs PROT_NONE may flush before the flush is added. */
static void test_prot_none(struct kunit *test)
{
	const pte_t none = pte_of(VM_NONE), present = pte_of(VM_READ);

	if (!pte_protnone(none))
		kunit_skip(test, "no pte_protnone()");
	KUNIT_EXPECT_TRUE(test, pte_same(flush_pte(none, none), none));
	KUNIT_EXPECT_TRUE(test, pte_same(flush_pte(none, present), present));
	KUNIT_EXPECT_TRUE(test, pte_same(flush_pte(present, none), present));
}

static void test_dirty(struct kunit *test)
{
	const pte_t none = pte_of(VM_NONE), clean = pte_of(VM_READ);
	const pte_t dirty_none = pte_mkdirty(none), dirty = pte_mkdirty(clean);

	KUNIT_EXPECT_FALSE(test, pte_dirty(flush_pte(clean, clean)));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush_pte(dirty, clean)));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush_pte(clean, dirty)));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush_pte(dirty_none, none)));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush_pte(none, dirty_none)));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush_pte(dirty_none, clean)));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush_pte(clean, dirty_none)));
	if (!pte_protnone(none))
		return;
	KUNIT_EXPECT_FALSE(test, pte_protnone(flush_pte(dirty_none, clean)));
	KUNIT_EXPECT_FALSE(test, pte_protnone(flush_pte(clean, dirty_none)));
}

static void test_range(struct kunit *test)
{
	struct ferry_run_flush flush = {};

	KUNIT_EXPECT_EQ(test, flush.end, 0UL);
	ferry_run_flush_add(&flush, 0, pte_of(VM_READ));
	ferry_run_flush_add(&flush, 3 * PAGE_SIZE, pte_of(VM_READ));
	KUNIT_EXPECT_EQ(test, flush.start, 0UL);
	KUNIT_EXPECT_EQ(test, flush.end, 4 * PAGE_SIZE);
}

static struct kunit_case run_flush_cases[] = {
	KUNIT_CASE(test_prot_none),
	KUNIT_CASE(test_dirty),
	KUNIT_CASE(test_range),
	{}
};

static struct kunit_suite run_flush_suite = {
	.name = "ferry_run_flush",
	.test_cases = run_flush_cases,
};
kunit_test_suite(run_flush_suite);
