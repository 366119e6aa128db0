// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: C part of /dev/page_migrate: address spaces of processes, page table
 * walks, wrappers of inline functions, counters and the tracepoint. The part
 * for physical addresses is in c-glue/service/phys.c.
 *
 * Locks: exec_update_lock of a process, alone, while its address space is
 * looked up. For page table walks, in this order:
 *
 * 1. the mmap lock of the process, for reading;
 * 2. one PTL at a time;
 * 3. the locks of isolation.
 */
#include <linux/capability.h>
#include <linux/cpuset.h>
#include <linux/ferry_counters.h>
#include <linux/ferry_glue.h>
#include <linux/hugetlb.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/leafops.h>
#include <linux/mempolicy.h>
#include <linux/pagemap.h>
#include <linux/pagewalk.h>
#include <linux/percpu.h>
#include <linux/pid.h>
#include <linux/ptrace.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/secretmem.h>
#include <linux/security.h>
#include <linux/sizes.h>
#include <linux/swap.h>

#include <ferry_trace.h>

/* folio_pte_batch(), folio_isolate_lru() */
#include "internal.h"

static DEFINE_PER_CPU(unsigned long [FERRY_NR_SERVICE_EVENTS], ferry_served);

/* Base pages by pair of nodes: from, to. nr_node_ids of each. */
static atomic_long_t *ferry_moved __ro_after_init;

bool ferry_capable(int cap)
{
	return capable(cap);
}

/*
 * Returns whether the task that opened the file had a capability in the
 * initial user namespace.
 */
bool ferry_opened_with(struct file *file, int cap)
{
	return file_ns_capable(file, &init_user_ns, cap);
}

/*
 * Same as find_mm_struct() of move_pages(2) for a process other than the
 * caller.
 */
static struct mm_struct *ferry_mm_of(struct task_struct *task,
				     nodemask_t *nodes)
{
	struct mm_struct *mm;
	int rc;

	if (down_read_killable(&task->signal->exec_update_lock))
		return ERR_PTR(-EINTR);
	rc = -EPERM;
	if (ptrace_may_access(task, PTRACE_MODE_READ_REALCREDS) &&
	    !security_task_movememory(task))
		rc = 0;
	if (rc) {
		mm = ERR_PTR(rc);
	} else {
		*nodes = cpuset_mems_allowed(task);
		mm = get_task_mm(task);
	}
	up_read(&task->signal->exec_update_lock);
	if (!mm)
		mm = ERR_PTR(task->flags & PF_KTHREAD ? -EINVAL : -ESRCH);
	return mm;
}

/**
 * ferry_target_find() - find a process whose pages the caller may migrate
 * @target: filled in; released with ferry_target_put()
 * @pid: a thread of the process; 0 for the caller
 * @pidfd: @pid is a pidfd
 *
 * Context: process context, may sleep.
 *
 * Return: 0; ESRCH: no such process; EBADF: not a pidfd; EPERM: the caller may
 * not migrate its pages, or a security module denies it; EINVAL: a kernel
 * thread; EINTR.
 */
int ferry_target_find(struct ferry_target *target, int pid, bool pidfd)
{
	nodemask_t own = cpuset_mems_allowed(current);
	struct task_struct *task;
	unsigned int unused;

	if (!pid && !pidfd) {
		if (!current->mm)
			return -EINVAL;
		target->mm = current->mm;
		target->nodes = own;
		mmget(target->mm);
		return 0;
	}
	if (pidfd)
		task = pidfd_get_task(pid, &unused);
	else
		task = find_get_task_by_vpid(pid) ?: ERR_PTR(-ESRCH);
	if (IS_ERR(task))
		return PTR_ERR(task);
	target->mm = ferry_mm_of(task, &target->nodes);
	put_task_struct(task);
	if (IS_ERR(target->mm))
		return PTR_ERR(target->mm);
	nodes_and(target->nodes, target->nodes, own);
	return 0;
}

