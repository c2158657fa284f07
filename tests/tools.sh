#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# csfcat and the example, as their users call them: every command line of the description, what they
# print against /proc, and each way to call them wrong. In a guest, by busybox' shell; the module is
# loaded and mounted, the current directory is the tree.
#
# shellcheck disable=SC2016 # awk's $1 is not the shell's

mnt=/sys/kernel/coarse_stat_fs
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0
failed=0
skipped=0

ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "not ok $1: $2"; }
skip() { skipped=$((skipped + 1)); echo "skip $1: $2"; }

# Run a command; what it printed is in $tmp/out and $tmp/err, its exit status in $status.
run() {
	"$@" >"$tmp/out" 2>"$tmp/err"
	status=$?
}

# The exit status is what it must be, and so is where the words went: results to stdout, complaints to
# stderr, never both.
ended_with() { # STATUS
	[ "$status" = "$1" ] || { why="exit status $status, not $1: $(cat "$tmp/err")"; return 1; }
	if [ "$1" = 0 ]; then
		[ -s "$tmp/out" ] && [ ! -s "$tmp/err" ] && return
		why="nothing on stdout, or something on stderr: $(cat "$tmp/err")"
	else
		[ -s "$tmp/err" ] && return
		why="it failed without a word"
	fi
	return 1
}

check() { # NAME COMMAND...: the command says why in $why
	what=$1 why="see above"
	shift
	if "$@"; then ok "$what"; else not_ok "$what" "$why"; fi
}

works() { # COMMAND...
	run "$@"
	ended_with 0
}

says() { # WORDS: on stderr
	grep -qF -- "$1" "$tmp/err" && return
	why="stderr does not say '$1': $(cat "$tmp/err")"
	return 1
}

# The last line of an awk program is what is wrong; no line means nothing is.
judged() { # AWK_PROGRAM FILE...
	program=$1
	shift
	why=$(awk "$program" "$@" 2>&1 | tail -n 1)
	[ -z "$why" ]
}

#
# csfcat cpu
#

# The lines are those of /proc/stat that the page has, each with as many numbers.
is_proc_stat_format() {
	works tools/csfcat cpu || return
	judged '
	NR == FNR { if ($1 ~ /^cpu/) { want[++n] = $1; fields[$1] = NF } next }
	FNR <= n && $1 != want[FNR] { print "line " FNR " is " $1 ", not " want[FNR] }
	FNR <= n && NF != fields[$1] { print $1 " has " NF - 1 " numbers, not " fields[$1] - 1 }
	FNR == n + 1 && (NF != 2 || $1 != "intr") { print "no intr line, but " $0 }
	FNR == n + 2 && (NF != 2 || $1 != "softirq") { print "no softirq line, but " $0 }
	FNR > n + 2 { print "one line too many: " $0 }
	{ for (i = 2; i <= NF; i++) if ($i !~ /^[0-9]+$/) print $1 " has " $i " as a number" }
	END { if (FNR != n + 2) print FNR " lines, not " n + 2 }' /proc/stat "$tmp/out"
}

starts_as_proc_stat() {
	works tools/csfcat cpu || return
	[ "$(head -c 5 "$tmp/out")" = "cpu  " ] && return
	why="/proc/stat has two blanks after cpu, this is '$(head -n 1 "$tmp/out")'"
	return 1
}

# Each number lies between those of /proc/stat before and after, with room for what is rounded and for the
# time between two updates. Idle times may run backwards in /proc/stat itself.
agrees_with_proc_stat() {
	grep -E '^(cpu|softirq|intr)' /proc/stat >"$tmp/before"
	run tools/csfcat cpu
	grep -E '^(cpu|softirq|intr)' /proc/stat >"$tmp/after"
	ended_with 0 || return
	judged '
	FNR == 1 { file++ }
	file == 1 { for (i = 2; i <= 11; i++) low[$1, i] = $i }
	file == 2 { for (i = 2; i <= 11; i++) high[$1, i] = $i }
	file == 3 && $1 ~ /^cpu/ {
		for (i = 2; i <= 11; i++) {
			room = i == 5 || i == 6 ? 10 : 3
			if ($i < low[$1, i] - room || $i > high[$1, i] + room)
				print $1 " number " i - 1 " is " $i ", /proc/stat had " low[$1, i] ".." high[$1, i]
		}
	}
	file == 3 && $1 == "softirq" && ($2 < low[$1, 2] - 1000 || $2 > high[$1, 2]) {
		print "softirq is " $2 ", /proc/stat had " low[$1, 2] ".." high[$1, 2]
	}
	file == 3 && $1 == "intr" && ($2 == 0 || $2 > high[$1, 2]) {
		print "intr is " $2 ", /proc/stat had " high[$1, 2]
	}' "$tmp/before" "$tmp/after" "$tmp/out"
}

