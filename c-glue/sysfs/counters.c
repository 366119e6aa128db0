// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: per-CPU counters as sysfs files.
 *
 * No locks: a sum may miss concurrent increments.
 */
#include <linux/ferry_counters.h>
#include <linux/kobject.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

/* A file that shows the sum of a counter. */
struct ferry_counter {
	struct kobj_attribute attr;
	unsigned long __percpu *counter;
};

static ssize_t ferry_counter_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	unsigned long __percpu *counter =
		container_of(attr, struct ferry_counter, attr)->counter;
	unsigned long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += *per_cpu_ptr(counter, cpu);
	return sysfs_emit(buf, "%lu\n", sum);
}

/**
 * ferry_create_counters() - create files for counters
 * @kobj: their parent
 * @folder: name of a folder for them; NULL for none
 * @names: names of the files
 * @counters: the first of @nr counters
 * @nr: number of counters
 *
 * The files exist as long as @kobj, which is never released unless
 * initialisation fails.
 *
 * Return: 0 or an error code.
 */
int __init ferry_create_counters(struct kobject *kobj, const char *folder,
				 const char * const *names,
				 unsigned long __percpu *counters,
				 unsigned int nr)
{
	struct attribute **list __free(kfree) =
		kzalloc_objs(*list, nr + 1);
	struct ferry_counter *files __free(kfree) =
		kzalloc_objs(*files, nr);
	const struct attribute_group group = { .name = folder, .attrs = list };
	unsigned int i;
	int rc;

	if (!list || !files)
		return -ENOMEM;
	for (i = 0; i < nr; i++) {
		sysfs_attr_init(&files[i].attr.attr);
		files[i].attr.attr.name = names[i];
		files[i].attr.attr.mode = 0444;
		files[i].attr.show = ferry_counter_show;
		files[i].counter = counters + i;
		list[i] = &files[i].attr.attr;
	}
	rc = sysfs_create_group(kobj, &group);
	if (!rc)
		retain_and_null_ptr(files);
	return rc;
}