/* May sleep. */
void ferry_target_put(struct ferry_target *target)
{
	mmput(target->mm);
}

/* Removes the tag of an address. Returns 0 or -EINTR. May sleep. */
int ferry_target_untag(const struct ferry_target *target, unsigned long *addr)
{
	if (mmap_read_lock_killable(target->mm))
		return -EINTR;
	*addr = untagged_addr_remote(target->mm, *addr);
	mmap_read_unlock(target->mm);
	return 0;
}

/**
 * ferry_folio_is_refused() - return whether a folio must not be migrated
 * @folio: the folio; locked, or mapped with the PTL held
 *
 * Return: true for device memory and reserved pages, if a page is poisoned, if
 * the folio may be pinned for DMA, or if its content is inaccessible to the
 * kernel.
 */
bool ferry_folio_is_refused(struct folio *folio)
{
	struct address_space *mapping;

	if (folio_is_zone_device(folio) || folio_test_reserved(folio) ||
	    folio_contain_hwpoisoned_page(folio) ||
	    folio_maybe_dma_pinned(folio))
		return true;
	/* Pages that drivers map may use the mapping field for other data. */
	if (folio_test_anon(folio) || !folio_test_lru(folio))
		return false;
	mapping = folio_mapping(folio);
	return mapping && (mapping_inaccessible(mapping) ||
			   secretmem_mapping(mapping));
}

/* Address range that is walked between two checks for contention. */
#define FERRY_BYTES_PER_LOOK	SZ_1G

struct ferry_walk {
	struct ferry_range *range;
	struct list_head *folios;
	struct ferry_moving moving;
};

/*
 * Returns whether the page is of the last large folio that was isolated. If that
 * was migrated, and the frame has another page now, then the page was mapped
 * after the call began, and may be left out.
 */
static bool ferry_is_isolated(const struct ferry_range *range,
			      unsigned long pfn)
{
	return pfn >= range->large_pfn && pfn < range->large_end;
}

/* Handles a folio that maps @nr_pages of the range. */
static void ferry_walk_folio(struct ferry_walk *walk, struct folio *folio,
			     unsigned long nr_pages)
{
	enum page_migrate_failure failure = PAGE_MIGRATE_FAILED_UNMOVABLE;
	struct ferry_range *range = walk->range;

	if (folio_nid(folio) == range->node ||
	    ferry_is_isolated(range, folio_pfn(folio)))
		return;
	if (!ferry_folio_is_refused(folio)) {
		int rc = __add_folio_for_migration(folio, range->node,
						   walk->folios, range->all);

		if (rc > 0) {
			ferry_moving_add(&walk->moving, folio);
			range->isolated += folio_nr_pages(folio);
		}
		if (rc > 0 && folio_test_large(folio)) {
			range->large_pfn = folio_pfn(folio);
			range->large_end = folio_pfn(folio) +
					   folio_nr_pages(folio);
		}
		if (rc >= 0)
			return;
		failure = rc == -EACCES ? PAGE_MIGRATE_FAILED_SHARED :
					  PAGE_MIGRATE_FAILED_BUSY;
	}
	range->failed[failure] += nr_pages;
}

/*
 * Returns whether to end the walk, because of contention or because enough is
 * isolated.
 */
static int ferry_walk_ends(const struct ferry_walk *walk,
			   struct mm_struct *mm)
{
	return walk->range->isolated >= walk->range->want || need_resched() ||
	       mmap_lock_is_contended(mm) || fatal_signal_pending(current);
}

static void ferry_walk_pmd(struct ferry_walk *walk, pmd_t pmd,
			   unsigned long addr, unsigned long end,
			   struct vm_area_struct *vma)
{
	unsigned long nr_pages = (end - addr) >> PAGE_SHIFT;
	struct folio *folio;

