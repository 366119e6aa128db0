#!/usr/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only
# The first program of a guest of another architecture than the host's: mounts
# the file systems for its tests, runs the guest's script in the folder
# $ferry_share, and powers off. The folders are the host's, at the same paths;
# $ferry_folders are more of them, separated by commas.
export PATH=/usr/sbin:/usr/bin:/run/bin HOME=/root
/usr/bin/busybox mount -t tmpfs none /run
/usr/bin/busybox mkdir /run/bin
/usr/bin/busybox --install -s /run/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
mount -t tmpfs none /tmp
mount -t debugfs none /sys/kernel/debug
mount -t tracefs none /sys/kernel/tracing
mount -t cgroup2 none /sys/fs/cgroup
# kcompactd would move pages that tests look up: a page that moves has no node.
echo 0 >/proc/sys/vm/compaction_proactiveness

# The folder of all guests is in the root, and empty.
mount -t tmpfs none "${ferry_share%/*}"
nr=0
for folder in $(echo "$ferry_share,$ferry_folders" | tr , ' '); do
	mkdir -p "$folder"
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 "ferry$nr" "$folder"
	nr=$((nr + 1))
done
sh "$ferry_share/run.sh"
poweroff -f
