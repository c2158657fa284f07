#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Run COMMAND in ROOTFS with a clean environment, and with /proc, which some of what builds kernels reads.
# As root.
#
#	tests/debian/chroot.sh ROOTFS COMMAND...
set -eu
here=$(dirname "$(realpath "$0")")
. "$here"/../../scripts/say.sh
[ "${1:-}" != -h ] || usage "$0"
[ $# -ge 2 ] || usage_error "needs ROOTFS and COMMAND"
# In a mount name space of its own it is gone with the command, however that ends; inside of a chroot mounts
# cannot be made private, so it is taken down by hand, too.
propagation=private
unshare --mount true 2>/dev/null || propagation=unchanged
# shellcheck disable=SC2016
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
	unshare --mount --propagation $propagation sh -c 'mount -t proc proc "$0"/proc && chroot "$0" "$@"
		status=$?; umount "$0"/proc; exit $status' "$@"
