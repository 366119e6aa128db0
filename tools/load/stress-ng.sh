# SPDX-License-Identifier: GPL-2.0-only
# Runs stressors of stress-ng for $1 seconds, while vmig moves their memory to
# and fro. Leaves their log in stress.log.

features_on
# The stressor madvise poisons pages. Its threads block SIGBUS, so the signal
# kills them. No page has the flag below (KPF_NOPAGE), so none is poisoned.
hwpoison=/sys/kernel/debug/hwpoison
set_to 0x100000 $hwpoison/corrupt-filter-flags-mask
set_to 0x100000 $hwpoison/corrupt-filter-flags-value
set_to 1 $hwpoison/corrupt-filter-enable
truncate -s 512M /run/image && disk=$(losetup --find --show /run/image) || exit 1
mkfs.ext4 -q "$disk" && mkdir /run/disk && mount "$disk" /run/disk || exit 1

(cd /run/disk && exec stress-ng --verbose --verify --timeout "$1" --oomable \
	--numa 2 --pagemove 1 --tlb-shootdown 1 --mremap 1 --madvise 1 \
	--userfaultfd 1 --memhotplug 1 --vm 2 --vm-bytes 128M) >stress.log 2>&1 &
stress=$!
node=0
while kill -0 $stress 2>/dev/null; do
	node=$((1 - node))
	for task in $(pgrep stress-ng); do
		# The task may have ended.
		./vmig "$task" $node >/dev/null 2>&1
	done
	echo 1 >/proc/sys/vm/compact_memory
done
wait $stress
status=$?
leave_counters
exit $status
