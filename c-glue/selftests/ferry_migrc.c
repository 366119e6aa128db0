// SPDX-License-Identifier: GPL-2.0-only
/*
 * Deferred TLB flushes: old folios are retained and freed again, and a CPU that
 * has an old translation in its TLB never reads stale contents.
 */
#include "kselftest_harness.h"
#include <pthread.h>
#include "ferry_test.h"

#define PAGES		256UL
#define ROUNDS		200

FIXTURE(ferry_migrc)
{
	struct ferry_nodes nodes;
	struct ferry_range range;
	int cpus[2];
};

FIXTURE_SETUP(ferry_migrc)
{
	int err;

	ferry_begin_test();
	if (!ferry_can_change(FERRY_MIGRC "enabled"))
		SKIP(return, "no CONFIG_FERRY_MIGRC, or not root");
	if (!ferry_find_nodes(&self->nodes))
		SKIP(return, "fewer than two nodes with memory");
	if (!ferry_find_cpus(self->cpus))
		SKIP(return, "one CPU only");
	err = ferry_set(FERRY_MIGRC "enabled", "1");
	if (err == EOPNOTSUPP)
		SKIP(return, "this kernel wipes freed pages");
	ASSERT_EQ(err, 0);
	/* Members of a crew could take the CPU of the other thread. */
	ASSERT_EQ(ferry_set(FERRY_SWITCH, "0"), 0);
	/* Scans of NUMA balancing flush; a kernel may have no balancing. */
	ferry_set(FERRY_BALANCING, "0");
	/* Longer than a test takes, and more than it retains. */
	ASSERT_EQ(ferry_set(FERRY_MIGRC "max_age_ms", "60000"), 0);
	ASSERT_EQ(ferry_set(FERRY_MIGRC "max_node_percent", "50"), 0);
	ASSERT_EQ(ferry_set(FERRY_MIGRC "max_pages", "65536"), 0);
	ASSERT_TRUE(ferry_small(&self->range, PAGES * psize()));
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.from, MPOL_MF_MOVE));
}

FIXTURE_TEARDOWN(ferry_migrc)
{
	if (self->range.mem)
		munmap(self->range.mem, self->range.len);
}

static int run_on(int cpu)
{
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET(cpu, &only);
	return sched_setaffinity(0, sizeof(only), &only);
}

/* A thread on another CPU that reads pages, so that its TLB has them. */
struct reader {
	pthread_t thread;
	const struct ferry_range *range;
	int cpu;
	bool runs;
	bool stop;
	/* All pages have this value or a larger one. */
	uint64_t published;
	/* Pages that had a smaller value than the published one. */
	unsigned long stale;
};

static void *keep_reading(void *arg)
{
	struct reader *reader = arg;
	size_t at;

	reader->stale = run_on(reader->cpu) ? 1 : 0;
	__atomic_store_n(&reader->runs, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&reader->stop, __ATOMIC_RELAXED)) {
		for (at = 0; at < reader->range->len; at += psize()) {
			uint64_t least = __atomic_load_n(&reader->published,
							 __ATOMIC_ACQUIRE);
			uint64_t *word = (uint64_t *)(reader->range->mem + at);

			if (__atomic_load_n(word, __ATOMIC_RELAXED) < least)
				reader->stale++;
		}
	}
	return NULL;
}

static bool start(struct reader *reader)
{
	if (pthread_create(&reader->thread, NULL, keep_reading, reader))
		return false;
	/* Its start changes mappings, which would flush later. */
	while (!__atomic_load_n(&reader->runs, __ATOMIC_ACQUIRE))
		sched_yield();
	return true;
}

static void stop(struct reader *reader)
{
	__atomic_store_n(&reader->stop, true, __ATOMIC_RELAXED);
	pthread_join(reader->thread, NULL);
}

static unsigned long deferred_pages(void)
{
	return ferry_number(FERRY_MIGRC "deferred_pages");
}

/* The memory that is retained, in bytes. */
static unsigned long retained(void)
{
	unsigned long bytes, sum = 0;
	FILE *file = fopen(FERRY_MIGRC "retained_bytes", "r");
	int node;

	if (!file)
		return 0;
	while (fscanf(file, "%d %lu", &node, &bytes) == 2)
		sum += bytes;
	fclose(file);
	return sum;
}

