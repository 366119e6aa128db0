// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: settings in /sys/kernel/mm/ferry/copy/, and histograms of the time
 * that folios are unmapped.
 *
 * Locks: ferry_settings_lock, taken by all writers, under which a setting is
 * passed to Rust and stored. Inside it ferry_knobs_lock, when DMA channels are
 * taken or released. Histograms are per-CPU and take no lock.
 */
#include <linux/ferry_glue.h>
#include <linux/kobject.h>
#include <linux/log2.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <linux/sysfs.h>

/*
 * Buckets of a histogram: less than 1 us, then powers of two. The last holds
 * times of more than 8 seconds.
 */
#define FERRY_BUCKETS	25

static DEFINE_PER_CPU(unsigned long [FERRY_NR_TIMES][FERRY_BUCKETS],
		      ferry_times);

void ferry_count_time(enum ferry_time what, s64 ns)
{
	unsigned long us = max(ns, 0LL) / NSEC_PER_USEC;
	unsigned int bucket = us ? ilog2(us) + 1 : 0;

	this_cpu_inc(ferry_times[what][min(bucket, FERRY_BUCKETS - 1U)]);
}

static DEFINE_MUTEX(ferry_settings_lock);

/*
 * Releases the hooks if drivers have unbound and no DMA channel is left. Not
 * called with the lock of a device held, as it is while a driver unbinds: a
 * writer of dma_channels takes that lock inside ferry_settings_lock. May
 * sleep.
 */
void ferry_dma_gone(void)
{
	guard(mutex)(&ferry_settings_lock);
	/* Channels may have been taken meanwhile. */
	if (!ferry_dma_nr_open())
		ferry_dma_taken(false);
}

#ifdef CONFIG_SYSFS

/**
 * struct ferry_setting_attr - a setting
 * @attr: its file
 * @which: its number in Rust
 * @words: words for the values from 0 on; NULL for a number
 * @zero: word for the value 0 of a number, if it has one
 * @least: smallest number, beside @zero
 * @most: largest number
 */
struct ferry_setting_attr {
	struct kobj_attribute attr;
	enum ferry_setting which;
	const char * const *words;
	const char *zero;
	unsigned int least;
	unsigned int most;
};

static struct ferry_setting_attr *to_setting(struct kobj_attribute *attr)
{
	return container_of(attr, struct ferry_setting_attr, attr);
}

/**
 * ferry_show_word() - show words to choose from
 * @buf: buffer of a sysfs file
 * @words: the words; NULL ends the array
 * @chosen: index of the one to show in brackets
 *
 * Return: the number of bytes written.
 */
ssize_t ferry_show_word(char *buf, const char * const *words, unsigned int chosen)
{
	unsigned int i;
	int len = 0;

	for (i = 0; words[i]; i++)
		len += sysfs_emit_at(buf, len, i == chosen ? "[%s] " : "%s ",
				     words[i]);
	/* Overwrites the last space. */
	return len - 1 + sysfs_emit_at(buf, len - 1, "\n");
}

static ssize_t ferry_setting_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	const struct ferry_setting_attr *setting = to_setting(attr);
	unsigned int value = ferry_get(setting->which);

	if (setting->words)
		return ferry_show_word(buf, setting->words, value);
	if (value)
		return sysfs_emit(buf, "%u\n", value);
	return sysfs_emit(buf, "%s\n", setting->zero);
}

/* Parses the written value. Returns 0 or -EINVAL. */
static int ferry_parse_setting(const struct ferry_setting_attr *setting,
			       const char *buf, unsigned int *value)
{
	int rc;

	if (setting->words) {
		rc = __sysfs_match_string(setting->words, -1, buf);
		if (rc < 0)
			return rc;
		*value = rc;
		return 0;
	}
	if (setting->zero && sysfs_streq(buf, setting->zero)) {
		*value = 0;
		return 0;
	}
	if (kstrtouint(buf, 10, value) ||
	    !in_range(*value, setting->least, setting->most - setting->least + 1))
		return -EINVAL;
	return 0;
}

/*
 * Keeps the hooks enabled exactly while there are channels, even after a
 * partial success.
 */
static int ferry_set_channels(unsigned int nr)
{
	int rc;

	rc = nr ? ferry_dma_prepare() : 0;
	if (rc)
		return rc;
	rc = ferry_set(FERRY_SET_DMA_CHANNELS, nr);
	ferry_dma_taken(ferry_dma_nr_open());
	return rc;
}

static ssize_t ferry_setting_store(struct kobject *kobj,
				   struct kobj_attribute *attr,
				   const char *buf, size_t count)
{
	struct ferry_setting_attr *setting = to_setting(attr);
	unsigned int value;
	int rc;

	rc = ferry_parse_setting(setting, buf, &value);
	if (rc)
		return rc;

	guard(mutex)(&ferry_settings_lock);
	if (setting->which == FERRY_SET_DMA_CHANNELS)
		rc = ferry_set_channels(value);
	else
		rc = ferry_set(setting->which, value);
	return rc ?: count;
}

#define FERRY_SETTING(_name)						\
	.attr = __ATTR(_name, 0644, ferry_setting_show, ferry_setting_store)

static const char * const ferry_cpus_words[] = { "idle", "any", NULL };
static const char * const ferry_queue_words[] = {
	[FERRY_QUEUE_BOUND]	= "bound",
	[FERRY_QUEUE_UNBOUND]	= "unbound",
	[FERRY_QUEUE_HIGHPRI]	= "highpri",
	NULL
};

static struct ferry_setting_attr ferry_cpus = {
	FERRY_SETTING(cpus),
	.which	= FERRY_SET_ANY_CPU,
	.words	= ferry_cpus_words,
};

