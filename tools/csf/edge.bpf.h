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
#define EDGE_MAX_LEVEL 32

/* Where this command does not live in the machine's own PID namespace: the number of the one it lives in. */
const volatile __u32 edge_namespace;
const volatile __u32 edge_tgid, edge_tid; /* there, what is looked for */

struct csf_edge_state edge_state;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EDGE_RING);
} edge_ring SEC(".maps");

/* In that namespace; 0 if the task is in none below it, or has ended. */
static __noinline __u32 local_id(struct task_struct *p)
{
	struct pid *pid = BPF_CORE_READ(p, thread_pid);
	struct upid upid = {};
	__u32 level;

	for (level = 0; level < EDGE_MAX_LEVEL; level++) {
		if (!pid || level > BPF_CORE_READ(pid, level))
			break;
		bpf_core_read(&upid, sizeof(upid), &pid->numbers[level]);
		if (BPF_CORE_READ(upid.ns, ns.inum) == edge_namespace)
			return upid.nr;
	}
	return 0;
}

/* Numbers are known until the end only: who reads this knows a task by its address then. */
static __always_inline bool looked_for(struct task_struct *p, __u32 *tid, __u32 *tgid)
{
	*tid = p->pid;
	*tgid = p->tgid;
	if (!edge_namespace)
		return watched(p);
	*tid = local_id(p);
	*tgid = local_id(p->group_leader);
	if (!*tid || (edge_tid && *tid != edge_tid) || (edge_tgid && *tgid != edge_tgid))
		return 0;
	return watched(p);
}

static __always_inline void describe(struct csf_edge_task *e, struct task_struct *p, __u32 kind,
				     __u32 tid, __u32 tgid)
{
	e->task = (__u64)p;
	e->process = (__u64)p->signal;
	edge_counts(p, e->count);
	e->tid = tid;
	e->tgid = tgid;
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

static __always_inline void tell(struct task_struct *p, __u32 kind, __u32 tid, __u32 tgid)
{
	struct csf_edge_task *e = bpf_ringbuf_reserve(&edge_ring, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&edge_state.lost[kind], 1);
		return;
	}
	describe(e, p, kind, tid, tgid);
	bpf_ringbuf_submit(e, wakeup_flag());
}

SEC("iter/task")
int edge_walk(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct csf_edge_task e;
	__u32 tid, tgid;

	if (!p || !looked_for(p, &tid, &tgid))
		return 0;
	describe(&e, p, CSF_EDGE_ALIVE, tid, tgid);
	bpf_seq_write(ctx->meta->seq, &e, sizeof(e));
	return 0;
}

/* Before the child runs for the first time, and when walks see it already. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(edge_born, struct task_struct *parent, struct task_struct *child)
{
	__u32 tid, tgid;

	if (looked_for(child, &tid, &tgid))
		tell(child, CSF_EDGE_BORN, tid, tgid);
	return 0;
}

/* A grace period after the last switch, and before the address is used again. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(edge_freed, struct task_struct *p)
{
	if (edge_namespace)
		tell(p, CSF_EDGE_FREED, 0, 0);
	else if (watched(p))
		tell(p, CSF_EDGE_FREED, p->pid, p->tgid);
	edge_forget(p);
	return 0;
}

#endif /* CSF_EDGE_BPF_H */