/* Old folios of read-only pages are retained until they are asked for. */
TEST_F_TIMEOUT(ferry_migrc, retained_and_freed, 120)
{
	struct reader reader = {
		.range = &self->range, .cpu = self->cpus[1],
	};
	unsigned long before, with = 0, without = 0;
	bool works = true, all = false;
	int try;

	ASSERT_EQ(run_on(self->cpus[0]), 0);
	ASSERT_EQ(mprotect(self->range.mem, self->range.len, PROT_READ), 0);
	ASSERT_TRUE(start(&reader));
	/* A page that is busy for a moment is flushed at once. */
	for (try = 0; works && !all && try < FERRY_TRIES; try++) {
		int node = try % 2 ? self->nodes.from : self->nodes.to;

		ferry_set(FERRY_MIGRC "drain", "1");
		before = deferred_pages();
		works = ferry_move(&self->range, node, MPOL_MF_MOVE);
		with = retained();
		all = deferred_pages() - before >= PAGES &&
		      with >= self->range.len;
	}
	ferry_set(FERRY_MIGRC "drain", "1");
	without = retained();
	stop(&reader);
	ASSERT_TRUE(works);
	ASSERT_TRUE(all);
	ASSERT_LT(without, with);
	ASSERT_EQ(reader.stale, 0);
	ASSERT_TRUE(ferry_intact(self->range.mem, self->range.len));
}

/* Memory that is mapped writable is flushed at once. */
TEST_F_TIMEOUT(ferry_migrc, writable_is_refused, 120)
{
	const char *writable = FERRY_MIGRC "refused/writable";
	struct reader reader = {
		.range = &self->range, .cpu = self->cpus[1],
	};
	unsigned long refused = ferry_number(writable);
	bool moved;

	ASSERT_EQ(run_on(self->cpus[0]), 0);
	ASSERT_TRUE(start(&reader));
	moved = ferry_move(&self->range, self->nodes.to, MPOL_MF_MOVE);
	stop(&reader);
	ASSERT_TRUE(moved);
	ASSERT_GT(ferry_number(writable), refused);
}

/* Sets all pages to a value, then publishes it. */
static void publish(struct reader *reader, uint64_t value)
{
	size_t at;

	for (at = 0; at < reader->range->len; at += psize())
		__atomic_store_n((uint64_t *)(reader->range->mem + at), value,
				 __ATOMIC_RELAXED);
	__atomic_store_n(&reader->published, value, __ATOMIC_RELEASE);
}

/* Makes all pages writable, and writes them. */
static bool write_all(struct reader *reader, uint64_t value)
{
	if (mprotect(reader->range->mem, reader->range->len,
		     PROT_READ | PROT_WRITE))
		return false;
	publish(reader, value);
	return true;
}

/* Maps other memory in the place of all pages, and publishes its value. */
static bool replace_all(struct reader *reader, uint64_t value)
{
	size_t len = reader->range->len, at;
	char *fresh = mmap(NULL, len, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fresh == MAP_FAILED)
		return false;
	madvise(fresh, len, MADV_NOHUGEPAGE);
	for (at = 0; at < len; at += psize())
		*(uint64_t *)(fresh + at) = value;
	if (mremap(fresh, len, len, MREMAP_MAYMOVE | MREMAP_FIXED,
		   reader->range->mem) != reader->range->mem)
		return false;
	__atomic_store_n(&reader->published, value, __ATOMIC_RELEASE);
	return true;
}

/*
 * Moves the pages to their other node and changes them, many times, while
 * another CPU reads them. Returns whether all calls succeeded. In most rounds
 * the flush of most pages must have been deferred.
 */
static bool change_after_moves(struct reader *reader,
			       const struct ferry_nodes *nodes,
			       bool (*change)(struct reader *, uint64_t),
			       unsigned int *deferring)
{
	const struct ferry_range *range = reader->range;
	unsigned long before;
	uint64_t value;

	publish(reader, 1);
	if (!start(reader))
		return false;
	for (value = 2; value < ROUNDS + 2; value++) {
		int node = ferry_on(range, nodes->to) ? nodes->from : nodes->to;

		before = deferred_pages();
		if (mprotect(range->mem, range->len, PROT_READ) ||
		    !ferry_move(range, node, MPOL_MF_MOVE))
			break;
		*deferring += deferred_pages() - before > PAGES / 2;
		if (!change(reader, value))
			break;
	}
	stop(reader);
	return value == ROUNDS + 2;
}

/* A page is migrated, made writable and written. */
TEST_F_TIMEOUT(ferry_migrc, written_after, 240)
{
	struct reader reader = {
		.range = &self->range, .cpu = self->cpus[1],
	};
	unsigned int deferring = 0;

	ASSERT_EQ(run_on(self->cpus[0]), 0);
	ASSERT_TRUE(change_after_moves(&reader, &self->nodes, write_all,
				       &deferring));
	ASSERT_EQ(reader.stale, 0);
	ASSERT_GT(deferring, ROUNDS / 2);
}

/* Other memory is mapped at the address of a migrated page. */
TEST_F_TIMEOUT(ferry_migrc, replaced_after, 240)
{
	struct reader reader = {
		.range = &self->range, .cpu = self->cpus[1],
	};
	unsigned int deferring = 0;

	ASSERT_EQ(run_on(self->cpus[0]), 0);
	ASSERT_TRUE(change_after_moves(&reader, &self->nodes, replace_all,
				       &deferring));
	ASSERT_EQ(reader.stale, 0);
	ASSERT_GT(deferring, ROUNDS / 2);
}

TEST_HARNESS_MAIN
