#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck shell=dash
# The scheduling lab: how long tasks wait for a CPU, alone and among rivals, and what priority and policy change;
# who gives up a CPU and who loses it; who is moved between CPUs. Each claim is judged by what was measured.
#
#	sudo examples/lab.sh [-q] [-n CPUS] [-r RUNS] [-s SECONDS] [-t TICKS] [-w WORK] [-l LIMIT] [-o DIR]
#		[EXPERIMENT...]
#
# K is the first max(1, CPUS / 3) CPUs. Without EXPERIMENT, all of them run:
#
#	A1	all tasks of a machine at rest
#	A2	the same, with two spinners per CPU of K
#	B1	ticker alone on K; it wakes every millisecond and works for a moment
#	B2	with two spinners per CPU of K
#	B3	the same, ticker has SCHED_FIFO
#	B4	as B2, the spinners have nice 19
#	S	switches of ticker and of the spinners, as in B2
#	C1	migrations of ceil(4 * CPUS / 3) spinners, on any CPU
#	C2	of as many on K
#	C3	of ticker alone, on any CPU
#	D1	the same waits by three clocks: from waking, from wakeup, and the kernel's own; as in B1
#	D2	as in B3
#
#	-q	quick: as -r 1 -s 2 -t 500
#	-n CPUS	use CPUs 0 to CPUS - 1 (default: all)
#	-r RUNS	of all experiments, one after the other (3); medians are judged
#	-s SECONDS	that A1, A2, C1 and C2 take (5)
#	-t TICKS	that ticker makes (2000)
#	-w WORK	that it does in each: so often round an empty loop (20000)
#	-l LIMIT	seconds after which a watchdog of higher priority ends a ticker that has SCHED_FIFO (120)
#	-o DIR	keep what csf, ticker and spin said there, also when the lab is interrupted
#
# The tool measures before the load starts: each side says when it is ready, and nothing waits for a while in
# hope. CSF= names the csf command (default: build/csf, or the one in PATH).
set -u
me=${0##*/}
top=$(cd "$(dirname "$(realpath "$0")")/.." && pwd) || exit 1
ticker=$top/build/ticker spin=$top/build/spin
all="A1 A2 B1 B2 B3 B4 S C1 C2 C3 D1 D2"
rt_runtime=/proc/sys/kernel/sched_rt_runtime_us
cpus=$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc) runs=3 seconds=5 ticks=2000 work=20000 limit=120 keep=''
dir='' data='' tool='' rivals='' ticking='' failed=0

die() {
	echo "$me: $*" >&2
	exit 1
}

usage_error() {
	echo "$me: $* ($me -h for help)" >&2
	exit 2
}

number() { # OPTION VALUE
	case $2 in
	'' | 0* | *[!0-9]* | ?????????*) usage_error "-$1: '$2' is not a number above 0" ;;
	esac
}

options() { # ARGUMENT...: sets experiments, too
	local o
	while getopts hqn:r:s:t:w:l:o: o; do
		case $o in
		[nrstwl]) number "$o" "$OPTARG" ;;
		esac
		case $o in
		h) sed -n '4,${/^#/!q;s/^# \{0,1\}//p}' "$0"; exit ;;
		q) runs=1 seconds=2 ticks=500 ;;
		n) cpus=$OPTARG ;;
		r) runs=$OPTARG ;;
		s) seconds=$OPTARG ;;
		t) ticks=$OPTARG ;;
		w) work=$OPTARG ;;
		l) limit=$OPTARG ;;
		o) keep=$OPTARG ;;
		*) usage_error "that is not an option" ;;
		esac
	done
	shift $((OPTIND - 1))
	experiments=${*:-$all}
	for o in $experiments; do
		case " $all " in
		*" $o "*) ;;
		*) usage_error "there is no experiment '$o'; they are $all" ;;
		esac
	done
}

chosen() { # EXPERIMENT
	case " $experiments " in
	*" $1 "*) ;;
	*) return 1 ;;
	esac
}