# The interrupts without those that x86 counts apart: the numbered lines of /proc/interrupts.
numbered_interrupts() {
	awk '$1 ~ /^[0-9]+:$/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) sum += $i } END { print sum }' \
		/proc/interrupts
}

agrees_with_proc_interrupts() {
	before=$(numbered_interrupts)
	run tools/csfcat cpu
	after=$(numbered_interrupts)
	ended_with 0 || return
	irqs=$(awk '$1 == "intr" { print $2 }' "$tmp/out")
	[ "$irqs" -ge "$((before - 50))" ] && [ "$irqs" -le "$((after + 50))" ] && return
	why="intr is $irqs, the numbered lines of /proc/interrupts had $before..$after"
	return 1
}

sum_is_sum_of_cpus() {
	works tools/csfcat cpu || return
	judged '
	$1 == "cpu" { for (i = 2; i <= 11; i++) sum[i] = $i }
	$1 ~ /^cpu[0-9]/ { n++; for (i = 2; i <= 11; i++) sum[i] -= $i }
	END {
		for (i = 2; i <= 11; i++) # each row is rounded down for itself
			if (sum[i] < 0 || sum[i] > n) print "number " i - 1 " differs by " sum[i] " ticks"
	}' "$tmp/out"
}

#
# csfcat self
#

number='[0-9]+'
ms='[0-9]+\.[0-9]{3}'
times="wall ${ms}ms = cpu $ms \+ runq $ms \+ sleep $ms \+ dsleep $ms \+ iowait $ms"
counts="preempt $number block $number migrate $number \| flt $number/$number"
io="sysc (r$number w$number|n/a) \| io (r${number}B w${number}B|n/a)"
diff="$times \| $counts \| $io"

is_one_diff() { # PREFIX
	grep -qE "^$1$diff\$" "$tmp/out" && [ "$(wc -l <"$tmp/out")" = 1 ] && return
	why="it printed: $(cat "$tmp/out")"
	return 1
}

sleeps_and_spins() {
	works tools/csfcat self 100 && is_one_diff 'sleep 50 ms \+ spin 50 ms: ' || return
	# Printed sums are exact. Somebody else may have had the CPU while it spun.
	judged '{
		sub(".*: wall ", "wall "); sub("ms = ", " "); gsub(" [+|] ", " ")
		for (i = 1; i < NF; i += 2) value[$i] = $(i + 1)
		wall = value["wall"]; cpu = value["cpu"]; runq = value["runq"]; asleep = value["sleep"]
		parts = cpu + runq + asleep + value["dsleep"] + value["iowait"]
		if (parts - wall > 1e-6 || wall - parts > 1e-6) print "parts are " parts ", wall is " wall
		if (wall < 100) print "wall is " wall
		if (asleep < 45 || asleep > 100) print "slept " asleep # the timer runs before it is asleep
		if (cpu + runq < 50) print "ran " cpu ", waited " runq
		if (value["block"] < 1) print "blocked " value["block"]
	}' "$tmp/out"
}

halves_odd_numbers() { works tools/csfcat self 5 && is_one_diff 'sleep 2.5 ms \+ spin 2.5 ms: '; }

page_value() { awk -v name="$1" '$1 == name { print $2 }' "$tmp/out"; }

