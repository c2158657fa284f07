/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The programs that give exact counts of tasks without a program where they are counted. See edge.h. Whoever
 * includes this defines before: edge_counts(), which fills in a task's counts, and edge_forget(), for
 * a task that is about to be freed.
 */
#ifndef CSF_EDGE_BPF_H
#define CSF_EDGE_BPF_H

#include "edge.h"

#define EDGE_RING (4 << 20)

struct csf_edge_state edge_state;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EDGE_RING);
} edge_ring SEC(".maps");

static __always_inline void describe(struct csf_edge_task *e, struct task_struct *p, __u32 kind)
{
	e->task = (__u64)p;
	e->process = (__u64)p->signal;
	edge_counts(p, e->count);
	e->tid = p->pid;
	e->tgid = p->tgid;
	e->kind = kind;
	e->walk = *(volatile __u32 *)&edge_state.walk;
	bpf_probe_read_kernel(e->comm, sizeof(e->comm), p->comm);
}

/* The reader sleeps until it is worth its while: it looks by itself at the end of the window. */
static __always_inline __u64 wakeup_flag(void)
{
	return bpf_ringbuf_query(&edge_ring, BPF_RB_AVAIL_DATA) > EDGE_RING / 4 ?
		       BPF_RB_FORCE_WAKEUP :
		       BPF_RB_NO_WAKEUP;
}

static __always_inline void tell(struct task_struct *p, __u32 kind)
{
	struct csf_edge_task *e = bpf_ringbuf_reserve(&edge_ring, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&edge_state.lost[kind], 1);
		return;
	}
	describe(e, p, kind);
	bpf_ringbuf_submit(e, wakeup_flag());
}

SEC("iter/task")
int edge_walk(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct csf_edge_task e;

	if (!p || !watched(p))
		return 0;
	describe(&e, p, CSF_EDGE_ALIVE);
	bpf_seq_write(ctx->meta->seq, &e, sizeof(e));
	return 0;
}

/* Before the child runs for the first time, and when walks see it already. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(edge_born, struct task_struct *parent, struct task_struct *child)
{
	if (watched(child))
		tell(child, CSF_EDGE_BORN);
	return 0;
}

/* A grace period after the last switch, and before the address is used again. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(edge_freed, struct task_struct *p)
{
	if (watched(p))
		tell(p, CSF_EDGE_FREED);
	edge_forget(p);
	return 0;
}

#endif /* CSF_EDGE_BPF_H */