#
# Three kinds of processes: the tool, ticker, and the spinners' parent. Each speaks through a FIFO of its own, so
# its word is waited for without polling, and its death is the end of the file.
#

end_all() { # whatever still runs: only what we started
	# shellcheck disable=SC2086 # none or one word each
	kill $tool $ticking $rivals 2>/dev/null
	[ -z "$dir" ] || rm -rf "$dir"
}

hear() { # FD WHO: one line of it, in $heard
	read -r heard <&"$1" || die "$2 ended too early; see above"
}

start_tool() { # NAME ARGUMENT...: csf NAME; returns when its window has begun
	"$csf" "$@" --ready-fd 3 3>"$dir/ready" >"$out.csf" 7<&- 8<&- &
	tool="$tool $!"
	exec 9<"$dir/ready"
	[ "$(head -c 1 <&9 | wc -c)" -eq 1 ] || die "csf $1 ended before it had begun; see above"
	exec 9<&-
}

end_tool() { # [SIGNAL]: let it print; without SIGNAL, at the end of its own window
	local t
	# shellcheck disable=SC2086 # a list, if there are three
	[ $# = 0 ] || kill -"$1" $tool
	for t in $tool; do wait "$t" || die "csf failed with status $?; see above"; done
	tool=
}

start_three() {
	local from base="$out"
	for from in waking wakeup queue; do
		out=$base.$from
		start_tool runqlat --from "$from" --ns -p "$pid"
	done
	out=$base
}

prepare_rivals() { # COUNT CPUS [NICE]: each has a CPU's time to itself if it can
	taskset -c "$2" nice -n "${3:-0}" "$spin" -w "$lifetime" "$1" >"$dir/spin" &
	rivals=$!
	exec 8<"$dir/spin"
	hear 8 spin
}

start_rivals() { # returns when all are born
	kill -USR1 $rivals
	hear 8 spin
	echo "$heard" >"$out.spin"
}

end_rivals() {
	kill $rivals
	wait $rivals 2>/dev/null # the shell's own word on its end
	rivals=
	cat <&8 # until the last spinner has gone
	exec 8<&-
}

prepare_ticker() { # CPUS [WRAPPER...]
	local cpus="$1"
	shift
	taskset -c "$cpus" "$@" "$ticker" -w "$ticks" "$work" >"$dir/ticker" &
	ticking=$!
	exec 7<"$dir/ticker"
	hear 7 ticker
	pid=${heard#*pid=}
	pid=${pid%% *}
}

run_ticker() { # returns when it has ticked; it is still there
	kill -USR1 "$pid"
	read -r heard <&7 || ticker_died
	echo "$heard" >"$out.ticker"
}

ticker_died() {
	local status=0
	wait $ticking || status=$?
	ticking=
	[ $status = 137 ] || die "$experiment: ticker failed with status $status; see above"
	die "$experiment: the watchdog ended ticker after $limit s (-l): it kept its CPU, or the machine is slow"
}

end_ticker() {
	kill -USR1 "$pid"
	wait $ticking || die "ticker failed with status $?; see above"
	ticking=
	cat <&7 # until the watchdog has gone, too
	exec 7<&-
}

#
# The experiments: prepare, measure, load.
#

everything() { # [SPINNERS]
	[ $# = 0 ] || prepare_rivals "$1" "$k_cpus"
	start_tool runqlat "$seconds"
	[ $# = 0 ] || start_rivals
	end_tool
	[ $# = 0 ] || end_rivals
}

ticker_on_k() { # SPINNERS NICE TOOL [WRAPPER...]
	local spinners="$1" nice="$2" tool_name="$3"
	shift 3
	prepare_ticker "$k_cpus" "$@"
	[ "$spinners" = 0 ] || prepare_rivals "$spinners" "$k_cpus" "$nice"
	case $tool_name in
	runqlat) start_tool runqlat -p "$pid" ;;
	three) start_three ;;
	*) start_tool "$tool_name" ;;
	esac
	[ "$spinners" = 0 ] || start_rivals
	run_ticker
	[ "$tool_name" != cswitch ] || statuses >"$out.status"
	end_tool TERM
	end_ticker
	[ "$spinners" = 0 ] || end_rivals
}

statuses() { # of ticker and the spinners: PID, voluntary, involuntary, by the kernel
	local p
	for p in $pid $(born "$out"); do
		awk -v p="$p" '/^(non)?voluntary/ { s = s " " $2 } END { print p s }' /proc/"$p"/status
	done
}

# TOOL. Above 50: timeout lives on when a ticker at 50 keeps its CPU, and sleeps until then.
with_fifo() { ticker_on_k "$two_each" 0 "$1" chrt -f 60 timeout -s KILL "$limit" chrt -f 50; }

moving_spinners() { # CPUS
	prepare_rivals "$many" "$1"
	start_tool migrate "$seconds"
	start_rivals
	end_tool
	end_rivals
}

moving_ticker() {
	prepare_ticker "$all_cpus"
	start_tool migrate
	run_ticker
	end_tool TERM
	end_ticker
}

measure() { # EXPERIMENT RUN
	experiment=$1 out=$data/$1.$2
	case $1 in
	A1) everything ;;
	A2) everything "$two_each" ;;
	B1) ticker_on_k 0 0 runqlat ;;
	B2) ticker_on_k "$two_each" 0 runqlat ;;
	B3) with_fifo runqlat ;;
	B4) ticker_on_k "$two_each" 19 runqlat ;;
	S) ticker_on_k "$two_each" 0 cswitch ;;
	C1) moving_spinners "$all_cpus" ;;
	C2) moving_spinners "$k_cpus" ;;
	C3) moving_ticker ;;
	D1) ticker_on_k 0 0 three ;;
	D2) with_fifo three ;;
	esac
}

