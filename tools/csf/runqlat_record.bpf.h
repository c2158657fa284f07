/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Counting a wait: for the programs that read tasks and for those that have only tracepoint
 * records.
 */
#ifndef CSF_RUNQLAT_RECORD_BPF_H
#define CSF_RUNQLAT_RECORD_BPF_H

#include "runqlat.h"
#include "slots.h"

const volatile __u64 unit_ns = 1000; /* of the histogram */
const volatile __u64 over_ns; /* waits to show one by one; 0: none */
const volatile __u32 rows_by; /* enum csf_by */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct csf_runqlat_cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct csf_row_key);
	__type(value, struct csf_row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} slow_waits SEC(".maps");

/* The latest switches of a CPU, for --over. */
#define HISTORY 16
struct history {
	__u32 next;
	struct csf_ran ran[HISTORY];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct history);
} histories SEC(".maps");

static __always_inline struct csf_runqlat_cpu *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline void discard(enum csf_discard why)
{
	struct csf_runqlat_cpu *c = this_cpu();

	if (c)
		c->discarded[why]++;
}

static const struct csf_row no_row; /* too large for the stack */

/* A task may take another name, as execve() does. */
static __always_inline void record_in_row(const struct csf_row_key *key, const char *comm,
					  __u32 slot, __u64 ns)
{
	struct csf_row *r = bpf_map_lookup_elem(&rows, key);

	if (!r) {
		bpf_map_update_elem(&rows, key, &no_row, BPF_NOEXIST);
		r = bpf_map_lookup_elem(&rows, key);
	}
	if (!r) {
		discard(CSF_ROWS_FULL);
		return;
	}
	slot = csf_row_slot(slot);
	if (slot < CSF_ROW_SLOTS)
		r->slots[slot]++;
	r->total_ns += ns;
	if (ns > r->max_ns)
		r->max_ns = ns;
	if (comm) {
		bpf_probe_read_kernel_str(r->comm, sizeof(r->comm), comm);
		r->named_ns = bpf_ktime_get_ns();
	}
}

/* The slot it is in. */
static __always_inline __u32 record(__u64 ns)
{
	struct csf_runqlat_cpu *c = this_cpu();
	__u32 slot = csf_fine_slot(csf_steps(ns, unit_ns));

	if (c && slot < CSF_FINE_SLOTS) {
		c->slots[slot]++;
		c->total_ns += ns;
		if (ns > c->max_ns)
			c->max_ns = ns;
	}
	return slot;
}

/* At each switch, after what show_slow() may have to say of the last ones; @now is 0 if it is not known. */
static __always_inline void remember_switch(__u32 tid, const char *comm, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct history *h = bpf_map_lookup_elem(&histories, &cpu);
	struct csf_ran *ran;

	if (!h)
		return;
	ran = &h->ran[h->next++ % HISTORY];
	ran->from_ns = now ? now : bpf_ktime_get_ns();
	ran->tid = tid;
	bpf_probe_read_kernel_str(ran->comm, sizeof(ran->comm), comm);
}

static __always_inline void who_ran(struct csf_slow *s)
{
	__u32 cpu = s->cpu, i; /* a key of its own: 5.10 takes none from a ring buffer */
	struct history *h = bpf_map_lookup_elem(&histories, &cpu);

	s->nr_ran = 0;
	if (!h)
		return;
#pragma unroll
	for (i = 0; i < CSF_RAN_MAX; i++) {
		struct csf_ran *ran = &h->ran[(h->next - 1 - i) % HISTORY];

		if (!ran->from_ns)
			break;
		s->ran[i] = *ran;
		s->nr_ran = i + 1;
		if ((__s64)(ran->from_ns - s->from_ns) <= 0)
			break;
	}
}

static __always_inline void show_slow(__u32 tid, __u32 tgid, const char *comm, __u64 ns)
{
	struct csf_slow *s = bpf_ringbuf_reserve(&slow_waits, sizeof(*s), 0);

	if (!s) {
		discard(CSF_EVENTS_LOST);
		return;
	}
	s->to_ns = bpf_ktime_get_ns();
	s->from_ns = s->to_ns - ns;
	s->tid = tid;
	s->tgid = tgid;
	s->cpu = bpf_get_smp_processor_id();
	bpf_probe_read_kernel_str(s->comm, sizeof(s->comm), comm);
	who_ran(s);
	bpf_ringbuf_submit(s, 0);
}

#endif /* CSF_RUNQLAT_RECORD_BPF_H */
