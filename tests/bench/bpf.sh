#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What BPF writing the pages costs a switch on this machine, and csf's commands that watch it, beside libbpf-tools'
# runqlat and others.
#
#	tests/bench/bpf.sh JSON
#
# Adds medians of rounds (15, or ROUNDS=) to the flat JSON file. Takes root, and ten minutes; fails if a bar is
# missed.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh
. "$here"/rounds.sh
. "$here"/tools.sh
rounds=${ROUNDS:-15}

serve() {
	"$top"/build/csf serve --socket "$socket" &
	running=$!
	wait_until [ -S "$socket" ]
}

one_round() {
	ns switch_base switch_base
	serve
	ns switch_bpf_unregistered switch_base
	ns switch_bpf_registered switch_module_registered
	ns bpf_snap thread_snap
	ns bpf_register open_map
	ns clock_gettime clock_gettime
	stop
	tools_round
	peers_round "$1"
}

crowd() { # against the last round's two threads alone
	serve
	for _ in 1 2 3; do
		ns switch_bpf_2 switch_module_registered
		ns switch_bpf_10k switch_10k
	done
	stop
}

holds() { awk "BEGIN { exit !($1) }"; }

bar() { # WHAT VALUE BAR
	local verdict=ok
	holds "$2 <= $3" || { verdict=MISSED failed=1; }
	printf '%-60s %9.3f, bar %s: %s\n' "$1" "$2" "$3" "$verdict"
}

added() { awk "BEGIN { print $(value "$1") - $(value switch_base_ns) }"; }

judge() {
	local peer
	if has_peer runqlat; then
		peer=$(added peer_runqlat_ns)
		bar "both registered adds to a switch, by what runqlat adds" \
			"$(awk "BEGIN { print $(added switch_bpf_registered_ns) / $peer }")" 0.7
		bar "neither registered adds, likewise" \
			"$(awk "BEGIN { print $(added switch_bpf_unregistered_ns) / $peer }")" 0.2
		judge_tools
	else
		echo "runqlat of Debian's libbpf-tools is not here to compare with"
	fi
	bar "a snapshot, by clock_gettime()" \
		"$(awk "BEGIN { print $(value bpf_snap_ns) / $(value clock_gettime_ns) }")" 1.4
	bar "registering a thread, us" "$(awk "BEGIN { print $(value bpf_register_ns) / 1000 }")" 100
	bar "a switch while 10,000 registered threads sleep, by one without" \
		"$(awk "BEGIN { print $(value switch_bpf_10k_ns) / $(value switch_bpf_2_ns) }")" 1.1
}

end() {
	[ -z "$running" ] || kill "$running" 2>/dev/null
	rm -rf "$tmp"
}

[ "${1:-}" != -h ] || usage "$0"
[ $# = 1 ] || usage_error "needs the JSON file to add to"
running='' failed=0
tmp=$(mktemp -d)
trap end EXIT
results=$tmp/results values=$tmp/values socket=$tmp/socket
export CSF_SOCKET=$socket
make -s --no-print-directory -C "$top" csf
make -s --no-print-directory -C "$here" guest
find_peers
for round in $(seq "$rounds"); do one_round "$round"; done
crowd
medians >"$values"
add_to_json "$1"
cat "$values"
judge
exit "$failed"