#
# What they said, one number each
#

# samples=N total_wait=X ms avg=Y us
waits() { tail -n 1 "$1.csf" | sed -n "s/.*$2=\([0-9.]*\).*/\1/p"; } # OUT samples|total_wait|avg
said() { sed -n "s/.*$2=\([0-9.]*\).*/\1/p" "$1.ticker"; }            # OUT pid|run_delay|nvcsw|nivcsw
born() { sed 's/^spinning//' "$1.spin"; }                             # OUT: the spinners' PIDs

# Rows of those PIDs, as csf printed them.
rows() { # OUT PID...
	local from="$1.csf"
	shift
	awk -v pids=" $* " 'index(pids, " " $1 " ")' "$from"
}

spinner_rows() { # OUT
	# shellcheck disable=SC2046 # a list
	rows "$1" $(born "$1")
}

ticker_row() { rows "$1" "$(said "$1" pid)"; } # OUT

# The last two columns of rows are numbers, whatever the names are.
sum() { awk -v c="$1" '{ n += $(NF - 2 + c) } END { print n + 0 }'; }                      # 1|2 <ROWS
most() { awk -v c="$1" '$(NF - 2 + c) > n { n = $(NF - 2 + c) } END { print n + 0 }'; } # 1|2 <ROWS

each_run() { # EXPERIMENT COMMAND...: COMMAND's word on each run, called with its OUT first
	local e="$1" f="$2" run
	shift 2
	for run in $(seq "$runs"); do "$f" "$data/$e.$run" "$@"; done
}

median() { sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

# The run whose number is in the middle: a table is one run's, not a mixture.
middle() { # EXPERIMENT COMMAND...
	local e="$1" run
	run=$(each_run "$@" | awk '{ print $1, NR }' | sort -g | awk '{ v[NR] = $2 } END { print v[int((NR + 1) / 2)] }')
	echo "$data/$e.$run"
}

spinners_voluntary() { spinner_rows "$1" | most 1; }
spinners_seen() { spinner_rows "$1" | wc -l; }
spinners_moved() { spinner_rows "$1" | sum 1; }
ticker_counts() { ticker_row "$1" | sum "$2"; } # OUT COLUMN

#
# Judgement
#

judge() { # CLAIM CONDITION: in awk's words
	if awk "BEGIN { exit !($2) }"; then
		echo "ok $1"
	else
		echo "not ok $1"
		failed=$((failed + 1))
	fi
}

# The highest bucket below 1 ms, the highest above, and the lowest between them: their counts. csf leaves out
# buckets that are empty. Neighbours have nothing between them, and are one peak.
peaks() { # OUT
	awk '$2 == "->" { lo[++n] = $1; hi[n] = $3; c[n] = $5 }
		END {
			for (i = 1; i <= n; i++) {
				if (lo[i] < 1000 && c[i] > c[a]) a = i
				if (lo[i] >= 1000 && c[i] > c[b]) b = i
			}
			valley = c[b]
			for (i = a + 1; i <= b; i++) {
				if (lo[i] > hi[i - 1] + 1) valley = 0
				if (i < b && c[i] < valley) valley = c[i]
			}
			print c[a] + 0, c[b] + 0, valley + 0
		}' "$1.csf"
}

judge_peaks() {
	local low high valley
	# shellcheck disable=SC2046 # three numbers
	set -- $(peaks "$(middle A2 waits avg)")
	low=$1 high=$2 valley=$3
	judge "A2 has two peaks: $low waits in the highest bucket below 1 ms, $high above, $valley between them" \
		"$low > 0 && $high > 0 && 2 * $valley <= $low && 2 * $valley <= $high"
}

judge_b() {
	local b1 b2 b3 b4
	b1=$(average B1) b2=$(average B2) b3=$(average B3) b4=$(average B4)
	! both B2 B1 || judge "B2 >= 3 x B1: $b2 us, $b1 us" "$b1 > 0 && $b2 >= 3 * $b1"
	! both B3 B1 || judge "B3 <= 2 x B1: $b3 us, $b1 us" "$b3 > 0 && $b3 <= 2 * $b1"
	! both B4 B2 || judge "B4 < B2: $b4 us, $b2 us" "$b4 > 0 && $b4 < $b2"
}

judge_switches() {
	local voluntary involuntary most seen
	voluntary=$(each_run S ticker_counts 1 | median) involuntary=$(each_run S ticker_counts 2 | median)
	judge "S: ticker's involuntary switches are at most 1 % of its voluntary ones: $involuntary, $voluntary" \
		"$voluntary > 0 && 100 * $involuntary <= $voluntary"
	most=$(each_run S spinners_voluntary | median) seen=$(each_run S spinners_seen | median)
	judge "S: no spinner has more than 2 voluntary switches: $most; $seen of $two_each spinners seen" \
		"$most <= 2 && $seen == $two_each"
}

judge_migrations() {
	local n wakeups
	if chosen C2; then
		n=$(each_run C2 spinners_seen | median)
		judge "C2 is empty under its heading: $n spinners" "$n == 0 && $(heading "$data/C2.1" | wc -l) == 1"
	fi
	if chosen C3; then
		n=$(each_run C3 ticker_counts 1 | median) wakeups=$(each_run C3 ticker_counts 2 | median)
		judge "C3: ticker's migrations are at most 2 % of its wakeups: $n, $wakeups" \
			"$wakeups > 0 && 100 * $n <= 2 * $wakeups"
	fi
}

both() { chosen "$1" && chosen "$2"; }

average() { ! chosen "$1" || each_run "$1" waits avg | median; } # EXPERIMENT: in us

#
# Tables
#

title() { # EXPERIMENT
	case $1 in
	A1) echo "all tasks, machine at rest" ;;
	A2) echo "all tasks, $two_each spinners on CPU $k_cpus" ;;
	B1) echo "alone" ;;
	B2) echo "rivals, nice 0" ;;
	B3) echo "SCHED_FIFO" ;;
	B4) echo "rivals, nice 19" ;;
	S) echo "ticker and $two_each spinners on CPU $k_cpus" ;;
	C1) echo "$many spinners, any CPU" ;;
	C2) echo "$many spinners on CPU $k_cpus" ;;
	C3) echo "ticker, any CPU" ;;
	D1) echo "alone" ;;
	D2) echo "SCHED_FIFO" ;;
	esac
}

