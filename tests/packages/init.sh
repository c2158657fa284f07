#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The init of the initramfs that tests/packages.sh makes: bring what it carries in /payload into the root file
# system on the disk, and let systemd start there.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod /modules/"$module"; done </modules/list
for device in /sys/block/vd*; do
	[ "$(cat "$device"/serial)" != csf-root ] || root=/dev/${device##*/}
done
mount -t ext4 "$root" /mnt || poweroff -f
cp -a /payload/. /mnt/
umount /proc /sys
mount --move /dev /mnt/dev
exec switch_root /mnt /sbin/init
