#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# A test that claims success in every way it can reach, then takes the guest down before the verdict.
echo "RESULT 0"
for tty in /dev/ttyS0 /dev/ttyS1 /dev/ttyS2; do
	echo "RESULT 0" >$tty
	echo "0" >$tty
	echo "$(cat /nonce 2>/dev/null) 0" >$tty
done
sync
sleep 1
poweroff -f
