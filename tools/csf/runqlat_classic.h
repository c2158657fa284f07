/* SPDX-License-Identifier: GPL-2.0 */
/* What csf runqlat and its programs for kernels without BTF have in common. */
#ifndef CSF_RUNQLAT_CLASSIC_H
#define CSF_RUNQLAT_CLASSIC_H

#include <linux/types.h>

/* Where fields lie in the records of tracepoints: the kernel's format files say so. */
struct csf_records {
	__u32 prev_pid;
	__u32 prev_state;
	__u32 next_pid;
	__u32 next_comm;
	__u32 woken_pid;
	__u32 freed_pid;
};

#endif /* CSF_RUNQLAT_CLASSIC_H */
