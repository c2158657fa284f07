/* SPDX-License-Identifier: GPL-2.0 */
/* What csf migrate and its programs for kernels without BTF have in common. */
#ifndef CSF_MIGRATE_H
#define CSF_MIGRATE_H

#include <linux/types.h>

#include "edge.h"

/* Where fields lie in the records of tracepoints. */
struct csf_migrate_records {
	__u32 woken_pid;
	__u32 moved_pid;
	__u32 moved_from;
	__u32 moved_to;
	__u32 freed_pid;
};

struct csf_migrate_task {
	__u64 count[CSF_EDGE_COUNTS];
	__u32 tgid; /* this and the name are known when it exits */
	__u32 unused;
	char comm[16];
};

#endif /* CSF_MIGRATE_H */
