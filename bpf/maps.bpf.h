/* SPDX-License-Identifier: GPL-2.0 */
/* The writer's maps, and the way from a task to its page. */
#ifndef CSF_BPF_MAPS_H
#define CSF_BPF_MAPS_H

#include "kernel.h"
#include "writer.h"

const volatile bool use_hash; /* task storage fails while the CPU is busy in it (before 6.2) */

__u64 epochs;
__u32 service_tgid; /* in the initial PID namespace */
__u64 lost[CSF_LOST_MAX];

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct csf_ref);
} refs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CSF_MAX_HASHED);
	__type(key, __u32);
	__type(value, struct csf_ref);
} hashed_refs SEC(".maps");

struct csf_chunk_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__type(key, __u32);
	__type(value, struct csf_slot);
} chunk_template SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, CSF_MAX_CHUNKS);
	__type(key, __u32);
	__array(values, struct csf_chunk_map);
} chunks SEC(".maps") = { .values = { &chunk_template } };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CSF_MAX_CHUNKS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct csf_chunk);
} chunk_use SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CSF_MAX_CLIENTS);
	__type(key, __u32);
	__type(value, struct csf_client);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CSF_MAX_FDS);
	__type(key, __u32);
	__type(value, __u32);
} room SEC(".maps");

/* By CPU: the interrupts that /proc/stat only has as a sum. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct csf_cpu_irqs);
} cpu_irqs SEC(".maps");

/* By CPU: a perf event that counts the nanoseconds of local_clock(), and when it began. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} clock_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct csf_cpu_clock);
} cpu_clocks SEC(".maps");

extern const struct kernel_stat kstat __ksym;

/* One element: an iterator over it runs its program once, as the thread that reads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} once SEC(".maps");

static __always_inline struct csf_ref *ref_of(struct task_struct *p)
{
	struct csf_ref *ref;
	__u32 tid;

	if (!use_hash)
		return p->bpf_storage ? bpf_task_storage_get(&refs, p, 0, 0) : 0;
	tid = p->pid;
	ref = bpf_map_lookup_elem(&hashed_refs, &tid);
	return ref && ref->start_time == p->start_time ? ref : 0;
}

static __always_inline struct csf_thread_page *page_of(const struct csf_ref *ref)
{
	__u32 chunk = ref->chunk, slot = ref->slot;
	struct csf_slot *s;
	void *map;

	map = bpf_map_lookup_elem(&chunks, &chunk);
	if (!map)
		return 0;
	s = bpf_map_lookup_elem(map, &slot);
	return s ? &s->page : 0;
}

#endif /* CSF_BPF_MAPS_H */
