// SPDX-License-Identifier: GPL-2.0-only
/*
 * The init of an arm64 guest with a DMA engine. It moves pages between two
 * nodes by every method, checks each word, and checks the byte counts of the
 * channels to see which method copied.
 *
 * Prints TAP on the console. For each method it also prints a line "figure: "
 * with the folio size, the number of folios, the method, and the microseconds
 * of each call. A line "channel: " has the microseconds to take and release a
 * channel. The program needs only the kernel's nolibc.
 */
#include "nolibc.h"

#define COPY		"/sys/kernel/mm/ferry/copy/"
#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define MAX_FOLIOS	4096
#define MPOL_MF_MOVE	2
#define ROUNDS		6

static int nr_tests, nr_failed;
static void *pages[MAX_FOLIOS];
static int nodes[MAX_FOLIOS], status[MAX_FOLIOS];

static void check(bool good, const char *what)
{
	printf("%s %d - %s\n", good ? "ok" : "not ok", ++nr_tests, what);
	nr_failed += !good;
}

/* Returns 0 or an error number. */
static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY), rc = 0;

	if (fd < 0)
		return errno;
	if (write(fd, text, strlen(text)) < 0)
		rc = errno;
	close(fd);
	return rc;
}

static const char *get(const char *path)
{
	static char text[16384];
	int fd = open(path, O_RDONLY), len = 0, got;

	while (fd >= 0 && len < (int)sizeof(text) - 1 &&
	       (got = read(fd, text + len, sizeof(text) - 1 - len)) > 0)
		len += got;
	if (fd >= 0)
		close(fd);
	text[len] = 0;
	return text;
}

/* Returns the sum of the numbers that follow each occurrence of a name. */
static unsigned long sum_of(const char *path, const char *name)
{
	unsigned long sum = 0;
	const char *at = get(path);

	while ((at = strstr(at, name))) {
		at += strlen(name);
		sum += strtoul(at, NULL, 10);
	}
	return sum;
}

static unsigned long carried_bytes(void)
{
	return sum_of(COPY "dma_status", "bytes=");
}

static unsigned long now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000UL + ts.tv_nsec / 1000;
}

static void fill(unsigned long *words, unsigned long bytes, unsigned long seed)
{
	for (unsigned long i = 0; i < bytes / sizeof(*words); i++)
		words[i] = (i + seed) * 0x9e3779b97f4a7c15UL;
}

static bool is_filled(const unsigned long *words, unsigned long bytes,
		      unsigned long seed)
{
	for (unsigned long i = 0; i < bytes / sizeof(*words); i++) {
		if (words[i] != (i + seed) * 0x9e3779b97f4a7c15UL)
			return false;
	}
	return true;
}

/* Folios of one size, all on node 0 at first. */
struct cargo {
	char *map;
	unsigned long folio;
	int count;
};

static bool move(const struct cargo *cargo, int node)
{
	for (int i = 0; i < cargo->count; i++) {
		pages[i] = cargo->map + i * cargo->folio;
		nodes[i] = node;
		status[i] = -1;
	}
	if (syscall(__NR_move_pages, 0, cargo->count, pages, nodes, status,
		    MPOL_MF_MOVE))
		return false;
	for (int i = 0; i < cargo->count; i++) {
		if (status[i] != node)
			return false;
	}
	return true;
}

static bool load(struct cargo *cargo)
{
	unsigned long bytes = cargo->folio * cargo->count;
	char *raw = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (raw == MAP_FAILED)
		return false;
	cargo->map = (char *)(((unsigned long)raw + HUGE - 1) & -HUGE);
	syscall(__NR_madvise, cargo->map, bytes,
		cargo->folio == HUGE ? 14 /* HUGEPAGE */ : 15 /* NOHUGEPAGE */);
	fill((unsigned long *)cargo->map, bytes, 1);
	return move(cargo, 0);
}

