/* SPDX-License-Identifier: GPL-2.0 */
/* What BPF programs tell of tasks at the edges of a window and of those born and gone inside it. */
#ifndef CSF_EDGE_H
#define CSF_EDGE_H

#include <linux/types.h>

#define CSF_EDGE_COUNTS 2

enum csf_edge_kind {
	CSF_EDGE_ALIVE, /* seen by a walk over all tasks */
	CSF_EDGE_BORN,
	CSF_EDGE_FREED, /* with its final counts */
};

struct csf_edge_task {
	__u64 task; /* its address: the identity of a task until it is freed, whatever execve() does */
	__u64 process; /* the address of what its threads share */
	__u64 count[CSF_EDGE_COUNTS]; /* since it was born */
	__u32 tid; /* 0: known from before */
	__u32 tgid;
	__u32 kind;
	__u32 walk; /* that had begun when this was written; 0: none */
	char comm[16];
};

/* Shared with the programs. */
struct csf_edge_state {
	__u32 walk; /* the number of the walk that has begun */
	__u32 unused;
	__u64 lost[CSF_EDGE_FREED + 1]; /* that did not fit into the ring, by kind */
	__u64 failed; /* events of tasks whose counter could not be made */
};

#endif /* CSF_EDGE_H */
