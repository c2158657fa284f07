#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Does every file say its licence in its first lines, one whose text is in LICENSES/, and the licence of the
# place where it is? Prints a line for each that does not, and "ok" if there is none.
#
#	scripts/spdx.sh
set -eu
here=$(dirname "$(realpath "$0")")
. "$here"/say.sh
no_arguments "$0" "$@"
cd "$here/.."

files() { # of the tree, as git has them or as a tarball brought them
	if [ -e .git ]; then
		git ls-files --cached --others --exclude-standard
	else
		find . -path ./build -prune -o -type f -print | sed 's,^[.]/,,'
	fi
}

# Texts of licences, and files of a format that has no room for a comment.
needs_none() { # FILE
	case $1 in
	LICENSE | LICENSES/* | VERSION | compile_flags.txt | debian/copyright | debian/changelog | debian/source/format) ;;
	*) return 1 ;;
	esac
}

allowed() { # FILE: a pattern, by the file's place
	case $1 in
	include/uapi/*) echo 'GPL-2[.]0 WITH Linux-syscall-note' ;;
	lib/*) echo MIT ;;
	examples/*) echo 'MIT|GPL-2[.]0' ;;
	*) echo 'GPL-2[.]0' ;;
	esac
}

said() { # FILE
	head -n 5 "$1" | sed -n 's/.*SPDX-License-Identifier: *//p' | sed -E 's, *([*]/|-->)? *$,,' | head -n 1
}

judge() { # FILE
	local found word
	found=$(said "$1")
	if [ -z "$found" ]; then
		echo "not ok licence of $1: no line SPDX-License-Identifier in the first five"
		return 1
	elif ! [[ $found =~ ^($(allowed "$1"))$ ]]; then
		echo "not ok licence of $1: it says $found, which is not the licence of its place"
		return 1
	fi
	for word in ${found/ WITH/}; do
		[ -e "LICENSES/$word.txt" ] || { echo "not ok licence of $1: LICENSES/ has no text of $word"; return 1; }
	done
}

status=0 count=0
while read -r file; do
	if [ ! -f "$file" ] || needs_none "$file"; then continue; fi
	judge "$file" || status=1
	count=$((count + 1))
done < <(files)
[ "$count" -gt 0 ] || die "there are no files here"
[ "$status" != 0 ] || echo "ok $count files say their licence"
exit $status
