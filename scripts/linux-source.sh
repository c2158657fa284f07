#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Fetch the kernel's sources as Debian's linux-source package of SUITE, and unpack them, or MEMBERs of them, to DIR.
#
#	scripts/linux-source.sh SUITE DIR [MEMBER...]
#
# SUITE is a line of tests/debian/KERNELS. The package is kept beside the root file systems (CSF_CACHE=, build/debian);
# CHECK=1 asks the mirror for a newer one. DIR/.unpacked names what was unpacked, and DIR is left alone if that is there.
set -eu
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
. "$top"/scripts/mirror.sh

kernels_field() { awk -v s="$suite" -v c="$1" '$1 == s { print $c }' "$top"/tests/debian/KERNELS; }

kept_package() { find "$cache" -maxdepth 1 -name "$package"_'*.deb' 2>/dev/null | sort -V | tail -n 1; }

download() {
	local apt=$cache/apt try
	need_tools lint apt-get dpkg-deb
	private_apt_init "$apt"
	debian_suite "$apt" "$(kernels_field 2)" "$(kernels_field 3)"
	for try in 1 2 3; do
		if progress "looking for the sources of Linux" "$cache"/apt.log private_apt "$apt" apt-get update -q --error-on=any &&
			(cd "$apt" && progress "fetching the sources of Linux (130 MB)" "$cache"/apt.log \
				private_apt "$apt" apt-get download -q "$package"); then
			rm -f "$cache"/"$package"_*.deb
			mv "$apt"/"$package"_*.deb "$cache"/
			rm -rf "$apt"
			return
		fi
		[ "$try" = 3 ] || { note "$me: trying again"; sleep $((try * 5)); }
	done
	die "$package could not be fetched from $(debian_mirror), three times; is the network up? (MIRROR=URL names another mirror)"
}

unpack() { # DIR.new first: half a tree is never mistaken for a whole one
	rm -rf "$dir".new
	mkdir -p "$dir".new
	dpkg-deb --fsys-tarfile "$deb" | tar -xO "./usr/src/$package.tar.xz" |
		tar -xJ -C "$dir".new --strip-components 1 "${@/#/$package/}"
	echo "$wanted" >"$dir".new/.unpacked
	rm -rf "$dir"
	mv "$dir".new "$dir"
}

! is_help "${1:-}" || usage "$0"
[ $# -ge 2 ] || usage_error "needs SUITE and DIR"
suite=$1 dir=$(realpath -m "$2")
shift 2
series=$(kernels_field 5)
[ -n "$series" ] || usage_error "tests/debian/KERNELS has no suite '$suite'"
package=linux-source-$series
cache=$(realpath -m "${CSF_CACHE:-$top/build/debian}")/linux-source
mkdir -p "$cache"
exec 8>"$cache"/lock
flock 8
deb=$(kept_package)
if [ -z "$deb" ] || [ -n "${CHECK:-}" ]; then
	download
	deb=$(kept_package)
fi
wanted="${deb##*/} $*"
[ "$(cat "$dir"/.unpacked 2>/dev/null)" = "$wanted" ] && exit
progress "unpacking ${deb##*/}" "$cache"/unpack.log unpack "$@"
