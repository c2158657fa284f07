#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=dash
# The scheduling lab: all that it claims holds here, and it notices what does not.
#
#	tests/lab.sh
#
# As root, natively (after make csf examples) or in a guest, best with 6 CPUs: VM_CPUS=6
# APPEND=tsc=reliable tests/debian/run.sh bookworm lab. LAB_ARGS are the lab's arguments.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
lab=$top/examples/lab.sh
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

check() { # NAME COMMAND...
	local what="$1"
	shift
	if "$@"; then
		echo "ok $what"
	else
		echo "not ok $what: exit status $status, and it says:"
		sed 's/^/# /' "$tmp/out" "$tmp/err"
		failed=$((failed + 1))
	fi
}

exits() { # STATUS COMMAND...
	local want="$1"
	shift
	status=0
	timeout 900 "$@" >"$tmp/out" 2>"$tmp/err" || status=$?
	[ "$status" = "$want" ]
}

says() { grep -qF -- "$1" "$tmp/out" "$tmp/err"; } # WORDS

nothing_left() { # of the programs that the lab starts
	local exe
	for exe in /proc/[0-9]*/exe; do
		case $(readlink "$exe") in
		"$top"/build/ticker* | "$top"/build/spin* | "$top"/build/csf*) return 1 ;;
		esac
	done
}

leaves_nothing() { # what was killed may take a moment to go
	local tries=0
	while ! nothing_left; do
		tries=$((tries + 1))
		[ "$tries" -lt 50 ] || return
		sleep 0.1
	done
}

all_holds() {
	# shellcheck disable=SC2086 # a list
	exits 0 sh "$lab" -o "${CSF_OUT:-$tmp}/lab" ${LAB_ARGS:--s 3 -t 1000} && [ "$(grep -c '^ok ' "$tmp/out")" = 8 ] &&
		head -n 1 "$tmp/out" | grep -q '^sched_rt_runtime_us is [0-9]' || return
	sed 's/^\(not \)\{0,1\}ok /lab says: &/' "$tmp/out"
}

refuses_fifo() { # where real-time tasks may have all the time there is
	echo -1 >"$tmp/unlimited"
	# shellcheck disable=SC2016 # the inner shell's
	exits 1 unshare -m sh -c 'mount -o bind "$0" /proc/sys/kernel/sched_rt_runtime_us && exec sh "$@"' \
		"$tmp/unlimited" "$lab" -q -t 10 B3 && says "sched_rt_runtime_us is -1" && says "not ok B3, D2: refused" &&
		! says SCHED_FIFO\ \ samples=
}

# A tick of it is longer than the limit, and it has a CPU that no other task of its policy wants.
ends_a_runaway() {
	exits 1 sh "$lab" -q -l 2 -w 99999999 B3 && says "B3: the watchdog ended ticker after 2 s" && leaves_nothing
}

# Waits that no policy changes, of tasks that switch and move as they should not.
fake_csf() {
	cat <<-'FAKE'
		#!/bin/sh
		echo >&3
		trap 'kill $! 2>/dev/null' TERM # a window without SECONDS
		case $1,$2 in
		*,--ready-fd | *,-p) sleep 100 & wait ;;
		esac
		echo "     128 -> 255      : 10       |***"
		echo "samples=10 total_wait=2.000 ms avg=200.0 us"
	FAKE
}

judges() {
	fake_csf >"$tmp/csf"
	chmod +x "$tmp/csf"
	exits 1 env CSF="$tmp/csf" sh "$lab" -q -t 10 &&
		says "not ok A2 has two peaks: 10 waits in the highest bucket below 1 ms, 0 above" &&
		says "not ok B2 >= 3 x B1: 200 us, 200 us" && says "ok B3 <= 2 x B1: 200 us, 200 us" &&
		says "not ok B4 < B2: 200 us, 200 us" && says "not ok S: ticker's involuntary" &&
		says "0 of " && says "not ok C2 is empty under its heading" && says "not ok C3: " &&
		says "lab: 7 not as it should be" && leaves_nothing
}

notices_a_dead_tool() {
	exits 1 env CSF=/bin/false sh "$lab" -q A1 && says "csf runqlat ended before it had begun" &&
		exits 1 env CSF="$tmp/none" PATH=/bin:/usr/bin:/sbin sh "$lab" -q A1 && says "make csf" && leaves_nothing
}

stops() { # on SIGTERM, in the middle of a window with rivals
	timeout -s TERM 3 sh "$lab" -s 60 A2 >"$tmp/out" 2>"$tmp/err"
	status=$?
	leaves_nothing
}

usage() {
	local args
	for args in "-n 0" "-n x" "-r 1x" "-t -5" "-w 999999999" "-z" "X1" "A1 -q"; do
		# shellcheck disable=SC2086 # a list
		exits 2 sh "$lab" $args && [ -s "$tmp/err" ] && [ ! -s "$tmp/out" ] || return
	done
	exits 1 sh "$lab" -n 5000 A1 && says "fewer than 5000 CPUs" && exits 0 sh "$lab" -h && says EXPERIMENT
}

status=0
check "lab: usage" usage
check "lab: a tool that ends too early" notices_a_dead_tool
check "lab: it says what does not hold, with the numbers" judges
check "lab: SCHED_FIFO is refused where nothing limits it" refuses_fifo
check "lab: a SCHED_FIFO task that keeps its CPU is ended" ends_a_runaway
check "lab: it ends all that it started when it is ended" stops
check "lab: all that it claims holds" all_holds
exit $failed