all_runs() { # EXPERIMENT COMMAND...: "1 / 2 / 3"
	each_run "$@" | tr '\n' ' ' | sed 's, $,,; s, , / ,g'
}

heading() { grep '^ *PID ' "$1.csf"; } # OUT

show_histogram() { # EXPERIMENT
	printf '\n### %s %s\n' "$1" "$(title "$1")"
	cat "$(middle "$1" waits avg).csf"
	echo "avg of each run: $(all_runs "$1" waits avg) us"
}

show_ticker() { # EXPERIMENT
	printf '%-3s%-17s %-28s %8s  %-28s %8s  %s / %s\n' "$1" "$(title "$1")" \
		"$(all_runs "$1" waits avg)" "$(each_run "$1" waits avg | median)" \
		"$(all_runs "$1" said run_delay)" "$(each_run "$1" said run_delay | median)" \
		"$(each_run "$1" said nvcsw | median)" "$(each_run "$1" said nivcsw | median)"
}

show_tickers() { # EXPERIMENT...: as csf and ticker said it, then as a table
	local e run
	printf '\n### ticker on CPU %s, %s ticks\n' "$k_cpus" "$ticks"
	for run in $(seq "$runs"); do
		echo "--- run $run"
		for e; do
			printf '%-3s%-17s %s\n' "$e" "$(title "$e")" "$(tail -n 1 "$data/$e.$run.csf")" \
				"$e" "$(title "$e")" "$(cat "$data/$e.$run.ticker")"
		done
	done
	printf '\n%-20s %-28s %8s  %-28s %8s  %s\n' "" "BPF avg, each run (us)" median \
		"schedstat run_delay (ms)" median "nvcsw / nivcsw"
	for e; do show_ticker "$e"; done
}

show_switches() {
	local from
	from=$(middle S spinners_voluntary)
	printf '\n### S %s: csf cswitch\n' "$(title S)"
	heading "$from"
	ticker_row "$from"
	spinner_rows "$from"
	echo "### /proc/PID/status at the end of it, since each process began"
	printf '%-7s %10s %10s\n' PID VOLUNTARY INVOLUNT
	awk '{ printf "%-7s %10s %10s\n", $1, $2, $3 }' "$from.status"
}

show_migrations() { # EXPERIMENT ROWS COUNT...: the run in the middle by COUNT
	local e="$1" f="$2" from
	shift 2
	from=$(middle "$e" "$@")
	printf '\n### %s %s: csf migrate\n' "$e" "$(title "$e")"
	heading "$from"
	"$f" "$from"
}

from_waits() { waits "$1.$2" "$3"; } # OUT FROM WHAT

# In percent: waits for which the run queue's clock stood still, so that the kernel counts nothing.
uncounted() { # OUT
	awk '$1 == 0 && $2 == "->" { none = $5 } /^samples=/ { split($1, s, "="); printf "%.1f\n", s[2] ? 100 * none / s[2] : 0 }' \
		"$1.queue.csf"
}

run_delay_each() { # OUT: what the growth of run_delay makes of each wait, in us
	echo "$(said "$1" run_delay) $(said "$1" nvcsw) $(said "$1" nivcsw)" |
		awk '{ n = $2 + $3; printf "%.2f\n", n ? 1000 * $1 / n : 0 }'
}

show_clocks() { # EXPERIMENT...
	local e
	printf '\n### ticker on CPU %s, each wait by three clocks, us: medians of avg\n' "$k_cpus"
	printf '%-20s %8s %8s %8s %10s  %s\n' "" waking wakeup queue run_delay "queue says 0 ns (%)"
	for e; do
		printf '%-3s%-17s %8s %8s %8s %10s  %s\n' "$e" "$(title "$e")" \
			"$(each_run "$e" from_waits waking avg | median)" "$(each_run "$e" from_waits wakeup avg | median)" \
			"$(each_run "$e" from_waits queue avg | median)" "$(each_run "$e" run_delay_each | median)" \
			"$(each_run "$e" uncounted | median)"
	done
}

