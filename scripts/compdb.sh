#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Make compile_commands.json for clangd and clang-tidy: of user space by bear, and, if there are the headers of the
# running kernel (or KDIR=) or a Debian root file system of tests/debian/rootfs.sh, kmod/compile_commands.json.
#
#	scripts/compdb.sh [KDIR]
set -eu
here=$(dirname "$(realpath "$0")")
. "$here"/say.sh
! is_help "${1:-}" || usage "$0"
cd "$here/.."
need_tools lint bear
kdir=${1:-/lib/modules/$(uname -r)/build}
bear --output compile_commands.json -- make -s --always-make B=build/compdb csf build/compdb/csfcat examples tests
if [ -e "$kdir"/Makefile ]; then
	make -s KDIR="$kdir" module
	scripts/kmod-compdb.py kmod "$kdir" >kmod/compile_commands.json
	exit
fi
for root in "${CSF_CACHE:-build/debian}"/*/rootfs; do
	release=$(find "$root"/boot -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -n 1)
	[ -e "$root"/src/kmod/.main.o.cmd ] || continue
	scripts/kmod-compdb.py --root "$root" --tree . "$root"/src/kmod "/lib/modules/${release##*/vmlinuz-}/build" \
		>kmod/compile_commands.json
	exit
done
note "$me: no kernel headers in $kdir and no Debian root file system (make check makes one): kmod/ is left out"
