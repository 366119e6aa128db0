# SPDX-License-Identifier: GPL-2.0-only
# Runs the programs for operators in a guest, while pages are migrated there. Leaves what they
# print in files, which the suite checks.

(./ferry top --once --json --interval 10 >top.json; echo $? >ended) &
./ferry advise --seconds 10 --record advice.record --json >advice.json || exit 1 &
advise=$!
until [ -s ended ]; do
	./ferry-guest test counters/huge-pages counters/crew --engine on || exit 1
done
wait $advise || exit 1
[ $(cat ended) = 0 ] || exit 1
./ferry top --once --interval 0.1 || exit 1
./ferry top --prometheus >metrics.prom || exit 1
./ferry advise --from advice.record || exit 1

thp=/sys/kernel/mm/transparent_hugepage
settings() {
	pools=$(find $thp /sys/devices/system/node/ -name enabled -o -name nr_hugepages)
	for file in /proc/sys/vm/mt_page_copy /proc/sys/vm/limit_mt_num \
			/proc/sys/vm/min_free_kbytes $pools; do
		echo "$file:$(cat "$file")"
	done
}
echo 0 >/proc/sys/vm/mt_page_copy
echo 7 >/proc/sys/vm/limit_mt_num
echo never >$thp/enabled
# A file system whose page cache has large folios.
truncate -s 64M /run/image && disk=$(losetup --find --show /run/image) || exit 1
mkfs.ext4 -q $disk && mkdir /run/disk && mount $disk /run/disk || exit 1
settings >before
./ferry bench local --counts 1,64 --threads 2 --runs 3 --share 20 \
	--kinds 4K,64K,2M,hugetlb,file --dir /run/disk \
	--json local.json --html local.html || exit 1
settings >after
./ferry bench compare local.json local.json || exit 1
cp ferry /run
(cd /run && setpriv --reuid=65534 --regid=65534 --clear-groups \
	./ferry bench local --counts 16 --runs 1 --kinds 4K) >other-user || exit 1

moved() {
	sed -n 's/^pgmigrate_success //p' /proc/vmstat
}
# Migrates without the right to change settings, until the adviser has looked.
advised() {
	state=$1
	shift
	(cd /run && until [ -e looked ]; do
		"$@" setpriv --reuid=65534 --regid=65534 --clear-groups \
			./ferry bench local --counts 4096 --runs 8 --kinds 4K || exit 1
	done) >/dev/null &
	before=$(moved)
	until [ "$(moved)" -gt $((before + 10000)) ]; do
		sleep 0.1
	done
	./ferry advise --seconds 5 --json >advice-"$state".json || exit 1
	touch /run/looked
	wait $! || exit 1
	rm /run/looked
}
in_limited() {
	sh -c 'echo $$ >/run/groups/limited/cgroup.procs; exec "$@"' limited "$@"
}
echo 4 >/proc/sys/vm/limit_mt_num
echo 1 >/proc/sys/vm/mt_page_copy
mkdir /run/groups && mount -t cgroup2 none /run/groups || exit 1
echo +cpu >/run/groups/cgroup.subtree_control
mkdir /run/groups/limited && echo 90000 100000 >/run/groups/limited/cpu.max || exit 1
advised quota in_limited
advised nice nice -n 10
copy=/sys/kernel/mm/ferry/copy
echo serial >$copy/method && echo 0 >/proc/sys/vm/mt_page_crew || exit 1
advised serial env
echo auto >$copy/method && echo 1048576 >$copy/min_kb || exit 1
advised short env

# The samples, with the settings that are comments there. None has its value before.
echo 0 >/proc/sys/vm/mt_page_copy
echo 7 >/proc/sys/vm/limit_mt_num
echo 0 >/proc/sys/kernel/numa_balancing
sed 's/^#kernel/kernel/' sysctl.conf >/run/sysctl.conf
sysctl -q -p /run/sysctl.conf || exit 1
sed -n 's/^-*\([a-z]*\)\.\([A-Za-z0-9_]*\) = /\1 \2 /p' /run/sysctl.conf |
while read -r group name value; do
	echo "$name: $value -> $(cat "/proc/sys/$group/$name")"
done >samples
sed -n 's/^#w //p' tmpfiles.conf |
while read -r path _ _ _ _ value; do
	echo "$value" >"$path" || exit 1
	echo "$path: $value -> $(cat "$path")"
done >>samples