show() { # in the article's order
	local e tickers='' clocks=''
	for e in $experiments; do
		case $e in
		A?) show_histogram "$e" ;;
		B?) tickers="$tickers $e" ;;
		D?) clocks="$clocks $e" ;;
		S) show_switches ;;
		C3) show_migrations C3 ticker_row ticker_counts 1 ;;
		C?) show_migrations "$e" spinner_rows spinners_moved ;;
		esac
	done
	# shellcheck disable=SC2086 # a list
	[ -z "$tickers" ] || show_tickers $tickers
	# shellcheck disable=SC2086 # a list
	[ -z "$clocks" ] || show_clocks $clocks
}

#
# All of it
#

prepare() {
	local k csf_name="${CSF:-$top/build/csf}" program
	[ "$(id -u)" = 0 ] || die "csf needs root: run it as root"
	csf=$(command -v "$csf_name" || command -v csf) || die "there is no $csf_name, and no csf in PATH: 'make csf' builds it"
	for program in "$ticker" "$spin"; do
		[ -x "$program" ] || die "there is no $program: 'make examples' builds it"
	done
	for program in taskset nice chrt timeout mkfifo; do
		command -v "$program" >/dev/null || die "needs $program: it is in util-linux or coreutils"
	done
	k=$((cpus / 3))
	[ $k -ge 1 ] || k=1
	two_each=$((2 * k)) many=$(((4 * cpus + 2) / 3)) # rounded up
	k_cpus=0-$((k - 1)) all_cpus=0-$((cpus - 1))
	lifetime=3600 # of spinners, should nobody end them
	taskset -c "$((cpus - 1))" true || die "there are fewer than $cpus CPUs here: -n says how many to use"
	dir=$(mktemp -d) || exit 1
	data=${keep:-$dir}
	mkdir -p "$data" || exit 1
	trap end_all EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	mkfifo "$dir/ready" "$dir/spin" "$dir/ticker" || exit 1
	"$spin" 1 >/dev/null # into the page cache; ticker, too, says so itself
	"$ticker" 1 1 >/dev/null || die "ticker cannot run here"
}

# Where real-time tasks may have all the time there is, only our own watchdog is left: not enough for us.
check_fifo() {
	local runtime
	runtime=$(cat $rt_runtime 2>/dev/null) || runtime=unknown
	echo "sched_rt_runtime_us is $runtime"
	chosen B3 || chosen D2 || return 0
	case $runtime in
	-1 | unknown) ;;
	*) return 0 ;;
	esac
	echo "not ok B3, D2: refused, nothing but a watchdog would bound SCHED_FIFO: 'echo 950000 >$rt_runtime' sets the limit"
	failed=$((failed + 1))
	experiments=$(echo " $experiments " | sed 's/ B3 / /; s/ D2 / /')
}

# The share of all CPUs' time, in percent, that was used in a second.
busy() {
	{
		head -n 1 /proc/stat
		sleep 1
		head -n 1 /proc/stat
	} | awk '{ for (i = 2; i <= 9; i++) { all[NR] += $i; if (i != 5 && i != 6) used[NR] += $i } }
		END { all[2] -= all[1]; printf "%d", all[2] ? 100 * (used[2] - used[1]) / all[2] : 0 }'
}

judge_all() {
	echo
	! chosen A2 || judge_peaks
	judge_b
	! chosen S || judge_switches
	judge_migrations
}

options "$@"
prepare
check_fifo
busy=$(busy)
echo "Linux $(uname -r), $cpus CPUs, K is CPU $k_cpus, runs: $runs; the machine was $busy % busy before"
for run in $(seq "$runs"); do
	for e in $experiments; do measure "$e" "$run"; done
done
show
judge_all
echo "lab: $([ $failed = 0 ] && echo "all as it should be" || echo "$failed not as it should be")"
[ $failed = 0 ] && exit
[ "$busy" -le 10 ] || echo "lab: others used the CPUs, too; a machine at rest may show something else"
exit 1
