// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: C part of page cache promotion: folio flags, the nodes that a task
 * may use, and the nodes of memory tiers.
 *
 * Locks: only the memory hotplug lock, held by the caller that looks folios up
 * by page frame number. The node masks change under the lock of the memory
 * tiers, and are read without it: a stale mask only means that a folio too
 * many, or too few, is recorded.
 */
#include <linux/buffer_head.h>
#include <linux/cpuset.h>
#include <linux/ferry_glue.h>
#include <linux/hash.h>
#include <linux/memcontrol.h>
#include <linux/memory-tiers.h>
#include <linux/memory_hotplug.h>
#include <linux/mempolicy.h>
#include <linux/migrate.h>
#include <linux/mm_inline.h>
#include <linux/nodemask.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/shmem_fs.h>
#include <linux/swap.h>
#include <linux/topology.h>
#include <linux/vmstat.h>

/* alloc_misplaced_dst_folio(), migrate_balanced_pgdat() */
#include "internal.h"

DEFINE_STATIC_KEY_FALSE(ferry_promotion_key);
nodemask_t ferry_lower_nodes __read_mostly;

/* Nodes of the top tier that have memory. */
static nodemask_t ferry_top_nodes __read_mostly;

/*
 * Called with the lock of the memory tiers held, when the tiers were rebuilt.
 */
void ferry_tiers_changed(void)
{
	int nid;

	for_each_node(nid) {
		bool top = node_state(nid, N_MEMORY) && node_is_toptier(nid);
		bool lower = node_state(nid, N_MEMORY) && !top;

		assign_bit(nid, ferry_top_nodes.bits, top);
		assign_bit(nid, ferry_lower_nodes.bits, lower);
	}
}

unsigned long ferry_top_tier_pages(void)
{
	unsigned long pages = 0;
	int nid;

	for_each_node_mask(nid, ferry_top_nodes)
		pages += node_present_pages(nid);
	return pages;
}

/*
 * Returns the top-tier node nearest to @here that the task may use for a folio
 * on node @from, or NUMA_NO_NODE. As in mpol_misplaced(), the folio stays if
 * the policy names its node, as an interleaving policy does.
 */
static noinline int ferry_nearest_target(const struct mempolicy *policy,
					 int here, int from)
{
	int nid, nearest = NUMA_NO_NODE;

	if (policy && node_isset(from, policy->nodes) &&
	    !(policy->flags & MPOL_F_MORON))
		return NUMA_NO_NODE;
	for_each_node_mask(nid, ferry_top_nodes) {
		if (!node_isset(nid, cpuset_current_mems_allowed))
			continue;
		/* A local policy has no nodes. */
		if (policy && !nodes_empty(policy->nodes) &&
		    !node_isset(nid, policy->nodes))
			continue;
		if (nearest == NUMA_NO_NODE ||
		    node_distance(here, nid) < node_distance(here, nearest))
			nearest = nid;
	}
	return nearest;
}

/*
 * Returns the top-tier node nearest to the CPU of the task, within its cpuset
 * and its policy; kernel threads may use any. Both may change meanwhile: the
 * recorded node is a hint.
 */
static int ferry_promotion_target(int from)
{
	const struct mempolicy *policy = current->mempolicy;
	int here = numa_node_id();

	if (likely(!policy && node_isset(here, ferry_top_nodes) &&
		   node_isset(here, cpuset_current_mems_allowed)))
		return here;
	return ferry_nearest_target(policy, here, from);
}

/*
 * Of FERRY_PROMOTION_FLAGS a folio to promote has PG_lru only: it is on an LRU
 * list, and evictable.
 */
#define FERRY_PROMOTED_FLAGS	BIT(PG_lru)
#define FERRY_PROMOTION_FLAGS						\
	(BIT(PG_lru) | BIT(PG_writeback) | BIT(PG_unevictable) |	\
	 BIT(PG_dropbehind))

/*
 * Sampling state of a CPU. An access is recorded if the next value of a
 * sequence is not above a limit that Rust sets. The sequence is uniform, and
 * has no period that an access pattern could match.
 */
