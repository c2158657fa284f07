#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# csf cswitch, csf migrate and csf runqlat as their users call them: the examples of their pages in the manual, wrong
# command lines, output that cannot be written, and what bpftool sees of them.
#
#	tests/watch.sh
#
# As root, where BPF works; CSF_CMD is the csf command (default: build/csf).
set -u
[ "${1:-}" != -h ] || { sed -n '3,${/^#/!q;s/^# \{0,1\}//p}' "$0"; exit; }
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
csf=$(realpath "${CSF_CMD:-$top/build/csf}")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0

check() { # NAME COMMAND...: the command says why in $why
	local what=$1
	why="see above"
	shift
	if "$@"; then
		passed=$((passed + 1))
		echo "ok $what"
	else
		failed=$((failed + 1))
		echo "not ok $what: $why"
	fi
}

exits() { # STATUS COMMAND...: its output is in $tmp/out and $tmp/err
	local want=$1 status=0
	shift
	"$@" >"$tmp/out" 2>"$tmp/err" || status=$?
	why="$*: exit status $status, not $want: $(head -c 300 "$tmp/err")"
	[ "$status" = "$want" ]
}

complains() { # STATUS WORDS COMMAND...
	exits "$1" "${@:3}" || return
	why="${*:3}: it says '$(cat "$tmp/err")'"
	grep -qF -- "$2" "$tmp/err"
}

examples() { # COMMAND: each line in its page that begins with "# "
	local line nr=0
	while read -r line; do
		nr=$((nr + 1))
		PATH=$(dirname "$csf"):$PATH exits 0 bash -c "$line" || return
		why="$line: it printed nothing"
		[ -s "$tmp/out" ] || return
	done < <(sed -n '/^\.EX/,/^\.EE/s/^# //p' "$top/man/csf-$1.8" | sed 's/\\-/-/g')
	why="there are $nr examples"
	[ "$nr" -ge 2 ]
}

usage() {
	local tool
	for tool in cswitch migrate; do
		complains 2 "too many" "$csf" $tool 1 2 && complains 2 "number" "$csf" $tool 0 &&
			complains 2 "number" "$csf" $tool 1x && complains 2 "number" "$csf" $tool -n 0 1 &&
			complains 2 "--sort must be" "$csf" $tool --sort nothing 1 &&
			complains 2 "number" "$csf" $tool -p 0 1 && complains 1 "no process" "$csf" $tool -p 4194304 1 &&
			complains 1 "no thread" "$csf" $tool -t 4194304 1 &&
			complains 1 "No such file" "$csf" $tool -c /nowhere 1 &&
			complains 2 "cgroup v2" "$csf" $tool -c /tmp 1 || return
	done
	complains 2 "only one of PID and --pid" "$csf" runqlat -p 1 1 2
}

unprivileged() {
	complains 1 "root" setpriv --reuid 61001 --regid 61001 --clear-groups "$csf" "$1" 1 || return
	[ "$1" = cswitch ] || # makes do with /proc
		complains 1 "root" setpriv --reuid 61001 --regid 61001 --clear-groups "$csf" "$1" --no-btf 1
}

# Whoever asks for less is not told that the kernel has no more.
asked_for() {
	complains 0 "csf: --no-btf: " "$csf" cswitch --no-btf 1 && complains 1 "by --no-btf" "$csf" migrate --no-btf --verify 1 &&
		complains 1 "by --no-btf" "$csf" runqlat --no-btf -P 1
}

# What was counted comes out on stderr then, and counting ends.
full_disk() {
	# shellcheck disable=SC2016 # the inner shell's
	complains 1 "here is the report" timeout 20 bash -c '"$0" "$@" >/dev/full' "$csf" "$@" || return
	why="it says so $(grep -c "here is the report" "$tmp/err") times"
	[ "$(grep -c "here is the report" "$tmp/err")" = 1 ]
}

