#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Load and unload the module again and again: each time the kernel patches its scheduler, which old QEMUs get
# wrong (see vm_qemu_is_good).
mnt=/sys/kernel/coarse_stat_fs
times=0
while [ $times -lt 50 ]; do
	umount $mnt && rmmod coarse_stat_fs && insmod kmod/coarse_stat_fs.ko &&
		mount -t coarse_stat_fs none $mnt || exit 1
	times=$((times + 1))
done
echo "ok $times times"
