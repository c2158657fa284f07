#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Is there a kernel build directory? If not, say which package brings it, or that none does.
#
#	scripts/headers.sh KDIR
set -eu
here=$(dirname "$(realpath "$0")")
. "$here"/say.sh
! is_help "${1:-}" || usage "$0"
[ $# = 1 ] || usage_error "takes one argument, the kernel build directory"
[ -n "$1" ] || usage_error "the kernel build directory has no name"
kdir=$1
[ ! -e "$kdir"/Makefile ] || exit 0

case $kdir in
/lib/modules/*/build | /lib/modules/*/build/) release=${kdir#/lib/modules/} release=${release%/build*} ;;
*linux-headers-*) release=${kdir##*linux-headers-} release=${release%%/*} ;;
*) release= ;;
esac
ID=linux ID_LIKE='' PRETTY_NAME='this distribution'
# shellcheck source=/dev/null
[ ! -r /etc/os-release ] || . /etc/os-release

debian_says() {
	if apt-cache show "linux-headers-$release" >/dev/null 2>&1; then
		echo "Install them: apt-get install linux-headers-$release"
	elif apt-cache show linux-headers-amd64 linux-headers-generic 2>/dev/null | grep -q ^Package; then
		echo "$PRETTY_NAME has no package linux-headers-$release: it does not build this kernel, or has a newer one."
	else
		echo "The package would be linux-headers-$release; the package lists are empty (apt-get update)."
	fi
}

arch_says() {
	case $release in
	*-lts) echo "Install them: pacman -S linux-lts-headers" ;;
	*-zen*) echo "Install them: pacman -S linux-zen-headers" ;;
	*-hardened*) echo "Install them: pacman -S linux-hardened-headers" ;;
	*-arch*) echo "Install them: pacman -S linux-headers (after an upgrade of the kernel, reboot first)" ;;
	*) echo "$PRETTY_NAME has no headers package for this kernel." ;;
	esac
}

{
	if [ -z "$release" ]; then
		echo "KDIR=$kdir is not a kernel build directory: it has no Makefile."
	else
		echo "There are no kernel headers for Linux $release: $kdir/Makefile does not exist."
		case " $ID $ID_LIKE " in
		*' debian '* | *' ubuntu '*) debian_says ;;
		*' arch '*) arch_says ;;
		*' fedora '* | *' rhel '*) echo "Install them: dnf install kernel-devel-$release" ;;
		*) echo "$PRETTY_NAME calls the package linux-headers or kernel-devel, usually." ;;
		esac
	fi
	echo "For another kernel, make KDIR=/usr/src/linux-headers-...; everything but the module, make user;"
	echo "the module in a Debian guest with its own headers, make demo or make check."
} >&2
exit 1
