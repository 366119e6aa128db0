/* SPDX-License-Identifier: GPL-2.0-only */
/* Ferry: C functions that the service of /dev/page_migrate calls. */
#ifndef _LINUX_FERRY_SERVICE_H
#define _LINUX_FERRY_SERVICE_H

#include <linux/nodemask.h>
#include <linux/page_migrate.h>
#include <linux/types.h>

struct file;
struct folio;
struct list_head;
struct mm_struct;

/**
 * struct ferry_target - a process whose pages are migrated
 * @mm: its address space, with a reference on its users
 * @nodes: nodes that its cpuset and the caller's cpuset allow
 */
struct ferry_target {
	struct mm_struct *mm;
	nodemask_t nodes;
};

/**
 * struct ferry_range - a range of addresses whose folios are isolated
 * @mm: address space
 * @addr: next address; page-aligned
 * @end: end of the range, exclusive; page-aligned
 * @node: destination node
 * @all: also isolate folios that other processes map
 * @holes: skip unmapped addresses
 * @wait: wait for the mmap lock
 * @take_hugetlb: isolate hugetlb folios; if false, the walk ends before the
 *	first one
 * @want: base pages to isolate before returning
 * @isolated: base pages isolated
 * @failed: base pages that could not be isolated, by reason
 * @large_pfn: first page frame of the last large folio that was isolated. PTEs
 *	of the next page table may map the rest of it. It may have been
 *	migrated meanwhile.
 * @large_end: the page frame after its last one
 * @hugetlb: hugetlb folios are among the isolated ones
 */
struct ferry_range {
	struct mm_struct *mm;
	unsigned long addr;
	unsigned long end;
	int node;
	bool all;
	bool holes;
	bool wait;
	bool take_hugetlb;
	bool hugetlb;
	unsigned long want;
	unsigned long isolated;
	unsigned long failed[PAGE_MIGRATE_NR_FAILURES];
	unsigned long large_pfn;
	unsigned long large_end;
};

/**
 * struct ferry_mapped - page frames that may be mapped at consecutive
 * addresses
 * @mm: address space, with a reference on its users
 * @addr: first address; page-aligned
 * @pfns: page frame numbers; need not be valid
 * @nr: number of page frames
 * @node: destination node
 * @all: also isolate folios that other processes map
 */
struct ferry_mapped {
	struct mm_struct *mm;
	unsigned long addr;
	const u64 *pfns;
	unsigned long nr;
	int node;
	bool all;
};

/**
 * struct ferry_moving - isolated folios of one node, before they are counted
 * @from: their node
 * @to: destination node
 * @pages: their base pages
 */
struct ferry_moving {
	int from;
	int to;
	unsigned long pages;
};

/* Processes that map a folio, relative to one address space */
enum ferry_owner {
	FERRY_OWNER_OTHERS,	/* other processes, or none */
	FERRY_OWNER_ALONE,	/* only this one */
	FERRY_OWNER_SHARED,	/* this one and others */
	FERRY_OWNER_UNKNOWN,	/* fatal signal, or may not sleep */
};

/* Files in sysfs; in struct page_migrate_counters in this order */
enum ferry_service_event {
	FERRY_SERVICE_PHYS_CALLS,
	FERRY_SERVICE_PHYS_ENTRIES,
	FERRY_SERVICE_PHYS_IGNORED,
	FERRY_SERVICE_RANGE_CALLS,
	FERRY_SERVICE_SUCCESSFUL,
	FERRY_SERVICE_FAILED,
	FERRY_SERVICE_REFUSED,
	FERRY_SERVICE_ABORTED,
	FERRY_SERVICE_PHYS_USEC,
	FERRY_SERVICE_RANGE_USEC,
	FERRY_SERVICE_FAILURES,	/* the first one */
	FERRY_SERVICE_ERRORS = FERRY_SERVICE_FAILURES +	/* the first one */
			       PAGE_MIGRATE_NR_FAILURES,
	FERRY_NR_SERVICE_EVENTS = FERRY_SERVICE_ERRORS + PAGE_MIGRATE_NR_ERRORS
};

/**
 * struct ferry_service_report - a call of the service, for its tracepoint
 * @phys: the call is by physical address
 * @flags: as the caller gave them, like the next three
 * @length: entries or bytes
 * @node: "
 * @pid: "
 * @error: return value of the call
 * @successful: base pages migrated
 * @failed: base pages that could not be migrated
 */
struct ferry_service_report {
	bool phys;
	u32 flags;
	u64 length;
	s32 node;
	s32 pid;
	s32 error;
	u64 successful;
	u64 failed;
};

/* c-glue/service/service.c */
int ferry_target_find(struct ferry_target *target, int pid, bool pidfd);
void ferry_target_put(struct ferry_target *target);
int ferry_target_untag(const struct ferry_target *target, unsigned long *addr);
bool ferry_capable(int cap);
bool ferry_opened_with(struct file *file, int cap);
int ferry_isolate_range(struct ferry_range *range, struct list_head *folios);
struct folio *ferry_folio_at(unsigned long pfn, bool *unsettled);
int ferry_folio_lock_killable(struct folio *folio);
void ferry_folio_unlock(struct folio *folio);
bool ferry_folio_is_mapped(struct folio *folio);
enum ferry_owner ferry_folio_owner(struct folio *folio, struct mm_struct *mm,
				   bool wait, unsigned long *addr);
unsigned long ferry_isolate_next(const struct ferry_mapped *mapped,
				 struct list_head *folios);
bool ferry_folio_is_refused(struct folio *folio);
bool ferry_folio_isolate(struct folio *folio, int node,
			 struct list_head *folios);
void ferry_lru_drain(void);
void ferry_count_service(unsigned int what, unsigned long nr);
u64 ferry_service_sum(unsigned int what);
void ferry_moving_add(struct ferry_moving *moving, const struct folio *folio);
void ferry_moving_end(struct ferry_moving *moving);
void ferry_service_not_moved(const struct list_head *folios, int node);
u64 ferry_service_moved(unsigned int from, unsigned int to);
unsigned int ferry_service_nodes(void);
void ferry_report_service(const struct ferry_service_report *report);

/* rust/service/hooks.rs */
int ferry_service_register(void);

#endif /* _LINUX_FERRY_SERVICE_H */