struct ferry_sampling {
	u32 sequence;
	u32 limit;
};

static DEFINE_PER_CPU(struct ferry_sampling, ferry_sampling) = {
	.limit = U32_MAX,
};

static noinline void ferry_record(struct folio *folio)
{
	unsigned int shift;
	int to;

	if ((READ_ONCE(folio->flags.f) & FERRY_PROMOTION_FLAGS) !=
	    FERRY_PROMOTED_FLAGS)
		return;
	/*
	 * Interrupts read no files, and a ring belongs to the tasks of its
	 * CPU.
	 */
	if (folio_test_anon(folio) || folio_mapped(folio) || !in_task())
		return;
	to = ferry_promotion_target(folio_nid(folio));
	if (to == NUMA_NO_NODE)
		return;
	count_vm_event(NUMA_HINT_PAGE_CACHE);
	shift = ferry_promotion_record(get_cpu(), folio_pfn(folio),
				       folio_nid(folio), to);
	this_cpu_write(ferry_sampling.limit, U32_MAX >> shift);
	put_cpu();
}

/*
 * Called by ferry_folio_accessed(). At high access rates most calls end here.
 *
 * Context: any.
 */
void ferry_record_access(struct folio *folio)
{
	if (this_cpu_add_return(ferry_sampling.sequence, GOLDEN_RATIO_32) <=
	    this_cpu_read(ferry_sampling.limit))
		ferry_record(folio);
}

/* Stores the position of a folio. The folio is locked. */
static void ferry_folio_cached(const struct folio *folio,
			       struct ferry_cached *cached)
{
	const struct inode *inode = folio->mapping->host;

	/*
	 * The inode number and generation, since another inode may later have
	 * this address.
	 */
	cached->file = (unsigned long)inode ^
		       hash_long(inode->i_ino, BITS_PER_LONG) ^
		       hash_32(inode->i_generation, 32);
	cached->index = folio->index;
	cached->pfn = folio_pfn(folio);
	cached->order = folio_order(folio);
}

/* Called by ferry_folio_migrated(), with both folios locked. */
void ferry_record_migration(const struct folio *src, const struct folio *dst,
			    int reason)
{
	struct ferry_cached cached;
	bool lower = node_isset(folio_nid(dst), ferry_lower_nodes);
	bool from_top = node_isset(folio_nid(src), ferry_top_nodes);

	if (folio_test_anon(dst) || folio_test_swapcache(dst) || !dst->mapping)
		return;
	ferry_folio_cached(dst, &cached);
	if (reason == MR_DEMOTION && lower)
		ferry_promotion_demoted(&cached, from_top);
	else if (reason == MR_NUMA_MISPLACED && !lower && !folio_mapped(dst))
		ferry_promotion_promoted(&cached);
}

/*
 * Returns the folio on an LRU list that begins at @pfn on node @nid, with a
 * reference; NULL if there is none now.
 *
 * Context: between ferry_online_mems_begin() and ferry_online_mems_end().
 */
struct folio *ferry_folio_get_pfn(unsigned long pfn, int nid)
{
	struct page *page = pfn_to_online_page(pfn);
	struct folio *folio;

	/* Users of other types of pages need not see a reference. */
	if (!page || PageTail(page) || !PageLRU(page))
		return NULL;
	folio = page_folio(page);
	if (!folio_try_get(folio))
		return NULL;
	/* It may have become another folio before the reference was taken. */
	if (folio_page(folio, 0) == page && page_folio(page) == folio &&
	    folio_test_lru(folio) && folio_nid(folio) == nid)
		return folio;
	folio_put(folio);
	return NULL;
}

/* Returns whether the folio is still in use: the record may be old. */
static bool ferry_in_use(const struct folio *folio)
{
	return lru_gen_enabled() ? folio_test_workingset(folio) :
				   folio_test_active(folio);
}

/*
 * Returns whether buffers of a block device are in use, which counts as a use
 * of the folio. Otherwise buffer_migrate_folio_norefs() would call all CPUs to
 * drop their buffers. The folio is locked.
 */
