#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The kernel panics.
echo c >/proc/sysrq-trigger
