#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Look for faults in the sources, without running them.
#
#	scripts/lint.sh [CHECK...]
#
# format: C is laid out as .clang-format says; tidy: clang-tidy on what runs in user space, and in BPF; kmod: clang-tidy
# on the module; module: it compiles with W=1 -Werror; user: everything else with -Werror; checkpatch: on kernel code;
# shell: shellcheck; spelling: codespell; man: mandoc and groff; spdx: every file names its licence; size: no file
# has more than 700 lines; workflow: .github/. Without CHECK, all of them.
#
# kmod and module take the Debian root file system of tests/debian/rootfs.sh, checkpatch Debian's linux-source package;
# both are fetched when they are missing. Prints "ok" or "not ok" a check, and what was found.
set -u
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
cd "$top" || exit 1
build=build/lint
suite=bookworm # whose kernel and tools this is about; newer ones find other things
cache=$(realpath -m "${CSF_CACHE:-build/debian}")
checks="format spelling spdx size shell man workflow user tidy module kmod checkpatch"
clang=14

files() { # PATTERN...: the tree's own, also where there is no git
	if [ -e .git ]; then
		git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
	else
		find . -path ./build -prune -o -type f ! -name '*.mod.c' -print | sed 's,^\./,,' | grep -E "$(printf '%s\n' "$@" |
			sed 's/\./[.]/g; s/\*/.*/g; s,^[^/]*$,(.*/)?&,; s/.*/^&$/' | paste -sd '|')"
	fi | sort
}

tool() { # NAME: of LLVM, in the version whose opinion counts, or else in that which is there
	command -v "$1-$clang" || command -v "$1"
}

in_user_space() { files '*.c' '*.cc' | grep -vE '^(kmod|tests/harness|build)/|[.]bpf[.]c$'; }

# Linters print what they find; it is a fault if they print anything or fail.
silent() { # COMMAND...
	local found status=0
	found=$("$@" 2>&1) || status=$?
	[ -z "$found" ] || printf '%s\n' "$found"
	[ "$status" = 0 ] && [ -z "$found" ]
}

each() { # COMMAND...: on each file of stdin, as many at a time as there are CPUs
	xargs -r -d '\n' -P "$(nproc)" -n 1 "$@"
}

quiet_make() { # TARGET...
	make -s --no-print-directory -j "$(nproc)" "$@"
}

check_format() { files '*.[ch]' '*.cc' | xargs -d '\n' "$(tool clang-format)" --dry-run -Werror; }
check_spelling() { files '*' | grep -v '^LICENSE' | xargs -d '\n' codespell -L te; } # troff's .TE
check_workflow() {
	files '*.yml' '*.yaml' | xargs -r -d '\n' yamllint -s -d '{extends: default, rules: {line-length: {max: 120},
  document-start: disable, truthy: {check-keys: false}}}'
}

check_size() {
	files '*' | grep -vE '^LICENSE' | xargs -d '\n' wc -l |
		awk '$2 != "total" && $1 > 700 { print $2 " has " $1 " lines"; bad = 1 } END { exit bad }'
}

check_spdx() { scripts/spdx.sh >"$build"/spdx.log || { grep '^not ok' "$build"/spdx.log; false; }; }

check_shell() {
	# shellcheck disable=SC2046 # names without blanks
	shellcheck $(files '*' | while read -r file; do
		head -n 3 "$file" | grep -lqE '^#!.*sh$|shellcheck shell=' && echo "$file"
	done)
}

check_man() {
	local page status=0
	for page in $(files 'man/*.[1-9]'); do
		silent mandoc -T lint -W warning "$page" || status=1
		silent groff -t -man -ww -z "$page" || status=1
	done
	return "$status"
}

check_user() { # apart from the others' output, which has no -Werror
	quiet_make B="$build"/user CFLAGS='-O2 -g -Werror' csf "$build"/user/csfcat examples tests >"$build"/user.log &&
		quiet_make -C tests/bench build="$top/$build"/user CFLAGS='-O2 -Werror' guest native >>"$build"/user.log
}