	if (!pmd_present(pmd)) {
		if (pmd_is_migration_entry(pmd))
			walk->range->failed[PAGE_MIGRATE_FAILED_BUSY] += nr_pages;
		return;
	}
	folio = vm_normal_folio_pmd(vma, addr, pmd);
	if (folio && !folio_is_zone_device(folio))
		ferry_walk_folio(walk, folio, nr_pages);
}

/*
 * Walks a page table, or an entry that maps a huge page; see
 * queue_folios_pte_range().
 */
static int ferry_walk_table(pmd_t *pmd, unsigned long addr, unsigned long end,
			    struct mm_walk *mm_walk)
{
	struct ferry_walk *walk = mm_walk->private;
	struct ferry_range *range = walk->range;
	struct vm_area_struct *vma = mm_walk->vma;
	pte_t *start, *ptep, pte;
	struct folio *folio;
	softleaf_t entry;
	unsigned int nr;
	spinlock_t *ptl;	/* PTL of the page table */

	ptl = pmd_trans_huge_lock(pmd, vma);
	if (ptl) {
		ferry_walk_pmd(walk, pmdp_get(pmd), addr, end, vma);
		spin_unlock(ptl);
		range->addr = end;
		return ferry_walk_ends(walk, mm_walk->mm);
	}
	start = pte_offset_map_lock(mm_walk->mm, pmd, addr, &ptl);
	if (!start) {
		mm_walk->action = ACTION_AGAIN;
		return 0;
	}
	for (ptep = start; addr < end && range->isolated < range->want;
	     ptep += nr, addr += nr * PAGE_SIZE) {
		nr = 1;
		pte = ptep_get(ptep);
		if (pte_none(pte))
			continue;
		if (!pte_present(pte)) {
			entry = softleaf_from_pte(pte);
			if (softleaf_is_migration(entry) &&
			    !ferry_is_isolated(range, softleaf_to_pfn(entry)))
				range->failed[PAGE_MIGRATE_FAILED_BUSY]++;
			continue;
		}
		folio = vm_normal_folio(vma, addr, pte);
		if (!folio || folio_is_zone_device(folio) ||
		    folio_test_reserved(folio))
			continue;
		if (folio_test_large(folio))
			nr = folio_pte_batch(folio, ptep, pte,
					     (end - addr) >> PAGE_SHIFT);
		ferry_walk_folio(walk, folio, nr);
	}
	pte_unmap_unlock(start, ptl);
	range->addr = addr;
	return ferry_walk_ends(walk, mm_walk->mm);
}

#ifdef CONFIG_HUGETLB_PAGE
static int ferry_walk_hugetlb(pte_t *ptep, unsigned long hmask,
			      unsigned long addr, unsigned long end,
			      struct mm_walk *mm_walk)
{
	struct ferry_walk *walk = mm_walk->private;
	unsigned long nr_pages = (end - addr) >> PAGE_SHIFT;
	struct ferry_range *range = walk->range;
	unsigned long before = range->isolated;
	spinlock_t *ptl;	/* PTL of the page table */
	pte_t pte;

	ptl = huge_pte_lock(hstate_vma(mm_walk->vma), mm_walk->mm, ptep);
	pte = huge_ptep_get(mm_walk->mm, addr, ptep);
	if (pte_present(pte) && (range->all || !hugetlb_pmd_shared(ptep)))
		ferry_walk_folio(walk, pfn_folio(pte_pfn(pte)), nr_pages);
	else if (pte_present(pte))
		range->failed[PAGE_MIGRATE_FAILED_SHARED] += nr_pages;
	else if (!huge_pte_none(pte) &&
		 softleaf_is_migration(softleaf_from_pte(pte)))
		range->failed[PAGE_MIGRATE_FAILED_BUSY] += nr_pages;
	spin_unlock(ptl);
	range->hugetlb |= range->isolated > before;
	range->addr = end;
	return ferry_walk_ends(walk, mm_walk->mm);
}
#endif