static bool ferry_buffers_in_use(struct folio *folio)
{
	const struct address_space_operations *ops = folio->mapping->a_ops;
	struct buffer_head *head = folio_buffers(folio), *bh = head;

	if (!head || ops->migrate_folio != buffer_migrate_folio_norefs)
		return false;
	do {
		if (atomic_read(&bh->b_count))
			return true;
		bh = bh->b_this_page;
	} while (bh != head);
	return false;
}

/*
 * Returns whether the folio is in the page cache of a file, which may be one of
 * tmpfs. Drivers that keep objects there may need memory of a low zone. The
 * folio is locked.
 */
static bool ferry_in_page_cache(const struct folio *folio)
{
	const struct address_space *mapping = folio->mapping;

	return !folio_test_anon(folio) && !folio_test_hugetlb(folio) &&
	       !folio_test_swapcache(folio) && mapping &&
	       (!folio_test_swapbacked(folio) || shmem_mapping(mapping)) &&
	       !(mapping_gfp_mask(mapping) & (__GFP_DMA | __GFP_DMA32));
}

/*
 * Returns whether a file of tmpfs has a memory policy of its own for the folio,
 * by mbind() or a mount option. The folio is locked.
 */
static bool ferry_has_policy(const struct folio *folio)
{
	struct mempolicy *policy;

	if (!folio_test_swapbacked(folio))
		return false;
	policy = mpol_shared_policy_lookup(&SHMEM_I(folio->mapping->host)->policy,
					   folio->index);
	mpol_cond_put(policy);
	return policy;
}

/*
 * Returns whether the filesystem moves dirty folios without I/O, and without
 * waiting. Others refuse them in MIGRATE_ASYNC mode, or always.
 */
static bool ferry_moves_dirty(const struct address_space *mapping)
{
	return mapping->a_ops->migrate_folio == migrate_folio ||
	       mapping->a_ops->migrate_folio == filemap_migrate_folio ||
	       mapping->a_ops->migrate_folio == buffer_migrate_folio ||
	       mapping->a_ops->migrate_folio == buffer_migrate_folio_norefs;
}

static enum ferry_promotion_refusal
ferry_unpromoted_locked(struct folio *folio)
{
	if (!ferry_in_page_cache(folio))
		return FERRY_UNPROMOTED_NOT_FILE;
	if (folio_test_unevictable(folio))
		return FERRY_UNPROMOTED_UNEVICTABLE;
	if (!folio_test_lru(folio))
		return FERRY_UNPROMOTED_OFF_LRU;
	if (folio_mapped(folio))
		return FERRY_UNPROMOTED_MAPPED;
	if (folio_test_writeback(folio))
		return FERRY_UNPROMOTED_WRITEBACK;
	if (folio_test_dirty(folio) && !ferry_moves_dirty(folio->mapping))
		return FERRY_UNPROMOTED_DIRTY;
	if (ferry_has_policy(folio))
		return FERRY_UNPROMOTED_POLICY;
	if (folio_test_dropbehind(folio))
		return FERRY_UNPROMOTED_DROPBEHIND;
	if (!ferry_in_use(folio))
		return FERRY_UNPROMOTED_COLD;
	/* One reference is the caller's. Extra references prevent migration. */
	if (folio_ref_count(folio) > folio_expected_ref_count(folio) + 1 ||
	    ferry_buffers_in_use(folio))
		return FERRY_UNPROMOTED_BUSY;
	return FERRY_UNPROMOTED_NONE;
}

/**
 * ferry_unpromoted() - return the reason not to promote a folio, if there is
 * one
 * @folio: the folio; the caller holds a reference, and it was on an LRU list
 * @cached: receives its position in the page cache, if it may be promoted
 *
 * The result may change at any time. Takes the folio lock by trylock.
 */
enum ferry_promotion_refusal ferry_unpromoted(struct folio *folio,
					      struct ferry_cached *cached)
{
	enum ferry_promotion_refusal why;

