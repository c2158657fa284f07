#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# A well-behaved test: what fails below must not fail because of the guest.
echo "ok well behaved"
