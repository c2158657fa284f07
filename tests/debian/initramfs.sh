#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Pack an initramfs from ROOTFS/src, as built by build.sh: busybox, the kernel modules a guest needs, the
# module under test, tests and tools with their libraries, guest.sh as init.
#
#	tests/debian/initramfs.sh ROOTFS KERNEL_RELEASE STAGE >INITRAMFS
#
# STAGE is a scratch directory. What it already holds (the run's own nonce, environment and arguments, another
# init) is packed too.
set -eu
here=$(dirname "$(realpath "$0")")
. "$here"/../../scripts/say.sh

# In this order; those that a series does not have, or has built in, are left out.
kernel_modules="virtio_pci virtio_blk crc32c_generic ext4"

add_busybox() {
	mkdir -p "$stage"/{bin,dev,proc,run,sys,tmp,etc,mnt,out,lib64,lib/x86_64-linux-gnu}
	ln -sfn bin "$stage"/sbin
	cp "$rootfs"/bin/busybox "$stage"/bin/
	"$rootfs"/bin/busybox --list | grep -vx busybox | while read -r applet; do ln -sf busybox "$stage/bin/$applet"; done
	cp "$rootfs"/usr/bin/chrt "$rootfs"/usr/bin/nice "$stage"/bin/ # busybox has neither
	printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$stage"/etc/passwd
	[ -e "$stage"/init ] || cp "$here"/guest.sh "$stage"/init
}

# What NAME needs, then NAME itself; modules.dep lists what to load last first.
module_files() { # NAME
	awk -F '[: ]+' -v name="$1" '{
		file = $1; sub(".*/", "", file); sub("[.]ko.*", "", file); gsub("-", "_", file)
		if (file == name)
			for (i = NF; i > 0; i--) if ($i != "") print $i
	}' "$rootfs/lib/modules/$release/modules.dep"
}

# Decompressed here: the guest's insmod needs no xz then, and TCG no time for it.
add_kernel_modules() {
	local file name
	mkdir -p "$stage"/modules
	for name in $kernel_modules; do module_files "$name"; done | awk '!seen[$0]++' | while read -r file; do
		name=${file##*/}
		file=$rootfs/lib/modules/$release/$file
		case $name in
		*.xz) xz -dc "$file" >"$stage/modules/${name%.xz}" ;;
		*.zst) zstd -dcq "$file" >"$stage/modules/${name%.zst}" ;;
		*) cp "$file" "$stage/modules/$name" ;;
		esac
		echo "${name%.ko*}.ko"
	done >"$stage"/modules/list
}

# Same paths as in the source tree, so that tests run here as they do there.
add_tree() {
	local path
	cd "$rootfs"/src
	mkdir -p "$stage"/csf/tools
	{
		find tests examples scripts packaging README.md VERSION -type f 2>/dev/null || true
		find kmod tests -name '*.ko'
		find build -type f -perm -u+x 2>/dev/null || true
	} | sort -u | while read -r path; do
		cp --parents "$path" "$stage"/csf/
	done
	ln -sf ../build/csfcat "$stage"/csf/tools/csfcat
}

add_libraries() { # of every program, by the dynamic loader's own word, run outside of the chroot
	local loader=$rootfs/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 program
	cp -L "$loader" "$stage"/lib64/
	# no program names this one: glibc loads it for pthread_exit() and pthread_cancel()
	cp -L "$rootfs"/lib/x86_64-linux-gnu/libgcc_s.so.1 "$stage"/lib/x86_64-linux-gnu/
	find "$stage"/bin "$stage"/csf/build -type f -perm -u+x | while read -r program; do
		LC_ALL=C grep -qa /ld-linux "$program" || continue # static
		"$loader" --library-path "$rootfs/lib/x86_64-linux-gnu:$rootfs/usr/lib/x86_64-linux-gnu" \
			--list "$program" 2>/dev/null || true
	done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r program; do
		cp -L "$program" "$stage"/lib/x86_64-linux-gnu/
	done
}

[ "${1:-}" != -h ] || usage "$0"
[ $# = 3 ] || usage_error "needs ROOTFS, KERNEL_RELEASE and STAGE"
rootfs=$(realpath "$1") release=$2 stage=$3
mkdir -p "$stage"
stage=$(realpath "$stage")
add_busybox
[ -n "$release" ] && add_kernel_modules
if [ -d "$rootfs"/src ]; then
	add_tree
	add_libraries
fi
(cd "$stage" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0)
