/* SPDX-License-Identifier: GPL-2.0 */
#ifndef CSF_H
#define CSF_H

#include <linux/fs.h>
#include <linux/preempt.h>
#include <linux/types.h>
#include <asm/tsc.h>

#include "compat.h"
#include "uapi/coarse_stat_fs.h"

/* A writer's half of the sequence count; the header says what readers do. */
static inline void csf_write_begin(u32 *seq)
{
	++*seq;
	smp_wmb(); /* odd before anything else changes: a reader loads it first, too */
}

static inline void csf_write_end(u32 *seq)
{
	smp_wmb(); /* everything before even: a reader loads it last, too */
	++*seq;
}

/* main.c */
u32 csf_flags(void);
void csf_hdr_init(struct csf_hdr *h, u16 kind, u32 size);
int csf_open_check(const struct file *file);
int csf_mmap_check(struct vm_area_struct *vma, size_t len);

/* thread.c */
extern const struct file_operations csf_thread_fops;
int csf_thread_init(void);
void csf_thread_exit(void);

/* cpu.c */
extern const struct file_operations csf_cpu_fops;
size_t csf_cpu_len(void);
int csf_cpu_init(void);
void csf_cpu_exit(void);

#endif /* CSF_H */