prints_the_page() {
	works tools/csfcat self || return
	for name in hdr.flags hdr.clock_khz tid cpu life state oncpu_cyc runq_cyc sleep_cyc dsleep_cyc \
		iowait_cyc nr_switch_in nr_preempt nr_block nr_migrate sum_exec_ns run_delay_ns pcount nvcsw \
		nivcsw utime_ns stime_ns min_flt maj_flt rchar wchar syscr syscw read_bytes write_bytes tsc; do
		[ -n "$(page_value $name)" ] || { why="no $name in: $(cat "$tmp/out")"; return 1; }
	done
	judged '
	NF < 2 { print "no value: " $0 }
	$1 ~ /_(cyc|tsc)$/ && $3 != "cycles" { print "no unit: " $0 }
	$1 ~ /_ns$/ && $3 != "ns" { print "no unit: " $0 }
	$1 ~ /(char|_bytes)$/ && $3 != "bytes" { print "no unit: " $0 }' "$tmp/out"
}

is_alive_and_running() {
	works tools/csfcat self || return
	[ "$(page_value life) $(page_value state)" = "live oncpu" ] && return
	why="life and state are: $(page_value life) $(page_value state)"
	return 1
}

# exec keeps the thread's ID, so the shell knows it before.
knows_its_tid() {
	run sh -c 'echo $$ >"$1"/pid; exec tools/csfcat self' sh "$tmp"
	ended_with 0 || return
	[ "$(page_value tid)" = "$(cat "$tmp/pid")" ] && return
	why="tid is $(page_value tid), not $(cat "$tmp/pid")"
	return 1
}

flags_are_the_cpus() {
	works tools/csfcat self || return
	expected=no found=no
	grep -q '^flags.* constant_tsc .*nonstop_tsc' /proc/cpuinfo && expected=yes
	grep -q '^hdr.flags .*tsc_constant' "$tmp/out" && found=yes
	[ $expected = $found ] && return
	why="tsc_constant: $found; both flags in /proc/cpuinfo: $expected"
	return 1
}

#
# Errors
#

is_usage_error() { # ARGUMENT...
	run tools/csfcat "$@"
	ended_with 2 && says csfcat || return
	[ ! -s "$tmp/out" ] && return
	why="it printed: $(cat "$tmp/out")"
	return 1
}

notices_full_disk() { # COMMAND...
	"$@" >/dev/full 2>"$tmp/err"
	status=$?
	ended_with 1 && says "No space left"
}

notices_closed_stdout() { # COMMAND...
	"$@" >&- 2>"$tmp/err"
	status=$?
	ended_with 1 && says "descriptor"
}

# In a mount namespace of its own something else is in the way of the pages; nobody else notices.
hidden() { # SHELL_COMMANDS COMMAND...
	hide=$1
	shift
	run unshare -m sh -c "$hide; exec \"\$@\"" sh "$@"
}

explains_missing_mount() { # COMMAND...
	hidden "umount $mnt" "$@"
	ended_with 1 && says "sudo mount -t coarse_stat_fs none $mnt"
}

explains_missing_module() { # COMMAND...
	hidden "mount -t tmpfs none /sys/kernel" "$@"
	ended_with 1 && says "sudo insmod kmod/coarse_stat_fs.ko" &&
		says "sudo mount -t coarse_stat_fs none $mnt"
}

# In a directory as after make, or with nothing built in it; the two writers are there to choose from.
names_both_writers() { # insmod|modprobe COMMAND...
	load=$1
	shift
	rm -rf "$tmp/tree"
	mkdir -p "$tmp/tree/kmod"
	[ "$load" = modprobe ] || : >"$tmp/tree/kmod/coarse_stat_fs.ko"
	hidden "mount -t tmpfs none /sys/kernel; cd $tmp/tree" "$@"
	ended_with 1 && says "sudo $load " && says "sudo mount -t coarse_stat_fs none $mnt" && says "sudo csf serve"
}

only_missing_mount() {
	hidden "umount $mnt" tools/csfcat cpu
	! says insmod && return
	why="it asks for a module that is loaded"
	return 1
}

refuses_another_version() { # COMMAND...
	hidden "mount -t tmpfs none $mnt; head -c 4096 /dev/zero | tee $mnt/cpu >$mnt/thread-self" "$@"
	ended_with 1 && says "the version that this csfcat knows"
}

#
# The example
#

