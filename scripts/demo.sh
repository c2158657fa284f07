#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Show what really slow operations were doing: on this machine if coarse_stat_fs is mounted here or BPF can
# write the pages, else in a Debian guest. Fails unless each operation's largest bucket is the one it
# must be. --here only asks whether this machine can do without a guest.
#
#	scripts/demo.sh [--here]
set -eu
top=$(dirname "$(realpath "$0")")/..
. "$top"/scripts/say.sh
mount_point=/sys/kernel/coarse_stat_fs
suite=bookworm

# Outputs to build/, and a directory on a disk for the I/O.
here() { # WHY COMMAND...
	local status=0 scratch
	scratch=$(mktemp -d "$(realpath "$top"/build)"/demo.XXXXXX)
	echo "# $1, Linux $(uname -r)"
	"${@:2}" "$top"/build/eventloop --demo "$scratch" || status=$?
	rm -rf "$scratch"
	exit $status
}

# What is missing for it, csf says; then the guest shows the same.
bpf_works() {
	[ -r /sys/kernel/btf/vmlinux ] && make -s --no-print-directory -C "$top" csf &&
		"$top"/build/csf run true
}

! is_help "${1:-}" || usage "$0"
[ $# -le 1 ] || usage_error "'$2' is one argument too many"
[ $# = 0 ] || [ "$1" = --here ] || usage_error "the only option is --here, not '$1'"
if [ $# = 1 ]; then
	[ -r $mount_point/thread-self ] || bpf_works
	exit
fi
make -s --no-print-directory -C "$top" examples
[ ! -r $mount_point/thread-self ] || here "coarse_stat_fs is mounted here"
! bpf_works || here "BPF writes the pages" "$top"/build/csf run --
exec env VM_DEBUG=0 VM_TIMEOUT="${VM_TIMEOUT:-120}" "$top"/tests/debian/run.sh "$suite" demo
