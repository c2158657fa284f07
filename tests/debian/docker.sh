#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# tests/debian/run.sh on a machine without mmdebstrap (Arch, Fedora): in an Ubuntu container, as CI's runners are.
#
#	tests/debian/docker.sh SUITE [TEST...]
#
# Arguments and environment are run.sh's, but for KBUILD and VM_NAME: a kernel that was built here is not for the
# container's compiler. The container is privileged, since making a root file system takes mounts, and gets
# /dev/kvm if there is one. DOCKER=podman works as well. What was built and the logs are in build/ as ever, and belong to
# whoever runs this. DRY_RUN=1 prints the command instead.
set -eu
top=$(realpath "$(dirname "$(realpath "$0")")"/../..)
. "$top"/scripts/say.sh
image=ubuntu:24.04 # GitHub's runner
passed_on="VM_DEBUG VM_TIMEOUT ICOUNT WRITER APPEND ACCEL VM_CPUS VM_MEMORY VM_DISK_IOPS MIRROR MIRROR_SECURITY CHECK \
	GUEST_ENVIRONMENT"

! is_help "${1:-}" || usage "$0"
[ $# -ge 1 ] || usage_error "needs a SUITE"
docker=${DOCKER:-docker}
command -v "$docker" >/dev/null || [ -n "${DRY_RUN:-}" ] || die "there is no $docker (DOCKER=podman for another)"
options=(--rm --privileged --volume "$top:/src" --workdir /src)
[ ! -t 1 ] || options+=(--tty)
[ ! -e /dev/kvm ] || options+=(--device /dev/kvm)
for variable in $passed_on; do
	[ -z "${!variable:-}" ] || options+=(--env "$variable=${!variable}")
done
[ -z "${KBUILD:-}${VM_NAME:-}" ] || usage_error "KBUILD and VM_NAME are for tests/debian/run.sh alone"
[ -z "${CSF_CACHE:-}" ] || options+=(--volume "$(realpath -m "$CSF_CACHE"):/cache" --env CSF_CACHE=/cache)
# shellcheck disable=SC2016 # the container's shell's
inside='export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends sudo >/dev/null || exit 100
scripts/setup.sh check >/dev/null || exit 100
status=0
tests/debian/run.sh "$@" || status=$?
find build kmod tests tools ${CSF_CACHE:-} -name "rootfs*" -prune -o -exec chown -h "$OWNER" {} +
exit $status'
command=("$docker" run "${options[@]}" --env "OWNER=$(id -u):$(id -g)" "$image" bash -c "$inside" docker.sh "$@")
if [ -n "${DRY_RUN:-}" ]; then
	printf '%q ' "${command[@]}"
	echo
	exit
fi
[ -z "${CSF_CACHE:-}" ] || mkdir -p "$CSF_CACHE"
exec "${command[@]}"
