#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Judge what the instruction-counting guest found, twice.
#
#	tests/bench/check.sh FIRST.json SECOND.json
#
# Prints each bar and what was reached; fails if one is missed, or if the two runs differ by more than
# 5 instructions: then neither can be trusted.
set -eu

value() { # NAME [JSON]
	local v
	v=$(sed -n "s/^[[:space:]]*\"$1\": \([0-9.]*\),\{0,1\}$/\1/p" "${2:-$first}")
	echo "${v:?${2:-$first} has no value $1}"
}

holds() { awk "BEGIN { exit !($1) }"; }

bar() { # WHAT VALUE UNIT BAR
	local verdict=ok
	holds "$2 <= $4" || { verdict=MISSED failed=1; }
	printf '%-55s %9.1f %s, bar %s: %s\n' "$1" "$2" "$3" "$4" "$verdict"
}

difference() { # NAME: in what it costs, from a switch without the module
	awk "BEGIN { print $(value "$1") - $(value switch_base_insn) }"
}

names() { sed -n 's/^[[:space:]]*"\([a-z0-9_]*\)".*/\1/p' "$first"; }

same_twice() {
	local name once again
	while read -r name; do
		once=$(value "$name") again=$(value "$name" "$second")
		holds "$once - $again <= 5 && $again - $once <= 5" && continue
		# what a service and its kernel memory have to do with it is not ours to the last digit
		[ "$name" = bpf_register_insn ] && holds "($once - $again) ^ 2 <= ($once / 100) ^ 2" && continue
		echo "$name: $once in one run and $again in the next: MISSED"
		failed=1
	done < <(names)
}

[ $# = 2 ] || { echo "usage: check.sh FIRST.json SECOND.json" >&2; exit 2; }
first=$1 second=$2 failed=0
bar "a switch, module loaded, threads not registered: adds" "$(difference switch_module_unregistered_insn)" \
	instructions 10
bar "a switch, both threads registered: adds" "$(difference switch_module_registered_insn)" instructions 180
bar "the same while 10,000 registered threads sleep: costs" \
	"$(awk "BEGIN { print 100 * $(value switch_10k_insn) / $(value switch_module_registered_insn) }")" % 110
bar "a switch while csf cswitch watches: adds" "$(difference cswitch_insn)" instructions 1
same_twice
exit "$failed"
