// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel counts every task's migrations: they are read at the edges. It has no counter of wakeups that
 * can be relied on, so these are counted as they come, and so is where tasks come from and go to.
 */
#include "look.bpf.h"
#include "edge.h"

char LICENSE[] SEC("license") = "GPL";

const volatile bool
	use_hash; /* where task storage is not dependable, or must not be made at a wakeup */
const volatile __u32 nr_cpus = 1;

extern struct csf_edge_state edge_state;

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} wakeups SEC(".maps");

/* By the task's address, which is nobody else's until it is freed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} hashed_wakeups SEC(".maps");

/* By the CPU left and the CPU gone to. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} moves SEC(".maps");

static __always_inline __u64 *counter(struct task_struct *p)
{
	__u64 key = (__u64)p;

	return use_hash ? bpf_map_lookup_elem(&hashed_wakeups, &key) :
			  bpf_task_storage_get(&wakeups, p, 0, 0);
}

static __noinline __u64 *make_counter(struct task_struct *p)
{
	__u64 key = (__u64)p, none = 0;

	if (!use_hash)
		return bpf_task_storage_get(&wakeups, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	bpf_map_update_elem(&hashed_wakeups, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&hashed_wakeups, &key);
}

static __always_inline void edge_counts(struct task_struct *p, __u64 *count)
{
	__u64 *n = counter(p);

	count[0] = p->se.nr_migrations;
	count[1] = n ? *n : 0;
}

static __always_inline void edge_forget(struct task_struct *p)
{
	__u64 key = (__u64)p;

	if (use_hash)
		bpf_map_delete_elem(&hashed_wakeups, &key);
}

#include "edge.bpf.h"

/* The scheduler's locks keep other wakeups of this task out meanwhile. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(migrate_wakeup, struct task_struct *p)
{
	__u64 *n;

	if (!watched(p))
		return 0;
	n = counter(p);
	if (!n)
		n = make_counter(p);
	if (n)
		(*n)++;
	else
		__sync_fetch_and_add(&edge_state.failed, 1);
	return 0;
}

static __always_inline __u32 cpu_of(struct task_struct *p)
{
	struct task_struct___cpu *old = (void *)p;

	return bpf_core_field_exists(p->thread_info.cpu) ? p->thread_info.cpu : old->cpu;
}

/* The tracepoint comes before the kernel looks whether the task is there already, and counts. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(migrate_move, struct task_struct *p, int dest_cpu)
{
	__u32 from = cpu_of(p), to = dest_cpu, key = from * nr_cpus + to;
	__u32 tid, tgid;
	__u64 *n;

	if (from == to || !looked_for(p, &tid, &tgid))
		return 0;
	n = bpf_map_lookup_elem(&moves, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}
