#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Is what the documents say so? Every program in the README and the man pages compiles, as C and C++; every command
# in a block "sh" is one of this tree or of the system; links lead somewhere; the design speaks of what is in the
# code; every function and every subcommand has its page in the manual.
#
#	tests/docs.sh
#
# Prints "ok" and "not ok" lines; exit status 0 if all are ok. Needs csf and csfcat, and builds them.
set -u
top=$(realpath "$(dirname "$(realpath "$0")")"/..)
. "$top"/scripts/say.sh
no_arguments "$0" "$@"
cd "$top" || exit 1
status=0
out=build/docs
rm -rf $out
mkdir -p $out

not_ok() {
	echo "not ok $*"
	status=1
}

# shellcheck disable=SC2016 # backquotes
blocks() { # LANGUAGE FILE PREFIX: each fenced block into a file PREFIXn
	awk -v open='```'"$1" -v prefix="$3" '
		$0 == "```" { inside = 0 }
		inside { print >(prefix n) }
		$0 == open { inside = 1; n++ }' "$2"
}

examples() { # FILE PREFIX: of a man page
	awk -v prefix="$2" '
		$1 == ".EE" { inside = 0 }
		inside { gsub(/\\\(dq/, "\""); gsub(/\\-/, "-"); gsub(/\\e/, "\\"); print >(prefix n) }
		$1 == ".EX" { inside = 1; n++ }' "$1"
}

compiles() { # NAME FILE
	local standard language
	for standard in c c:c99 c++:c++17; do
		language=${standard%:*}
		[ "$standard" != c ] || standard=c:gnu11
		# _GNU_SOURCE: strict C99 hides usleep()
		if ${CC:-cc} -x "$language" -std="${standard#*:}" -D_GNU_SOURCE -Wall -Wextra -Werror -I. -c \
			-o $out/object "$2" 2>$out/errors; then
			echo "ok $1 compiles as ${standard#*:}"
		else
			not_ok "$1 does not compile as ${standard#*:}"
			sed 's/^/# /' $out/errors
		fi
	done
}

programs() {
	local document page file
	for document in *.md docs/*.md; do
		[ -e "$document" ] || continue
		blocks c "$document" "$out/$(basename "$document")."
	done
	for page in man/*.3; do examples "$page" "$out/$(basename "$page")."; done
	for file in "$out"/*.[0-9]*; do compiles "the program ${file##*/}" "$file"; done
}

made() { # FILE: it is there, or make knows how to make it
	[ -e "$1" ] || make -n "$1" >/dev/null 2>&1 || [[ $1 =~ ^(kmod/coarse_stat_fs.ko|build/deb/[a-z-]*_\*.deb)$ ]]
}

subcommand() { # PROGRAM OPTION NAME: does its help list it?
	build/"$1" "$2" | grep -q "^  $3 "
}

mount_is_right() { # -t TYPE none DIRECTORY
	[ "$1 $3" = "-t none" ] && grep -q "define CSF_FS_NAME \"$2\"" include/uapi/coarse_stat_fs.h &&
		grep -q "define CSF_MOUNT_POINT \"$4\"" include/uapi/coarse_stat_fs.h
}

targets() { # what make is asked for: variables are not
	local word
	for word; do
		[[ $word == *=* ]] || make -n "$word" >/dev/null 2>&1 || return
	done
}

# The README is for people who type what they read: a command that is not known here is an error.
is_command() { # WORD...
	[ "$1" != sudo ] || shift
	case $1 in
	make) targets "${@:2}" ;;
	insmod) made "$2" ;;
	mount) mount_is_right "${@:2}" ;;
	umount) grep -q "define CSF_MOUNT_POINT \"$2\"" include/uapi/coarse_stat_fs.h ;;
	rmmod | modprobe) grep -q "^obj-m := $2.o" kmod/Kbuild ;;
	dkms) [ "$3" = "coarse_stat_fs/$(cat VERSION)" ] ;;
	systemctl) [ -e "packaging/${*: -1}" ] ;;
	apt) made "$(basename "$3" | sed 's,^,build/deb/,')" ;;
	csf | build/csf) subcommand csf help "$2" ;;
	csfcat | tools/csfcat) subcommand csfcat --help "$2" ;;
	ln | git) true ;;
	*/*) made "${1#./}" ;;
	*) false ;;
	esac
}

# shellcheck disable=SC2016 # backquotes
commands_of() { # FILE: of its blocks and of what is in backquotes and looks like one, without comments
	blocks sh "$1" $out/sh.
	cat /dev/null $out/sh.* 2>/dev/null
	rm -f $out/sh.*
	grep -o '`\(sudo\|make\|tests/\|scripts/\|build/\|tools/\)[^`]*`' "$1" | tr -d '`' | grep -v '^[^ ]*/[^ ]*$'
}

commands() {
	local document line
	for document in *.md docs/*.md; do
		[ -e "$document" ] || continue
		while read -r line; do
			line=${line%%#*}
			[[ $line =~ [^[:space:]] ]] || continue
			# shellcheck disable=SC2086 # words
			if (set -f && is_command ${line%%&&*}); then
				echo "ok $document: $line"
			else
				not_ok "$document: no such command: $line"
			fi
		done < <(commands_of "$document")
	done
}

links() {
	local document target
	for document in *.md docs/*.md; do
		[ -e "$document" ] || continue
		while read -r target; do
			[[ $target =~ ^[a-z]*:// ]] && continue
			[ -e "$(dirname "$document")/${target%%#*}" ] || not_ok "$document links to $target, which is not there"
		done < <(grep -o '](\([^)]*\))' "$document" | sed 's/^](//; s/)$//')
	done
}

# A document that explains the code names what is in it.
# shellcheck disable=SC2016 # backquotes
names() {
	local name
	while read -r name; do
		grep -rqw -- "$name" include kmod bpf lib || not_ok "docs/design.md speaks of $name, which is nowhere"
	done < <(grep -o '`[a-z_]*_[a-z_]*`' docs/design.md | tr -d '`' | sort -u)
}

has_page() { # NAME: of a function, in one of section 3
	sed -n '/^.SH NAME/{n;p;}' man/*.3 | sed 's/ \\-.*//; s/,//g' | tr ' ' '\n' | grep -qx "$1"
}

pages() {
	local name
	while read -r name; do
		if has_page "$name"; then echo "ok $name(3)"; else not_ok "$name() has no page in section 3"; fi
	done < <(sed -n 's/^static inline [a-z0-9_ ]*[ *]\(csf_[a-z_]*[a-z]\)(.*/\1/p' lib/coarse_stat_fs.h)
	while read -r name; do
		[ "$name" = help ] || [ -e man/csf-"$name".1 ] || [ -e man/csf-"$name".8 ] || not_ok "csf $name has no page in the manual"
	done < <(build/csf help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p')
}

make -s --no-print-directory tools csf >$out/build.log 2>&1 || { cat $out/build.log; not_ok "csf and csfcat do not build"; }
programs
commands
links
names
pages
exit $status
