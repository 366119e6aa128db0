/* SPDX-License-Identifier: GPL-2.0-only */
/* Ferry: per-CPU counters as sysfs files. */
#ifndef _LINUX_FERRY_COUNTERS_H
#define _LINUX_FERRY_COUNTERS_H

struct kobject;

/* c-glue/sysfs/counters.c */
int ferry_create_counters(struct kobject *kobj, const char *folder,
			  const char * const *names,
			  unsigned long __percpu *counters, unsigned int nr);

#endif /* _LINUX_FERRY_COUNTERS_H */
