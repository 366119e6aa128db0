/* SPDX-License-Identifier: GPL-2.0-only */
/* Ferry: C functions that Rust calls, beside the hooks of <linux/ferry.h>. */
#ifndef _LINUX_FERRY_GLUE_H
#define _LINUX_FERRY_GLUE_H

#include "ferry.h"
#include "ferry_counters.h"
#include "ferry_dma.h"
#include "ferry_syscall.h"
#ifdef CONFIG_FERRY_PAGECACHE_PROMOTION
#include "ferry_promotion.h"
#endif
#ifdef CONFIG_FERRY_MIGRC
#include "ferry_group.h"
#endif
#ifdef CONFIG_FERRY_SERVICE
#include "ferry_service.h"
#endif

/* vm.limit_mt_num: threads that work on a call, including the caller */
#define FERRY_MAX_THREADS	32

/* Settings, see docs/admin-guide.rst; Rust has the values and defaults. */
enum ferry_setting {
	FERRY_SET_COPY,
	FERRY_SET_LIMIT,
	FERRY_SET_PULL,
	FERRY_SET_CREW,
	FERRY_SET_ANY_CPU,
	FERRY_SET_QUEUE,
	FERRY_SET_THREADS,
	FERRY_SET_MIN_KB,
	FERRY_SET_UNMAPPED_US,
	FERRY_SET_NONTEMPORAL,
	FERRY_SET_METHOD,
	FERRY_SET_DMA_CHANNELS,
	FERRY_SET_DMA_MIN_BYTES,
	FERRY_SET_DMA_TIMEOUT_MS,
	FERRY_NR_SETTINGS
};

/**
 * struct ferry_copied - what became of the posted folios of a batch
 * @copy_ns: time that the migrating task spent copying or waiting for copies
 * @folios: folios whose content is in place
 * @pages: base pages posted; 0 if nothing was posted
 * @helped: base pages copied by helpers
 * @by_dma: base pages copied by DMA engines
 */
struct ferry_copied {
	s64 copy_ns;
	u32 folios;
	u32 pages;
	u32 helped;
	u32 by_dma;
};

/**
 * struct ferry_context - attributes of a task that migration depends on
 * @memcg: memory cgroup charged for allocations during migration
 * @mems_allowed: nodes that its cpuset allows
 * @mems_seq: sequence count under which @mems_allowed was read
 * @flags: its allocation scopes, PF_MEMALLOC_*
 */
struct ferry_context {
	struct mem_cgroup *memcg;
	nodemask_t mems_allowed;
	unsigned int mems_seq;
	unsigned int flags;
};

/**
 * struct ferry_call_target - a copy of a struct migration_target_control
 * @nid:	its @nid
 * @has_nodes:	whether its @nmask is not NULL
 * @gfp_mask:	its @gfp_mask
 * @reason:	its @reason
 * @nodes:	the nodes that its @nmask points to
 */
struct ferry_call_target {
	int nid;
	bool has_nodes;
	gfp_t gfp_mask;
	enum migrate_reason reason;
	nodemask_t nodes;
};

/**
 * struct ferry_shared_call - a migrate_folios() call shared by several tasks
 * @call: the call, without @private
 * @pol: memory policy of MIGRATE_SHARED_MPOL, with a reference; else NULL
 * @ilx: its interleave index
 * @target: the private data of MIGRATE_SHARED_TARGET; only @nid of
 *	MIGRATE_SHARED_NODE
 */
struct ferry_shared_call {
	struct migrate_control call;
	struct mempolicy *pol;
	pgoff_t ilx;
	struct ferry_call_target target;
};

/**
 * struct ferry_addr_list - addresses whose folios are isolated
 * @mm: address space
 * @pages: the addresses
 * @nr: number of addresses
 * @node: destination node
 * @all: also isolate folios that other processes map
 * @wait: wait for the mmap lock
 * @settled: stop before a folio that an LRU cache of a CPU may hold
 * @alone: cleared if one of the folios is large or is also mapped elsewhere
 * @err: result of add_folio_for_migration() for the first folio that is not
 *	queued, -EBUSY also because of @settled; 1 if it was not examined, because of
 *	lock contention or a pending reschedule
 */
struct ferry_addr_list {
	struct mm_struct *mm;
	const unsigned long *pages;
	int nr;
	int node;
	bool all;
	bool wait;
	bool settled;
	bool alone;
	int err;
};

