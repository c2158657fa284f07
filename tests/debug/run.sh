#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Test the module in kernels that watch it: build them, boot each as tests/debian/run.sh does, and read their logs.
#
#	tests/debug/run.sh [KERNEL...]
#
# KERNEL is kasan (and lockdep, kmemleak, fault injection) or kcsan, each a config.KERNEL here on top of config;
# without, both. Sources are Debian's linux-source of SUITE= (bookworm); kernels are kept beside the root file systems
# (CSF_CACHE=) and built again when a config or the sources change.
#
# Whatever a kernel reports with a frame of ours fails the run, and so does a test. Reports of others are counted by
# function. Environment: CSF_FAULTS=10000, how many allocations fail; CSF_STRESS_SECONDS=20;
# CSF_TESTS="thread life" in place of each kernel's own.
set -eu
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here"/../..)
. "$top"/scripts/say.sh
suite=${SUITE:-bookworm}

# KASAN would fall silent after the first report, whosever that is. A kernel so slow doubts its TSC, and its
# scheduler's clock is tens of ms off then. KCSAN looks at one access of 400, not of 4000, and longer: without KVM
# it takes long until the other CPU does anything.
arguments="kasan_multi_shot tsc=reliable kcsan.skip_watch=400 kcsan.udelay_task=400 kcsan.udelay_interrupt=100"

tests_of() { # KERNEL
	case $1 in
	kasan) echo "${CSF_TESTS:-thread life file stress fault}" ;;
	kcsan) echo "${CSF_TESTS:-thread life file stress}" ;;
	*) usage_error "'$1' is not one of kasan, kcsan" ;;
	esac
}

configure() { # every line of ours must have been possible
	local lost
	make -s -C "$source" O="$1" KCONFIG_ALLCONFIG="$1"/fragment.new allnoconfig || return
	lost=$(grep '^CONFIG' "$1"/fragment.new | grep -vxFf "$1"/.config) || true
	[ -z "$lost" ] || { echo "not in this kernel: $lost"; return 1; }
}

# Kernels have no use for the debugging information, and kmemleak none for a fast build.
build() { # KERNEL: into $kbuild
	mkdir -p "$kbuild"
	{ cat "$here"/config "$here/config.$1" "$source"/.unpacked; } >"$kbuild"/fragment.new
	if [ -e "$kbuild"/arch/x86/boot/bzImage ] && cmp -s "$kbuild"/fragment "$kbuild"/fragment.new; then
		return
	fi
	rm -f "$kbuild"/fragment
	progress "configuring a kernel with $1" "$kbuild"/config.log configure "$kbuild" ||
		die "the $1 kernel could not be configured"
	progress "building a kernel with $1 (ten minutes or more)" "$kbuild"/build.log \
		nice make -s -C "$source" O="$kbuild" -j "$(nproc)" bzImage modules || die "the $1 kernel could not be built"
	mv "$kbuild"/fragment.new "$kbuild"/fragment
}

