#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Run COMMAND, which sudo made root; afterwards what it built belongs to the user again, so that a later
# make without sudo can go on. Root file systems stay root's.
#
#	scripts/give-back.sh COMMAND...
set -u
here=$(dirname "$(realpath "$0")")
. "$here"/say.sh
! is_help "${1:-}" || usage "$0"
[ $# != 0 ] || usage_error "which command shall be run?"
status=0
"$@" || status=$?
if [ -n "${SUDO_UID:-}" ] && [ "$(id -u)" = 0 ] && [ -d build ]; then
	# shellcheck disable=SC2153 # sudo sets both
	find build kmod tools tests -name 'rootfs*' -prune -o -uid 0 -exec chown -h "$SUDO_UID:$SUDO_GID" {} +
fi
exit $status
