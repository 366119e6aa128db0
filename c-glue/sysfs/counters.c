// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: numbers that each CPU counts for itself, as files of sysfs.
 *
 * No locks: a sum may miss what is counted meanwhile.
 */
#include <linux/ferry_counters.h>
#include <linux/kobject.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

/* A file, and of what it shows the sum. */
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
 * ferry_create_counters() - files of counters
 * @kobj: where
 * @folder: the name of a folder for them; NULL: none
 * @names: those of the files
 * @counters: the first of as many
 * @nr: how many
 *
 * They stay for as long as @kobj does, which is for good unless nothing comes of
 * it. Return: 0 or an error number.
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
