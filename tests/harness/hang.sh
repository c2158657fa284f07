#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# A guest that never ends.
sleep 100000
