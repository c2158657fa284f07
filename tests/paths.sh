#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Do make and the scripts refuse paths that a shell takes apart, in one message and before they do anything? Does a
# script work through a link, and does make uninstall remove what make install has installed, and nothing else?
#
#	tests/paths.sh
#
# Prints "ok" and "not ok" lines; exit status 0 if all are ok. Needs csf and csfcat, and builds them.
set -u
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
no_arguments "$0" "$@"
cd "$top" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
status=0
unset DESTDIR PREFIX

check() { # NAME COMMAND...
	if "${@:2}"; then
		echo "ok $1"
	else
		echo "not ok $1"
		sed 's/^/# /' "$tmp"/said | tail -n 5
		status=1
	fi
}

says() { # COMMAND...
	"$@" >"$tmp"/said 2>&1 </dev/null
}

quiet_make() { # ARGUMENT...
	make --no-print-directory "$@"
}

# Nothing is run: where the check is missing, -n keeps it from doing harm.
refuses_directory() { # NAME=VALUE TARGET
	local found=0
	says quiet_make -n "$2" "$1" || found=$?
	[ "$found" = 2 ] && grep -qF "${1%%=*}='${1#*=}" "$tmp"/said && grep -q 'is no place to install to: give a' "$tmp"/said
}

directories() {
	local value target name names
	# shellcheck disable=SC2016,SC2088 # not for a shell to expand
	for value in '/a b' '/a ' $'/a\tb' "/a'b" '/a"b' '/a`b' '/a\b' '/a$b' '/a$$b' '/a;b' '/a&b' '/a|b' '/a<b' '/a>b' '/a(b' '/a)b' \
		'/a*' '/a?' '/a[b]' '/a{b}' '/a!' '/a#b' '/a,b' '/a%b' '~/a' -a; do
		check "DESTDIR=$value is refused" refuses_directory "DESTDIR=$value" install
	done
	for target in install-dev install-dkms uninstall; do
		check "make $target refuses a blank" refuses_directory 'DESTDIR=/a b' $target
	done
	names=$(sed -n 's/^\(PREFIX\|[a-z]*\) ?= .*/\1/p' packaging/Makefile)
	for name in ${names:?}; do
		check "$name with a blank is refused" refuses_directory "$name=/a b" install
		check "$name that is relative is refused" refuses_directory "$name=a" install
		check "$name that is empty is refused" refuses_directory "$name=" uninstall
	done
	# shellcheck disable=SC2016 # make's
	for value in 'bindir=$(prefix)/bin' DESTDIR=stage DESTDIR=/ä~1+@=b: PREFIX=/; do
		check "$value is accepted" says quiet_make -n install install-dkms "$value"
	done
}

victim_survives() {
	mkdir -p "$tmp"/victim
	: >"$tmp"/victim/file
	! says quiet_make uninstall DESTDIR="$tmp/victim $tmp/x" && [ -e "$tmp"/victim/file ]
}

removes_what_it_installs() {
	local stage=$tmp/stage
	says quiet_make install install-dkms DESTDIR="$stage" PREFIX=/usr || return
	: >"$stage"/usr/bin/other
	[ -x "$stage"/usr/bin/csf ] && [ -e "$stage"/usr/include/coarse_stat_fs/lib/coarse_stat_fs.h ] || return
	says quiet_make uninstall DESTDIR="$stage" PREFIX=/usr && [ "$(cd "$stage" && find . ! -type d)" = ./usr/bin/other ]
}

refuses_to_work() { # WORDS STATUS COMMAND...: in one line
	local found=0
	says "${@:3}" || found=$?
	[ "$found" = "$2" ] && [ "$(wc -l <"$tmp"/said)" = 1 ] && grep -q "$1.*: move the directory" "$tmp"/said
}

copy() { # DIRECTORY
	mkdir -p "$1"
	tar --exclude=./build --exclude=./.git -cf - . | tar -C "$1" -xf -
}

trees() {
	local tree name script
	for name in 'a b' "it's" 'a"b' 'a&b'; do
		tree=$tmp/$name/tree
		copy "$tree"
		check "make builds nothing in '$name'" refuses_to_work 'nothing builds in' 2 quiet_make -C "$tree" tools
		# -h: where the check is missing, they would do all that they do
		for script in demo.sh check.sh scripts/setup.sh tests/check.sh; do
			check "nor does $script" refuses_to_work 'nothing works in' 1 "$tree/$script" -h
		done
		rm -rf "$tree"
	done
	tree=$tmp/+plain,ä~1%@=/tree
	copy "$tree"
	check "make builds in '${tree#"$tmp"/}'" says quiet_make -C "$tree" tools
}

helps() { # SCRIPT: the same by a link
	local link=$tmp/links/${1##*/}
	mkdir -p "$tmp"/links
	ln -sf "$top/$1" "$link"
	(cd "$tmp" && says links/"${1##*/}" -h) && cmp -s "$tmp"/said <("$top/$1" -h)
}

links() {
	local script
	for script in demo.sh check.sh examples/lab.sh scripts/{setup,demo,lint,spdx,version,compdb}.sh \
		tests/{check,docs,paths,vm,packages}.sh tests/debian/{run,all,docker}.sh tests/debug/run.sh tests/bench/run.sh; do
		check "a link to $script works" helps "$script"
	done
}

says quiet_make -s tools csf || { cat "$tmp"/said; exit 1; }
directories
check "make uninstall with a blank in DESTDIR removes nothing" victim_survives
check "make uninstall removes what make install has installed, and nothing else" removes_what_it_installs
trees
links
exit $status
