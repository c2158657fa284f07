// SPDX-License-Identifier: GPL-2.0
/* The kernel counts every task's switches: they are read at the edges, and nothing runs at a switch. */
#include "look.bpf.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline void edge_counts(struct task_struct *p, __u64 *count)
{
	count[0] = p->nvcsw;
	count[1] = p->nivcsw;
}

static __always_inline void edge_forget(struct task_struct *p)
{
}

#include "edge.bpf.h"
