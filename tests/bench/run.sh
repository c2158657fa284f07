#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Measure what reading a page costs here, and what the module costs a Debian guest that counts
# instructions, and hold both against the bars. Takes about fifteen minutes.
#
#	tests/bench/run.sh [native|bpf|accuracy|icount]
#
# Writes build/bench/native.json (ns; bpf adds to it, as root where BPF works),
# build/bench/accuracy.json (ms, likewise) and build/bench/icount.json (instructions); fails if a bar is
# missed.
# SUITE= is the guest's Debian, bookworm (Linux 6.1) unless said otherwise.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh

native() {
	echo "# natively, ns: medians of interleaved rounds"
	make -s --no-print-directory -C "$here" native
	"$out"/native "$out"/native.json
}

bpf_works() {
	[ "$(id -u)" != 0 ] || [ ! -r /sys/kernel/btf/vmlinux ] || return 0
	echo "# $1 is left out: it takes root and a kernel with BTF"
	return 1
}

bpf() {
	bpf_works BPF || return 0
	echo "# BPF as the writer, natively, ns: medians of interleaved rounds"
	"$here"/bpf.sh "$out"/native.json
}

accuracy() {
	bpf_works accuracy || return 0
	echo "# The same operations by the page and by others, ms"
	"$here"/accuracy.sh "$out"/accuracy.json
}

# What TOMOYO, which Debian has on but without a policy, makes of a path differs by some instructions from
# boot to boot; and where the page is mapped decides whether it takes a page table of its own.
boot() { # JSON
	ICOUNT=1 VM_DEBUG=0 APPEND="lsm=apparmor norandmaps ${APPEND:-}" \
		"$top"/tests/debian/run.sh "$suite" bench
	cp "$top"/build/debian/"$suite"/out/bench/icount.json "$1"
}

icount() {
	boot "$out"/icount.json
	boot "$out"/icount.again.json
	"$here"/check.sh "$out"/icount.json "$out"/icount.again.json
}

case ${1:-} in
-h) usage "$0" ;;
'' | native | bpf | accuracy | icount) ;;
*) usage_error "there is no benchmark '$1'" ;;
esac
out=$top/build/bench suite=${SUITE:-bookworm} status=0
mkdir -p "$out"
[ "${1:-native}" != native ] || native || status=1
[ "${1:-bpf}" != bpf ] || bpf || status=1
[ "${1:-accuracy}" != accuracy ] || accuracy || status=1
[ "${1:-icount}" != icount ] || icount || status=1
exit "$status"
