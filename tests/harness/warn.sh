#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The kernel warns: with panic_on_warn it panics, without it the log is scanned.
insmod tests/harness/warn.ko
rmmod warn
exit 0