# The line of each slow operation, by a judge of our own: parts add up, and the largest is the one. Of
# several tries on a busy machine the last.
explains() { # OPERATION LARGEST
	awk -v op="== $1" 'found { line = $0 } { found = index($0, op) == 1 } END { print line }' "$tmp/out" >"$tmp/line"
	grep -qE "^$diff\$" "$tmp/line" || { why="no line for '$1', but: $(cat "$tmp/line")"; return 1; }
	why=$(awk -v want="$2" '{
		sub("ms", ""); wall = $2
		for (i = 4; i <= 16; i += 3) {
			sum += $(i + 1)
			if ($(i + 1) > most) { most = $(i + 1); name = $i }
		}
		if (name != want) print "mostly " name ": " $0
		if (sum - wall > 1e-6 || wall - sum > 1e-6) print "parts are " sum ": " $0
	}' "$tmp/line")
	[ -z "$why" ]
}

explains_all() {
	explains "sleep" sleep && explains "busy loop" cpu && explains "share one CPU" runq &&
		explains "wait for a vfork" dsleep && explains "touch 32 MiB" cpu
}

eventloop_works() { works build/eventloop && explains_all; }

reads_fields() {
	works build/eventloop || return
	for words in 'thread [0-9]+ on CPU [0-9]+: preempted' 'page faults: [0-9]+ minor' \
		'schedstat: ran [0-9.]+ ms, waited' 'CPUs, in .* user .* system .* iowait .* steal'; do
		[ "$(grep -cE "$words" "$tmp/out")" -ge 5 ] || { why="not five times: $words"; return 1; }
	done
}

reports_only_slow_ones() {
	works build/eventloop --slow 1000 || return
	! grep -q '^== ' "$tmp/out" && return
	why="nothing takes a second, but it printed: $(cat "$tmp/out")"
	return 1
}

# Faults are counted when the thread leaves its CPU, which this operation does.
counts_faults() {
	works build/eventloop || return
	n=$(awk '/^== touch/ { t = 1 } t && /page faults/ { print $3; exit }' "$tmp/out")
	[ "$n" -ge 8192 ] && return
	why="32 MiB in pages of 4 KiB are 8192 faults, it says $n"
	return 1
}

demo_works() { works build/eventloop --demo "$1" && explains_all; }

demo_on_disk() {
	demo_works "$CSF_DISK_DIR" && explains "read 32 blocks" iowait || return
	tail -n 1 "$tmp/out" | grep -q '^demo: 6 passed, 0 failed, 0 skipped$' && return
	why=$(tail -n 1 "$tmp/out")
	return 1
}

# The bytes of the read went through the block layer; all but the last are counted when it returns.
demo_counts_bytes() {
	bytes=$(awk '/^== read/ { r = 1 } r && /block I\/O/ { print $3; exit }' "$tmp/out")
	[ "$bytes" -ge $((31 * 4096)) ] && [ "$bytes" -le $((32 * 4096)) ] && return
	why="32 blocks of 4096 bytes were read, it says $bytes bytes"
	return 1
}

demo_in_memory() {
	mkdir "$tmp/memory" && mount -t tmpfs none "$tmp/memory" || return
	demo_works "$tmp/memory"
	ended=$?
	umount "$tmp/memory"
	[ $ended = 0 ] || return
	grep -q 'in memory: its I/O never waits' "$tmp/out" &&
		tail -n 1 "$tmp/out" | grep -q '^demo: 5 passed, 0 failed, 1 skipped$' && return
	why="it does not say that there is no disk to read: $(tail -n 1 "$tmp/out")"
	return 1
}

demo_without_directory() {
	works build/eventloop --demo "$tmp/nowhere" || return
	grep -q 'skipped: .*No such file' "$tmp/out" && return
	why="it does not say that there is no such directory"
	return 1
}

eventloop_usage_error() { # ARGUMENT...
	run build/eventloop "$@"
	ended_with 2 && says eventloop
}

# Nothing of it is left running, or on the disk.
leaves_nothing() {
	running=$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^eventloop$')
	[ "$running" = 0 ] || { why="$running processes still run"; return 1; }
	for file in "${CSF_DISK_DIR:-$tmp}"/eventloop.*; do
		[ ! -e "$file" ] || { why="$file is left"; return 1; }
	done
}

