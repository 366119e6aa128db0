/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by the tests of Ferry: settings, counters, two nodes, and memory whose
 * contents and nodes can be checked.
 *
 * The harness runs each test in a child, which may be killed. So the parent
 * saves the settings before the first test and restores them after the last
 * one, also when it is interrupted.
 */
#ifndef _FERRY_TEST_H
#define _FERRY_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "hugepage_settings.h"
#include "vm_util.h"

/* numaif.h may be older than the kernel, and excludes linux/mempolicy.h. */
#ifndef MPOL_MF_MOVE_MT
#define MPOL_MF_MOVE_MT	(1 << 7)
#endif

#define FERRY		"/sys/kernel/mm/ferry/"
#define FERRY_SWITCH	"/proc/sys/vm/mt_page_copy"
#define FERRY_FLAG	FERRY "copy/mt_flag"
#define FERRY_MIGRC	FERRY "migrc/"
#define FERRY_BALANCING	"/proc/sys/kernel/numa_balancing"

/* Attempts until a page that stayed counts as a failure. */
#define FERRY_TRIES	100

struct ferry_setting {
	const char *path;
	char before[256];
};

/* All settings that tests change. A kernel may lack some. */
static struct ferry_setting ferry_settings[] = {
	{ .path = FERRY_SWITCH },
	{ .path = "/proc/sys/vm/limit_mt_num" },
	{ .path = "/proc/sys/vm/mt_page_crew" },
	{ .path = FERRY "copy/cpus" },
	{ .path = FERRY "copy/method" },
	{ .path = FERRY "copy/min_kb" },
	{ .path = FERRY "copy/reasons" },
	{ .path = FERRY "copy/threads" },
	{ .path = FERRY_FLAG },
	{ .path = FERRY_MIGRC "max_age_ms" },
	{ .path = FERRY_MIGRC "max_node_percent" },
	{ .path = FERRY_MIGRC "max_pages" },
	{ .path = FERRY_MIGRC "enabled" },
	{ .path = FERRY_BALANCING },
};

static pid_t ferry_parent;

/* Returns 0 or an error number. */
static inline int ferry_set(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY), err = 0;

	if (fd < 0)
		return errno;
	if (write(fd, value, strlen(value)) < 0)
		err = errno;
	close(fd);
	return err;
}

/* Reads a setting. If all words are shown, the present one has brackets. */
static inline bool ferry_get(const char *path, char *value, size_t room)
{
	char *start, *end;

	if (access(path, R_OK | W_OK) || !read_file(path, value, room))
		return false;
	start = strchr(value, '[');
	end = strchr(value, ']');
	if (start && end) {
		*end = '\0';
		memmove(value, start + 1, end - start);
	}
	return true;
}

static void __attribute__((destructor)) ferry_restore(void)
{
	struct ferry_setting *setting = ferry_settings;
	int err;

	if (getpid() != ferry_parent)
		return;
	for (; setting < ferry_settings + ARRAY_SIZE(ferry_settings); setting++) {
		if (!setting->before[0])
			continue;
		err = ferry_set(setting->path, setting->before);
		if (err)
			ksft_print_msg("%s was not restored: %s\n",
				       setting->path, strerror(err));
	}
}

static void ferry_interrupted(int signal)
{
	/* Restores the settings. */
	exit(128 + signal);
}

static const int ferry_signals[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };

static void __attribute__((constructor)) ferry_save(void)
{
	struct ferry_setting *setting = ferry_settings;
	size_t i;

	ferry_parent = getpid();
	for (; setting < ferry_settings + ARRAY_SIZE(ferry_settings); setting++)
		if (!ferry_get(setting->path, setting->before,
			       sizeof(setting->before)))
			setting->before[0] = '\0';
	for (i = 0; i < ARRAY_SIZE(ferry_signals); i++)
		signal(ferry_signals[i], ferry_interrupted);
}

