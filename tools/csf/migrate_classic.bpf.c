// SPDX-License-Identifier: GPL-2.0
/*
 * Migrations and wakeups on kernels without BTF: all that is known are the records of tracepoints, so a task
 * is its TID, and counts begin when the program does.
 */
#include "bpf/kernel.h"
#include "migrate.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct csf_migrate_records records;
const volatile __u32 only_tid;
const volatile __u32 nr_cpus = 1;

struct csf_edge_state edge_state;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct csf_migrate_task);
} tasks SEC(".maps");

/* By the CPU left and the CPU gone to. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} moves SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} edge_ring SEC(".maps");

static __always_inline __u32 number_at(void *record, __u32 offset)
{
	__u32 n = 0;

	bpf_probe_read_kernel(&n, sizeof(n), record + offset);
	return n;
}

static __always_inline struct csf_migrate_task *task(__u32 tid)
{
	struct csf_migrate_task *t = bpf_map_lookup_elem(&tasks, &tid), none = {};

	if (t)
		return t;
	bpf_map_update_elem(&tasks, &tid, &none, BPF_NOEXIST);
	t = bpf_map_lookup_elem(&tasks, &tid);
	if (!t)
		__sync_fetch_and_add(&edge_state.failed, 1);
	return t;
}

static __always_inline bool wanted(__u32 tid)
{
	return only_tid ? tid == only_tid : tid;
}

SEC("tracepoint/sched/sched_wakeup")
int migrate_wakeup(void *ctx)
{
	__u32 tid = number_at(ctx, records.woken_pid);
	struct csf_migrate_task *t = wanted(tid) ? task(tid) : 0;

	if (t)
		t->count[1]++;
	return 0;
}

SEC("tracepoint/sched/sched_migrate_task")
int migrate_move(void *ctx)
{
	__u32 from = number_at(ctx, records.moved_from), to = number_at(ctx, records.moved_to);
	__u32 tid = number_at(ctx, records.moved_pid), key = from * nr_cpus + to;
	struct csf_migrate_task *t;
	__u64 *n;

	if (from == to || !wanted(tid))
		return 0;
	t = task(tid);
	if (!t)
		return 0;
	t->count[0]++;
	n = bpf_map_lookup_elem(&moves, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

SEC("tracepoint/sched/sched_process_exit")
int migrate_exit(void *ctx)
{
	__u64 who = bpf_get_current_pid_tgid();
	__u32 tid = who;
	struct csf_migrate_task *t = bpf_map_lookup_elem(&tasks, &tid);

	if (!t)
		return 0;
	t->tgid = who >> 32;
	bpf_get_current_comm(t->comm, sizeof(t->comm));
	return 0;
}

static __always_inline void tell(__u32 tid, const struct csf_migrate_task *t)
{
	struct csf_edge_task *e = bpf_ringbuf_reserve(&edge_ring, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&edge_state.lost[CSF_EDGE_FREED], 1);
		return;
	}
	e->task = tid;
	e->process = t->tgid ? t->tgid : tid;
	e->count[0] = t->count[0];
	e->count[1] = t->count[1];
	e->tid = tid;
	e->tgid = e->process;
	e->kind = CSF_EDGE_FREED;
	e->walk = edge_state.walk;
	__builtin_memcpy(e->comm, t->comm, sizeof(e->comm));
	bpf_ringbuf_submit(e, 0);
}

SEC("tracepoint/sched/sched_process_free")
int migrate_free(void *ctx)
{
	__u32 tid = number_at(ctx, records.freed_pid);
	struct csf_migrate_task *t = bpf_map_lookup_elem(&tasks, &tid);

	if (!t)
		return 0;
	tell(tid, t);
	bpf_map_delete_elem(&tasks, &tid);
	return 0;
}
