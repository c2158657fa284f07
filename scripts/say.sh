# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced by the host's scripts: how they speak, ask for root and wait.

me=${0##*/}

die() { # MESSAGE: what went wrong and what to do about it
	printf '%s: %s\n' "$me" "$*" >&2
	exit 1
}

# Compilers' flags and QEMU's arguments hold the tree's path, and not all of them can quote; make refuses the same.
refuse_path() {
	local tree
	tree=$(realpath "${BASH_SOURCE[0]%/*}"/..)
	case $tree in
	*[[:space:]\'\"\`\$\\\;\&\|\<\>\(\)]*)
		die "nothing works in '$tree': move the directory to a path without blanks, quotes and what a shell takes apart"
		;;
	esac
}
refuse_path

usage_error() { # MESSAGE
	printf '%s: %s (%s -h for help)\n' "$me" "$*" "$me" >&2
	exit 2
}

# The comment block at the top of a script is its help text.
usage() { # SCRIPT
	sed -n '2,${/^#/!q;/SPDX/!s/^# \{0,1\}//p}' "$1" || exit 1
	exit 0
}

is_help() { # ARGUMENT
	[ "$1" = -h ] || [ "$1" = --help ]
}

# For a script that takes none: help if that is asked for, and an error for any other.
no_arguments() { # SCRIPT ARGUMENT...
	[ $# -gt 1 ] || return 0
	! is_help "$2" || usage "$1"
	usage_error "'$2' is one argument too many"
}

note() { printf '%s\n' "$*" >&2; }

as_root() { # COMMAND...
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "needs root for: $1 (there is no sudo here: run it as root)"
	fi
}

need_tools() { # SETUP_SET TOOL...
	local set=$1 tool missing=
	shift
	for tool in "$@"; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || missing="$missing $tool"
	done
	[ -z "$missing" ] || die "not found:$missing. 'sudo scripts/setup.sh $set' installs what is missing"
}

# Run a long COMMAND with its output in LOG. A terminal sees the seconds pass, a pipe sees nothing;
# both see the end of the log if it fails.
progress() { # MESSAGE LOG COMMAND...
	local message=$1 log=$2 pid start=$SECONDS rc=0 traps
	shift 2
	mkdir -p "${log%/*}"
	"$@" </dev/null >"$log" 2>&1 &
	pid=$!
	traps=$(trap -p INT TERM)
	trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
	if [ -t 2 ]; then
		while kill -0 "$pid" 2>/dev/null; do
			printf '\r%s ... %d s ' "$message" $((SECONDS - start)) >&2
			sleep 0.5
		done
		printf '\r\033[K' >&2
	fi
	wait "$pid" || rc=$?
	trap - INT TERM
	eval "$traps"
	if [ "$rc" != 0 ]; then
		tail -n 25 "$log" >&2
		note "$me: failed: $message (whole log: $log)"
	fi
	return "$rc"
}
