# SPDX-License-Identifier: GPL-2.0-only
# Functions for the scripts of this folder, which put load on a guest while its
# pages are moved.

ferry=/sys/kernel/mm/ferry

set_to() {
	echo "$1" >"$2" || exit 1
}

# Turns on the kernel's features that move pages, and Ferry's own if the kernel
# has Ferry.
features_on() {
	if [ -d $ferry ]; then
		set_to 1 /proc/sys/vm/mt_page_copy
		set_to 4 /proc/sys/vm/limit_mt_num
		set_to any $ferry/copy/cpus
		set_to always $ferry/runs/enabled
		set_to 1 $ferry/migrc/enabled
		set_to 1 $ferry/migrc/files
		set_to 1 /sys/kernel/mm/numa/pagecache_promotion_enabled
	fi
	set_to 1 /sys/kernel/mm/numa/demotion_enabled
	set_to 3 /proc/sys/kernel/numa_balancing
	set_to always /sys/kernel/mm/transparent_hugepage/enabled
}

# Prints the number of isolated pages.
isolated() {
	echo 1 >/proc/sys/vm/stat_refresh
	awk '/^nr_isolated/ { sum += $2 } END { print sum }' /proc/vmstat
}

# Waits up to a minute for a moment without isolated pages. Then writes their
# number, and Ferry's counters, to the folder `counters`.
leave_counters() {
	for second in $(seq 60); do
		pages=$(isolated)
		[ "$pages" = 0 ] && break
		sleep 1
	done
	mkdir counters && echo "$pages" >counters/isolated || exit 1
	[ -d $ferry ] || return 0
	for counter in stats/batches stats/crews stats/run_pages \
			migrc/deferred_pages service/successful; do
		cat $ferry/$counter >"counters/$(basename $counter)" || exit 1
	done
}
