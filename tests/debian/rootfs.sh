#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Make DIR/rootfs: what line NAME of KERNELS says: a Debian suite with its newest kernel, headers and compiler.
#
#	tests/debian/rootfs.sh NAME DIR [PACKAGE...]
#
# With these packages, too. An existing one is kept, unless the mirror has another kernel (asked at most once a day; CHECK=1 asks
# now). Offline, an existing one is good enough. MIRROR= overrides the host's Debian mirror.
set -eu
here=$(dirname "$(realpath "$0")")
. "$here"/../../scripts/say.sh
. "$here"/../../scripts/mirror.sh

installed_kernel() {
	dpkg-query --admindir="$dir"/rootfs/var/lib/dpkg -W -f '${Version}' "linux-image-$image" 2>/dev/null
}

mirrors_kernel() {
	private_apt "$apt" apt-cache policy "linux-image-$image" | sed -n 's/^ *Candidate: //p'
}

update_lists() {
	progress "looking for the newest kernel of $name" "$dir"/apt.log \
		private_apt "$apt" apt-get update --error-on=any
}

other_packages() { # than those of the existing rootfs; one of before this list was kept has no others
	[ "$(cat "$dir"/rootfs.packages 2>/dev/null || echo "$default_packages")" != "$packages" ]
}

fresh() { # the rootfs is there, whole, and checked within a day
	! other_packages || return
	[ -z "${CHECK:-}" ] && [ -n "$(find "$dir"/rootfs.checked -mtime -1 2>/dev/null)" ]
}

still_current() {
	[ -e "$dir"/rootfs.checked ] && ! other_packages || return 1
	if ! update_lists 2>"$dir"/apt.err; then
		note "$me: the mirror does not answer; using the $name of $(date -r "$dir"/rootfs.checked +%F)"
		return 0
	fi
	[ "$(installed_kernel)" = "$(mirrors_kernel)" ] && touch "$dir"/rootfs.checked
}

bootstrap() { # into rootfs.new: half a rootfs is never mistaken for a whole one
	local setup=()
	if [ "$suite" != "$base" ]; then
		setup=(--setup-hook="mkdir -p \"\$1\"/etc/apt/preferences.d"
			--setup-hook="cp '$apt'/preferences \"\$1\"/etc/apt/preferences.d/kernel")
	fi
	# Nobody boots this tree's own initrd: leave it out. fsync protects nothing here but costs time.
	progress "$1" "$dir"/rootfs.log as_root env INITRD=No mmdebstrap --mode=root --variant=apt \
		--aptopt="$dir"/download.conf --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--include="${packages// /,}" "${setup[@]}" "$base" "$dir"/rootfs.new "$apt"/sources.list
}

build() {
	local try
	apt_download_conf >"$dir"/download.conf
	for try in 1 2 3; do
		as_root rm -rf --one-file-system "$dir"/rootfs.new
		if bootstrap "building a Debian $name root file system"; then
			as_root rm -rf --one-file-system "$dir"/rootfs "$dir"/rootfs.checked
			as_root mv "$dir"/rootfs.new "$dir"/rootfs
			echo "$packages" >"$dir"/rootfs.packages
			touch "$dir"/rootfs.checked
			return
		fi
		[ "$try" = 3 ] || { note "$me: trying again"; sleep $((try * 5)); }
	done
	die "the Debian $name root file system could not be built, three times; see $dir/rootfs.log, which ends as above." \
		"If that is for want of a network or of files there: MIRROR=URL names another mirror than $(debian_mirror)"
}

[ "${1:-}" != -h ] || usage "$0"
[ $# -ge 2 ] || usage_error "needs NAME and DIR"
name=$1 dir=$(realpath -m "$2") apt=$(realpath -m "$2")/apt
read -r suite base image < <(awk -v n="$name" '$1 == n { print $2, $3, $4 }' "$here"/KERNELS) ||
	usage_error "$here/KERNELS has no line '$name'"
default_packages="linux-image-$image linux-headers-$image gcc libc6-dev make kmod busybox-static"
packages="$default_packages${3:+ ${*:3}}"
fresh && exit
mkdir -p "$dir"
need_tools check mmdebstrap apt-get
private_apt_init "$apt"
debian_suite "$apt" "$suite" "$base"
still_current || build
