# SPDX-License-Identifier: GPL-2.0
# Sourced by bpf.sh: what csf's watching commands cost a switch, and what others of their kind do.
# shellcheck shell=bash disable=SC2154 # of bpf.sh

tool_sbin=/usr/local/sbin:/usr/sbin:/sbin

tool_path() { PATH=$PATH:$tool_sbin command -v "$1"; }

watch() { # NAME OPTION...: of csf
	local name=$1
	shift
	: >"$tmp/ready"
	"$top"/build/csf "$@" --ready-fd 9 9>"$tmp/ready" >/dev/null 2>&1 &
	running=$!
	wait_until [ -s "$tmp/ready" ]
	ns "$name" switch_base
	stop
}

# Those that are not installed, or do not run, are left out. They say by nothing that they have begun.
peer() { # NAME COMMAND...
	local name=$1 path
	path=$(tool_path "$2") || return 0
	shift 2
	"$path" "$@" >/dev/null 2>&1 &
	running=$!
	sleep 2
	if kill -0 "$running" 2>/dev/null; then
		ns "$name" switch_base
		stop
	else
		note "$path does not run here: left out"
		running=
	fi
}

peer_bpftrace() {
	local script
	script=$(tool_path runqlat.bt) || return 0
	peer peer_bpftrace_runqlat bpftrace "$script"
}

peer_perf() { # all of its events: gigabytes
	peer peer_perf_sched perf sched record -o "$tmp"/perf.data
	rm -f "$tmp"/perf.data*
}

tools_round() {
	watch runqlat_wakeup runqlat
	watch runqlat_queue runqlat --from queue
	watch migrate migrate
	watch cswitch cswitch
}

# They are slow, and no bar is about them: every fifth round does.
peers_round() {
	peer peer_cpudist cpudist
	peer peer_offcputime offcputime
	peer_bpftrace
	peer_perf
}

part() { # NAME: of what the peer adds
	awk "BEGIN { print $(added "$1") / $(added peer_runqlat_ns) }"
}

judge_tools() {
	bar "csf runqlat adds to a switch, by what runqlat adds" "$(part runqlat_wakeup_ns)" 0.6
	bar "csf runqlat --from queue adds, likewise" "$(part runqlat_queue_ns)" 0.2
	bar "csf migrate adds, likewise" "$(part migrate_ns)" 0.35
}