static const struct mm_walk_ops ferry_walk_ops = {
	.pmd_entry	= ferry_walk_table,
#ifdef CONFIG_HUGETLB_PAGE
	.hugetlb_entry	= ferry_walk_hugetlb,
#endif
	.walk_lock	= PGWALK_RDLOCK,
};

/**
 * ferry_isolate_range() - isolate the folios of a range of addresses
 * @range: the range, the position in it, and the result
 * @folios: receives the folios
 *
 * Ends early when enough is isolated, or a lock is contended; @range tells how
 * far it came.
 *
 * Context: process context, may sleep, also for the mmap lock.
 *
 * Return: 0; EFAULT: the next address is not mapped; EINTR: a fatal signal is
 * pending.
 */
int ferry_isolate_range(struct ferry_range *range, struct list_head *folios)
{
	struct ferry_walk walk = {
		.range	= range,
		.folios	= folios,
		.moving	= { .to = range->node },
	};
	struct vm_area_struct *vma;
	unsigned long end;
	int rc = 0;

	if (!range->wait) {
		if (!mmap_read_trylock(range->mm))
			return 0;
	} else if (mmap_read_lock_killable(range->mm)) {
		return -EINTR;
	}
	while (range->addr < range->end) {
		vma = find_vma(range->mm, range->addr);
		if (!vma || vma->vm_start > range->addr) {
			if (!range->holes) {
				rc = -EFAULT;
				break;
			}
			end = vma ? vma->vm_start : range->end;
			range->addr = min(end, range->end);
			continue;
		}
		if (is_vm_hugetlb_page(vma) && !range->take_hugetlb)
			break;
		/* There may be long ranges of empty page tables. */
		end = min3(vma->vm_end, range->end,
			   ALIGN(range->addr + 1, FERRY_BYTES_PER_LOOK));
		if (vma_migratable(vma) && !vma_is_secretmem(vma)) {
			rc = walk_page_range_vma(vma, range->addr, end,
						 &ferry_walk_ops, &walk);
			if (rc)
				break;
		}
		range->addr = end;
		if (ferry_walk_ends(&walk, range->mm))
			break;
	}
	mmap_read_unlock(range->mm);
	ferry_moving_end(&walk.moving);
	return min(rc, 0);
}

/* Moves folios from per-CPU batches to LRU lists. May sleep. */
void ferry_lru_drain(void)
{
	lru_add_drain_all();
}

/* @what: a number below FERRY_NR_SERVICE_EVENTS */
void ferry_count_service(unsigned int what, unsigned long nr)
{
	this_cpu_add(ferry_served[what], nr);
}

u64 ferry_service_sum(unsigned int what)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu(ferry_served, cpu)[what];
	return sum;
}

static atomic_long_t *ferry_moved_between(int from, int to)
{
	return &ferry_moved[from * nr_node_ids + to];
}

/*
 * Counts the folios that were added as migrated, before they are. Concurrent
 * calls share the counter, so it is written once for a run of folios.
 */
void ferry_moving_end(struct ferry_moving *moving)
{
	if (moving->pages)
		atomic_long_add(moving->pages,
				ferry_moved_between(moving->from, moving->to));
	moving->pages = 0;
}

/* Adds an isolated folio; ferry_moving_end() follows. Context: any. */
void ferry_moving_add(struct ferry_moving *moving, const struct folio *folio)
{
	if (folio_nid(folio) != moving->from)
		ferry_moving_end(moving);
	moving->from = folio_nid(folio);
	moving->pages += folio_nr_pages(folio);
}

/* Takes folios that were counted, and stay, out of the count. */
void ferry_service_not_moved(const struct list_head *folios, int node)
{
	const struct folio *folio;

	list_for_each_entry(folio, folios, lru)
		atomic_long_sub(folio_nr_pages(folio),
				ferry_moved_between(folio_nid(folio), node));
}

