#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What the page, the kernel's other accounts, and tools that watch from outside say about the same
# operations.
#
#	tests/bench/accuracy.sh JSON
#
# Writes a flat JSON file with keys OPERATION/WAY/COLUMN, and prints a table. The kernel's accounts are
# medians of nine. A tool watches one operation, and the wakeup that starts it; what the page said about
# that very one stands beside it (page_* columns; page_guessed is how many switches the kernel hid from
# the page). Tools that are not here are named and left out. Takes root, and a minute; fails if the page is
# wrong.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh
. "$here"/rounds.sh

ops="sleep_10ms spin_30ms two_spinners_60ms read_direct_32 vfork_10ms"

# A tool's command, to which the process to watch is appended; what perf sched reads is of all.
command_of() { # TOOL
	case $1 in
	runqlat) echo runqlat -p ;;
	cpudist) echo cpudist -p ;;
	cpudist_off) echo cpudist -O -p ;;
	offcputime) echo offcputime -p ;;
	perf_stat) echo perf stat -x, -e task-clock,context-switches -p ;;
	perf_sched) echo perf sched record -q -o "$tmp"/perf.data -- sleep 100 ;;
	perf_trace) echo perf trace -s -p ;;
	bpftrace) echo bpftrace "$here"/accuracy.bt ;;
	esac
}

# Each reads what the tool printed, and prints COLUMN VALUE lines. Times are in ms.
histogram() { # COLUMN: between what the slots' lower and upper ends make
	awk -v c="$1" '$2 == "->" { least += $1 * $5; most += ($3 + 1) * $5; n += $5 }
		END {
			print c "_at_least_ms", least / 1000
			print c "_at_most_ms", most / 1000
			print "samples", n + 0
		}'
}

read_runqlat() { histogram wait; }
read_cpudist() { histogram cpu; }
read_cpudist_off() { histogram off_cpu; }
read_offcputime() {
	awk 'NF == 1 && /^ +[0-9]+$/ { us += $1 } END { print "off_cpu_ms", us / 1000 }'
}
read_perf_stat() {
	awk -F, '$3 == "task-clock" { print "cpu_ms", $1 }
		$3 == "context-switches" { print "switches", $1 }'
}
read_perf_trace() { # of what the operations call
	awk '$1 ~ /^(clock_nanosleep|pread64|vfork|wait4)$/ { ms += $4 } END { print "in_syscalls_ms", ms + 0 }'
}
read_bpftrace() { awk '/^@[a-z]+: / { sub("@", ""); sub(":", ""); print $1 "_ms", $2 / 1e6 }'; }
read_perf_sched() { # before the first run comes the wait for us
	perf sched timehist -i "$tmp"/perf.data --pid "$pid" 2>/dev/null | awk '
		$1 ~ /^[0-9.]+$/ { cpu += $NF; if (n++) { off += $(NF - 2); wait += $(NF - 1) } }
		END {
			if (!n) exit
			print "cpu_ms", cpu + 0
			print "wait_ms", wait + 0
			print "off_cpu_ms", off + 0
		}'
}

is_ready() { grep -q '^ready ' "$tmp"/op; }
is_done() { grep -q ' preempted ' "$tmp"/op; }

# The operation's process waits while the tool starts, and again while it stops: neither is watched.
watch() { # TOOL OPERATION
	local pid command=()
	: >"$tmp"/op
	"$out"/accuracy "$file" "$2" <"$tmp"/go >"$tmp"/op &
	watched=$!
	exec 3>"$tmp"/go
	wait_until is_ready
	pid=$(awk '$1 == "ready" { print $2 }' "$tmp"/op)
	read -ra command <<<"$(command_of "$1")"
	[ "$1" = perf_sched ] || command+=("$pid")
	"${command[@]}" >"$tmp"/said 2>&1 &
	tool=$!
	wait_until attached "$tool"
	echo >&3
	wait_until is_done
	sleep 0.2
	kill -INT "$tool"
	wait "$tool" || true
	tool=''
	exec 3>&-
	wait "$watched"
	watched=''
	"read_$1" <"$tmp"/said | sed "s/^/value $2 $1 /" >>"$values"
	sed -n "s/^value $2 page \([a-z]*_ms\|guessed\) /value $2 $1 page_\1 /p" "$tmp"/op >>"$values"
}

