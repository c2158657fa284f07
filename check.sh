#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Prove that everything works, on any Debian machine: sudo ./check.sh
# Installs what is missing, then lint, make check, a newer kernel, virtme-ng, and the harness's own tests.
set -eu
top=$(dirname "$(realpath "$0")")
. "$top"/scripts/say.sh
no_arguments "$0" "$@"
cd "$top"
scripts/setup.sh check lint
scripts/give-back.sh make --no-print-directory check-all
