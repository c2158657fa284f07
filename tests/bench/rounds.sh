# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2154
# Sourced by the scripts that measure beside other programs, mostly in rounds: each round measures
# everything once, so that whatever disturbs the machine disturbs all alike, and a value is the median of
# the rounds. They set top, results and values, and source scripts/say.sh.

# By processes of their own; the best of three, since neighbours on a host can only add. One that sees
# itself disturbed too much fails, says so, and does not count.
ns() { # NAME MEASURE
	for _ in 1 2 3; do
		"$top"/build/tests/bench_guest ns "$2" || true
	done | sort -k2,2g | awk -v name="$1" 'NR == 1 { print name "_ns", $2 }' >>"$results"
}

wait_until() { # COMMAND...
	for _ in $(seq 150); do
		sleep 0.1
		! "$@" || return 0
	done
	die "it does not start: '$*' does not come true"
}

# Has a tracer that does not tell begun to trace? Some take seconds, and have their last event later.
attached() { # PID
	kill -0 "$1" 2>/dev/null || die "the tracer ends by itself"
	readlink /proc/"$1"/fd/* | grep -q 'perf_event\|bpf_link' && sleep 0.5
}

stop() { # what the caller has started as $running
	kill -INT "$running"
	wait "$running" || true
	running=
}

medians() {
	sort -k1,1 -k2,2g "$results" | awk '
		$1 != name { emit(); name = $1; n = 0 }
		{ v[n++] = $2 }
		END { emit() }
		function emit() { if (n) print name, (v[int((n - 1) / 2)] + v[int(n / 2)]) / 2 }'
}

value() { awk -v n="$1" '$1 == n { print $2; found = 1 } END { exit !found }' "$values"; }

add_to_json() { # JSON
	local old=''
	[ ! -s "$1" ] ||
		old=$(sed '1d;$d' "$1" | grep -v -F "$(sed 's/ .*//; s/.*/"&"/' "$values")" | sed 's/,*$/,/')
	{
		echo "{"
		[ -z "$old" ] || echo "$old"
		awk '{ printf "%s\t\"%s\": %s", (NR > 1 ? ",\n" : ""), $1, $2 } END { print "" }' "$values"
		echo "}"
	} >"$1.new"
	mv "$1.new" "$1"
}
