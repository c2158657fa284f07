# SPDX-License-Identifier: GPL-2.0
# Sourced by bpf.sh: what csf's watching commands cost a switch, and what others of their kind do.
# shellcheck shell=bash disable=SC2154 # of bpf.sh

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

PATH=$PATH:/usr/sbin # where Debian has most of them
peers='runqlat cpudist offcputime bpftrace_runqlat perf_stat perf_sched'

peer_command() { # PEER
	case $1 in
	bpftrace_runqlat) echo bpftrace "$here"/runqlat.bt ;; # Debian 12's own does not compile on every kernel
	perf_stat) echo perf stat -a -e task-clock,context-switches ;;
	perf_sched) echo perf sched record -q -o "$tmp"/perf.data ;;
	*) echo "$1" 1000 ;;
	esac
}

# They say by nothing that they have begun, but their descriptors do.
attached_or_gone() { ! kill -0 "$1" 2>/dev/null || attached "$1"; }

peer() { # PEER
	local command
	read -ra command <<<"$(peer_command "$1")"
	"${command[@]}" >/dev/null 2>&1 &
	running=$!
	wait_until attached_or_gone "$running"
	if kill -0 "$running" 2>/dev/null; then
		ns "peer_$1" switch_base
		stop
	else
		note "'${command[*]}' does not run here: left out"
		running='' peers=${peers/ $1/}
	fi
	rm -f "$tmp"/perf.data*
}

find_peers() { # those that are installed
	local p there=''
	for p in $peers; do
		if command -v "${p%%_*}" >/dev/null; then
			there="$there $p"
		else
			echo "# $p is left out: it is not installed"
		fi
	done
	peers=$there
}

tools_round() {
	watch runqlat_wakeup runqlat
	watch runqlat_queue runqlat --from queue
	watch migrate migrate
	watch cswitch cswitch
}

peers_round() { # of which some are slow, and no bar is about them: runqlat in every round, they in every third
	local p
	for p in $peers; do
		if [ "$p" = runqlat ] || [ $(($1 % 3)) = 1 ]; then peer "$p"; fi
	done
}

has_peer() { [[ " $peers " = *" $1 "* ]]; }

part() { # NAME: of what the peer adds
	awk "BEGIN { print $(added "$1") / $(added peer_runqlat_ns) }"
}

judge_tools() {
	bar "csf runqlat adds to a switch, by what runqlat adds" "$(part runqlat_wakeup_ns)" 0.6
	bar "csf runqlat --from queue adds, likewise" "$(part runqlat_queue_ns)" 0.2
	bar "csf migrate adds, likewise" "$(part migrate_ns)" 0.35
}
