/* SPDX-License-Identifier: GPL-2.0-only */
/* Ferry: tracepoints, in the group "ferry". */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ferry

#if !defined(_FERRY_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _FERRY_TRACE_H

#include <linux/tracepoint.h>

/*
 * A batch that the engine copied. unmapped_ns is the time from before the
 * first unmap to after the last remap: an upper bound for each of its folios.
 */
TRACE_EVENT(ferry_batch,

	TP_PROTO(const struct ferry_batch *batch,
		 const struct ferry_copied *copied, int reason,
		 s64 unmapped_ns),

	TP_ARGS(batch, copied, reason, unmapped_ns),

	TP_STRUCT__entry(
		__field(int,	reason)
		__field(u32,	folios)
		__field(u32,	pages)
		__field(u32,	helpers)
		__field(u32,	helped_pages)
		__field(u32,	dma_pages)
		__field(bool,	nontemporal)
		__field(s64,	copy_ns)
		__field(s64,	unmapped_ns)
	),

	TP_fast_assign(
		__entry->reason		= reason;
		__entry->folios		= copied->folios;
		__entry->pages		= copied->pages;
		__entry->helpers	= batch->helpers;
		__entry->helped_pages	= copied->helped;
		__entry->dma_pages	= copied->by_dma;
		__entry->nontemporal	= batch->nontemporal;
		__entry->copy_ns	= copied->copy_ns;
		__entry->unmapped_ns	= unmapped_ns;
	),

	TP_printk("reason=%s folios=%u pages=%u helpers=%u helped_pages=%u dma_pages=%u method=%s copy_ns=%lld unmapped_ns=%lld",
		  __print_symbolic(__entry->reason, MIGRATE_REASON),
		  __entry->folios, __entry->pages, __entry->helpers,
		  __entry->helped_pages, __entry->dma_pages,
		  __entry->nontemporal ? "nontemporal" : "cached",
		  __entry->copy_ns, __entry->unmapped_ns)
);

#ifdef CONFIG_FERRY_CREW
/*
 * A migrate_folios() call that a crew worked on. ns is the time from taking the
 * list until it is complete.
 */
TRACE_EVENT(ferry_crew,

	TP_PROTO(const struct ferry_crew_report *report),

	TP_ARGS(report),

	TP_STRUCT__entry(
		__field(int,	reason)
		__field(u32,	pages)
		__field(u32,	chunks)
		__field(u32,	helped_chunks)
		__field(u32,	helped_pages)
		__field(u32,	helpers)
		__field(s64,	ns)
	),

	TP_fast_assign(
		__entry->reason		= report->reason;
		__entry->pages		= report->pages;
		__entry->chunks		= report->chunks;
		__entry->helped_chunks	= report->helped;
		__entry->helped_pages	= report->helped_pages;
		__entry->helpers	= report->helpers;
		__entry->ns		= report->ns;
	),

	TP_printk("reason=%s pages=%u chunks=%u helped_chunks=%u helped_pages=%u helpers=%u ns=%lld",
		  __print_symbolic(__entry->reason, MIGRATE_REASON),
		  __entry->pages, __entry->chunks, __entry->helped_chunks,
		  __entry->helped_pages, __entry->helpers, __entry->ns)
);
#endif

#ifdef CONFIG_FERRY_SERVICE
/* A call of /dev/page_migrate, with the arguments of the caller. */
TRACE_EVENT(ferry_service,

	TP_PROTO(const struct ferry_service_report *report),

	TP_ARGS(report),

	TP_STRUCT__entry(
		__field(bool,	phys)
		__field(u32,	flags)
		__field(u64,	length)
		__field(s32,	node)
		__field(s32,	pid)
		__field(s32,	error)
		__field(u64,	successful)
		__field(u64,	failed)
	),

	TP_fast_assign(
		__entry->phys		= report->phys;
		__entry->flags		= report->flags;
		__entry->length		= report->length;
		__entry->node		= report->node;
		__entry->pid		= report->pid;
		__entry->error		= report->error;
		__entry->successful	= report->successful;
		__entry->failed		= report->failed;
	),

	TP_printk("by=%s flags=%#x length=%llu node=%d pid=%d error=%d successful=%llu failed=%llu",
		  __entry->phys ? "phys" : "range", __entry->flags,
		  __entry->length, __entry->node, __entry->pid, __entry->error,
		  __entry->successful, __entry->failed)
);
#endif

#endif /* _FERRY_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE ferry_trace
#include <trace/define_trace.h>