#
# All of it
#

[ -e $mnt/cpu ] || { echo "not ok tools: $mnt is not mounted"; exit 1; }

check "csfcat cpu" works tools/csfcat cpu
check "csfcat cpu: the lines of /proc/stat" is_proc_stat_format
check "csfcat cpu: begins as /proc/stat" starts_as_proc_stat
check "csfcat cpu: the numbers of /proc/stat" agrees_with_proc_stat
check "csfcat cpu: the interrupts of /proc/interrupts" agrees_with_proc_interrupts
check "csfcat cpu: the first line is the sum of the others" sum_is_sum_of_cpus
check "csfcat self 100" sleeps_and_spins
check "csfcat self 5" halves_odd_numbers
check "csfcat self" prints_the_page
check "csfcat self: alive and running" is_alive_and_running
check "csfcat self: its thread ID" knows_its_tid
check "csfcat self: the flags of /proc/cpuinfo" flags_are_the_cpus

check "csfcat --help" works tools/csfcat --help
check "csfcat --help names each command" grep -qE '^ +self +\[MS\]' "$tmp/out"
check "csfcat -h" works tools/csfcat -h
check "csfcat --version" works tools/csfcat --version
check "csfcat --version is VERSION" grep -qxF "csfcat (coarse_stat_fs) $(cat VERSION)" "$tmp/out"
check "csfcat without a command" is_usage_error
for wrong in stat --wrong -x cpux CPU ''; do
	check "csfcat '$wrong' is an error" is_usage_error "$wrong"
done
check "csfcat cpu 1 is an error" is_usage_error cpu 1
check "csfcat self 1 2 is an error" is_usage_error self 1 2
for wrong in 0 -1 1x x '' ' 5' +5 1.5 0x10 1e3 3600001 4294967297 99999999999999999999; do
	check "csfcat self '$wrong' is an error" is_usage_error self "$wrong"
done

for command in cpu self "self 2" --help --version; do
	# shellcheck disable=SC2086 # a command line
	check "csfcat $command notices a full disk" notices_full_disk tools/csfcat $command
	# shellcheck disable=SC2086
	check "csfcat $command notices a closed stdout" notices_closed_stdout tools/csfcat $command
done
if unshare -m true 2>/dev/null; then
	for command in "tools/csfcat cpu" "tools/csfcat self" "tools/csfcat self 2" build/eventloop; do
		# shellcheck disable=SC2086
		check "$command, not mounted: what to do" explains_missing_mount $command
		if [ "$command" = build/eventloop ]; then
			check "$command, not loaded: what to do" explains_missing_module "$command"
			continue
		fi
		for load in insmod modprobe; do
			# shellcheck disable=SC2086
			check "$command, not loaded: what to do, by $load" names_both_writers $load "$PWD"/$command
		done
		# shellcheck disable=SC2086
		check "$command, another version: what to do" refuses_another_version $command
	done
	check "csfcat, not mounted: nothing that is done already" only_missing_mount
else
	skip "csfcat without its pages" "no mount namespace can be made here"
fi

check "eventloop" eventloop_works
check "eventloop: each field for itself" reads_fields
check "eventloop: counts page faults" counts_faults
check "eventloop --slow 1000" reports_only_slow_ones
if [ -n "${CSF_DISK_DIR:-}" ]; then
	check "eventloop --demo on a slow disk" demo_on_disk
	check "eventloop --demo: bytes read" demo_counts_bytes
else
	skip "eventloop --demo on a slow disk" "there is none (CSF_DISK_DIR)"
fi
check "eventloop --demo in memory" demo_in_memory
check "eventloop --demo in no directory" demo_without_directory
check "eventloop --help" works build/eventloop --help
for wrong in --wrong extra --slow --slow=0 --slow=x --slow=1x --slow=-1 --slow=nan --slow=1e9; do
	check "eventloop $wrong is an error" eventloop_usage_error "$wrong"
done
check "eventloop notices a full disk" notices_full_disk build/eventloop
check "eventloop leaves nothing behind" leaves_nothing

echo "tools: $passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
