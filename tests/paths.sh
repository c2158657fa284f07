#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Do make and the scripts refuse paths that a shell takes apart, in one message and before they do anything? Does a
# script work through a link?
#
#	tests/paths.sh
#
# Prints "ok" and "not ok" lines; exit status 0 if all are ok.
set -u
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
no_arguments "$0" "$@"
cd "$top" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
status=0

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

trees
links
exit $status