	if (!folio_trylock(folio))
		return FERRY_UNPROMOTED_LOCKED;
	why = ferry_unpromoted_locked(folio);
	if (why == FERRY_UNPROMOTED_NONE)
		ferry_folio_cached(folio, cached);
	folio_unlock(folio);
	return why;
}

static bool ferry_is_target(int nid)
{
	return nid >= 0 && nid < MAX_NUMNODES && node_state(nid, N_MEMORY) &&
	       node_isset(nid, ferry_top_nodes);
}

/*
 * Returns whether a node of the top tier has room for @pages base pages above
 * its watermarks. @nid may be any number.
 */
bool ferry_has_room(int nid, unsigned int pages)
{
	return ferry_is_target(nid) &&
	       migrate_balanced_pgdat(NODE_DATA(nid), pages);
}

/*
 * Isolates a folio, on which the caller holds a reference, to the end of a
 * list. Returns false if there is no room for it, if another task has isolated
 * it, or if the node is no longer in the top tier.
 */
bool ferry_isolate_promoted(struct folio *folio, int nid, struct list_head *list)
{
	if (!ferry_is_target(nid) ||
	    !node_isset(folio_nid(folio), ferry_lower_nodes) ||
	    migrate_misplaced_folio_prepare(folio, NULL, nid))
		return false;
	list_add_tail(&folio->lru, list);
	return true;
}

/*
 * Moves the first folio of a list, and all others of its cgroup and order, to
 * another list. A single order, since migration ends where a large folio cannot
 * be allocated. Returns the cgroup, with a reference.
 */
static struct mem_cgroup *ferry_take_of_memcg(struct list_head *from,
					      struct list_head *to)
{
	struct folio *folio = list_first_entry(from, struct folio, lru), *next;
	struct mem_cgroup *memcg = get_mem_cgroup_from_folio(folio);
	unsigned int order = folio_order(folio);

	list_move_tail(&folio->lru, to);
	list_for_each_entry_safe(folio, next, from, lru) {
		struct mem_cgroup *other;

		if (folio_order(folio) != order)
			continue;
		rcu_read_lock();
		other = folio_memcg(folio);
		rcu_read_unlock();
		/* Only compared. A folio without a cgroup counts for the root. */
		if (other == memcg || (!other && mem_cgroup_is_root(memcg)))
			list_move_tail(&folio->lru, to);
	}
	return memcg;
}

/*
 * Migrates isolated folios. Puts back the folios that were not migrated, so the
 * list is empty afterwards. Accounts as migrate_misplaced_folio() does, but
 * counts promotions in every mode of NUMA balancing, since that mode does not
 * control the promotion of page cache. Returns the number of base pages
 * migrated. May sleep.
 */
unsigned int ferry_promote(struct list_head *list, int nid)
{
	unsigned int nr_pages = 0;
	LIST_HEAD(folios);

	while (!list_empty(list)) {
		struct mem_cgroup *memcg = ferry_take_of_memcg(list, &folios);
		bool promotes = node_is_toptier(nid) &&
				!node_is_toptier(folio_nid(lru_to_folio(&folios)));
		struct migrate_control mc = {
			.get_new_folio	= alloc_misplaced_dst_folio,
			.private	= nid,
			.mode		= MIGRATE_ASYNC,
			.reason		= MR_NUMA_MISPLACED,
			.shared		= MIGRATE_SHARED_NODE,
		};
		unsigned int nr;

		migrate_folios(&folios, &mc);
		putback_movable_pages(&folios);
		nr = mc.stats.nr_succeeded;
		if (nr) {
			count_vm_numa_events(NUMA_PAGE_MIGRATE, nr);
			count_memcg_events(memcg, NUMA_PAGE_MIGRATE, nr);
		}
		if (nr && promotes)
			mod_lruvec_state(mem_cgroup_lruvec(memcg, NODE_DATA(nid)),
					 PGPROMOTE_SUCCESS, nr);
		mem_cgroup_put(memcg);
		nr_pages += nr;
	}
	return nr_pages;
}