# $1 is the file, as in sh -c.
# shellcheck disable=SC2016
check_tidy() {
	local bpf='-O2 -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 -Iinclude -I. -idirafter /usr/include/x86_64-linux-gnu' status=0
	local tidy
	tidy=$(tool clang-tidy)
	quiet_make csf tests build/busy_storage >"$build"/csf.log || return # their skeletons
	in_user_space | each sh -c '
		std=-std=gnu11
		[ "${2%.cc}" = "$2" ] || std=-std=c++17
		"$0" --quiet "$2" -- $1 $std 2>/dev/null' "$tidy" "$(tr '\n' ' ' <compile_flags.txt)" || status=1
	# BPF_PROG() names arguments that a program need not use, maps and the kernel have names that C reserves, and
	# the analyzer does not follow BPF_CORE_READ_BITFIELD(); bpf_core_read() reads pointers, too
	files '*.bpf.c' | each sh -c '"$0" --quiet --checks="$1" "$3" -- $2 2>/dev/null' "$tidy" \
		'-misc-unused-parameters,-*reserved-identifier,-cert-dcl37-c,-cert-dcl51-cpp,-*.uninitialized.Assign,-*sizeof-expression' \
		"$bpf" || status=1
	return "$status"
}

rootfs() { # sets release; build.sh builds there for everybody, in turn
	mkdir -p "$cache/$suite"
	exec 9>"$cache/$suite"/lock
	flock 9
	tests/debian/rootfs.sh "$suite" "$cache/$suite" || return
	release=$(find "$cache/$suite"/rootfs/boot -name 'vmlinuz-*' | sort -V | tail -n 1)
	release=${release##*/vmlinuz-}
}

check_module() {
	rootfs && as_root tests/debian/build.sh "$cache/$suite"/rootfs "$release" module W=1 >"$build"/module.log 2>&1 && return
	grep -E 'warning|error' "$build"/module.log || tail -n 20 "$build"/module.log
	return 1
}

check_kmod() {
	local root=$cache/$suite/rootfs
	rootfs || return
	[ -e "$root"/src/kmod/.main.o.cmd ] || check_module || return
	mkdir -p "$build"/kmod
	scripts/kmod-compdb.py --root "$root" --tree . "$root"/src/kmod /lib/modules/"$release"/build \
		>"$build"/kmod/compile_commands.json || return
	files 'kmod/*.c' | each "$(tool clang-tidy)" -p "$build"/kmod --quiet 2>/dev/null
}

# LINUX_VERSION_CODE: a module that is built for many kernels must tell the oldest. In the contract, _Static_assert,
# which C, C++ and the kernel know, is camel case and a complex macro.
check_checkpatch() {
	local script=$cache/linux-source/checkpatch/scripts/checkpatch.pl status=0
	scripts/linux-source.sh "$suite" "$cache"/linux-source/checkpatch \
		scripts/checkpatch.pl scripts/spelling.txt scripts/const_structs.checkpatch || return
	set -- --no-tree --strict --terse --no-summary --max-line-length=100
	files 'kmod/*.[ch]' 'tests/harness/*.c' | each perl "$script" "$@" --ignore LINUX_VERSION_CODE -f || status=1
	files 'include/*.h' | each perl "$script" "$@" --ignore CAMELCASE,COMPLEX_MACRO -f || status=1
	rm -f .checkpatch-camelcase.git.* # what it remembers
	return "$status"
}

! is_help "${1:-}" || usage "$top"/scripts/lint.sh
# shellcheck disable=SC2086 # a list
[ $# != 0 ] || set -- $checks
for check; do
	declare -F "check_$check" >/dev/null || usage_error "there is no check '$check'; checks are: $checks"
done
need_tools lint clang-format clang-tidy shellcheck codespell mandoc groff perl python3 yamllint xz
mkdir -p "$build"
[ -n "$(command -v clang-tidy-$clang)" ] || clang-tidy --version | grep -q "version ${clang}[.]" ||
	note "$me: clang-tidy and clang-format are not of LLVM $clang, by which this tree goes, and may find other things"
failed=0
for check; do
	if silent "check_$check"; then
		echo "ok lint: $check"
	else
		echo "not ok lint: $check"
		failed=1
	fi
done
exit "$failed"
