// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: KUnit suite ferry_run_flush: the PTE that stands for all that a run has
 * cleared, when their flush is added to the batch.
 *
 * Locks: none.
 */
#include <kunit/test.h>
#include <linux/ferry_run.h>
#include <linux/mm.h>

static pte_t pte_of(pgprot_t prot)
{
	return pfn_pte(1, prot);
}

/* A task that has made PTEs PROT_NONE may flush before the flush is added. */
static void test_prot_none(struct kunit *test)
{
	const pte_t none = pte_of(PAGE_NONE), present = pte_of(PAGE_READONLY);
	pte_t flush;

	if (!pte_protnone(none))
		kunit_skip(test, "no PROT_NONE entries without NUMA balancing");
	flush = ferry_run_flush_pte(__pte(0), none);
	KUNIT_EXPECT_TRUE(test, pte_same(flush, none));
	flush = ferry_run_flush_pte(flush, present);
	KUNIT_EXPECT_TRUE(test, pte_same(flush, present));
	flush = ferry_run_flush_pte(flush, pte_mkdirty(none));
	KUNIT_EXPECT_FALSE(test, pte_protnone(flush));
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush));
}

static void test_dirty(struct kunit *test)
{
	const pte_t none = pte_mkdirty(pte_of(PAGE_NONE));
	const pte_t clean = pte_of(PAGE_READONLY);
	pte_t flush;

	flush = ferry_run_flush_pte(__pte(0), none);
	flush = ferry_run_flush_pte(flush, clean);
	KUNIT_EXPECT_TRUE(test, pte_dirty(flush));
	flush = ferry_run_flush_pte(__pte(0), clean);
	KUNIT_EXPECT_FALSE(test, pte_dirty(flush));
}

static struct kunit_case run_flush_cases[] = {
	KUNIT_CASE(test_prot_none),
	KUNIT_CASE(test_dirty),
	{}
};

static struct kunit_suite run_flush_suite = {
	.name = "ferry_run_flush",
	.test_cases = run_flush_cases,
};
kunit_test_suite(run_flush_suite);
