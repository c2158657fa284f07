// SPDX-License-Identifier: GPL-2.0
/* Makes the kernel warn when it is loaded: tests/harness.sh looks whether anybody notices. */
#include <linux/bug.h>
#include <linux/module.h>

static int __init warn_init(void)
{
	WARN(1, "a warning on purpose\n");
	return 0;
}

static void __exit warn_exit(void)
{
}

module_init(warn_init);
module_exit(warn_exit);
MODULE_DESCRIPTION("a warning on purpose");
MODULE_LICENSE("GPL");
