#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Compile for arm64, without a warning, what is not x86 alone: the library, the tools, the BPF programs.
# That it runs there is not tested.
set -eu
cd "$(dirname "$(realpath "$0")")/.."
cc=${ARM64_CC:-aarch64-linux-gnu-gcc}
command -v "$cc" >/dev/null || { echo "skip arm64: there is no $cc (gcc-aarch64-linux-gnu)"; exit; }
flags=(-std=gnu11 -O2 -Wall -Wextra -Wpedantic -Wno-overlength-strings -Werror -Iinclude -I. -Ibuild
	-idirafter /usr/include -DCSF_VERSION='"0"')
failed=0

compile() { # NAME COMMAND...
	if "${@:2}"; then echo "ok arm64: $1"; else echo "not ok arm64: $1"; failed=1; fi
}

make -s --no-print-directory csf
for file in examples/*.c tools/csfcat.c tools/csf/*.c bpf/*.c; do
	case $file in
	*.bpf.c) compile "$file" "${CLANG:-clang}" -g -O2 -Wall -Werror -target bpf -mcpu=v3 -D__TARGET_ARCH_arm64 \
		-Iinclude -I. -idirafter /usr/aarch64-linux-gnu/include -c "$file" -o /dev/null ;;
	*) compile "$file" "$cc" "${flags[@]}" -c "$file" -o /dev/null ;;
	esac
done
exit "$failed"
