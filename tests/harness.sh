#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Test the test harness: boot guests that misbehave (tests/harness/) and see that each is noticed.
#
#	tests/harness.sh
#
# Prints "ok", "not ok" and a summary; exit status 0 if every guest was judged rightly.
set -u
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
log=$top/build/check/harness-guest.txt
mkdir -p "${log%/*}"
passed=0 failed=0

judge() { # NAME 0|1 PATTERN: the guest's exit status must be zero or not, and its output match
	local status=$1
	if [ "$status" != "$3" ]; then
		complain "$2: exit status $status"
	elif ! tail -n 1 "$log" | grep -qE "^RESULT $([ "$3" = 0 ] && echo '0$' || echo '[1-9]')"; then
		complain "$2: the last line is '$(tail -n 1 "$log")'"
	elif ! grep -qE -- "$4" "$log"; then
		complain "$2: nothing says '$4'"
	else
		echo "ok harness: $2"
		passed=$((passed + 1))
	fi
}

complain() {
	echo "not ok harness: $1"
	sed 's/^/# /' "$log" | tail -n 25
	failed=$((failed + 1))
}

guest() { # NAME 0|1 PATTERN TEST...: boot, run, judge; the environment is the caller's
	local name=$1 expected=$2 pattern=$3 status=0
	shift 3
	VM_MEMORY=512M "$top"/tests/debian/run.sh bookworm "$@" >"$log" 2>&1 || status=1
	judge "$status" "$name" "$expected" "$pattern"
}

guest "good tests pass, one that loads the module 50 times among them" 0 '^ok 50 times' harness/pass harness/reload
guest "a failing test fails" 1 '^not ok harness/fail: exit status 1' harness/pass harness/fail
VM_TIMEOUT=25 guest "a hanging guest is ended" 1 'still running after 25 s' harness/hang
guest "a panic is noticed" 1 'the kernel panicked: .*sysrq' harness/panic
guest "a warning panics" 1 'a warning on purpose' harness/warn
VM_DEBUG=0 guest "a warning is found in the log" 1 '^not ok harness/warn: the kernel complained' harness/warn
guest "a leaked reference is noticed" 1 'references, not' harness/leak
guest "RESULT 0 of a test does not count" 1 'ended without a verdict' harness/forge
guest "killing the judge does not help" 1 '^RESULT [1-9]' harness/kill
echo "harness: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