static struct ferry_setting_attr ferry_queue = {
	FERRY_SETTING(queue),
	.which	= FERRY_SET_QUEUE,
	.words	= ferry_queue_words,
};

static struct ferry_setting_attr ferry_threads = {
	FERRY_SETTING(threads),
	.which	= FERRY_SET_THREADS,
	.zero	= "auto",
	.least	= 1,
	.most	= FERRY_MAX_THREADS,
};

static struct ferry_setting_attr ferry_min_kb = {
	FERRY_SETTING(min_kb),
	.which	= FERRY_SET_MIN_KB,
	.zero	= "auto",
	.least	= 8,
	.most	= 1 << 20,
};

static struct ferry_setting_attr ferry_unmapped_us = {
	FERRY_SETTING(unmapped_us),
	.which	= FERRY_SET_UNMAPPED_US,
	.least	= 10,
	.most	= 1000000,
};

static const char * const ferry_nontemporal_words[] = {
	[FERRY_NT_NEVER]	= "never",
	[FERRY_NT_DEMOTION]	= "demotion",
	[FERRY_NT_ALWAYS]	= "always",
	NULL
};

static struct ferry_setting_attr ferry_nontemporal = {
	FERRY_SETTING(nontemporal),
	.which	= FERRY_SET_NONTEMPORAL,
	.words	= ferry_nontemporal_words,
};

static const char * const ferry_method_words[] = {
	[FERRY_METHOD_AUTO]	= "auto",
	[FERRY_METHOD_SERIAL]	= "serial",
	[FERRY_METHOD_CPU]	= "cpu",
	[FERRY_METHOD_DMA]	= "dma",
	[FERRY_METHOD_HYBRID]	= "hybrid",
	NULL
};

static struct ferry_setting_attr ferry_method = {
	FERRY_SETTING(method),
	.which	= FERRY_SET_METHOD,
	.words	= ferry_method_words,
};

/*
 * Shows the number of channels, not the number requested: a driver may have
 * unbound.
 */
static ssize_t ferry_dma_channels_show(struct kobject *kobj,
				       struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", ferry_dma_nr_open());
}

static struct ferry_setting_attr ferry_dma_channels = {
	.attr	= __ATTR(dma_channels, 0644, ferry_dma_channels_show,
			 ferry_setting_store),
	.which	= FERRY_SET_DMA_CHANNELS,
	.most	= FERRY_MAX_CHANNELS,
};

static struct ferry_setting_attr ferry_dma_min_bytes = {
	FERRY_SETTING(dma_min_bytes),
	.which	= FERRY_SET_DMA_MIN_BYTES,
	.least	= PAGE_SIZE,
	.most	= SZ_1G,
};

static struct ferry_setting_attr ferry_dma_timeout_ms = {
	FERRY_SETTING(dma_timeout_ms),
	.which	= FERRY_SET_DMA_TIMEOUT_MS,
	.least	= 10,
	.most	= 60000,
};

static ssize_t dma_status_show(struct kobject *kobj,
			       struct kobj_attribute *attr, char *buf)
{
	unsigned int nr;
	int len = 0, more;

	for (nr = 0; (more = ferry_dma_tell(nr, buf, len)); nr++)
		len += more;
	return len;
}

/*
 * For root only: a reader cannot be killed while it waits for a channel to
 * close.
 */
static struct kobj_attribute ferry_dma_status_attr =
	__ATTR_RO_MODE(dma_status, 0400);

static ssize_t ferry_time_show(enum ferry_time what, char *buf)
{
	int bucket, cpu, len = 0;

	for (bucket = 0; bucket < FERRY_BUCKETS; bucket++) {
		unsigned long sum = 0;

		for_each_possible_cpu(cpu)
			sum += per_cpu(ferry_times, cpu)[what][bucket];
		if (bucket < FERRY_BUCKETS - 1)
			len += sysfs_emit_at(buf, len, "%lu %lu\n",
					     BIT(bucket), sum);
		else
			len += sysfs_emit_at(buf, len, "inf %lu\n", sum);
	}
	return len;
}

static ssize_t unmapped_histogram_show(struct kobject *kobj,
				       struct kobj_attribute *attr, char *buf)
{
	return ferry_time_show(FERRY_TIME_UNMAPPED, buf);
}

static ssize_t first_folio_histogram_show(struct kobject *kobj,
					  struct kobj_attribute *attr,
					  char *buf)
{
	return ferry_time_show(FERRY_TIME_FIRST_FOLIO, buf);
}

static struct kobj_attribute ferry_unmapped_histogram_attr =
	__ATTR_RO(unmapped_histogram);
static struct kobj_attribute ferry_first_folio_histogram_attr =
	__ATTR_RO(first_folio_histogram);

static struct attribute *ferry_settings_list[] = {
	&ferry_cpus.attr.attr,
	&ferry_queue.attr.attr,
	&ferry_threads.attr.attr,
	&ferry_min_kb.attr.attr,
	&ferry_unmapped_us.attr.attr,
	&ferry_nontemporal.attr.attr,
	&ferry_method.attr.attr,
	&ferry_dma_channels.attr.attr,
	&ferry_dma_min_bytes.attr.attr,
	&ferry_dma_timeout_ms.attr.attr,
	&ferry_dma_status_attr.attr,
	&ferry_unmapped_histogram_attr.attr,
	&ferry_first_folio_histogram_attr.attr,
	NULL
};

const struct attribute_group ferry_settings_group = {
	.attrs	= ferry_settings_list,
};

#endif /* CONFIG_SYSFS */