watch_all() {
	local t op
	for t in runqlat cpudist cpudist_off offcputime perf_stat perf_sched perf_trace bpftrace; do
		if ! command -v "${t%%_*}" >/dev/null; then
			echo "# $t is left out: ${t%%_*} is not installed"
			continue
		fi
		for op in $ops; do watch "$t" "$op"; done
	done
}

# Threads have it that start while it is on.
account_delays() {
	was_off=$(cat /proc/sys/kernel/task_delayacct 2>/dev/null || echo none)
	[ "$was_off" = 0 ] || return 0
	echo "# kernel.task_delayacct is 0, as by default: 1 while the kernel's accounts are compared"
	echo 1 >/proc/sys/kernel/task_delayacct
}

restore() {
	[ "$was_off" != 0 ] || echo 0 >/proc/sys/kernel/task_delayacct
	was_off=''
}

serve() {
	[ ! -e /sys/kernel/coarse_stat_fs/thread-self ] || return 0
	export CSF_SOCKET=$tmp/socket
	"$top"/build/csf serve --socket "$CSF_SOCKET" &
	service=$!
	wait_until [ -S "$CSF_SOCKET" ]
}

table() {
	awk '
		BEGIN { n = split("wall cpu wait sleep dsleep iowait", parts) }
		{
			key = $2 " " $3
			if (!(key in rest)) order[++rows] = key
			v[key " " $4] = $5
			rest[key] = rest[key] " " $4 "=" $5
		}
		function cell(k) { return k in v ? sprintf("%.3f", v[k]) : "-" }
		END {
			printf "%-34s", "# ms"
			for (i = 1; i <= n; i++) printf "%9s", parts[i]
			printf "%9s%10s%10s\n", "switches", "preempted", "cpu off"
			for (r = 1; r <= rows; r++) {
				k = order[r]
				if (k " page_cpu_ms" in v) { print k ":" rest[k]; continue }
				printf "%-34s", k
				for (i = 1; i <= n; i++) printf "%9s", cell(k " " parts[i] "_ms")
				printf "%9s%10s", cell(k " switches"), cell(k " preempted")
				printf "%10s\n", cell(k " cpu_off_at_worst_ms")
			}
		}' "$values"
}

to_json() {
	awk 'BEGIN { printf "{" }
		{ printf "%s\n\t\"%s/%s/%s\": %s", (NR > 1 ? "," : ""), $2, $3, $4, $5 }
		END { printf "\n}\n" }' "$values"
}

end() {
	restore
	for pid in $watched $tool $service; do kill "$pid" 2>/dev/null || true; done
	rm -rf "$tmp"
	rm -f "$file"
}

[ "${1:-}" != -h ] || usage "$0"
[ $# = 1 ] || usage_error "needs the JSON file to write"
[ "$(id -u)" = 0 ] || die "needs root"
PATH=$PATH:/usr/sbin
out=$top/build/bench watched='' tool='' service='' was_off='' failed=0
mkdir -p "$out"
tmp=$(mktemp -d) file=$out/accuracy.data
values=$tmp/values
trap end EXIT
make -s --no-print-directory -C "$top" csf
make -s --no-print-directory -C "$here" accuracy
mkfifo "$tmp"/go
dd if=/dev/urandom of="$file" bs=1M count=4 conv=fsync status=none
serve
account_delays
"$out"/accuracy "$file" >"$tmp"/all || failed=1
restore
grep -v '^value ' "$tmp"/all || true
grep '^value ' "$tmp"/all >"$values"
watch_all
table
to_json >"$1.new"
mv "$1.new" "$1"
exit "$failed"
