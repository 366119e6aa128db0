# SPDX-License-Identifier: GPL-2.0-only
# Runs tests of xfstests, in the folder $1, on each file system in $2, while the
# pages of their programs move and memory blocks go offline and come back. The
# rest of the arguments are the tests. Leaves the output of each run in the file
# check-FS, and the number of times that a block went offline in the counter
# `offlined`.

xfstests=$1 systems=$2
shift 2
features_on
mkdir -p /run/test /run/scratch

# Takes each memory block of node 1 offline and back online. A block with pages
# that cannot move stays online.
unplug() {
	for state in /sys/devices/system/node/node1/memory*/state; do
		timeout 5 sh -c "echo offline >$state" || continue
		echo >>offlined
		echo online >"$state"
	done
}

move_pages() {
	node=0
	until [ -e ended ]; do
		node=$((1 - node))
		for task in $(pgrep 'fsstress|fsx'); do
			# The task may have ended.
			./vmig "$task" $node >/dev/null 2>&1
		done
		echo 1 >/proc/sys/vm/compact_memory
		unplug 2>/dev/null
	done
}

touch offlined
move_pages &
for system in $systems; do
	case $system in
	ext4) force=-F ;;
	*) force=-f ;;
	esac
	mkfs."$system" -q $force /dev/vda
	(cd "$xfstests" && TEST_DEV=/dev/vda TEST_DIR=/run/test SCRATCH_DEV=/dev/vdb \
		SCRATCH_MNT=/run/scratch FSTYP=$system SOAK_DURATION=120 \
		RESULT_BASE=/run/results-"$system" ./check "$@") >check-"$system" 2>&1
	cat check-"$system"
done
touch ended
wait
leave_counters
wc -l <offlined >counters/offlined
