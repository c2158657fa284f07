#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Test the Debian packages: build them twice in a Debian with nothing but what debian/control names, see that
# lintian has no complaint and that both builds have the same bytes, and let a guest with systemd install them,
# boot with them, use them, and purge them.
#
#	tests/packages.sh [SUITE]
#
# SUITE is a line of tests/debian/KERNELS (bookworm). What is tested is the last commit. The last line is
# RESULT n; n is 0 if everything passed. As root.
#
# Environment: VM_TIMEOUT=s, the hard limit for each of two boots (1800); VM_DEBUG, ACCEL, VM_CPUS, VM_MEMORY (2G),
# MIRROR, CSF_CACHE and CHECK as for tests/debian/run.sh. Files: build/packages/.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/..)
. "$top"/scripts/say.sh
. "$top"/tests/qemu.sh

# What a guest has before it meets the packages: what they depend on, by their own word, and compilers.
guest_packages="systemd-sysv udev dkms g++ pkg-config libbpf1 libelf1 libjson-c5 zlib1g procps"
failed=0

step() { # WHAT LOG COMMAND...: a check on the host
	if progress "$1" "$vm_dir/$2" "${@:3}"; then
		echo "ok $1"
	else
		echo "not ok $1"
		failed=$((failed + 1))
	fi
}

build_depends() {
	sed -n '/^Build-Depends:/,/^[A-Z][a-z-]*:/{s/^Build-Depends://;/^[A-Z]/d;s/([^)]*)//g;s/,//g;p;}' "$top"/debian/control |
		sed 's/dh-sequence-dkms/dh-dkms/; s/debhelper-compat/debhelper/' | xargs
}

build_in() { # DIRECTORY: of the chroot, from the tarball
	local dir=$build/rootfs$1
	rm -rf "$dir"
	mkdir -p "$dir"
	tar -C "$dir" -xf "$top"/build/coarse_stat_fs-"$version".tar.gz
	"$here"/debian/chroot.sh "$build"/rootfs env "TZ=$2" sh -c \
		"umask $3 && cd $1/coarse_stat_fs-$version && dpkg-buildpackage -us -uc -b"
}

same_bytes() { # of two builds, every package
	local deb
	for deb in "$build"/rootfs/build/*.deb; do
		cmp "$deb" "$build/rootfs/elsewhere/$version/${deb##*/}" || return
	done
}

lint() {
	"$here"/debian/chroot.sh "$build"/rootfs sh -c 'cd /build && lintian --allow-root --fail-on error,warning *.changes'
}

build_packages() {
	step "the packages build where only what they build-depend on is installed" build.log build_in /build UTC 022
	[ "$failed" = 0 ] || return
	step "a build elsewhere succeeds" build2.log build_in /elsewhere/"$version" Asia/Seoul 027
	step "and makes the same bytes" compare.log same_bytes
	step "lintian finds nothing" lintian.log lint
}

base_image() { # the guest's root file system as a disk; kept
	local image=$guest/root.img
	[ ! "$image" -nt "$guest"/rootfs.packages ] || return 0
	rm -f "$image" "$image".new
	truncate -s 4G "$image".new
	progress "making the guest's disk" "$vm_dir"/image.log mkfs.ext4 -q -F -d "$guest"/rootfs "$image".new
	mv "$image".new "$image"
}

vm_disks() { echo "-drive if=none,id=root,format=raw,cache=unsafe,file=$vm_dir/root.img -device virtio-blk-pci,drive=root,serial=csf-root"; }

# shellcheck disable=SC2016 # backquotes
readme_program() { sed -n '/^```c$/,/^```$/{/^```/d;p;}' "$top"/README.md; }

pack() { # the initramfs with what the guest shall find
	local stage=$vm_dir/stage payload=$vm_dir/stage/payload
	rm -rf "$stage"
	mkdir -p "$payload"/packages "$payload"/etc/systemd/system/multi-user.target.wants "$payload"/etc/dpkg/dpkg.cfg.d
	cp "$build"/rootfs/build/*.deb "$here"/packages/guest.sh "$here"/packages/use.c "$payload"/packages/
	rm -f "$payload"/packages/*-dbgsym_*.deb
	readme_program >"$payload"/packages/readme.c
	cp "$here"/packages/guest.service "$payload"/etc/systemd/system/csf-packages.service
	ln -s ../csf-packages.service "$payload"/etc/systemd/system/multi-user.target.wants/
	: >"$payload"/etc/dpkg/dpkg.cfg.d/99mmdebstrap # it leaves out pages of the manual
	nonce=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	(umask 077 && echo "$nonce" >"$payload"/packages/nonce)
	cp "$here"/packages/init.sh "$stage"/init
	"$here"/debian/initramfs.sh "$guest"/rootfs "$release" "$stage" >"$vm_dir"/initramfs
	rm -rf "$stage"
}

boot() { # WHAT
	local start=$SECONDS
	pack
	echo "# $1: Debian $suite, Linux $release, $vm_accel_why"
	vm_start "$kernel" "$vm_dir"/initramfs "$VM_TIMEOUT" "$(vm_kernel_arguments "$arguments") rw quiet systemd.show_status=0"
	vm_finish "$nonce" "$1"
	cp "$vm_dir"/console.log "$vm_dir/console-$1.log"
	echo "# $1: $((SECONDS - start)) s"
	failed=$((failed + vm_status))
	[ "$vm_status" = 0 ]
}

! is_help "${1:-}" || usage "$0"
[ $# -le 1 ] || usage_error "takes one SUITE"
suite=${1:-bookworm}
arguments=$(awk -v s="$suite" '$1 == s { for (i = 7; i <= NF; i++) printf "%s ", $i }' "$here"/debian/KERNELS)
[ -n "$arguments" ] || usage_error "$here/debian/KERNELS has no suite '$suite'"
git -C "$top" rev-parse --verify -q HEAD >/dev/null || { echo "skip packages: this is no clone, and they are made of a commit"; exit; }
[ "$(id -u)" = 0 ] || die "needs root, to build in a chroot"
: "${VM_TIMEOUT:=1800}" "${VM_MEMORY:=2G}"
vm_check_settings
[ "$ICOUNT" = 0 ] || usage_error "a guest with systemd takes too long with ICOUNT=1"
PATH=$PATH:/usr/sbin:/sbin
need_tools check qemu-system-x86_64 mkfs.ext4 cpio xz git
vm_dir=$top/build/packages
cache=$(realpath -m "${CSF_CACHE:-$top/build/debian}")
build=$cache/$suite-build guest=$cache/$suite-systemd version=$(cat "$top"/VERSION)
mkdir -p "$vm_dir" "$build" "$guest"
trap 'vm_stop; exit 130' INT
trap 'vm_stop; exit 143' TERM
exec 9>"$build"/lock
flock -n 9 || { note "$me: waiting for another run"; flock 9; }
# shellcheck disable=SC2046,SC2086 # lists
"$here"/debian/rootfs.sh "$suite" "$build" build-essential $(build_depends) lintian
# shellcheck disable=SC2086
"$here"/debian/rootfs.sh "$suite" "$guest" $guest_packages
kernel=$(find "$guest"/rootfs/boot -name 'vmlinuz-*' | sort -V | tail -n 1)
release=${kernel##*/vmlinuz-}
make -s --no-print-directory -C "$top" dist
if build_packages; then
	vm_choose_accel "$kernel" "$top"/build
	base_image
	cp --sparse=always "$guest"/root.img "$vm_dir"/root.img
	if boot install; then boot use || true; fi
	rm -f "$vm_dir"/root.img
fi
echo "RESULT $failed"
[ "$failed" = 0 ]
