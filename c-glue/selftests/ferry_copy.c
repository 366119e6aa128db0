// SPDX-License-Identifier: GPL-2.0-only
/*
 * Migration with the help of other CPUs: memory of all kinds keeps its
 * contents, also while it is written, and callers see the same statuses and
 * errors as without help.
 */
#include "kselftest_harness.h"
#include <linux/magic.h>
#include <pthread.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include "ferry_test.h"

/* Enough base pages for a crew, and enough bytes to share. */
#define LENGTH		(8UL << 20)
#define WRITERS		3
#define ROUNDS		20
/* Moves to and fro until another CPU must have taken part. */
#define PATIENCE	500

enum kind {
	SMALL,
	HUGE,
	HUGETLB,
	SHARED,
	OF_FILE,
};

/* hugetlb pages of the default size in LENGTH; 0 if they do not fit. */
static unsigned long hugetlb_count(void)
{
	unsigned long size = default_huge_page_size();

	return size && LENGTH % size == 0 ? LENGTH / size : 0;
}

static void __attribute__((constructor)) hugetlb_pool(void)
{
	/* For the pages and their copies, on either of two nodes. */
	if (hugetlb_count())
		hugetlb_setup_default(4 * hugetlb_count());
}

/*
 * Maps memory of a kind. Returns 0, an error number, or -1 if this machine has
 * no memory of this kind.
 */
static int map_kind(enum kind kind, struct ferry_range *range)
{
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	size_t size = psize();
	struct statfs fs;
	char *mem;
	int fd = -1;

	switch (kind) {
	case SMALL:
		return ferry_small(range, LENGTH) ? 0 : ENOMEM;
	case HUGE:
		size = read_pmd_pagesize();
		if (!thp_is_enabled() || !size || LENGTH % size)
			return -1;
		mem = mmap(NULL, LENGTH + size, prot, flags, -1, 0);
		if (mem == MAP_FAILED)
			return errno;
		mem += -(uintptr_t)mem % size;
		if (madvise(mem, LENGTH, MADV_HUGEPAGE))
			return errno;
		*range = (struct ferry_range){ mem, LENGTH, size };
		ferry_fill(mem, LENGTH);
		/* Memory may be too fragmented. */
		return check_huge_anon(mem, LENGTH, LENGTH / size, size) ? 0 : -1;
	case HUGETLB:
		if (!hugetlb_count() ||
		    hugetlb_free_default_pages() < 4 * hugetlb_count())
			return -1;
		size = default_huge_page_size();
		flags |= MAP_HUGETLB;
		break;
	case SHARED:
		flags = MAP_SHARED | MAP_ANONYMOUS;
		break;
	case OF_FILE:
		if (statfs(".", &fs) || fs.f_type == TMPFS_MAGIC)
			return -1;
		fd = open(".", O_TMPFILE | O_RDWR, 0600);
		if (fd < 0)
			return -1;
		if (ftruncate(fd, LENGTH))
			return errno;
		flags = MAP_SHARED;
		break;
	}
	mem = mmap(NULL, LENGTH, prot, flags, fd, 0);
	if (mem == MAP_FAILED)
		return errno;
	if (fd >= 0)
		close(fd);
	*range = (struct ferry_range){ mem, LENGTH, size };
	ferry_fill(mem, LENGTH);
	return 0;
}

FIXTURE(ferry_copy)
{
	struct ferry_nodes nodes;
	struct ferry_range range;
};

FIXTURE_VARIANT(ferry_copy)
{
	enum kind kind;
};

FIXTURE_VARIANT_ADD(ferry_copy, small) { .kind = SMALL };
FIXTURE_VARIANT_ADD(ferry_copy, huge) { .kind = HUGE };
FIXTURE_VARIANT_ADD(ferry_copy, hugetlb) { .kind = HUGETLB };
FIXTURE_VARIANT_ADD(ferry_copy, shared) { .kind = SHARED };
FIXTURE_VARIANT_ADD(ferry_copy, file) { .kind = OF_FILE };

FIXTURE_SETUP(ferry_copy)
{
	int err;

	ferry_begin_test();
	if (!ferry_can_change(FERRY_SWITCH))
		SKIP(return, "no CONFIG_FERRY, or not root");
	if (!ferry_find_nodes(&self->nodes))
		SKIP(return, "fewer than two nodes with memory");
	err = map_kind(variant->kind, &self->range);
	if (err < 0)
		SKIP(return, "no memory of this kind");
	ASSERT_EQ(err, 0);
	ASSERT_EQ(ferry_switch_on(), 0);
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.from, MPOL_MF_MOVE));
}

