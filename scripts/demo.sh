#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Show what really slow operations were doing: on this machine if coarse_stat_fs is mounted here, else in
# a Debian guest. Fails unless each operation's largest bucket is the one it must be.
set -eu
top=$(dirname "$(realpath "$0")")/..
. "$top"/scripts/say.sh
mount_point=/sys/kernel/coarse_stat_fs
suite=bookworm

if [ -r $mount_point/thread-self ]; then
	make -s --no-print-directory -C "$top" examples
	scratch=$(mktemp -d "$(realpath "$top"/build)"/demo.XXXXXX)
	trap 'rm -rf "$scratch"' EXIT
	echo "# coarse_stat_fs is mounted here, Linux $(uname -r)"
	"$top"/build/eventloop --demo "$scratch"
	exit
fi
exec env VM_DEBUG=0 VM_TIMEOUT="${VM_TIMEOUT:-120}" "$top"/tests/debian/run.sh "$suite" demo