/* Both nodes are below ferry_service_nodes(). */
u64 ferry_service_moved(unsigned int from, unsigned int to)
{
	return atomic_long_read(ferry_moved_between(from, to));
}

unsigned int ferry_service_nodes(void)
{
	return nr_node_ids;
}

void ferry_report_service(const struct ferry_service_report *report)
{
	trace_ferry_service(report);
}

static const char * const ferry_service_names[FERRY_SERVICE_FAILURES] = {
	[FERRY_SERVICE_PHYS_CALLS]	= "phys_calls",
	[FERRY_SERVICE_PHYS_ENTRIES]	= "phys_entries",
	[FERRY_SERVICE_PHYS_IGNORED]	= "phys_ignored",
	[FERRY_SERVICE_RANGE_CALLS]	= "range_calls",
	[FERRY_SERVICE_SUCCESSFUL]	= "successful",
	[FERRY_SERVICE_FAILED]		= "failed",
	[FERRY_SERVICE_REFUSED]		= "refused",
	[FERRY_SERVICE_ABORTED]		= "aborted",
	[FERRY_SERVICE_PHYS_USEC]	= "phys_usec",
	[FERRY_SERVICE_RANGE_USEC]	= "range_usec",
};

static const char * const ferry_failure_names[PAGE_MIGRATE_NR_FAILURES] = {
	[PAGE_MIGRATE_FAILED_SHARED]	= "shared",
	[PAGE_MIGRATE_FAILED_UNMOVABLE]	= "unmovable",
	[PAGE_MIGRATE_FAILED_BUSY]	= "busy",
	[PAGE_MIGRATE_FAILED_MOVE]	= "move",
};

static const char * const ferry_error_names[PAGE_MIGRATE_NR_ERRORS] = {
	[PAGE_MIGRATE_EPERM]	= "eperm",
	[PAGE_MIGRATE_ESRCH]	= "esrch",
	[PAGE_MIGRATE_EINTR]	= "eintr",
	[PAGE_MIGRATE_EBADF]	= "ebadf",
	[PAGE_MIGRATE_ENOMEM]	= "enomem",
	[PAGE_MIGRATE_EFAULT]	= "efault",
	[PAGE_MIGRATE_ENODEV]	= "enodev",
	[PAGE_MIGRATE_EINVAL]	= "einval",
	[PAGE_MIGRATE_EOTHER]	= "other",
};

static_assert(PAGE_MIGRATE_NR_FAILURES * sizeof(u64) <=
	      sizeof_field(struct page_migrate_counters, failures));
static_assert(PAGE_MIGRATE_NR_ERRORS * sizeof(u64) <=
	      sizeof_field(struct page_migrate_counters, errors));

static int __init ferry_service_init(void)
{
	struct kobject *service;
	int rc;

	if (!ferry_kobj)
		return -ENOMEM;
	ferry_moved = kvcalloc(nr_node_ids,
			       array_size(nr_node_ids, sizeof(*ferry_moved)),
			       GFP_KERNEL);
	service = kobject_create_and_add("service", ferry_kobj);
	if (!ferry_moved || !service) {
		kobject_put(service);
		kvfree(ferry_moved);
		return -ENOMEM;
	}
	rc = ferry_create_counters(service, NULL, ferry_service_names,
				   ferry_served, FERRY_SERVICE_FAILURES);
	rc = rc ?: ferry_create_counters(service, "failures",
					 ferry_failure_names,
					 ferry_served + FERRY_SERVICE_FAILURES,
					 PAGE_MIGRATE_NR_FAILURES);
	rc = rc ?: ferry_create_counters(service, "errors", ferry_error_names,
					 ferry_served + FERRY_SERVICE_ERRORS,
					 PAGE_MIGRATE_NR_ERRORS);
	rc = rc ?: ferry_service_register();
	if (rc) {
		kobject_put(service);
		kvfree(ferry_moved);
	}
	return rc;
}
late_initcall(ferry_service_init);
