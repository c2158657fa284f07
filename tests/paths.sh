#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Does a script work through a link?
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

links
exit $status
