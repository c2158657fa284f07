#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Test the module in a throw-away guest with this machine's own kernel.
#
#	tests/vm.sh [TEST...]
#
# virtme-ng boots the running kernel, or KREL=, with this machine's root file system (changes are
# thrown away). It needs that kernel's image and headers: installed here, or in a root file system made
# by tests/debian/run.sh. Without them, or without virtme-ng, the same tests run in a Debian guest.
# "bench" is no test but runs in the same guest. The last line is RESULT n; 0 if everything passed.
#
# Environment:
#	KREL=release   instead of the running kernel
#	SUITE=bookworm the Debian guest to fall back to
#	VM_DEBUG=0 VM_TIMEOUT=600 APPEND=... ACCEL=kvm|tcg VM_CPUS=2 VM_MEMORY=1G VM_DISK_IOPS=200
#	               as tests/debian/run.sh -h says
#
# Files, in build/vm: console.log, tests.log, build.log, and out/ with what the guest left in /out.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/..)
. "$top"/scripts/say.sh
. "$top"/tests/qemu.sh

parse() {
	tests=$*
	[ -n "$tests" ] || tests=$(make -s --no-print-directory -C "$top" list-tests)
	release=${KREL:-$(uname -r)}
	vm_check_settings
	vm_check_tests
}

lock() {
	mkdir -p "$vm_dir"
	exec 8>"$vm_dir"/lock
	flock -n 8 || { note "$me: waiting for another run"; flock 8; }
}

first_file() { # FILE...: the first that can be read
	local file
	for file; do
		[ ! -r "$file" ] || { echo "$file"; return; }
	done
}

# Sets kernel, and rootfs if the kernel is not installed here. Fails, saying why in reason, if nothing fits.
find_kernel() {
	local caches=${CSF_CACHE:-$top/build/debian}
	rootfs=
	command -v vng >/dev/null || { reason="virtme-ng is not installed"; return 1; }
	kernel=$(first_file "/boot/vmlinuz-$release" "/lib/modules/$release/vmlinuz")
	if [ -n "$kernel" ] && [ -e "/lib/modules/$release/build/Makefile" ]; then
		return
	fi
	kernel=$(first_file "$caches"/*/rootfs/boot/vmlinuz-"$release")
	rootfs=${kernel%/boot/*}
	[ -n "$kernel" ] || reason="there is no image with headers of Linux $release here"
	[ -n "$kernel" ]
}

keep_bench() { # what "bench" found, beside what make bench finds
	[ -d "$vm_dir"/out/bench ] || return 0
	mkdir -p "$top"/build/bench
	cp "$vm_dir"/out/bench/*.json "$top"/build/bench/
}

fall_back() { # the same tests in a Debian guest, its logs where ours would be
	local rc=0 suite=${SUITE:-bookworm}
	echo "# $reason: using a Debian $suite guest"
	"$here"/debian/run.sh "$suite" ${tests:+$tests} || rc=$?
	rm -rf "$vm_dir"/out
	cp -r "$top"/build/debian/"$suite"/{console.log,tests.log,out} "$vm_dir"/ 2>/dev/null || true
	keep_bench
	exit "$rc"
}

build_tree() { # programs always here, as this machine's libraries run them
	# shellcheck disable=SC2046 # a list
	vm_build "the tests" make -s -C "$top" $(vm_targets) "TESTS=$tests"
	module=$top/kmod/coarse_stat_fs.ko
	if [ -z "$rootfs" ]; then
		vm_build "for Linux $release" make -C "$top" KDIR="/lib/modules/$release/build" module
	else
		vm_build "for Linux $release" as_root "$here"/debian/build.sh "$rootfs" "$release" module
		module=$rootfs/src/kmod/coarse_stat_fs.ko
	fi
}

# What runs in the guest. The nonce is gone before any test starts, so that none can write the verdict.
write_guest_script() {
	nonce=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	echo "$nonce" >"$vm_dir"/share/nonce
	cp "$module" "$vm_dir"/share/
	cat >"$vm_dir"/share/run <<-RUN
		#!/bin/sh
		export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		cd /var/csf/tree
		read -r nonce </var/csf/share/nonce
		rm /var/csf/share/nonce
		exec </dev/null >/var/csf/share/tests.log 2>&1
		dmesg -n 8
		modprobe -a virtio_blk ext4
		echo '+memory +cpu' >/sys/fs/cgroup/cgroup.subtree_control
		export CSF_ACCEL=$vm_accel CSF_VM_DEBUG=$VM_DEBUG CSF_RELEASE=$release CSF_KO=/var/csf/share/coarse_stat_fs.ko
		export CSF_TSC_RELIABLE=$(vm_tsc_reliable "$arguments") CSF_OUT=/var/csf/share/out
		for device in /sys/block/vd*; do
			[ "\$(cat \$device/serial)" = csf-disk ] || continue
			export CSF_DISK_DEV=/dev/\${device##*/} CSF_DISK_DIR=/run/csf-disk
			mkdir -p \$CSF_DISK_DIR
			mount -t ext4 \$CSF_DISK_DEV \$CSF_DISK_DIR
		done
		sh tests/vm-inner.sh $tests
		status=\$?
		sync
		echo "\$nonce \$status" >/var/csf/share/verdict
	RUN
}

# The tree is part of the root file system, but virtme-ng hides what lies in /tmp or /var/tmp. It can mount
# only into what it overlays, and /var is, or onto a path that it finds from where it is started.
vng_start() { # in the background, its pid in vm_pid
	local options=(--disable-microvm --rodir /var/csf/tree="$top")
	[ -z "$rootfs" ] || options+=(--rodir "$rootfs/lib/modules/$release")
	[ "$vm_accel" = kvm ] || options+=(--disable-kvm --qemu-opts="-cpu max")
	(cd / && exec timeout -k 5 "$VM_TIMEOUT" vng --run "$kernel" --verbose --disable-monitor --user root "${options[@]}" \
		--cpus "$VM_CPUS" --memory "${VM_MEMORY:-1G}" --rwdir /var/csf/share="$vm_dir"/share \
		--qemu-opts="$(vm_slow_disk)" --append "$arguments" --exec "sh /var/csf/share/run" \
		</dev/null >"$vm_dir"/console.log 2>&1) &
	vm_pid=$!
}

[ "${1:-}" != -h ] || usage "$0"
parse "$@"
vm_dir=$top/build/vm
lock
if ! find_kernel; then
	[ -z "${KREL:-}" ] || die "$reason"
	fall_back
fi
trap 'vm_stop; exit 130' INT
trap 'vm_stop; exit 143' TERM
build_tree
vm_choose_accel "$kernel" "$top"/build
arguments=$(vm_kernel_arguments "slub_debug=FZP init_on_free=1 kfence.sample_interval=20")
rm -rf "$vm_dir"/share "$vm_dir"/tests.log "$vm_dir"/out
mkdir -p "$vm_dir"/share/out
: >"$vm_dir"/share/tests.log
ln -s share/tests.log "$vm_dir"/tests.log
ln -s share/out "$vm_dir"/out
ln -sf share/verdict "$vm_dir"/verdict
write_guest_script
echo "# virtme-ng, Linux $release, $vm_accel_why"
vng_start
vm_finish "$nonce" "virtme-ng guest"
keep_bench
echo "RESULT $vm_status"
[ "$vm_status" = 0 ]
