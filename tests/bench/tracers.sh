#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What a context switch costs while a tracer of others watches this machine.
#
#	tests/bench/tracers.sh JSON
#
# Futex ping-pong of two threads that no tracer was told about: all watch all. Medians of rounds, in ns,
# are added to the flat JSON file. Tracers that are not here are named and left out. Takes root, and
# three minutes.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh
. "$here"/rounds.sh
rounds=7

command_of() { # TRACER
	case $1 in
	runqlat | cpudist) echo "$1" 1000 ;;
	offcputime) echo offcputime 1000 ;;
	perf_stat) echo perf stat -a -e task-clock,context-switches ;;
	perf_sched_record) echo perf sched record -q -o "$tmp"/perf.data ;;
	bpftrace) echo bpftrace -e \
		'tracepoint:sched:sched_switch{@[args->prev_pid]=nsecs;}' ;;
	esac
}

trace() { # TRACER
	local command
	read -ra command <<<"$(command_of "$1")"
	"${command[@]}" >/dev/null 2>&1 &
	running=$!
	wait_until attached "$running"
	ns "switch_$1" switch_base
	stop
	rm -f "$tmp"/perf.data*
}

find_tracers() {
	local t
	for t in runqlat cpudist offcputime perf_stat perf_sched_record bpftrace; do
		if command -v "${t%%_*}" >/dev/null; then
			tracers="$tracers $t"
		else
			echo "# $t is left out: ${t%%_*} is not installed"
		fi
	done
}

one_round() {
	local t
	ns switch_alone switch_base
	for t in $tracers; do trace "$t"; done
}

table() {
	awk -v base="$(value switch_alone_ns)" \
		'{ printf "%-32s %9.0f ns, %+6.0f, %5.2f x\n", $1, $2, $2 - base, $2 / base }' "$values"
}

end() {
	[ -z "$running" ] || kill "$running" 2>/dev/null
	rm -rf "$tmp"
}

[ "${1:-}" != -h ] || usage "$0"
[ $# = 1 ] || usage_error "needs the JSON file to add to"
[ "$(id -u)" = 0 ] || die "needs root"
PATH=$PATH:/usr/sbin
running='' tracers=''
tmp=$(mktemp -d)
trap end EXIT
results=$tmp/results values=$tmp/values
make -s --no-print-directory -C "$here" guest
find_tracers
for _ in $(seq $rounds); do one_round; done
medians >"$values"
add_to_json "$1"
table
