#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# csf run and csf serve as their users call them, and the tests of pages with BPF as their writer.
#
#	tests/csf.sh [--no-pages]
#
# As root, natively or in a guest, without the module; CSF_CMD is the csf command (default: build/csf),
# CSF_TESTS the directory of the test programs (default: tests beside it). --no-pages leaves out t_cpu and so on.
set -u
case $#,${1:-} in
0, | 1,--no-pages) ;;
1,-h | 1,--help) sed -n '3,${/^#/!q;s/^# \{0,1\}//p}' "$0"; exit ;;
*) echo "csf.sh: the only option is --no-pages (csf.sh -h for help)" >&2; exit 2 ;;
esac
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
csf=$(realpath "${CSF_CMD:-$top/build/csf}")
csfcat=$(realpath "${CSFCAT:-$(dirname "$csf")/csfcat}")
tests=$(realpath "${CSF_TESTS:-$(dirname "$csf")/tests}")
tmp=$(mktemp -d) || exit 1
chmod 755 "$tmp"
export CSF_SOCKET=$tmp/nobody # a service of this machine's must not answer in place of ours
passed=0 failed=0
service=

ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "not ok $1: $2"; }
end() { # of this shell, not of a child that is killed before it is another program
	[ "$BASHPID" = $$ ] || return
	[ -z "$service" ] || kill "$service" 2>/dev/null
	rm -rf "$tmp"
}
trap end EXIT

check() { # NAME COMMAND...: the command says why in $why
	local what=$1
	why="see above"
	shift
	if "$@"; then ok "$what"; else not_ok "$what" "$why"; fi
}

run() { # COMMAND...: its output is in $tmp/out and $tmp/err, its exit status in $status
	"$@" >"$tmp/out" 2>"$tmp/err"
	status=$?
}

exits() { # STATUS COMMAND...
	local want=$1
	shift
	run "$@"
	why="$*: exit status $status, not $want: $(cat "$tmp/err")"
	[ "$status" = "$want" ]
}

complains() { # STATUS WORDS COMMAND...: on stderr only
	local want=$1 words=$2
	shift 2
	exits "$want" "$@" || return
	why="$*: it says '$(cat "$tmp/err")', and on stdout '$(cat "$tmp/out")'"
	grep -qF -- "$words" "$tmp/err" && [ ! -s "$tmp/out" ]
}

run_dirs() { find /run -maxdepth 1 -name 'csf-run-*' | sort; }

#
# csf run
#

exit_codes() {
	exits 0 "$csf" run true && exits 7 "$csf" run sh -c 'exit 7' && exits 7 "$csf" run -- sh -c 'exit 7' &&
		exits 143 "$csf" run sh -c 'kill $$' && exits 137 "$csf" run sh -c 'kill -9 $$' &&
		complains 127 "no-such-command" "$csf" run no-such-command &&
		complains 126 "$tmp" "$csf" run "$tmp"
}

# Options behind the command are the command's, and so is everything behind --.
arguments() {
	exits 0 "$csf" run echo --help -x -- y && [ "$(cat "$tmp/out")" = "--help -x -- y" ] &&
		exits 0 "$csf" run -- echo -- y && [ "$(cat "$tmp/out")" = "-- y" ]
}

usage() {
	complains 2 "which command" "$csf" run && complains 2 "" "$csf" run --no-such-option true &&
		complains 2 "no-such" "$csf" no-such && complains 2 "Usage" "$csf" &&
		complains 2 "too many" "$csf" serve x && complains 2 "number" "$csf" serve --max-threads 0 &&
		complains 2 "number" "$csf" serve -p 999 && complains 2 "number" "$csf" serve -m 1x &&
		complains 2 "too many" "$csf" help run extra && complains 2 "too many" "$csf" --version x &&
		complains 2 "too many" "$csf" --help x && complains 2 "no-such" "$csf" help no-such &&
		exits 0 "$csf" help && exits 0 "$csf" --version && exits 0 "$csf" run --help && exits 0 "$csf" run -h &&
		exits 0 "$csf" help serve
}

