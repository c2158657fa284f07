#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Bring this tree into ROOTFS as /src and make TARGETs there, with that suite's own compiler and headers.
# As root (chroot).
#
#	tests/debian/build.sh ROOTFS KERNEL_RELEASE TARGET... [VARIABLE=VALUE...]
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh

sources() { # every source file of the tree; nothing that a build makes
	(cd "$top" && find . \( -path ./build -o -path ./.git -o -name .tmp_versions \) -prune -o -type f \
		! -name '*.o' ! -name '*.ko' ! -name '*.mod' ! -name '*.mod.c' ! -name '.*.cmd' \
		! -name Module.symvers ! -name modules.order ! -name compile_commands.json -print)
}

# By content, with today's date: make then rebuilds what changed, also after a checkout of something older.
update_copy() {
	local file
	mkdir -p "$src"
	sources | sort >"$src".list.new
	if [ -e "$src".list ]; then
		comm -23 "$src".list "$src".list.new | while read -r file; do rm -f "${src:?}/$file"; done
	fi
	while read -r file; do
		cmp -s "$top/$file" "$src/$file" && continue
		mkdir -p "$src/${file%/*}"
		cp --preserve=mode "$top/$file" "$src/$file"
	done <"$src".list.new
	mv "$src".list.new "$src".list
}

[ "${1:-}" != -h ] || usage "$0"
[ $# -ge 3 ] || usage_error "needs ROOTFS, KERNEL_RELEASE and a TARGET"
rootfs=$(realpath "$1") release=$2
src=$rootfs/src
shift 2
update_copy
exec "$here"/chroot.sh "$rootfs" \
	make --no-print-directory -C /src -j "$(nproc)" KDIR=/lib/modules/"$release"/build "$@"
