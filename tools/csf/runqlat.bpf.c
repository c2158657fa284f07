// SPDX-License-Identifier: GPL-2.0
/*
 * How long tasks wait for a CPU.
 *
 * --from queue needs one program on sched_switch: the kernel has noted when it queued the task that
 * now gets the CPU, and the tracepoint comes before it counts the wait and forgets.
 *
 * --from wakeup notes the time itself: when a task is woken, and when it is switched out while it
 * could go on. --from waking does so earlier, before the waker has found a CPU for it. The kernel
 * may show us the one and not the other (a tracer can be missed); how often the task has left a CPU
 * tells whether the wait that began is the one that ends.
 */
#include "bpf/runnable.bpf.h"
#include "look.bpf.h"
#include "runqlat_record.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define TASK_DEAD 0x80

const volatile __u32 from; /* enum csf_from */
const volatile bool use_hash; /* no dependable task storage */
const volatile char only_comm[16];
const volatile bool any_comm = 1;
const volatile bool list_tasks; /* the walk tells each task's counters */

struct csf_walk walk;
bool walk_marks; /* the walk notes who waits already */

struct wait {
	__u64 since; /* 0: it does not wait */
	__u64 left; /* how often it had left a CPU */
	__u64 start_time; /* whose it is, in the hash */
	bool open; /* it had begun before we looked */
	bool leaving; /* it was still on its way off the CPU */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct wait);
} waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wait);
} hashed_waits SEC(".maps");

extern const struct rq runqueues __ksym __weak;

static __always_inline bool right_comm(struct task_struct *p)
{
	char comm[16] = {};
	int i;

	if (any_comm)
		return 1;
	bpf_probe_read_kernel_str(comm, sizeof(comm), p->comm);
	for (i = 0; i < 16; i++)
		if (comm[i] != only_comm[i])
			return 0;
	return 1;
}

static __always_inline bool wanted(struct task_struct *p)
{
	return watched(p) && right_comm(p);
}

/* On its way off a CPU for the last time, or gone. */
static __always_inline bool is_dead(struct task_struct *p)
{
	struct task_struct___state *old = (void *)p;

	if (bpf_core_field_exists(p->__state))
		return p->__state & TASK_DEAD;
	return old->state & TASK_DEAD;
}

static __always_inline struct wait *hashed_wait(struct task_struct *p, bool create)
{
	struct wait new = { .start_time = p->start_time };
	__u32 tid = p->pid;
	struct wait *w = bpf_map_lookup_elem(&hashed_waits, &tid);

	if (w && w->start_time == p->start_time)
		return w;
	if (!create || bpf_map_update_elem(&hashed_waits, &tid, &new, BPF_ANY))
		return 0;
	return bpf_map_lookup_elem(&hashed_waits, &tid);
}