FIXTURE_TEARDOWN(ferry_copy)
{
	if (self->range.mem)
		munmap(self->range.mem, self->range.len);
}

/* Moved pages keep their contents, each is counted, and other CPUs help. */
TEST_F_TIMEOUT(ferry_copy, moved, 120)
{
	unsigned long helped = ferry_helped();
	int round, cpus[2];
	/* Folios of a file may have private data, which only the caller copies. */
	bool has_help = variant->kind != OF_FILE;

	if (!ferry_find_cpus(cpus))
		SKIP(return, "one CPU only");
	for (round = 0; has_help ? ferry_helped() == helped : round < ROUNDS;
	     round++) {
		int node = round % 2 ? self->nodes.from : self->nodes.to;
		unsigned long before = ferry_pages();

		ASSERT_LT(round, PATIENCE);
		ASSERT_TRUE(ferry_move(&self->range, node, MPOL_MF_MOVE));
		ASSERT_TRUE(ferry_intact(self->range.mem, LENGTH));
		ASSERT_GE(ferry_pages(), before + LENGTH / psize());
	}
}

struct writer {
	pthread_t thread;
	uint64_t *mem;
	unsigned int nr;
	unsigned long rounds;
	bool *stop;
};

/* Adds 1 to the writer's word of each page, again and again. */
static void *keep_writing(void *arg)
{
	struct writer *writer = arg;
	size_t step = psize() / sizeof(uint64_t), at;

	while (!__atomic_load_n(writer->stop, __ATOMIC_RELAXED)) {
		for (at = writer->nr; at < LENGTH / sizeof(uint64_t); at += step)
			writer->mem[at]++;
		writer->rounds++;
	}
	return NULL;
}

/* No write is lost that is made during migration. */
TEST_F_TIMEOUT(ferry_copy, written_meanwhile, 120)
{
	size_t step = psize() / sizeof(uint64_t), at;
	uint64_t *words = (uint64_t *)self->range.mem;
	struct writer writers[WRITERS];
	bool stop = false, moved = true;
	int i, round;

	for (i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer) {
			.mem = words, .nr = i, .stop = &stop,
		};
		ASSERT_EQ(pthread_create(&writers[i].thread, NULL, keep_writing,
					 &writers[i]), 0);
	}
	for (round = 0; moved && round < ROUNDS; round++)
		moved = ferry_move(&self->range,
				   round % 2 ? self->nodes.from : self->nodes.to,
				   MPOL_MF_MOVE);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < WRITERS; i++)
		ASSERT_EQ(pthread_join(writers[i].thread, NULL), 0);
	ASSERT_TRUE(moved);
	for (at = 0; at < LENGTH / sizeof(uint64_t); at++) {
		uint64_t expected = ferry_word(at);

		if (at % step < WRITERS)
			expected += writers[at % step].rounds;
		ASSERT_EQ(words[at], expected);
	}
}

FIXTURE(ferry_call)
{
	struct ferry_nodes nodes;
	struct ferry_range range;
};

FIXTURE_SETUP(ferry_call)
{
	ferry_begin_test();
	if (!ferry_can_change(FERRY_SWITCH))
		SKIP(return, "no CONFIG_FERRY, or not root");
	if (!ferry_find_nodes(&self->nodes))
		SKIP(return, "fewer than two nodes with memory");
	ASSERT_TRUE(ferry_small(&self->range, LENGTH));
	ASSERT_EQ(ferry_switch_on(), 0);
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.from, MPOL_MF_MOVE));
}

FIXTURE_TEARDOWN(ferry_call)
{
	if (self->range.mem)
		munmap(self->range.mem, self->range.len);
}

/*
 * Moves all pages but two, which have a status of their own. Returns the first
 * page with another status, or the number of pages. Another attempt is made
 * only if pages were busy for a moment.
 */
static size_t move_but(const struct ferry_range *range, int node, size_t hole,
		       size_t gap)
{
	size_t count = ferry_count(range), nr = 0;
	int *status = calloc(count, sizeof(*status));
	long left = 1;
	int try;

	for (try = 0; status && left > 0 && try < FERRY_TRIES; try++)
		left = ferry_call(range, node, MPOL_MF_MOVE, status);
	for (nr = 0; !left && nr < count; nr++) {
		int expected = nr == hole ? -ENOENT : nr == gap ? -EFAULT : node;

		if (status[nr] != expected)
			break;
	}
	free(status);
	return nr;
}

