#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# A test that fails.
exit 1
