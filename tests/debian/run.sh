#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Test the module, or another writer, on a Debian kernel, in a guest that QEMU boots from an initramfs.
#
#	tests/debian/run.sh SUITE [TEST...]
#
# SUITE is the name of a line of tests/debian/KERNELS; without TEST, all that tests/Makefile has for the writer run.
# "bench" and "demo" are no tests but run in the same guest. The last line is RESULT n; n is 0 if everything passed.
#
# Environment:
#	VM_DEBUG=0     no memory debugging, no panic on a warning (default 1)
#	VM_TIMEOUT=s   hard limit for the boot and all tests in it (600)
#	ICOUNT=1       one CPU whose clock counts instructions: timing without noise, no disk
#	WRITER=bpf     the BPF service in place of the module, on the tests that know no writer
#	WRITER=none    the commands that watch, which need no writer
#	WRITER=module  is what is tested without; a suite must have the writer, by its line in KERNELS
#	APPEND=...     more kernel parameters, tsc=reliable for one
#	ACCEL=kvm|tcg  do not probe KVM
#	VM_CPUS=2 VM_MEMORY=1G VM_DISK_IOPS=200
#	MIRROR=url     the Debian mirror, else the one of this host's apt
#	CSF_CACHE=dir  keep the root file systems there, for several clones (build/debian)
#	GUEST_ENVIRONMENT="A=1 B=2" is for the tests in the guest
#	KBUILD=dir     the kernel that was built there, with all it needs built in, in place of the suite's; VM_NAME=
#	               is a name for it, and its files are in build/debian/NAME (see tests/debug/run.sh)
#	CHECK=1        ask the mirror for a newer kernel now, not once a day
#
# Files, in build/debian/SUITE: console.log, tests.log, build.log, and out/ with what the guest left in /out.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh
. "$top"/tests/qemu.sh

suite_field() { # COLUMN [TO_THE_END]: of this suite's line in KERNELS
	awk -v s="$suite" -v c="$1" -v all="${2:-}" '$1 == s {
		if (!all) print $c
		else for (; c <= NF; c++) printf "%s ", $c
	}' "$here"/KERNELS
}

parse() {
	[ $# -ge 1 ] || usage_error "needs a SUITE: $(awk '!/^#/ { printf "%s ", $1 }' "$here"/KERNELS)"
	suite=$1
	shift
	tests=$*
	series=$(suite_field 5)
	[ -n "$series" ] || usage_error "$here/KERNELS has no suite '$suite'"
	[[ ,$(suite_field 6), == *,${WRITER:-module},* ]] ||
		usage_error "$suite has no writer '${WRITER:-module}': set WRITER= to one of $(suite_field 6)"
	[ "${WRITER:-}" != module ] || WRITER=
	[ -n "$tests" ] || tests=$(make -s --no-print-directory -C "$top" "list-${WRITER:+$WRITER-}tests")
	vm_check_settings
	vm_check_tests
}

lock() { # one run a suite: its tree, logs and images are shared
	mkdir -p "$cache" "$vm_dir"
	exec 9>"$cache"/lock
	flock -n 9 || { note "$me: waiting for another run on $suite"; flock 9; }
}

find_kernel() {
	if [ -n "${KBUILD:-}" ]; then
		kernel=$KBUILD/arch/x86/boot/bzImage release=$(cat "$KBUILD"/include/config/kernel.release)
		return
	fi
	kernel=$(find "$cache"/rootfs/boot -name 'vmlinuz-*' | sort -V | tail -n 1)
	release=${kernel##*/vmlinuz-}
	[ -n "$kernel" ] || die "$cache/rootfs has no kernel; remove it and run again"
	printf '%s\n%s\n' "$series" "$release" | sort -CV ||
		die "Linux $release is older than the $series that $here/KERNELS names for $suite: is the mirror stale?"
}

build_tree() { # as much as the tests need, so that somebody's unfinished test stops nobody else
	local module=module
	[ "${WRITER:-}" != none ] && [ -z "${KBUILD:-}" ] || module= # is for 6.1 and later, and KBUILD's made by its compiler
	# shellcheck disable=SC2046 # a list
	vm_build "for Linux $release" \
		as_root "$here"/build.sh "$cache"/rootfs "$release" $module $(vm_targets) "TESTS=$tests" BPF_TESTS= SERVE_TESTS= WATCH_TESTS=
	[ -z "${KBUILD:-}" ] || vm_build "the module" make -C "$top" KDIR="$KBUILD" module
}

wants_csf() {
	case ${WRITER:-}:" $tests " in
	[a-z]*:* | *" lab "*) ;;
	*" bench "* | *" both "*) "$top"/scripts/bpf-tools.sh clang bpftool cc ;;
	*) false ;;
	esac
}