/**
 * struct ferry_crew_report - work of a crew, for its tracepoint
 * @ns: time from taking the list until it is complete
 * @reason: migration reason
 * @helpers: maximum number of helpers
 * @chunks: number of chunks of the list
 * @helped: number of chunks that helpers took
 * @pages: base pages of all chunks
 * @helped_pages: base pages of the chunks that helpers took
 */
struct ferry_crew_report {
	s64 ns;
	s32 reason;
	u32 helpers;
	u32 chunks;
	u32 helped;
	u32 pages;
	u32 helped_pages;
};

/* Values of copy/queue */
enum ferry_queue {
	FERRY_QUEUE_BOUND,
	FERRY_QUEUE_UNBOUND,
	FERRY_QUEUE_HIGHPRI,
};

/* Values of copy/nontemporal */
enum ferry_nontemporal {
	FERRY_NT_NEVER,
	FERRY_NT_DEMOTION,
	FERRY_NT_ALWAYS,
};

/* Values of copy/method */
enum ferry_method {
	FERRY_METHOD_AUTO,
	FERRY_METHOD_SERIAL,
	FERRY_METHOD_CPU,
	FERRY_METHOD_DMA,
	FERRY_METHOD_HYBRID,
};

/* Values of copy/mt_flag: callers that get help with MPOL_MF_MOVE_MT */
enum ferry_mt_flag {
	FERRY_MT_ALLOW,
	FERRY_MT_PRIVILEGED,
	FERRY_MT_IGNORE,
};

/* Reasons not to look for helpers; file names in sysfs */
enum ferry_help_refusal {
	FERRY_UNHELPED_MT_FLAG,
	FERRY_UNHELPED_CPU_QUOTA,
	FERRY_UNHELPED_LOW_WEIGHT,
	FERRY_NR_HELP_REFUSALS
};

/* Durations that are shown as histograms. */
enum ferry_time {
	FERRY_TIME_UNMAPPED,
	FERRY_TIME_FIRST_FOLIO,
	FERRY_NR_TIMES
};

/* c-glue/sysfs/settings.c */
struct attribute_group;
extern const struct attribute_group ferry_settings_group;
void ferry_count_time(enum ferry_time what, s64 ns);
void ferry_dma_gone(void);

/* c-glue/copy/x86/copy_nt.S */
unsigned long ferry_copy_nt(void *dst, const void *src, unsigned long len);

/* c-glue/isolate/isolate.c */
int ferry_isolate_pages(struct ferry_addr_list *list, struct list_head *pagelist);

/* c-glue/crew/move_pages.c */
unsigned long ferry_untag(struct mm_struct *mm, unsigned long addr);
int ferry_check_node(int node, const nodemask_t *allowed);
void *ferry_move_target(int node);
void ferry_move_call(struct migrate_control *call, void *target, bool mt);
int ferry_move_to_node(struct list_head *pagelist, int node, bool mt,
		       unsigned int *succeeded);

/* c-glue/crew/crew.c */
void ferry_context_get(struct ferry_context *context);
void ferry_context_put(struct ferry_context *context);
bool ferry_context_changed(const struct ferry_context *context);
void ferry_context_enter(const struct ferry_context *context,
			 struct ferry_context *saved);
void ferry_context_leave(const struct ferry_context *context,
			 const struct ferry_context *saved);
void ferry_context_wait(const struct ferry_context *context);
void ferry_call_share(const struct migrate_control *call,
		      struct ferry_shared_call *shared);
void ferry_call_unshare(struct ferry_shared_call *shared);
int ferry_migrate_chunk(const struct ferry_shared_call *shared,
			struct list_head *folios,
			struct migrate_pages_stats *stats);
int ferry_migrate_rest(const struct migrate_control *call, struct list_head *folios,
		       struct migrate_pages_stats *stats);
void ferry_trace_migrate_start(const struct migrate_control *call);
void ferry_migrate_account(const struct migrate_control *call,
			   const struct migrate_pages_stats *stats);
bool ferry_may_crew(enum migrate_reason reason, bool mt);
bool ferry_still_wanted(const struct migrate_control *call);
bool ferry_callback_is_shared(const struct migrate_control *call);
int ferry_target_node(unsigned long private);
void ferry_list_splice_tail_init(struct list_head *list,
				 struct list_head *head);
void ferry_list_cut_position(struct list_head *list, struct list_head *head,
			     struct list_head *entry);
void ferry_list_del_init(struct list_head *entry);
void ferry_report_crew(const struct ferry_crew_report *report);

