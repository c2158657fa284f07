#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# There is one version, in VERSION. Does everything else that names it agree? Prints "ok" or "not ok" a file.
#
#	scripts/version.sh
set -u
here=$(dirname "$(realpath "$0")")
. "$here"/say.sh
no_arguments "$0" "$@"
cd "$here/.." || exit 1
version=$(cat VERSION)
status=0

names() { # FILE SED_EXPRESSION: the version that FILE names must be the one
	local found
	found=$(sed -n "$2" "$1" | head -n 1)
	if [ "$found" = "$version" ]; then
		echo "ok version in $1"
	else
		echo "not ok version in $1: '$found', but VERSION says $version"
		status=1
	fi
}

names kmod/main.c 's/^MODULE_VERSION("\(.*\)");/\1/p'
names dkms.conf 's/^PACKAGE_VERSION="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p'
names debian/changelog 's/^coarse-stat-fs (\(.*\)) .*/\1/p'
names CHANGELOG.md 's/^## \[\{0,1\}\([0-9][^] ]*\).*/\1/p'
for page in man/*; do
	names "$page" 's/^[.]TH .*"coarse_stat_fs \([^"]*\)".*/\1/p'
done
exit $status