/* Each page has the status that it has without help. */
TEST_F_TIMEOUT(ferry_call, statuses, 120)
{
	size_t count = ferry_count(&self->range);
	size_t hole = count / 2, gap = count - 3;
	int on;

	/* A page that was never touched, and an address without a mapping. */
	ASSERT_EQ(madvise(self->range.mem + hole * psize(), psize(),
			  MADV_DONTNEED), 0);
	ASSERT_EQ(munmap(self->range.mem + gap * psize(), psize()), 0);
	for (on = 0; on < 2; on++) {
		ASSERT_EQ(ferry_set(FERRY_SWITCH, on ? "1" : "0"), 0);
		ASSERT_EQ(move_but(&self->range, self->nodes.to, hole, gap), count);
		ASSERT_EQ(move_but(&self->range, self->nodes.from, hole, gap), count);
	}
}

/* Pages that another process maps stay, unless the caller asks for all. */
TEST_F_TIMEOUT(ferry_call, shared_with_a_child, 120)
{
	size_t count = ferry_count(&self->range), nr;
	int *status = calloc(count, sizeof(*status));
	int ready[2], exited;
	pid_t child;
	char byte;

	ASSERT_NE(status, NULL);
	ASSERT_EQ(pipe(ready), 0);
	child = fork();
	ASSERT_GE(child, 0);
	if (!child) {
		/* Until the parent closes its end. */
		close(ready[1]);
		_exit(read(ready[0], &byte, 1) != 0 ||
		      !ferry_intact(self->range.mem, LENGTH));
	}
	ASSERT_GE(ferry_call(&self->range, self->nodes.to, MPOL_MF_MOVE,
			     status), 0);
	for (nr = 0; nr < count; nr++)
		ASSERT_EQ(status[nr], -EACCES);
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.to, MPOL_MF_MOVE_ALL));
	ASSERT_TRUE(ferry_intact(self->range.mem, LENGTH));
	close(ready[1]);
	ASSERT_EQ(waitpid(child, &exited, 0), child);
	ASSERT_EQ(exited, 0);
	free(status);
}

/* mbind() moves the pages of a range. */
TEST_F_TIMEOUT(ferry_call, mbind, 120)
{
	struct bitmask *mask = numa_allocate_nodemask();
	unsigned long before = ferry_pages();
	int try;

	ASSERT_NE(mask, NULL);
	numa_bitmask_setbit(mask, self->nodes.to);
	for (try = 0; try < FERRY_TRIES; try++)
		if (!mbind(self->range.mem, LENGTH, MPOL_BIND, mask->maskp,
			   mask->size + 1, MPOL_MF_MOVE | MPOL_MF_STRICT))
			break;
	numa_free_nodemask(mask);
	ASSERT_TRUE(ferry_on(&self->range, self->nodes.to));
	ASSERT_GE(ferry_pages(), before + LENGTH / psize());
	ASSERT_TRUE(ferry_intact(self->range.mem, LENGTH));
}

/* MPOL_MF_MOVE_MT asks for help while vm.mt_page_copy is 0. */
TEST_F_TIMEOUT(ferry_call, flag, 120)
{
	int *status = calloc(ferry_count(&self->range), sizeof(*status));
	unsigned long before;

	ASSERT_NE(status, NULL);
	if (!ferry_can_change(FERRY_FLAG))
		SKIP(return, "no MPOL_MF_MOVE_MT");
	ASSERT_EQ(ferry_set(FERRY_SWITCH, "0"), 0);
	ASSERT_EQ(ferry_set(FERRY_FLAG, "allow"), 0);
	ASSERT_EQ(ferry_call(&self->range, self->nodes.to, MPOL_MF_MOVE_MT,
			     status), -1);
	ASSERT_EQ(errno, EINVAL);
	free(status);
	before = ferry_pages();
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.to,
			       MPOL_MF_MOVE | MPOL_MF_MOVE_MT));
	ASSERT_GE(ferry_pages(), before + LENGTH / psize());
	ASSERT_TRUE(ferry_intact(self->range.mem, LENGTH));
}

/* The administrator can have the flag ignored. */
TEST_F_TIMEOUT(ferry_call, flag_ignored, 120)
{
	const char *refused = FERRY "copy/refused/mt_flag";
	unsigned long before;

	if (!ferry_can_change(FERRY_FLAG))
		SKIP(return, "no MPOL_MF_MOVE_MT");
	ASSERT_EQ(ferry_set(FERRY_SWITCH, "0"), 0);
	ASSERT_EQ(ferry_set(FERRY_FLAG, "ignore"), 0);
	before = ferry_number(refused);
	ASSERT_TRUE(ferry_move(&self->range, self->nodes.to,
			       MPOL_MF_MOVE | MPOL_MF_MOVE_MT));
	ASSERT_GT(ferry_number(refused), before);
	ASSERT_TRUE(ferry_intact(self->range.mem, LENGTH));
}

TEST_HARNESS_MAIN
