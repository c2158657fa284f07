// SPDX-License-Identifier: GPL-2.0
/*
 * coarse_stat_fs: scheduler accounts of threads and CPUs in read-only pages.
 * This file: the file system, its mount point, and the clock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/clocksource.h>
#include <linux/fs_context.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/sysfs.h>
#include <asm/cpufeature.h>

#include "csf.h"

/* simple_fill_super() numbers the files by their place in this table; 0 and 1 are not for files. */
enum { CSF_INO_THREAD = 2, CSF_INO_CPU };

static const struct tree_descr csf_files[] = {
	[CSF_INO_THREAD] = { "thread-self", &csf_thread_fops, 0444 },
	[CSF_INO_CPU] = { "cpu", &csf_cpu_fops, 0444 },
	{ "" },
};

/* CSF_F_*: what this kernel thinks of its TSC now */
u32 csf_flags(void)
{
	u32 flags = IS_ENABLED(CONFIG_TASK_IO_ACCOUNTING) ? CSF_F_IO : 0;

	if (boot_cpu_has(X86_FEATURE_CONSTANT_TSC) && boot_cpu_has(X86_FEATURE_NONSTOP_TSC))
		flags |= CSF_F_TSC_CONSTANT;
	if (!check_tsc_unstable())
		flags |= CSF_F_TSC_SYNCED;
	return flags;
}

void csf_hdr_init(struct csf_hdr *h, u16 kind, u32 size)
{
	h->magic = CSF_MAGIC;
	h->version = CSF_ABI_VERSION;
	h->kind = kind;
	h->size = size;
	h->flags = csf_flags();
	h->clock_khz = tsc_khz;
	h->clock = CSF_CLOCK_TSC;
	clocks_calc_mult_shift(&h->mult, &h->shift, tsc_khz, NSEC_PER_MSEC, 0);
}

/* Root passes the mode bits, so they alone do not keep writers out. */
int csf_open_check(const struct file *file)
{
	return file->f_mode & FMODE_WRITE || file->f_flags & O_TRUNC ? -EACCES : 0;
}

/*
 * Nobody gets a private copy, a part that does not exist, or write or execute permission later by
 * mprotect(). A descriptor opened read-only never has VM_SHARED, hence VM_MAYSHARE.
 */
int csf_mmap_check(struct vm_area_struct *vma, size_t len)
{
	if (!(vma->vm_flags & VM_MAYSHARE) || vma->vm_pgoff ||
	    vma->vm_end - vma->vm_start > PAGE_ALIGN(len))
		return -EINVAL;
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND, VM_MAYWRITE | VM_MAYEXEC);
	return 0;
}

/* Mode, owner and size are what they are; the default would let root truncate. */
static int csf_setattr(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)
{
	return -EPERM;
}

static const struct inode_operations csf_inode_ops = {
	.setattr = csf_setattr,
};

static int csf_fill_super(struct super_block *sb, struct fs_context *fc)
{
	int err = simple_fill_super(sb, CSF_MAGIC, csf_files);
	struct inode *inode;

	if (err)
		return err;
	/* PROT_EXEC is refused with EPERM, whatever the mount options */
	sb->s_iflags |= SB_I_NOEXEC | SB_I_NODEV;
	/* the file system is not visible yet: nothing changes the list */
	list_for_each_entry(inode, &sb->s_inodes, i_sb_list) {
		if (!S_ISREG(inode->i_mode))
			continue;
		inode->i_op = &csf_inode_ops;
		i_size_write(inode, inode->i_ino == CSF_INO_CPU ? csf_cpu_len() : PAGE_SIZE);
	}
	return 0;
}

static int csf_get_tree(struct fs_context *fc)
{
	return get_tree_single(fc, csf_fill_super);
}

static const struct fs_context_operations csf_context_ops = {
	.get_tree = csf_get_tree,
};

static int csf_init_fs_context(struct fs_context *fc)
{
	fc->ops = &csf_context_ops;
	return 0;
}

static struct file_system_type csf_fs_type = {
	.owner = THIS_MODULE,
	.name = CSF_FS_NAME,
	.init_fs_context = csf_init_fs_context,
	.kill_sb = csf_kill_super,
};
MODULE_ALIAS_FS(CSF_FS_NAME);

static int __init csf_init(void)
{
	int err;

	if (!boot_cpu_has(X86_FEATURE_TSC) || !boot_cpu_has(X86_FEATURE_RDTSCP) || !tsc_khz) {
		pr_err("this CPU has no usable TSC with rdtscp\n");
		return -ENODEV;
	}
	err = csf_thread_init();
	if (err)
		return err;
	err = csf_cpu_init();
	if (err)
		goto exit_thread;
	err = sysfs_create_mount_point(kernel_kobj, CSF_FS_NAME);
	if (err)
		goto exit_cpu;
	err = register_filesystem(&csf_fs_type);
	if (err)
		goto remove_mount_point;
	return 0;

remove_mount_point:
	sysfs_remove_mount_point(kernel_kobj, CSF_FS_NAME);
exit_cpu:
	csf_cpu_exit();
exit_thread:
	csf_thread_exit();
	return err;
}

static void __exit csf_exit(void)
{
	unregister_filesystem(&csf_fs_type);
	sysfs_remove_mount_point(kernel_kobj, CSF_FS_NAME);
	csf_cpu_exit();
	csf_thread_exit();
}

module_init(csf_init);
module_exit(csf_exit);

MODULE_DESCRIPTION("Scheduler accounts of threads and CPUs in shared pages");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1");
