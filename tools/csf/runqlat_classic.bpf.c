// SPDX-License-Identifier: GPL-2.0
/*
 * How long tasks wait for a CPU, on kernels without BTF: all that is known are the records of
 * tracepoints, so a task is its TID.
 */
#include "bpf/kernel.h"
#include "runqlat_classic.h"
#include "runqlat_record.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define PREEMPTED 0x100

const volatile struct csf_records records;
const volatile __u32 only_tid;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} starts SEC(".maps");

static __always_inline __u32 tid_at(void *record, __u32 offset)
{
	__u32 tid = 0;

	bpf_probe_read_kernel(&tid, sizeof(tid), record + offset);
	return tid;
}

static __always_inline bool wanted(__u32 tid)
{
	return only_tid ? tid == only_tid : tid;
}

/* A wait that had begun earlier goes on. */
static __always_inline void begin_wait(__u32 tid, __u64 now)
{
	__u64 *since = bpf_map_lookup_elem(&starts, &tid);

	if (since && *since)
		return;
	if (since)
		*since = now;
	else if (bpf_map_update_elem(&starts, &tid, &now, BPF_ANY))
		discard(CSF_NO_ROOM);
}

static __always_inline void count(__u32 tid, const char *comm, __u64 ns)
{
	struct csf_row_key key = { .cpu = bpf_get_smp_processor_id() };
	__u32 slot = record(ns);

	if (rows_by == CSF_BY_THREAD)
		key.pid = tid;
	if (rows_by)
		record_in_row(&key, rows_by == CSF_BY_THREAD ? comm : 0, slot, ns);
	if (over_ns && ns > over_ns)
		show_slow(tid, 0, comm, ns);
}

static __always_inline void end_wait(__u32 tid, const char *comm, __u64 now)
{
	__u64 *since = bpf_map_lookup_elem(&starts, &tid);
	__u64 began;

	if (!since || !*since) {
		discard(CSF_UNSEEN_START);
		return;
	}
	began = *since;
	*since = 0;
	if ((__s64)(now - began) < 0)
		discard(CSF_NEGATIVE);
	else
		count(tid, comm, now - began);
}

/* It went to sleep: if it was woken shortly before, it did not wait. */
static __always_inline void forget_wait(__u32 tid)
{
	__u64 *since = bpf_map_lookup_elem(&starts, &tid);

	if (since)
		*since = 0;
}

SEC("tracepoint/sched/sched_switch")
int csf_switch(void *ctx)
{
	__u32 prev = tid_at(ctx, records.prev_pid), next = tid_at(ctx, records.next_pid);
	const char *comm = ctx + records.next_comm;
	__u64 now = bpf_ktime_get_ns();
	long state = 0;

	bpf_probe_read_kernel(&state, sizeof(state), ctx + records.prev_state);
	if (wanted(prev)) {
		forget_wait(prev);
		if (!state || state & PREEMPTED)
			begin_wait(prev, now);
	}
	if (wanted(next))
		end_wait(next, comm, now);
	if (over_ns)
		remember_switch(next, comm, now);
	return 0;
}

static __always_inline int woken(void *ctx)
{
	__u32 tid = tid_at(ctx, records.woken_pid);

	if (wanted(tid) && tid != (__u32)bpf_get_current_pid_tgid())
		begin_wait(tid, bpf_ktime_get_ns());
	return 0;
}

SEC("tracepoint/sched/sched_wakeup")
int csf_wakeup(void *ctx)
{
	return woken(ctx);
}

SEC("tracepoint/sched/sched_wakeup_new")
int csf_wakeup_new(void *ctx)
{
	return woken(ctx);
}

SEC("tracepoint/sched/sched_waking")
int csf_waking(void *ctx)
{
	return woken(ctx);
}

SEC("tracepoint/sched/sched_process_free")
int csf_free(void *ctx)
{
	__u32 tid = tid_at(ctx, records.freed_pid);

	bpf_map_delete_elem(&starts, &tid);
	return 0;
}