/* Called by each test: it must not outlive its parent, nor handle signals. */
static inline void ferry_begin_test(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(ferry_signals); i++)
		signal(ferry_signals[i], SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static inline bool ferry_can_change(const char *path)
{
	return !access(path, R_OK | W_OK);
}

/* Reads a number; 0 if the file cannot be read. */
static inline unsigned long ferry_number(const char *path)
{
	char text[32];

	return read_file(path, text, sizeof(text)) ? strtoul(text, NULL, 10) : 0;
}

/* Finds two CPUs that this task may run on. */
static inline bool ferry_find_cpus(int cpus[2])
{
	int cpu, found = 0;
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return false;
	for (cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			cpus[found++] = cpu;
	return found == 2;
}

/* Two nodes with memory. */
struct ferry_nodes {
	int from;
	int to;
};

static inline bool ferry_find_nodes(struct ferry_nodes *nodes)
{
	int node;

	nodes->from = -1;
	nodes->to = -1;
	if (numa_available() < 0)
		return false;
	for (node = 0; node <= numa_max_node() && nodes->to < 0; node++) {
		if (!numa_bitmask_isbitset(numa_all_nodes_ptr, node) ||
		    numa_node_size64(node, NULL) <= 0)
			continue;
		if (nodes->from < 0)
			nodes->from = node;
		else
			nodes->to = node;
	}
	return nodes->to >= 0;
}

/*
 * Lets four threads take part in every migration, on busy CPUs too, so that
 * the outcome does not depend on other load. Returns 0 or an error number.
 */
static inline int ferry_switch_on(void)
{
	static const char * const values[][2] = {
		{ "/proc/sys/vm/limit_mt_num", "4" },
		{ FERRY "copy/cpus", "any" },
		{ FERRY "copy/method", "auto" },
		{ FERRY "copy/min_kb", "auto" },
		{ FERRY "copy/reasons", "all" },
		{ FERRY "copy/threads", "4" },
		{ FERRY_SWITCH, "1" },
	};
	size_t i;
	int err;

	/* Only kernels with crews have it. */
	ferry_set("/proc/sys/vm/mt_page_crew", "1");
	for (i = 0; i < ARRAY_SIZE(values); i++) {
		err = ferry_set(values[i][0], values[i][1]);
		if (err)
			return err;
	}
	return 0;
}

static inline unsigned long ferry_sum(const char * const files[], size_t count)
{
	unsigned long sum = 0;
	char path[PATH_MAX];
	size_t i;

	for (i = 0; i < count; i++) {
		snprintf(path, sizeof(path), FERRY "stats/%s", files[i]);
		sum += ferry_number(path);
	}
	return sum;
}

/*
 * The pages that migrated while other CPUs could take part. Each is counted in
 * exactly one of these files.
 */
static inline unsigned long ferry_pages(void)
{
	static const char * const files[] = {
		"pages_caller", "pages_helper", "pages_dma", "serial_small",
		"serial_alone", "serial_busy", "refused_pinned",
		"refused_private", "refused_mapping", "refused_movable_ops",
		"refused_full",
	};

	return ferry_sum(files, ARRAY_SIZE(files));
}

/* The pages that other CPUs have copied, or migrated as members of a crew. */
static inline unsigned long ferry_helped(void)
{
	static const char * const files[] = {
		"pages_helper", "crew_pages_helper",
	};

	return ferry_sum(files, ARRAY_SIZE(files));
}

/* The word at index @nr of memory with the pattern. */
static inline uint64_t ferry_word(size_t nr)
{
	return (nr + 1) * 0x9e3779b97f4a7c15ull;
}

static inline void ferry_fill(void *mem, size_t len)
{
	uint64_t *words = mem;
	size_t nr;

	for (nr = 0; nr < len / sizeof(*words); nr++)
		words[nr] = ferry_word(nr);
}

static inline bool ferry_intact(const void *mem, size_t len)
{
	const uint64_t *words = mem;
	size_t nr;

	for (nr = 0; nr < len / sizeof(*words); nr++)
		if (words[nr] != ferry_word(nr))
			return false;
	return true;
}

/* A range of memory, and the size of its folios. */
struct ferry_range {
	char *mem;
	size_t len;
	size_t folio;
};

static inline size_t ferry_count(const struct ferry_range *range)
{
	return range->len / range->folio;
}

/*
 * Calls move_pages() with an address of each folio; if @node is negative, only
 * to find their nodes. Writes all statuses, and returns the result of the call.
 */
static inline long ferry_call(const struct ferry_range *range, int node,
			      int flags, int *status)
{
	size_t nr, count = ferry_count(range);
	void **pages = calloc(count, sizeof(*pages));
	int *nodes = calloc(count, sizeof(*nodes));
	long ret = -1;
	int err = ENOMEM;

	if (pages && nodes) {
		for (nr = 0; nr < count; nr++) {
			pages[nr] = range->mem + nr * range->folio;
			nodes[nr] = node;
			/* No status and no error number. */
			status[nr] = INT_MIN;
		}
		ret = move_pages(0, count, pages, node < 0 ? NULL : nodes,
				 status, flags);
		err = errno;
	}
	free(pages);
	free(nodes);
	errno = err;
	return ret;
}

/* Returns whether all folios of a range are on a node. */
static inline bool ferry_on(const struct ferry_range *range, int node)
{
	size_t nr, count = ferry_count(range);
	int *status = calloc(count, sizeof(*status));
	bool all = status && !ferry_call(range, -1, 0, status);

	for (nr = 0; all && nr < count; nr++)
		all = status[nr] == node;
	free(status);
	return all;
}

/*
 * Moves all of a range. Migration is best effort, as other tasks may hold
 * references to a page for a moment, so it tries again.
 */
static inline bool ferry_move(const struct ferry_range *range, int node,
			      int flags)
{
	int *status = calloc(ferry_count(range), sizeof(*status));
	bool all = false;
	int try;

	for (try = 0; status && !all && try < FERRY_TRIES; try++) {
		if (ferry_call(range, node, flags, status) < 0)
			break;
		all = ferry_on(range, node);
	}
	free(status);
	return all;
}

/* Maps private memory with the pattern in small pages; false on failure. */
static inline bool ferry_small(struct ferry_range *range, size_t len)
{
	char *mem = mmap(NULL, len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		return false;
	/* A kernel without huge pages refuses the advice. */
	if (madvise(mem, len, MADV_NOHUGEPAGE) && errno != EINVAL)
		return false;
	*range = (struct ferry_range){ mem, len, psize() };
	ferry_fill(mem, len);
	return true;
}

#endif /* _FERRY_TEST_H */