/* c-glue/sysfs/knobs.c */
extern struct kobject *ferry_kobj;
void ferry_count_helped(int reason, unsigned long nr_pages);
void ferry_count_help_refusal(enum ferry_help_refusal why);
int ferry_dma_prepare(void);
void ferry_dma_taken(bool taken);

/* kernel/sched/core.c */
unsigned long sched_task_weight(struct task_struct *p);

/* kernel/sched/fair.c */
#ifdef CONFIG_CGROUP_SCHED
bool cfs_task_bw_constrained(struct task_struct *p);
#else
static inline bool cfs_task_bw_constrained(struct task_struct *p)
{
	return false;
}
#endif

/* c-glue/helpers/cpu.c */
bool ferry_cpu_online(int cpu);
bool ferry_cpu_may_help(int cpu);
bool ferry_cpu_idle(int cpu);
bool ferry_cpu_allowed(int cpu);
bool ferry_task_confined(void);
bool ferry_task_is_kswapd(void);
bool ferry_task_reclaims(void);
bool ferry_task_is_killed(void);
bool ferry_task_has_quota(void);
unsigned int ferry_task_weight(void);
int ferry_cpu_to_node(int cpu);
int ferry_cpu_core(int cpu);
int ferry_cpu_llc(int cpu);
int ferry_node_distance(int from, int to);
unsigned int ferry_nr_nodes(void);
u64 ferry_runtime(void);
unsigned long ferry_task_preemptions(void);
unsigned long ferry_task_switches(void);
void ferry_charge_cgroup(u64 ns);
bool ferry_others_want_cpu(void);

/* c-glue/helpers/glue.c: wrappers of inline functions and macros */
bool ferry_folio_has_movable_ops(const struct folio *folio);
bool ferry_mapping_is_regular(struct address_space *mapping);
const void *ferry_mapping_migrate_op(struct address_space *mapping);
bool ferry_folio_test_private(const struct folio *folio);
bool ferry_folio_test_anon(const struct folio *folio);
bool ferry_folio_test_hugetlb(const struct folio *folio);
bool ferry_hugetlb_has_tags(const struct folio *folio);
int ferry_folio_ref_count(const struct folio *folio);
int ferry_folio_expected_ref_count(const struct folio *folio);
unsigned long ferry_folio_nr_pages(const struct folio *folio);
int ferry_folio_nid(const struct folio *folio);
unsigned long ferry_folio_index(const struct folio *folio);
void ferry_folio_mark_posted(struct folio *dst);
bool ferry_folio_take_posted(struct folio *dst);
int ferry_folio_copy_pages(struct folio *dst, struct folio *src,
			   unsigned long first, unsigned long nr);
int ferry_folio_copy_pages_nt(struct folio *dst, struct folio *src,
			      unsigned long first, unsigned long nr);
bool ferry_demotes(int from, int to);
struct folio *ferry_folio_alloc(gfp_t gfp, unsigned int order);
void ferry_folio_get(struct folio *folio);
void ferry_folio_put(struct folio *folio);
bool ferry_folio_trylock(struct folio *folio);
void *ferry_folio_address(const struct folio *folio);
void ferry_count_stat(enum ferry_stat stat, unsigned long nr);
void ferry_preempt_disable(void);
void ferry_preempt_enable(void);
void ferry_cond_resched(void);
bool ferry_need_resched(void);
#ifdef CONFIG_FERRY_KUNIT_TEST
void ferry_set_need_resched(void);
#endif
void ferry_lru_disable(void);
void ferry_lru_enable(void);
void ferry_online_mems_begin(void);
void ferry_online_mems_end(void);
struct workqueue_struct *ferry_alloc_workqueue(const char *name,
					       unsigned int flags);
void ferry_warn_order(void);
struct workqueue_struct *ferry_alloc_workqueue_near(const char *name);
void ferry_report_batch(const struct ferry_batch *batch,
			const struct ferry_copied *copied, int reason,
			s64 unmapped_ns);

/* rust/crew/hooks.rs */
#if defined(CONFIG_FERRY_CREW_KUNIT_TEST) && defined(CONFIG_NUMA_MIGRATION)
int ferry_dismiss_midway(struct list_head *first, struct list_head *more,
			 unsigned int pages, int node, const nodemask_t *nodes);
#endif

/* rust/copy/hooks.rs */
int ferry_prepare(void);
int ferry_set(enum ferry_setting which, unsigned int value);
unsigned int ferry_get(enum ferry_setting which);

#endif /* _LINUX_FERRY_GLUE_H */
