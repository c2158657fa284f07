#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Run the unit tests that the Makefile built, as many variants at a time as there are CPUs, and count.
# Environment: B, VARIANTS, PROGRAMS, ONCE and USES, from the Makefile.

programs_of() { # VARIANT
	echo "$PROGRAMS"
	[ "$1" != "${VARIANTS%% *}" ] || echo "$ONCE"
}

# Of root, the last variant has the rights of an ordinary user.
with_rights() { # VARIANT COMMAND...
	if [ "$1" = "${VARIANTS##* }" ] && [ "$(id -u)" = 0 ]; then
		shift
		setpriv --securebits=+noroot,+noroot_locked --inh-caps=-all --bounding-set=-all "$@"
	else
		shift
		"$@"
	fi
}

run_program() { # VARIANT PROGRAM: its lines, with the variant's name, and a crash as a failure
	U_DL_LIB=$B/$1/u_dl_lib.so U_CSFCAT=$B/csfcat with_rights "$1" timeout 60 "$B/$1/u_$2" 2>&1 | sed "s/^\(not ok\|ok\|skip\) /&$1 $2: /"
}

run_variant() { # VARIANT
	for program in $(programs_of "$1"); do
		run_program "$1" "$program" >"$B/$1/$program.log"
		# The last line is the program's own count; without it the program died.
		tail -n 1 "$B/$1/$program.log" | grep -q '^# .* passed' ||
			echo "not ok $1 $program: it died, or took longer than 60 s" >>"$B/$1/$program.log"
	done
}

if [ "${1:-}" = --variant ]; then
	run_variant "$2"
	exit
fi

B=$(realpath "$B")
U_DIR=$B/tmp
# Otherwise clang's runtime trips over the stacks of cancelled threads.
ASAN_OPTIONS=use_sigaltstack=0
export B U_DIR ASAN_OPTIONS
rm -rf "$U_DIR"
mkdir -p "$U_DIR"

log=$B/unit.log
echo "$VARIANTS" | tr ' ' '\n' | xargs -P "$(nproc)" -I '{}' sh "$0" --variant '{}'
{
	for use in $USES; do
		echo "ok header compiles: ${use#use-}"
	done
	for variant in $VARIANTS; do
		for program in $(programs_of "$variant"); do
			cat "$B/$variant/$program.log"
		done
	done
	for compiler in gcc clang; do
		case $VARIANTS in
		*"$compiler"-*) ;;
		*) echo "skip $compiler: it, its C++ compiler or their sanitizers are not installed" ;;
		esac
	done
} >"$log"
rm -rf "$U_DIR"

passed=$(grep -c '^ok ' "$log")
failed=$(grep -c '^not ok ' "$log")
skipped=$(grep -c '^skip ' "$log")
if [ "$failed" != 0 ]; then
	cat "$log"
else
	grep -E '^(ok|skip) ' "$log"
fi
echo "unit: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
