#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Run stages of tests one after another, all of them whatever fails, and say what came of it.
#
#	tests/check.sh [--total] STAGE[+STAGE...]...
#
# Of stages that + joins, the first one runs beside the others, and its output comes after theirs: for those in which
# nothing depends on time.
#
# lint: faults that show without running anything. unit: what runs in user space. bookworm: the module on Linux 6.1.
# icount: both writers on 6.1 with a clock that counts instructions. newest: the module on the newest kernel of
# tests/debian/KERNELS. virtme: through virtme-ng, with the running kernel, or KREL=, or a little on 6.1. bpf: the BPF
# service and the commands that watch on this machine, as root. bpf_guest: the service on 6.1. watch_guest: those
# commands on 6.1. oldest: those commands on the oldest kernel of tests/debian/KERNELS. arm64: it compiles there.
# harness: guests that misbehave must be noticed. packages: those for Debian, in a guest with systemd.
#
# What failed is repeated at the end. The last line is RESULT 0 if all passed; --total adds "N passed, N failed, N
# skipped", by lines "ok", "not ok" and "skip" of all stages. Each stage's output is in build/check/STAGE.log.
set -u
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
logs=$top/build/check
cd "$top" || exit 1

stage_lint() { make -s --no-print-directory lint; }
stage_unit() {
	local status=0
	scripts/version.sh || status=1
	scripts/spdx.sh || status=1
	tests/docs.sh || status=1
	tests/paths.sh || status=1
	make -s --no-print-directory unit || status=1
	return "$status"
}
stage_bookworm() { tests/debian/run.sh bookworm; }
stage_icount() {
	local status=0
	# shellcheck disable=SC2046 # a list
	ICOUNT=1 tests/debian/run.sh bookworm $(make -s --no-print-directory list-timed-tests) || status=1
	WRITER=bpf ICOUNT=1 tests/debian/run.sh bookworm cpu thread wakeup || status=1
	return "$status"
}
# With a trusted TSC, as bookworm's guest goes without.
stage_newest() { APPEND="tsc=reliable ${APPEND:-}" tests/debian/run.sh "$(suites_by_kernel | tail -n 1)"; }
stage_bpf() {
	local test status=0
	if [ "$(id -u)" != 0 ] || [ ! -r /sys/kernel/btf/vmlinux ]; then
		echo "skip BPF on this machine: it takes root and a kernel with BTF"
		return
	fi
	make -s --no-print-directory tools csf tests || return
	tests/csf.sh || status=1
	tests/watch.sh || status=1
	for test in $(make -s --no-print-directory list-serve-tests list-watch-tests); do build/tests/t_"$test" || status=1; done
	return "$status"
}
stage_arm64() { tests/arm64.sh; }
stage_bpf_guest() {
	local status=0
	WRITER=bpf tests/debian/run.sh bookworm || status=1
	# where others in task storage get in the way
	WRITER=bpf APPEND=preempt=full tests/debian/run.sh bookworm storage || status=1
	return "$status"
}
stage_watch_guest() { WRITER=none tests/debian/run.sh bookworm; }
stage_oldest() { WRITER=none tests/debian/run.sh "$(suites_by_kernel | head -n 1)"; }
stage_harness() { tests/harness.sh; }
stage_packages() { tests/packages.sh; }

stage_virtme() {
	local release=${KREL:-$(uname -r)} tests=
	command -v vng >/dev/null || { echo "skip virtme-ng: it is not installed"; return 0; }
	if [ -z "${KREL:-}" ] && [ ! -e "/lib/modules/$release/build/Makefile" ]; then
		release=$(guest_release bookworm) tests="cpu thread life" # all others have been run on it
	fi
	# shellcheck disable=SC2086 # a list
	KREL=$release tests/vm.sh $tests
}

suites_by_kernel() { awk '!/^#/ && $4 == "amd64" { print $5, $1 }' tests/debian/KERNELS | sort -V | cut -d ' ' -f 2; }

guest_release() { # SUITE: of the kernel in its root file system
	local kernel
	kernel=$(find "${CSF_CACHE:-build/debian}/$1"/rootfs/boot -name 'vmlinuz-*' | sort -V | tail -n 1)
	echo "${kernel##*/vmlinuz-}"
}

run_stage() { # STAGE
	local start=$SECONDS status
	echo "=== $1"
	"stage_$1" 2>&1 | tee "$logs/$1.log"
	status=${PIPESTATUS[0]}
	[ "$status" = 0 ] || echo "$1" >>"$logs"/failed
	echo "=== $1: $([ "$status" = 0 ] && echo passed || echo FAILED) in $((SECONDS - start)) s"
}

run_stages() { # STAGE[+STAGE...]
	local first=${1%%+*} stage
	if [ "$first" != "$1" ]; then
		set -m # in a process group, to be ended as a whole
		run_stage "$first" >"$logs/$first.out" </dev/null &
		beside=$!
		set +m
		for stage in $(tr + ' ' <<<"${1#*+}"); do run_stage "$stage"; done
		wait "$beside"
		beside=
		cat "$logs/$first.out"
	else
		run_stage "$first"
	fi
}

lines() { # PATTERN: how many lines of all stages match it
	cat "$logs"/*.log | grep -cE "$1"
}

repeat_failures() { # as STAGE: not ok ...
	(cd "$logs" && grep -E '^not ok ' /dev/null -- *.log | sed 's/[.]log:/: /')
}

total() {
	local passed failures skipped
	passed=$(lines '^ok ') failures=$(lines '^not ok ') skipped=$(lines '^skip ')
	# A stage that failed without saying so in a line of its own counts, too; and silence is no success.
	[ ! -e "$logs"/failed ] || [ "$failures" != 0 ] || failures=1
	[ "$passed" != 0 ] || failures=$((failures + 1))
	echo "$passed passed, $failures failed, $skipped skipped"
	[ "$failures" = 0 ]
}

[ "${1:-}" != -h ] || usage "$top"/tests/check.sh
want_total=
if [ "${1:-}" = --total ]; then
	want_total=1
	shift
fi
[ $# -gt 0 ] || usage_error "needs a STAGE"
for stage in $(tr + ' ' <<<"$*"); do
	declare -F "stage_$stage" >/dev/null || usage_error "there is no stage '$stage'"
done
rm -rf "$logs"
mkdir -p "$logs"
beside=
trap 'exit 130' INT
trap 'exit 143' TERM
trap '[ -z "$beside" ] || kill -- -"$beside"' EXIT
for stages; do run_stages "$stages"; done

status=0
if [ -e "$logs"/failed ]; then
	repeat_failures
	echo "failed: $(paste -sd ' ' "$logs"/failed)"
	status=1
fi
echo "RESULT $status"
[ -z "$want_total" ] || total || status=1
exit "$status"
