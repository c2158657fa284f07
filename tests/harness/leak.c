// SPDX-License-Identifier: GPL-2.0
/* Takes a reference to the module under test and forgets it, as a bug of ours might. */
#include <linux/fs.h>
#include <linux/module.h>

static int __init leak_init(void)
{
	return get_fs_type("coarse_stat_fs") ? 0 : -ENODEV;
}

static void __exit leak_exit(void)
{
}

module_init(leak_init);
module_exit(leak_exit);
MODULE_DESCRIPTION("a leaked reference on purpose");
MODULE_LICENSE("GPL");
