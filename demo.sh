#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# See coarse_stat_fs explain slow operations, on any Debian machine: sudo ./demo.sh
# Installs what is missing, then make demo. Nothing is ever loaded into this machine's kernel.
set -eu
top=$(dirname "$(realpath "$0")")
. "$top"/scripts/say.sh
no_arguments "$0" "$@"
cd "$top"
scripts/setup.sh build
scripts/demo.sh --here || scripts/setup.sh demo
scripts/give-back.sh make --no-print-directory demo
