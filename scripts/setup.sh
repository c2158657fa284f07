#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Install what a task needs and this Debian machine lacks. Says nothing if nothing is missing.
#
#	scripts/setup.sh [build] [deb] [demo] [check] [lint] [debug]
#
# build: compilers, make and, if Debian has them, the running kernel's headers; deb: and what makes Debian
# packages; demo: and QEMU and mmdebstrap for a Debian guest; check: and the other compilers and virtme-ng;
# lint: the linters; debug: what building a kernel takes.
# On Debian 12 virtme-ng comes from Debian 13, and QEMU from bookworm-backports (MIRROR= as for
# tests/debian/run.sh), by an apt configuration under build/: /etc/apt stays as it is.
set -eu
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
. "$top"/scripts/mirror.sh
. "$top"/tests/qemu.sh

packages_of() { # SET
	case $1 in
	build) echo make gcc libc6-dev clang bpftool libbpf-dev libelf-dev zlib1g-dev libjson-c-dev ;;
	deb) packages_of build; echo build-essential debhelper dh-dkms pkg-config git ;;
	demo) echo make gcc libc6-dev mmdebstrap debian-archive-keyring e2fsprogs cpio xz-utils ;;
	check) packages_of build; packages_of demo; echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross g++ clang libclang-rt-dev kmod udev file python3 busybox-static git jq ;;
	lint) packages_of build; echo clang-format clang-tidy bear shellcheck codespell mandoc groff-base perl python3 yamllint xz-utils \
		mmdebstrap debian-archive-keyring ;;
	debug) packages_of demo; echo flex bison bc perl libelf-dev libssl-dev ;;
	*) usage_error "'$1' is not one of build, deb, demo, check, lint, debug" ;;
	esac
}

# Ubuntu 24.04 has a wrapper that fails where the running kernel's own bpftool is not installed, and two packages that
# provide the name. One that works is with the tools of any kernel; the Makefile finds it there.
bpftool_package() {
	if apt-cache policy bpftool | grep -q 'Candidate: [0-9]'; then echo bpftool; else echo linux-tools-generic; fi
}

installed() { # PACKAGE
	[ "$1" != bpftool ] || ! compgen -G '/usr/lib/linux-tools/*/bpftool' >/dev/null || return 0
	dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

apt_install() { # PACKAGE|FILE.deb...
	note "installing: $*"
	progress "installing" "$log" as_root env DEBIAN_FRONTEND=noninteractive ${APT_CONFIG:+APT_CONFIG="$APT_CONFIG"} \
		apt-get install -y -q --no-install-recommends -o Acquire::Retries=3 "$@" ||
		die "apt-get could not install: $*"
}

update_once() {
	[ -z "${updated:-}" ] || return 0
	updated=1
	progress "fetching package lists" "$log" as_root apt-get update -q -o Acquire::Retries=3 ||
		note "$me: apt-get update failed; going on with the package lists that are there"
}

install_missing() { # PACKAGE...
	local package missing=()
	for package; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} != 0 ] || return 0
	update_once
	apt_install "${missing[@]/#bpftool/$(bpftool_package)}"
}

# Good to have, but Debian lacks them for a kernel that it did not build; the guests bring their own.
install_headers() {
	local package
	package=linux-headers-$(uname -r)
	[ ! -e "/lib/modules/$(uname -r)/build/Makefile" ] || return 0
	apt-cache show "$package" >/dev/null 2>&1 || return 0
	install_missing "$package"
}

install_qemu() {
	local apt=$top/build/setup/apt codename
	! vm_qemu_is_good || return 0
	update_once
	if ! apt-cache policy qemu-system-x86 | grep -Eq 'Candidate: 1:(7[.]|8[.]0)'; then
		apt_install qemu-system-x86
		return
	fi
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
	private_apt_init "$apt" /var/lib/dpkg/status
	debian_sources "$codename" "$codename-backports" >"$apt"/sources.list
	if progress "looking for a newer QEMU" "$log" private_apt "$apt" apt-get update -q --error-on=any; then
		APT_CONFIG=$apt/env.conf apt_install -t "$codename-backports" qemu-system-x86
	else
		note "$me: no newer QEMU to be had; guests may hang where there is no KVM"
		apt_install qemu-system-x86
	fi
	rm -rf "$apt"
}

install_virtme() {
	local apt=$top/build/setup/apt
	! command -v vng >/dev/null || return 0
	update_once
	if apt-cache show virtme-ng >/dev/null 2>&1; then
		apt_install virtme-ng
		return
	fi
	private_apt_init "$apt"
	debian_sources trixie >"$apt"/sources.list
	if ! progress "looking for virtme-ng in Debian 13" "$log" \
		private_apt "$apt" apt-get update -q --error-on=any ||
		! (cd "$apt" && progress "fetching virtme-ng" "$log" private_apt "$apt" apt-get download virtme-ng); then
		die "virtme-ng could not be fetched from $(debian_mirror) (MIRROR=URL names another mirror)"
	fi
	apt_install "$apt"/virtme-ng_*_all.deb
	rm -rf "$apt"
}

! is_help "${1:-}" || usage "$0"
[ $# -gt 0 ] || set -- build
for set; do packages_of "$set" >/dev/null; done
if ! command -v apt-get >/dev/null; then
	note "$me: this is not Debian: install what is missing by hand. By Debian's names:" \
		"$(for set; do packages_of "$set"; done | tr ' ' '\n' | sort -u | tr '\n' ' ')"
	exit 0
fi
log=$top/build/setup/apt.log
trap 'cd "$top" && scripts/give-back.sh true' EXIT # or make without sudo could not write to build/
for set; do
	# shellcheck disable=SC2046 # a list
	install_missing $(packages_of "$set")
	case $set in
	build) install_headers ;;
	demo | debug) install_qemu ;;
	check)
		install_qemu
		install_headers
		install_virtme
		;;
	esac
done