static __always_inline struct wait *wait_of(struct task_struct *p, bool create)
{
	if (use_hash)
		return hashed_wait(p, create);
	return bpf_task_storage_get(&waits, p, 0, create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
}

static __always_inline bool same_wait(const struct wait *w, __u64 left)
{
	return w->left == left || (w->leaving && w->left + 1 == left);
}

static __always_inline void begin_wait(struct task_struct *p, __u64 now)
{
	struct wait *w = wait_of(p, 1);
	__u64 left = p->nvcsw + p->nivcsw;

	if (!w) {
		discard(CSF_NO_ROOM);
		return;
	}
	if (w->since) {
		if (same_wait(w, left)) {
			/* woken once more while it waits, or woken after sched_waking */
			if (!p->on_cpu)
				w->leaving = 0;
			w->left = left;
			return;
		}
		if (!w->open)
			discard(CSF_UNSEEN_END);
	}
	w->since = now;
	w->left = left;
	w->open = 0;
	w->leaving = from == CSF_FROM_WAKING && p->on_cpu;
}

static __always_inline void count_row(struct task_struct *p, __u32 slot, __u64 ns)
{
	struct csf_row_key key = { .cpu = bpf_get_smp_processor_id() };
	const char *comm = p->comm;

	if (rows_by == CSF_BY_THREAD) {
		key.pid = p->pid;
		key.id = p->start_time;
	} else if (rows_by == CSF_BY_PROCESS) {
		key.pid = p->tgid;
		key.id = p->group_leader->start_time;
		comm = p->group_leader->comm;
	} else if (rows_by == CSF_BY_CGROUP) {
		key.id = BPF_CORE_READ(p, cgroups, dfl_cgrp, kn, id);
		comm = 0;
	} else {
		comm = 0;
	}
	record_in_row(&key, comm, slot, ns);
}

static __always_inline void count(struct task_struct *p, __u64 ns)
{
	__u32 slot = record(ns);

	if (rows_by)
		count_row(p, slot, ns);
	if (over_ns && ns > over_ns)
		show_slow(p->pid, p->tgid, p->comm, ns);
}

static __always_inline void count_open(__u64 ns)
{
	struct csf_runqlat_cpu *c = this_cpu();

	if (c) {
		c->open_count++;
		c->open_ns += ns;
	}
}

/*
 * What the wait had been when the look began, of one that is @ns long at @now; not above 0 if it
 * began later.
 */
static __always_inline __s64 at_look(__u64 ns, __u64 now)
{
	return (__s64)(ns - (now - walk.look_ns));
}

/* User space has read our counts already, and will not find the task waiting any more. */
static __always_inline void end_in_look(struct task_struct *p, __u64 ns)
{
	struct csf_runqlat_cpu *c = this_cpu();
	__s64 before = at_look(ns, bpf_ktime_get_ns());

	if (c && before > 0 && (__u32)p->pid > walk.at) {
		c->overtaken_count++;
		c->overtaken_ns += before;
	}
}

static __always_inline void count_ended(struct task_struct *p, __u64 ns, bool open)
{
	if (walk.look_ns)
		end_in_look(p, ns);
	if (open)
		count_open(ns);
	else
		count(p, ns);
}

static __always_inline void end_wait(struct task_struct *p, __u64 now)
{
	struct wait *w = wait_of(p, 0);
	__u64 since;

	if (!w || !w->since) {
		if (wanted(p))
			discard(CSF_UNSEEN_START);
		return;
	}
	if (!now)
		now = bpf_ktime_get_ns();
	since = w->since;
	w->since = 0;
	if (!same_wait(w, p->nvcsw + p->nivcsw))
		discard(CSF_STALE);
	else if ((__s64)(now - since) < 0)
		discard(CSF_NEGATIVE);
	else
		count_ended(p, now - since, w->open);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(csf_wake_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u64 now = 0;

	if (prev->pid && is_runnable(prev) && wanted(prev)) {
		now = bpf_ktime_get_ns();
		begin_wait(prev, now);
	}
	if (next->pid)
		end_wait(next, now);
	if (over_ns)
		remember_switch(next->pid, next->comm, now);
	return 0;
}

static __always_inline void woken(struct task_struct *p)
{
	/* it runs, so it waits for nothing: it woke itself, or was about to sleep */
	if (!p->on_cpu && wanted(p))
		begin_wait(p, bpf_ktime_get_ns());
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(csf_wakeup, struct task_struct *p)
{
	woken(p);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(csf_wakeup_new, struct task_struct *p)
{
	woken(p);
	return 0;
}

/*
 * It may be on its way off a CPU still; one that has not begun to leave will find itself runnable.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(csf_waking, struct task_struct *p)
{
	if (!is_runnable(p) && wanted(p))
		begin_wait(p, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(csf_free, struct task_struct *p)
{
	__u32 tid = p->pid;
	struct wait *w = bpf_map_lookup_elem(&hashed_waits, &tid);

	if (w && w->start_time == p->start_time)
		bpf_map_delete_elem(&hashed_waits, &tid);
	return 0;
}

/* Of a task of any class, where the kernel schedules groups. */
static __always_inline struct rq *rq_of(struct task_struct *p)
{
	return bpf_core_field_exists(p->se.cfs_rq) ? p->se.cfs_rq->rq : 0;
}

static __always_inline void count_gone(struct task_struct *p)
{
	struct csf_runqlat_cpu *c = this_cpu();

	if (c && wanted(p)) {
		c->gone_delay_ns += p->sched_info.run_delay;
		c->gone_pcount += p->sched_info.pcount;
	}
}

static __always_inline void queued_until_now(struct task_struct *next, const struct rq *rq,
					     __u64 queued)
{
	if (rq && (__s64)(rq->clock - queued) >= 0)
		count_ended(next, rq->clock - queued, 0);
	else
		discard(CSF_NEGATIVE);
}

/*
 * Without last_queued, it was preempted in a state in which the kernel does not count it as
 * waiting.
 */
static __always_inline int queue_switch(struct task_struct *prev, struct task_struct *next,
					bool groups)
{
	__u64 queued = next->sched_info.last_queued;

	if (is_dead(prev))
		count_gone(prev);
	if (!queued && wanted(next))
		discard(CSF_UNSEEN_START);
	else if (queued && wanted(next))
		queued_until_now(next, groups ? rq_of(next) : bpf_this_cpu_ptr(&runqueues), queued);
	if (over_ns)
		remember_switch(next->pid, next->comm, 0);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(csf_queue_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return queue_switch(prev, next, 1);
}

/* CONFIG_FAIR_GROUP_SCHED is off, so that tasks do not lead to their run queue. */
SEC("tp_btf/sched_switch")
int BPF_PROG(csf_plain_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return queue_switch(prev, next, 0);
}

/* How long it had been when the look began; not above 0 if it began later. */
static __always_inline void still_waits(__s64 before)
{
	if (before <= 0)
		return;
	walk.waiting++;
	walk.waiting_ns += before;
}

/*
 * A queue's clock stands between ticks, but user space has just had that of its own CPU read. It
 * differs from CLOCK_MONOTONIC by an offset, which is the same for all of a look.
 */
static __always_inline __u64 look_by_queue_clock(void)
{
	struct task_struct *me = (void *)bpf_get_current_task();

	if (!bpf_core_field_exists(me->se.cfs_rq))
		return 0;
	return BPF_CORE_READ(me, se.cfs_rq, rq, clock) - (bpf_ktime_get_ns() - walk.look_ns);
}

static __always_inline void walk_queued(struct task_struct *p)
{
	__u64 queued = p->sched_info.last_queued;

	if (!walk.queue_look_ns)
		walk.queue_look_ns = look_by_queue_clock();
	if (queued && is_runnable(p) && !p->on_cpu)
		still_waits((__s64)(walk.queue_look_ns - queued));
}

static __always_inline void walk_woken(struct task_struct *p)
{
	__u64 now = bpf_ktime_get_ns();
	struct wait *w;

	if (!is_runnable(p) || p->on_cpu)
		return;
	if (walk_marks) {
		w = wait_of(p, 1);
		if (w && !w->since) {
			w->left = p->nvcsw + p->nivcsw;
			w->open = 1;
			w->since = now;
		}
		return;
	}
	w = wait_of(p, 0);
	if (w && w->since && same_wait(w, p->nvcsw + p->nivcsw))
		still_waits(at_look(now - w->since, now));
}

/* Without room the walk comes to this task once more. */
static __always_inline bool tell(struct seq_file *seq, struct task_struct *p)
{
	struct csf_task_counters t = {
		.start_time = p->start_time,
		.run_delay = p->sched_info.run_delay,
		.pcount = p->sched_info.pcount,
		.migrations = p->se.nr_migrations,
		.tid = p->pid,
		.tgid = p->tgid,
		.waiting = is_runnable(p) && !p->on_cpu,
	};

	bpf_probe_read_kernel_str(t.comm, sizeof(t.comm), p->comm);
	return !bpf_seq_write(seq, &t, sizeof(t));
}

SEC("iter/task")
int csf_walk(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;

	if (!p || !wanted(p) || (is_dead(p) && !p->on_cpu))
		return 0;
	if (list_tasks && !tell(ctx->meta->seq, p))
		return 0;
	walk.at = p->pid;
	walk.run_delay_ns += p->sched_info.run_delay;
	walk.pcount += p->sched_info.pcount;
	if (from == CSF_FROM_QUEUE)
		walk_queued(p);
	else
		walk_woken(p);
	return 0;
}