add_csf() { # STAGE: with its libraries, since what it takes to build BPF programs is here, not in the suite
	local lib=$1/csf/build/lib
	vm_build "csf" make -s --no-print-directory -C "$top" build/csf-guest build/busy_storage-guest
	mkdir -p "$lib"
	cp "$top"/build/csf-guest "$1"/csf/build/csf
	cp "$top"/build/busy_storage-guest "$1"/csf/build/busy_storage
	ldd "$top"/build/csf | grep -o '/[^ ]*' | xargs cp -t "$lib"
	mv "$lib"/ld-linux-* "$lib"/ld.so
}

pack() { # the initramfs, with this run's secrets and wishes
	local stage=$vm_dir/stage
	as_root rm -rf "$stage"
	mkdir -p "$stage"
	nonce=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	echo "$nonce" >"$stage"/nonce
	echo "$tests" | tr '\n' ' ' >"$stage"/arguments
	echo >>"$stage"/arguments
	cat >"$stage"/environment <<-ENV
		CSF_ACCEL=$vm_accel
		CSF_TSC_RELIABLE=$(vm_tsc_reliable "$arguments")
		CSF_VM_DEBUG=$VM_DEBUG
		CSF_RELEASE=$release
		CSF_WRITER=${WRITER:-module}
	ENV
	tr ' ' '\n' <<<"${GUEST_ENVIRONMENT:-}" >>"$stage"/environment
	! wants_csf || add_csf "$stage"
	if [ -n "${KBUILD:-}" ]; then
		cp "$top"/kmod/coarse_stat_fs.ko "$stage"/
		echo CSF_KO=/coarse_stat_fs.ko >>"$stage"/environment
	fi
	"$here"/initramfs.sh "$cache"/rootfs "$(kernel_modules)" "$stage" >"$vm_dir"/initramfs
	rm -rf "$stage"
}

kernel_modules() { [ -n "${KBUILD:-}" ] || echo "$release"; }

unpack_out() {
	rm -rf "$vm_dir"/out
	mkdir -p "$vm_dir"/out
	tar -x -C "$vm_dir"/out -f "$vm_dir"/out.img 2>/dev/null || true
	rm -f "$vm_dir"/out.img "$vm_dir"/disk.img
}

[ "${1:-}" != -h ] || usage "$0"
parse "$@"
need_tools check qemu-system-x86_64 mkfs.ext4 cpio xz
vm_dir=$top/build/debian/${VM_NAME:-$suite}
cache=$(realpath -m "${CSF_CACHE:-$top/build/debian}")/$suite
trap 'vm_stop; exit 130' INT
trap 'vm_stop; exit 143' TERM
lock
"$here"/rootfs.sh "$suite" "$cache"
find_kernel
build_tree
vm_choose_accel "$kernel" "$top"/build
arguments=$(vm_kernel_arguments "$(suite_field 7 all)")
pack
echo "# Debian ${VM_NAME:-$suite}, Linux $release, $vm_accel_why"
vm_start "$kernel" "$vm_dir"/initramfs "$VM_TIMEOUT" "$arguments"
vm_finish "$nonce" "Debian $suite guest"
unpack_out
echo "RESULT $vm_status"
[ "$vm_status" = 0 ]
