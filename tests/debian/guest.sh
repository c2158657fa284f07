#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The init of a Debian guest (busybox, in an initramfs made by initramfs.sh): prepare the little system
# that tests need, run vm-inner.sh, and send home what it returned.
#
# Three serial lines: ttyS0 is the kernel's console, ttyS1 what the tests print, ttyS2 the verdict. The
# verdict starts with a nonce that only this shell knows, so no test's output can pass for it.
export PATH=/bin:/csf/build

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /out
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup && echo '+memory +cpu' >/sys/fs/cgroup/cgroup.subtree_control
ln -s /proc/self/fd /dev/fd
ip link set lo up

stty -F /dev/ttyS1 raw -echo
stty -F /dev/ttyS2 raw -echo
exec </dev/null >/dev/ttyS1 2>&1

[ ! -e /modules/list ] || while read -r module; do
	insmod /modules/"$module" || echo "guest.sh: cannot load $module"
done </modules/list

disk() { # SERIAL: the device that run.sh gave this serial number
	for device in /sys/block/vd*; do
		[ "$(cat "$device"/serial)" != "$1" ] || echo "/dev/${device##*/}"
	done
}

read -r nonce </nonce
rm /nonce
set -a # what follows is for the tests' environment
. /environment
HOME=/ TERM=dumb
# shellcheck disable=SC2034 # exported, as all here
CSF_OUT=/out
CSF_DISK_DEV=$(disk csf-disk)
if [ -n "$CSF_DISK_DEV" ]; then
	# shellcheck disable=SC2034
	CSF_DISK_DIR=/mnt
	mount -t ext4 "$CSF_DISK_DEV" /mnt || echo "guest.sh: cannot mount $CSF_DISK_DEV"
else
	unset CSF_DISK_DEV
fi
set +a

read -r arguments </arguments
# shellcheck disable=SC2086 # a list of test names
sh /csf/tests/vm-inner.sh $arguments
status=$?

out=$(disk csf-out)
[ -z "$out" ] || tar -c -C /out -f "$out" .
umount /mnt 2>/dev/null
sync
echo "$nonce $status" >/dev/ttyS2
stty -F /dev/ttyS2 raw # waits until the line has left
poweroff -f