/* Prints Ferry's counters after a failure. */
static void complain(void)
{
	static const char * const names[] = {
		"batches", "pages_caller", "pages_dma", "pages_helper",
		"serial_alone", "serial_busy", "serial_small", "copy_failed",
		"dma_failed", "dma_late",
	};
	char path[64];

	for (unsigned int i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/mm/ferry/stats/%s",
			 names[i]);
		printf("# %s %s", names[i], get(path));
	}
	printf("# %s", get(COPY "dma_status"));
}

/* Moves to and fro by a method. Checks contents, nodes, and what copied them. */
static void carry(const struct cargo *cargo, const char *method, int channels)
{
	unsigned long bytes = cargo->folio * cargo->count, carried;
	unsigned long us[ROUNDS] = {};
	const char *name = cargo->folio == HUGE ? "2M" : "4K";
	bool by_dma = channels > 0, good = true;
	char what[100], text[16];

	snprintf(text, sizeof(text), "%d", channels);
	good &= !put(COPY "method", "cpu") && !put(COPY "dma_channels", text);
	good &= !put(COPY "method", method);
	carried = carried_bytes();
	for (int round = 0; round < ROUNDS && good; round++) {
		fill((unsigned long *)cargo->map, bytes, round);
		us[round] = now_us();
		good &= move(cargo, 1 - round % 2);
		us[round] = now_us() - us[round];
		good &= is_filled((unsigned long *)cargo->map, bytes, round);
	}
	carried = carried_bytes() - carried;
	/*
	 * With "dma", CPUs copy almost nothing: only parts for which no channel has a
	 * descriptor, and the few folios that are tried again.
	 */
	if (!strcmp(method, "dma"))
		good &= carried <= ROUNDS * bytes &&
			10 * carried >= 9 * ROUNDS * bytes;
	else
		good &= by_dma == (carried > 0);
	snprintf(what, sizeof(what), "%d x %s by %s, %d channels", cargo->count,
		 name, method, channels);
	check(good, what);
	if (!good)
		complain();
	printf("figure: %s %d %s-%d", name, cargo->count, method, channels);
	for (int round = 0; round < ROUNDS; round++)
		printf(" %lu", us[round]);
	printf("\n");
}

/* Measures the time to take and release a channel. */
static void take_channels(void)
{
	unsigned long us = now_us();
	bool good = true;

	for (int round = 0; round < ROUNDS; round++)
		good &= !put(COPY "dma_channels", "8") &&
			!put(COPY "dma_channels", "0");
	us = now_us() - us;
	check(good, "channels are taken and given back");
	printf("channel: %lu\n", us / (8 * ROUNDS));
}

static void all_methods(unsigned long folio, int count)
{
	struct cargo cargo = { .folio = folio, .count = count };

	if (!load(&cargo)) {
		check(false, "memory on node 0");
		return;
	}
	carry(&cargo, "serial", 0);
	carry(&cargo, "cpu", 0);
	for (int channels = 1; channels <= 8; channels *= 2)
		carry(&cargo, "dma", channels);
	carry(&cargo, "hybrid", 8);
}

int main(void)
{
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);

	/* Crew members would take channels from each other, and copy by CPU. */
	check(!put("/proc/sys/vm/mt_page_copy", "1") &&
	      !put("/proc/sys/vm/mt_page_crew", "0"), "switched on");
	/* On a slow host, batches would be too short for channels. */
	check(!put(COPY "unmapped_us", "1000000"), "batches as long as may be");
	check(put(COPY "method", "dma") == ENODEV, "no method dma without channels");
	check(!put(COPY "dma_channels", "16") &&
	      !strcmp(get(COPY "dma_channels"), "8\n"), "eight channels");
	take_channels();
	all_methods(HUGE, 16);
	all_methods(PAGE, 2048);
	check(!sum_of(COPY "dma_status", "errors=") &&
	      !sum_of(COPY "dma_status", "timeouts="), "no channel has failed");
	printf("%s", get(COPY "dma_status"));
	check(!put(COPY "method", "auto") && !put(COPY "dma_channels", "0") &&
	      !*get(COPY "dma_status"), "channels are given back");
	printf("1..%d\n", nr_tests);
	reboot(LINUX_REBOOT_CMD_POWER_OFF);
	return nr_failed;
}