closed_pipe() {
	# shellcheck disable=SC2016 # the inner shell's
	exits 0 bash -c '"$0" "$1" -i 1 3 | true; [ "${PIPESTATUS[0]}" = 141 ] || [ "${PIPESTATUS[0]}" = 0 ]' "$csf" "$1" || return
	why="it says '$(cat "$tmp/err")'"
	[ ! -s "$tmp/err" ]
}

# On a terminal, unless that cannot go back in a line; and a pipe is none.
progress_is() { # 0|1 TERMINAL
	exits 0 env TERM="$2" script -qec "$csf $tool 1" /dev/null || return
	why="TERM=$2: $(grep -c watching "$tmp/out") lines with progress"
	[ "$(grep -c watching "$tmp/out")" = "$1" ]
}

progress() {
	progress_is 1 xterm && progress_is 0 dumb && exits 0 "$csf" "$tool" 1 || return
	why="it says '$(cat "$tmp/err")'"
	[ ! -s "$tmp/err" ]
}

vanished() {
	sleep 0.7 &
	complains 0 "has ended" "$csf" "$1" -p $! 5
}

is_json() {
	exits 0 "$csf" "$@" || return
	why="$*: this is no JSON: $(head -c 200 "$tmp/out")"
	jq -e . "$tmp/out" >/dev/null
}

json() {
	local tool
	for tool in cswitch migrate; do
		is_json $tool --json 1 && is_json $tool --json --verify --stats -T -n 3 1 && is_json $tool --json --no-btf 1 &&
			is_json $tool --json -i 1 2 || return
		why="there are $(jq -s length "$tmp/out") documents, not 2"
		[ "$(jq -s length "$tmp/out")" = 2 ] || return
	done
}

# In a PID namespace of its own, numbers are those of the namespace, and nobody else is seen.
in_namespace() {
	# shellcheck disable=SC2016 # the inner shell's
	exits 0 unshare --pid --fork --mount bash -c 'mount -t proc proc /proc || exit
		while :; do sleep 0.02; done &
		exec "$0" "$1" --json -T 2' "$csf" "$1" || return
	why="$1: this is seen: $(head -c 300 "$tmp/out")"
	jq -e '([.tasks[].tid] | max < 1000 and length > 20) and .discarded.unfinished < 10' "$tmp/out" >/dev/null
}

# What the links that a process has open are attached to.
attached_to() { # PID
	local links
	links=$(sed -n 's/^link_id:[[:space:]]*//p' /proc/"$1"/fdinfo/* | jq -s .)
	bpftool -j link show | jq -r --argjson ours "$links" '.[] | select(.id | IN($ours[])) | .tp_name // .target_name'
}

attachments() { # COMMAND WANTED...: and nothing else
	local pid found
	"$csf" "$1" >/dev/null &
	pid=$!
	sleep 2
	found=$(attached_to $pid | sort | tr '\n' ' ')
	kill $pid
	wait $pid
	shift
	why="attached to $found"
	[ "$found" = "$* " ]
}

for tool in cswitch migrate runqlat; do
	check "$tool: the examples of its page" examples $tool
	check "$tool: unprivileged" unprivileged $tool
	check "$tool: a full disk" full_disk $tool -i 1
	check "$tool: a closed pipe" closed_pipe $tool
	check "$tool: the process ends" vanished $tool
	check "$tool: progress" progress
done
check "cswitch: in a PID namespace" in_namespace cswitch
check "migrate: in a PID namespace" in_namespace migrate
check "runqlat: a full disk, for --over" full_disk runqlat --over 1
check "usage" usage
check "JSON" json
[ ! -r /sys/kernel/btf/vmlinux ] || check "no BTF, as asked for" asked_for
# task: the walk over all tasks
check "cswitch: attached to births and ends alone" attachments cswitch sched_process_fork sched_process_free task
check "migrate: no program at a switch" attachments migrate sched_migrate_task sched_process_fork sched_process_free sched_wakeup task
echo "watch.sh: $passed passed, $failed failed"
[ "$failed" = 0 ]
