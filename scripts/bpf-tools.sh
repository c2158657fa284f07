#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Check for what building csf takes, and name the packages that are missing.
#
#	scripts/bpf-tools.sh CLANG BPFTOOL CC
here=$(dirname "$(realpath "$0")")
. "$here"/say.sh
! is_help "${1:-}" || usage "$0"
[ $# = 3 ] || usage_error "takes three arguments: CLANG BPFTOOL CC"
missing=
command -v "$1" >/dev/null || missing="$missing clang"
PATH=$PATH:/usr/sbin:/sbin command -v "$2" >/dev/null || missing="$missing bpftool"
for header in bpf/libbpf.h:libbpf-dev libelf.h:libelf-dev zlib.h:zlib1g-dev json-c/json.h:libjson-c-dev; do
	echo "#include <${header%:*}>" | "$3" -E - >/dev/null 2>&1 || missing="$missing ${header#*:}"
done
[ -z "$missing" ] && exit
echo "building csf takes Debian's packages$missing:" >&2
echo "    sudo apt-get install$missing" >&2
echo "everything else is built by: make tools examples tests" >&2
exit 1