# Help that nobody can read is a failure, and csf says so.
lost_output() {
	local args to
	for args in help "help run" --version -V --help "run --help" "serve --help" "serve --usage" "run --version"; do
		for to in '>/dev/full' '>&-'; do
			# shellcheck disable=SC2016,SC2086 # the inner shell's; several arguments
			exits 1 sh -c 'exec "$0" "$@" '"$to" "$csf" $args || return
			why="csf $args $to: it says '$(cat "$tmp/err")'"
			grep -q "standard output" "$tmp/err" || return
		done
	done
	# shellcheck disable=SC2016 # the inner shell's
	exits 3 sh -c 'exec "$0" "$@" >&-' "$csf" run sh -c 'exit 3' # what prints nothing loses nothing
}

gone() { # PID: within ten seconds
	for _ in $(seq 100); do
		kill -0 "$1" 2>/dev/null || return 0
		sleep 0.1
	done
	return 1
}

wait_for() { # FILE: that something is in it, or a socket
	for _ in $(seq 200); do
		if [ -s "$1" ] || [ -S "$1" ]; then return 0; fi
		sleep 0.1
	done
	why="$1 has not come"
	return 1
}

# SIGTERM is for the command; what it makes of it is the exit status.
terminated() {
	rm -f "$tmp/ready"
	"$csf" run sh -c "trap 'exit 9' TERM; echo >$tmp/ready; while :; do sleep 0.1; done" &
	local pid=$!
	wait_for "$tmp/ready" || return
	kill "$pid"
	wait "$pid"
	status=$?
	why="exit status $status, not 9"
	[ "$status" = 9 ]
}

# At any time: before, while and after the service starts. No directory is left.
terminated_early() {
	local before pid delay
	before=$(run_dirs)
	for delay in 0 0.02 0.05 0.1 0.15 0.2 0.3 0.5; do
		"$csf" run sleep 5 &
		pid=$!
		sleep "$delay"
		kill "$pid"
		wait "$pid"
		status=$?
		why="exit status $status when killed after $delay s"
		[ "$status" = 143 ] || return
	done
	why="left: $(run_dirs)"
	[ "$(run_dirs)" = "$before" ]
}

# Ctrl-C goes to the whole group of the terminal.
interrupted() {
	rm -f "$tmp/ready"
	# a shell has what it starts in the background ignore SIGINT
	env --default-signal=INT setsid "$csf" run bash -c "trap 'exit 5' INT; echo >$tmp/ready; while :; do sleep 0.1; done" &
	local pid=$!
	wait_for "$tmp/ready" || return
	kill -INT -- "-$pid"
	wait "$pid"
	status=$?
	why="exit status $status, not 5"
	[ "$status" = 5 ]
}

# What the command finds is what csf run was given, but for the socket. Signals above 31 are left out: the
# C library takes 32 and 33 for itself in any program with threads.
environment() {
	# shellcheck disable=SC2016 # the inner shell's
	local probe='ulimit -n
		for s in Blk Ign; do echo $s $((0x$(sed -n "s/^Sig$s:.//p" /proc/self/status) & 0x7fffffff)); done
		ls /proc/self/fd | wc -l'
	exits 0 "$csf" run sh -c "$probe" || return
	mv "$tmp/out" "$tmp/served"
	exits 0 sh -c "$probe" || return
	why="$(diff "$tmp/out" "$tmp/served")"
	[ -z "$why" ]
}

nested() {
	# shellcheck disable=SC2016 # the inner shell's
	exits 0 "$csf" run sh -c 'echo $CSF_SOCKET; '"$csf"' run sh -c "echo \$CSF_SOCKET"' || return
	why="$(cat "$tmp/out")"
	[ "$(sort -u "$tmp/out" | wc -l)" = 1 ] && [ "$(wc -l <"$tmp/out")" = 2 ]
}

unprivileged() {
	complains 1 "root" setpriv --reuid 61001 --regid 61001 --clear-groups "$csf" run true &&
		complains 1 "CAP_BPF" setpriv --reuid 61001 --regid 61001 --clear-groups "$csf" serve -s "$tmp/x"
}

in_pid_namespace() { complains 1 "PID namespace" unshare -pf "$csf" serve -s "$tmp/x"; }