# From a kernel's log: a line "ours|other TITLE" a report. One begins with what is below, which names the
# functions or is followed by a line that does, and ends at the next "==" line, end of trace, or report.
# What the module itself says of leaks and refusals is ours as well. What an interrupt came upon is not what raced
# in it: KCSAN lists it below the interrupt's entry.
reports() { # <LOG
	tr -d '\r' | awk '
		function flush() {
			if (title != "") print (ours ? "ours" : "other") "\t" title
			title = ""; ours = 0
		}
		{
			line = $0
			sub(/^\[ *[0-9.]+\] */, "", line)
			sub(/^(rcu|watchdog): /, "", line)
		}
		line ~ /^coarse_stat_fs: .*(refus|leak|busy)/ { flush(); title = line; ours = 1; flush() }
		line ~ /^(BUG: |WARNING: |INFO: (task|rcu|possible|suspicious)|Oops|general protection|DEBUG_LOCKS|unreferenced object)/ {
			flush(); title = line; gsub(/\+0x[0-9a-f]+\/0x[0-9a-f]+/, "", title); gsub(/ (PID|CPU): [0-9]+/, "", title)
		}
		/^$/ || / by (task|interrupt)/ { below = 0 }
		/^ asm_(sysvec|common)/ { below = title ~ /KCSAN/ }
		title != "" && !below && /\[coarse_stat_fs\]|[^a-z_]csf_[a-z_]+\+0x/ { ours = 1 }
		/====================|---\[ end trace/ { flush() }
		END { flush() }'
}

# Who sees nothing passes everything: what the kernel prints, shortened.
judge_sees() {
	local seen
	seen=$(
		reports <<-LOG | tr '\n\t' ', '
			=====================
			BUG: KCSAN: data-race in a / b
			 a+0x1/0x2
			 asm_sysvec_apic_timer_interrupt+0x1/0x2
			 csf_thread_mmap+0x1/0x2 [coarse_stat_fs]

			=====================
			BUG: KCSAN: data-race in g / h
			 asm_sysvec_apic_timer_interrupt+0x1/0x2

			write to 0x1 of 8 bytes by task 1 on cpu 0:
			 csf_thread_mmap+0x1/0x2 [coarse_stat_fs]
			=====================
			BUG: KASAN: use-after-free in c+0x1/0x2
			 d+0x1/0x2 [coarse_stat_fs]
			=====================
			WARNING: CPU: 1 PID: 67 at e.c:1 f+0x1/0x2
			Modules linked in: coarse_stat_fs(O)
			---[ end trace 0 ]---
			coarse_stat_fs: loading out-of-tree module taints kernel.
			rcu: INFO: rcu_preempt detected stalls
			 csf_sched_in+0x1/0x2
		LOG
	)
	[ "$seen" = "other BUG: KCSAN: data-race in a / b,ours BUG: KCSAN: data-race in g / h,ours BUG: KASAN: use-after-free in c,other WARNING: at e.c:1 f,ours INFO: rcu_preempt detected stalls," ] ||
		die "reports are not recognized: $seen"
}

begins_with() { # KERNEL: its word that it watches
	case $1 in
	kasan) echo 'kasan: KernelAddressSanitizer initialized' ;;
	kcsan) echo 'kcsan: enabled early' ;;
	esac
}

judge() { # KERNEL LOG
	local log=$2 found mine
	[ -s "$log" ] || { echo "not ok debug: $1 left no $log"; failed=1; return; }
	grep -q "$(begins_with "$1")" "$log" || { echo "not ok debug: $1 was never on"; failed=1; }
	found=$(reports <"$log")
	mine=$(grep -c '^ours' <<<"$found" || true)
	[ -z "$found" ] || sort <<<"$found" | uniq -c | sort -rn | sed 's/^/# /'
	if [ "$mine" = 0 ]; then
		echo "ok debug: $1 reports nothing of ours ($(grep -c '^other' <<<"$found" || true) of others)"
	else
		echo "not ok debug: $1 has $mine reports with a frame of ours, see $log"
		failed=1
	fi
}

run() { # KERNEL
	local log=$top/build/debian/debug-$1/console.log
	rm -f "$log" # of the last run
	# shellcheck disable=SC2046 # a list
	APPEND="$arguments ${APPEND:-}" KBUILD=$kbuild VM_NAME=debug-$1 VM_DEBUG=0 VM_TIMEOUT=${VM_TIMEOUT:-3000} VM_MEMORY=${VM_MEMORY:-3G} \
		GUEST_ENVIRONMENT="CSF_LOG_IS_READ_BY_HOST=1 CSF_FAULTS=${CSF_FAULTS:-10000} CSF_STRESS_SECONDS=${CSF_STRESS_SECONDS:-20} CSF_PATIENCE=10" \
		"$top"/tests/debian/run.sh "$suite" $(tests_of "$1") || failed=1
	judge "$1" "$log"
}

! is_help "${1:-}" || usage "$0"
[ $# != 0 ] || set -- kasan kcsan
for kernel; do tests_of "$kernel" >/dev/null; done
need_tools debug gcc make flex bison bc perl
judge_sees
cache=$(realpath -m "${CSF_CACHE:-$top/build/debian}")/linux-source
source=$cache/$suite
failed=0
"$top"/scripts/linux-source.sh "$suite" "$source"
for kernel; do
	kbuild=$cache/$suite-$kernel
	build "$kernel"
	run "$kernel"
done
echo "RESULT $failed"
exit "$failed"
