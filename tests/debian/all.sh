#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Test on every kernel of KERNELS, on the module and on BPF, and print a table.
#
#	tests/debian/all.sh [NAME[:WRITER]...]
#	tests/debian/all.sh --list
#	tests/debian/all.sh --table [NAME[:WRITER]...]
#
# NAME is a line of tests/debian/KERNELS, WRITER module, bpf or none (the commands that watch); without, all that
# KERNELS has. One guest at a time, of tests that take five minutes at most (tests/Makefile has the lists). What passed
# is kept in build/debian/results and not run again until sources or the kernel change (the mirror is asked for a newer
# one at most once a day), so an interrupted run goes on where it was; AGAIN=1 runs everything. --list prints what there
# is. The table is made from what is kept, and says whether the sources were the same; of a run that failed to start there
# is a line as well. An interrupted run prints it, too; --table prints it and runs nothing.
#
# Environment as for tests/debian/run.sh. CSF_STRESS_SECONDS=10 is how long the stress test may take.
set -u
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh
results=$top/build/debian/results
export CSF_STRESS_SECONDS=${CSF_STRESS_SECONDS:-10}

pairs() { # of KERNELS: NAME:WRITER
	awk '!/^#/ { n = split($6, w, ","); for (i = 1; i <= n; i++) print $1 ":" w[i] }' "$here"/KERNELS
}

wanted() { # ARGUMENT...: pairs, NAME standing for all of its own
	local argument found
	[ $# != 0 ] || { pairs; return; }
	for argument; do
		found=$(pairs | grep -E "^$argument(:|\$)") || usage_error "$here/KERNELS has no '$argument'"
		echo "$found"
	done
}

tests_for() { # WRITER
	make -s --no-print-directory -C "$top" "list-matrix-$1-tests"
}

sources() { # in one word; what a guest is made of
	(cd "$top" && find Makefile VERSION kmod bpf include lib tools examples tests scripts packaging -type f ! -name '*.o' \
		! -name '*.ko' ! -name '*.mod*' ! -name '.*' ! -name Module.symvers ! -name modules.order | sort |
		xargs -d '\n' md5sum | md5sum | cut -c 1-32)
}

kernel_of() { # NAME: the release in its root file system, or what KERNELS says
	local kernel
	kernel=$(find "${CSF_CACHE:-$top/build/debian}/$1"/rootfs/boot -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -n 1)
	if [ -n "$kernel" ]; then echo "${kernel##*/vmlinuz-}"; else awk -v n="$1" '$1 == n { print $5 "?" }' "$here"/KERNELS; fi
}

newest_kernel() { # NAME: into its root file system, under the lock of run.sh
	local dir=${CSF_CACHE:-$top/build/debian}/$1
	mkdir -p "$dir"
	flock "$dir"/lock "$here"/rootfs.sh "$1" "$dir"
}

count() { # PATTERN
	grep -cE "$1" "$log"
}

run() { # NAME WRITER: leaves a line in results: SOURCES NAME KERNEL WRITER PASSED FAILED SKIPPED SECONDS
	local start=$SECONDS status=0 failures stamp
	stamp=$(sources)
	log=$results/$1.$2.log
	# shellcheck disable=SC2046 # a list
	WRITER=$2 VM_TIMEOUT=${VM_TIMEOUT:-900} GUEST_ENVIRONMENT="CSF_STRESS_SECONDS=$CSF_STRESS_SECONDS" \
		"$here"/run.sh "$1" $(tests_for "$2") >"$log" 2>&1 || status=$?
	failures=$(count '^not ok ')
	[ "$status" = 0 ] || [ "$failures" != 0 ] || failures=1
	echo "$stamp $1 $(kernel_of "$1") $2 $(count '^ok ') $failures $(count '^skip ') $((SECONDS - start))" >"$results/$1.$2.new"
	mv "$results/$1.$2.new" "$results/$1.$2"
	[ "$failures" = 0 ] || grep -E '^not ok|^RESULT|could not|cannot' "$log" | head -n 5
}

passed_before() { # NAME WRITER: with these sources, on this kernel
	local stamp name kernel writer passed failed
	[ -z "${AGAIN:-}" ] && [ -e "$results/$1.$2" ] && newest_kernel "$1" || return
	read -r stamp name kernel writer passed failed _ <"$results/$1.$2"
	[ "$failed" = 0 ] && [ "$passed" != 0 ] && [ "$stamp" = "$(sources)" ] && [ "$kernel" = "$(kernel_of "$1")" ]
}

table() { # NAME:WRITER...: one that was never run is in it, too
	local pair now
	now=$(sources)
	{
		echo "suite kernel writer passed failed skipped seconds sources"
		for pair; do
			if [ -e "$results/${pair/:/.}" ]; then
				awk -v now="$now" '{ print $2, $3, $4, $5, $6, $7, $8, $1 == now ? "same" : "other" }' "$results/${pair/:/.}"
			else
				echo "${pair%:*} $(kernel_of "${pair%:*}") ${pair#*:} - - - - -"
			fi
		done
	} | awk '{ printf "%-22s %-24s %-7s %7s %7s %8s %8s  %s\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
}

failures() { # NAME:WRITER...: how many did not pass
	local pair
	for pair; do awk '$6 == 0 && $5 > 0 { ok = 1 } END { exit !ok }' "$results/${pair/:/.}" 2>/dev/null || echo "$pair"; done
}

! is_help "${1:-}" || usage "$0"
[ "$*" != --list ] || { pairs; exit; }
only_table=
if [ "${1:-}" = --table ]; then
	only_table=1
	shift
fi
list=$(wanted "$@") || exit
# shellcheck disable=SC2086 # a list
[ -z "$only_table" ] || { table $list; exit; }
mkdir -p "$results"
# shellcheck disable=SC2086
trap 'table $list; exit 130' INT
# shellcheck disable=SC2086
trap 'table $list; exit 143' TERM
for pair in $list; do
	name=${pair%:*} writer=${pair#*:}
	if passed_before "$name" "$writer"; then
		note "$name, $writer: passed before"
	else
		note "$name, $writer"
		run "$name" "$writer"
	fi
done
# shellcheck disable=SC2086
table $list
# shellcheck disable=SC2086
bad=$(failures $list)
[ -z "$bad" ] || { echo "RESULT 1"; exit 1; }
echo "RESULT 0"