# What a csf run that was killed leaves is removed by the next, but not what one that lives has.
killed() {
	local before alive dead
	before=$(run_dirs)
	rm -f "$tmp/ready"
	"$csf" run sh -c "echo \$CSF_SOCKET >$tmp/ready; exec sleep 60" &
	alive=$!
	wait_for "$tmp/ready" || return
	mv "$tmp/ready" "$tmp/alive"
	"$csf" run sh -c "echo \$\$ >$tmp/ready; exec sleep 60" &
	dead=$!
	wait_for "$tmp/ready" || return
	kill -KILL "$dead"
	wait "$dead" 2>/dev/null
	kill "$(cat "$tmp/ready")"
	why="nothing is left of one that was killed"
	[ "$(run_dirs | wc -l)" = $(($(wc -w <<<"$before") + 2)) ] || return
	exits 0 "$csf" run true || return
	why="the socket of one that lives is gone"
	[ -S "$(cat "$tmp/alive")" ] || return
	kill "$alive"
	wait "$alive"
	why="left: $(run_dirs)"
	[ "$(run_dirs)" = "$before" ]
}

nothing_left() {
	why="left: $(run_dirs)"
	[ "$(run_dirs)" = "$dirs_before" ]
}

#
# csfcat, and a service that fails it
#

serve() { # OPTION...: until it listens at $tmp/socket
	rm -f "$tmp/socket" # of one that was killed
	"$csf" serve --socket "$tmp/socket" "$@" &
	service=$!
	wait_for "$tmp/socket"
}

blames_service() { # WORDS COMMAND...
	complains 1 "$1" env CSF_SOCKET="$tmp/socket" "${@:2}" || return
	grep -qF "$tmp/socket" "$tmp/err" && ! grep -qE 'module|insmod' "$tmp/err"
}

stopped_service() {
	serve || return
	kill -STOP "$service"
	blames_service "busy or stopped" "$csfcat" self && blames_service "busy or stopped" "$csfcat" cpu
	status=$?
	kill -KILL "$service"
	wait "$service" 2>/dev/null
	service=
	return "$status"
}

killed_service() {
	serve || return
	(sleep 0.7 && kill -KILL "$service") &
	blames_service "has ended" "$csfcat" self 2000
	status=$?
	wait "$service" 2>/dev/null
	service=
	[ "$status" = 0 ] || return
	complains 1 "any more" env CSF_SOCKET="$tmp/socket" "$csfcat" self &&
		complains 1 "csf serve --socket $tmp/socket" env CSF_SOCKET="$tmp/socket" "$csfcat" cpu
}

#
# pages
#

test_program() { # NAME COMMAND...: cases of a test program, as ours
	local what=$1 out
	shift
	out=$("$@" 2>&1)
	status=$?
	grep -v -E '^(ok|not ok|skip) ' <<<"$out" | sed 's/^/# /'
	grep -E '^(ok|not ok|skip) ' <<<"$out" | sed -E "s/^(ok|not ok|skip) /\1 $what: /"
	passed=$((passed + $(grep -c '^ok ' <<<"$out")))
	failed=$((failed + $(grep -c '^not ok ' <<<"$out")))
	if [ "$status" != 0 ] && ! grep -q '^not ok ' <<<"$out"; then
		not_ok "$what" "exit status $status"
	fi
}

hashed() { # the service on kernels whose task storage is not dependable
	serve --force-hash || return
	for t in life sum thread; do
		test_program "hash: t_$t" env CSF_SOCKET="$tmp/socket" "$tests/t_$t"
	done
	kill "$service"
	wait "$service"
	status=$?
	why="exit status $status"
	service=
	[ "$status" = 0 ]
}

"$csf" run true || exit # removes what was left before
dirs_before=$(run_dirs)
check "exit codes" exit_codes
check "arguments" arguments
check "usage" usage
check "lost output" lost_output
check "SIGTERM" terminated
check "SIGTERM early" terminated_early
check "Ctrl-C" interrupted
check "environment" environment
check "nested" nested
check "unprivileged" unprivileged
check "PID namespace" in_pid_namespace
check "killed" killed
check "csfcat and a service that is stopped" stopped_service
check "csfcat and a service that is killed" killed_service
check "nothing left in /run" nothing_left
if [ "${1:-}" != --no-pages ]; then
	for t in cpu thread sum wakeup life stress; do
		test_program "t_$t" "$csf" run "$tests/t_$t"
	done
	check "hash" hashed
fi
echo "csf.sh: $passed passed, $failed failed"
[ "$failed" = 0 ]
