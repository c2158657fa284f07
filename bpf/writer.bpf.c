// SPDX-License-Identifier: GPL-2.0
/*
 * Writes the pages of registered threads at their context switches, as kmod/thread.c does, with
 * CLOCK_MONOTONIC as the clock, since a BPF program cannot read the TSC. When a thread was woken
 * is what the scheduler itself stamped: a program at every wakeup would cost every other task as
 * much as the one at every switch.
 *
 * Pages are the values of inner maps (chunks) that belong to one process each and are frozen: user
 * space can map them, and nobody but these programs can write them. On x86 stores are seen in
 * program order, so compiler barriers around the sequence count are enough for readers on other
 * CPUs too; elsewhere an atomic exchange orders them.
 */
#include "maps.bpf.h"
#include "runnable.bpf.h"
#include "csf_bucket.h"
#include "uapi/csf_service.h"

char LICENSE[] SEC("license") = "GPL";

#define EPERM 1
#define EAGAIN 11
#define ENOMEM 12
#define EACCES 13
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000

static __always_inline void write_begin(struct csf_thread_page *p)
{
#ifdef __TARGET_ARCH_x86
	(*(volatile __u32 *)&p->seq)++;
	barrier();
#else
	__sync_lock_test_and_set(&p->seq, p->seq + 1);
#endif
}

static __always_inline void write_end(struct csf_thread_page *p)
{
#ifdef __TARGET_ARCH_x86
	barrier();
	(*(volatile __u32 *)&p->seq)++;
#else
	__sync_lock_test_and_set(&p->seq, p->seq + 1);
#endif
}

static __always_inline bool in_iowait(struct task_struct *task)
{
	return BPF_CORE_READ_BITFIELD(task, in_iowait);
}

static __always_inline void copy_io(struct csf_thread_page *page, struct task_struct *p)
{
	if (bpf_core_field_exists(p->ioac.rchar)) {
		page->rchar = p->ioac.rchar;
		page->wchar = p->ioac.wchar;
		page->syscr = p->ioac.syscr;
		page->syscw = p->ioac.syscw;
	}
	if (bpf_core_field_exists(p->ioac.read_bytes)) {
		page->read_bytes = p->ioac.read_bytes;
		page->write_bytes = p->ioac.write_bytes;
		page->cancelled_write_bytes = p->ioac.cancelled_write_bytes;
	}
}

static __always_inline void copy_task(struct csf_thread_page *page, struct task_struct *p)
{
	page->tid = p->pid;
	page->sum_exec_ns = p->se.sum_exec_runtime;
	page->run_delay_ns = p->sched_info.run_delay;
	page->pcount = p->sched_info.pcount;
	page->nvcsw = p->nvcsw;
	page->nivcsw = p->nivcsw;
	page->utime_ns = p->utime;
	page->stime_ns = p->stime;
	page->min_flt = p->min_flt;
	page->maj_flt = p->maj_flt;
	copy_io(page, p);
}

/* The clock may step back a little when the kernel adjusts it: no bucket may shrink. */
static __always_inline __u64 not_before(__u64 now, __u64 last)
{
	return (__s64)(now - last) < 0 ? last : now;
}

static __always_inline __u64 min_u64(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/* Time that the thread spent off the CPU, in the state in which it left. */
static __always_inline void add_off_cpu(struct csf_thread_page *page, __u64 ns)
{
	switch (page->state) {
	case CSF_RUNQ:
		page->runq_cyc += ns;
		break;
	case CSF_DSLEEP:
		page->dsleep_cyc += ns;
		break;
	case CSF_IOWAIT:
		page->iowait_cyc += ns;
		break;
	default:
		page->sleep_cyc += ns;
		break;
	}
}

/* local_clock(), in which the scheduler stamps its tasks; 0 if this CPU has no event. */
static __always_inline __u64 local_clock_ns(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	const struct csf_cpu_clock *c = bpf_map_lookup_elem(&cpu_clocks, &cpu);
	__s64 count = (__s64)bpf_perf_event_read(&clock_events, BPF_F_CURRENT_CPU);

	return c && c->start_ns && count >= 0 ? c->start_ns + count : 0;
}

/* The clock of p's run queue: local_clock(), read at some time since p was queued there. */
static __always_inline __u64 queue_clock_ns(const struct task_struct *p)
{
	return bpf_core_field_exists(p->se.cfs_rq) ? p->se.cfs_rq->rq->clock : 0;
}

/*
 * How long p, which gets the CPU now, has been waiting since it was woken: since it was queued
 * here, and before that where it was queued and then moved away, which is in run_delay already. The
 * queue's clock does not do for "now": it is not read again when the wakeup itself asked for this
 * switch.
 */
static __always_inline __u64 waited(struct csf_thread_page *page, struct csf_ref *ref,
				    const struct task_struct *p, __u64 now)
{
	__u64 queued = p->sched_info.last_queued;
	__u64 before = p->sched_info.run_delay - page->run_delay_ns;
	bool guess = 0;

	if (ref->moved_asleep || !queued) { /* all we know is the end of the wait */
		queued = queue_clock_ns(p);
		before = 0;
		guess = 1;
	}
	ref->moved_asleep = 0;
	if ((__s64)(now - queued) < 0) { /* a CPU that came online after the service started */
		now = queue_clock_ns(p);
		guess = 1;
	}
	page->nr_guessed += guess;
	return (__s64)(now - queued) < 0 ? 0 : now - queued + before;
}

/* What the scheduler counted as waiting since the last switch we saw, if that is none of its faults. */
static __always_inline __u64 delay_since(const struct csf_thread_page *page, struct csf_ref *ref,
					 const struct task_struct *p, __u64 past)
{
	bool asleep = ref->moved_asleep;

	ref->moved_asleep = 0;
	return asleep ? 0 : min_u64(p->sched_info.run_delay - page->run_delay_ns, past);
}

/*
 * Tracepoints can be missed: a tracer may be skipped, and some virtual machines run old kernel text
 * in some contexts. Then the page says that the thread is off its CPU while it is on it, or the
 * reverse. The time is split by what the scheduler itself counted since the last switch we saw.
 */
static __always_inline void missed_in(struct csf_thread_page *page, struct csf_ref *ref,
				      struct task_struct *p, __u64 now)
{
	__u64 past = now - page->last_switch_tsc, local = local_clock_ns();
	__u64 delay = delay_since(page, ref, p, past);
	__u64 ran = local - p->sched_info.last_arrival, slept;

	if (ran > past)
		ran = min_u64(p->se.sum_exec_runtime - page->sum_exec_ns, past);
	slept = page->state == CSF_RUNQ ? 0 : past - ran;
	slept = min_u64(slept, past - delay);
	add_off_cpu(page, slept);
	page->runq_cyc += delay;
	page->oncpu_cyc += past - delay - slept;
	page->nr_switch_in++;
	page->nr_guessed++;
	page->state = CSF_ONCPU;
	page->last_switch_tsc = now;
}

static __always_inline void missed_out(struct csf_thread_page *page, const struct task_struct *p,
				       __u64 now)
{
	__u64 past = now - page->last_switch_tsc;
	__u64 ran = min_u64(p->se.sum_exec_runtime - page->sum_exec_ns, past);

	page->oncpu_cyc += ran;
	page->last_switch_tsc += ran;
	page->nr_guessed++;
	if (p->nvcsw != page->nvcsw) {
		page->state = CSF_SLEEP;
		page->nr_block++;
	} else {
		page->state = CSF_RUNQ;
		page->nr_preempt++;
	}
}

/*
 * The thread left its CPU and came back unseen, as the kernel's count of its switches says: the page
 * has the one that is being seen still to come. What is neither running nor waiting was a sleep.
 */
static __always_inline void missed_both(struct csf_thread_page *page, struct csf_ref *ref,
					const struct task_struct *p, bool runnable, __u64 now)
{
	__u64 past = now - page->last_switch_tsc;
	__u64 delay = delay_since(page, ref, p, past);
	__u64 ran = min_u64(p->se.sum_exec_runtime - page->sum_exec_ns, past - delay);
	__u64 preempted = p->nivcsw - page->nivcsw - runnable;
	__u64 blocked = p->nvcsw - page->nvcsw - !runnable;

	page->runq_cyc += delay;
	page->sleep_cyc += past - delay - ran;
	page->oncpu_cyc += ran;
	page->nr_preempt += preempted;
	page->nr_block += blocked;
	page->nr_switch_in += preempted + blocked;
	page->nr_guessed++;
	page->last_switch_tsc = now;
}

static __always_inline bool switches_missed(const struct csf_thread_page *page,
					    struct task_struct *p)
{
	return p->nvcsw + p->nivcsw - page->nvcsw - page->nivcsw != 1;
}

static __always_inline void switch_out(struct csf_thread_page *page, struct csf_ref *ref,
				       struct task_struct *p, __u64 now)
{
	bool runnable = is_runnable(p);
	__u32 state = p->__state;

	now = not_before(now, page->last_switch_tsc);
	write_begin(page);
	if (page->state != CSF_ONCPU)
		missed_in(page, ref, p, now);
	else if (switches_missed(page, p))
		missed_both(page, ref, p, runnable, now);
	page->oncpu_cyc += now - page->last_switch_tsc;
	page->last_switch_tsc = now;
	page->state = csf_bucket(runnable, in_iowait(p), state);
	if (runnable) {
		page->nr_preempt++;
	} else {
		page->nr_block++;
		if (state & CSF_TASK_WAKING)
			page->nr_waking++;
	}
	copy_task(page, p);
	write_end(page);
}

/* The two clocks are read last, and one right after the other: all before is waiting, too. */
static __always_inline void switch_in(struct csf_thread_page *page, struct csf_ref *ref,
				      struct task_struct *p)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 now, local, past, runq;

	write_begin(page);
	page->nr_switch_in++;
	if (page->cpu != cpu) {
		page->cpu = cpu;
		page->nr_migrate++;
	}
	local = page->state == CSF_RUNQ ? 0 : local_clock_ns();
	now = not_before(bpf_ktime_get_ns(), page->last_switch_tsc);
	if (page->state == CSF_ONCPU)
		missed_out(page, p, now);
	past = now - page->last_switch_tsc;
	runq = page->state == CSF_RUNQ ? past : min_u64(waited(page, ref, p, local), past);
	page->runq_cyc += runq;
	add_off_cpu(page, past - runq);
	page->state = CSF_ONCPU;
	page->last_switch_tsc = now;
	write_end(page);
}

/*
 * Most switches are between tasks that are none of ours, so the programs look before they do
 * anything else: what follows is out of their way, with its own stack and registers. Few tasks have
 * any task storage; a hash has to be asked.
 */
static __always_inline bool maybe_ours(struct task_struct *p)
{
	return use_hash || p->bpf_storage;
}

static __noinline int out_and_in(struct task_struct *prev, struct task_struct *next)
{
	struct csf_ref *ref = ref_of(prev);
	struct csf_thread_page *page = ref ? page_of(ref) : 0;

	if (page)
		switch_out(page, ref, prev, bpf_ktime_get_ns());
	ref = ref_of(next);
	page = ref ? page_of(ref) : 0;
	if (page)
		switch_in(page, ref, next);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(csf_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (maybe_ours(prev) || maybe_ours(next))
		out_and_in(prev, next);
	return 0;
}

/*
 * Linux 6.12 and later leave a task that goes to sleep in its queue for a while. If it is moved to
 * another CPU then, it is stamped as if it were queued there to run.
 */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(csf_migrate, struct task_struct *p)
{
	struct csf_ref *ref;

	if (!maybe_ours(p) || !p->on_rq || is_runnable(p))
		return 0;
	ref = ref_of(p);
	if (ref)
		ref->moved_asleep = 1;
	return 0;
}

static __always_inline bool is_registered(const struct csf_ref *ref)
{
	return ref && ref->chunk < CSF_MAX_CHUNKS;
}

/*
 * The kernel refuses to delete (EBUSY) where that would interrupt another access on this CPU. What
 * stays then leads to no page.
 */
static __always_inline void forget(struct csf_ref *ref, __u32 tid, struct task_struct *p)
{
	*(volatile __u32 *)&ref->chunk = CSF_MAX_CHUNKS;
	if (use_hash)
		bpf_map_delete_elem(&hashed_refs, &tid);
	else
		bpf_task_storage_delete(&refs, p);
}

static __always_inline void give_slot(__u32 chunk, __u32 slot)
{
	struct csf_chunk *use = bpf_map_lookup_elem(&chunk_use, &chunk);

	if (use && slot < CSF_CHUNK_SLOTS_MAX)
		__sync_fetch_and_and(&use->used[slot / 64], ~(1ull << (slot % 64)));
}

/* The end of a registration: the thread exits, or the program in it is replaced. */
static __always_inline void end(struct task_struct *p, struct csf_ref *ref, __u32 tid)
{
	struct csf_thread_page *page;
	__u32 chunk, slot;

	if (!is_registered(ref))
		return;
	chunk = ref->chunk;
	slot = ref->slot;
	page = page_of(ref);
	forget(ref, tid, p);
	if (page) {
		__u64 now = not_before(bpf_ktime_get_ns(), page->last_switch_tsc);

		write_begin(page);
		page->oncpu_cyc += now - page->last_switch_tsc;
		page->last_switch_tsc = now;
		page->life = CSF_DEAD;
		write_end(page);
	}
	give_slot(chunk, slot);
}

static __always_inline void forget_client(struct task_struct *p)
{
	__u32 tgid = p->tgid;

	if (bpf_map_lookup_elem(&clients, &tgid))
		bpf_map_delete_elem(&clients, &tgid);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(csf_exit, struct task_struct *p)
{
	end(p, ref_of(p), p->pid);
	if (!p->signal->live.counter)
		forget_client(p);
	return 0;
}

/*
 * The thread goes on, but its mappings are gone. It may have become the leader, with the leader's
 * TID and start time; where the TID is the key, the old one leads to it. The new program may have
 * other privileges: what the old one was given shall not show its pages.
 */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(csf_exec, struct task_struct *p, int old_tid)
{
	__u32 tid = old_tid;

	if (use_hash)
		end(p, bpf_map_lookup_elem(&hashed_refs, &tid), tid);
	else
		end(p, ref_of(p), tid);
	forget_client(p);
	return 0;
}

static __always_inline void arm(struct csf_thread_page *page, struct task_struct *p)
{
	write_begin(page);
	page->state = CSF_ONCPU;
	page->life = CSF_LIVE;
	page->cpu = bpf_get_smp_processor_id();
	page->epoch = __sync_fetch_and_add(&epochs, 1);
	page->nr_waking = 0;
	page->nr_guessed = 0;
	page->oncpu_cyc = 0;
	page->runq_cyc = 0;
	page->sleep_cyc = 0;
	page->dsleep_cyc = 0;
	page->iowait_cyc = 0;
	page->nr_switch_in = 0;
	page->nr_preempt = 0;
	page->nr_block = 0;
	page->nr_migrate = 0;
	copy_task(page, p);
	page->last_switch_tsc = bpf_ktime_get_ns();
	write_end(page);
}

/* Takes a free slot of the chunk; -1 if there is none. */
static __always_inline int take_slot(struct csf_chunk *use)
{
	__u32 w, slot;

	for (slot = 0; slot < CSF_CHUNK_SLOTS_MAX; slot++) {
		__u64 bit = 1ull << (slot % 64), was;

		if (slot >= use->nr_slots)
			break;
		w = slot / 64;
		if (use->used[w & 3] & bit)
			continue;
		was = __sync_fetch_and_or(&use->used[w & 3], bit);
		if (!(was & bit))
			return (int)slot;
	}
	return -1;
}

/* Where it is kept from now on; 0 if there is no memory. */
static __always_inline struct csf_ref *remember(struct task_struct *p, const struct csf_ref *ref)
{
	struct csf_ref *made;

	if (use_hash) {
		__u32 tid = p->pid;

		bpf_map_update_elem(&hashed_refs, &tid, ref, BPF_ANY);
		made = ref_of(p);
	} else {
		made = bpf_task_storage_get(&refs, p, (void *)ref, BPF_LOCAL_STORAGE_GET_F_CREATE);
	}
	if (made && !is_registered(made)) {
		/* one that could not be deleted; the chunk leads to the page */
		made->slot = ref->slot;
		made->moved_asleep = ref->moved_asleep;
		barrier();
		*(volatile __u32 *)&made->chunk = ref->chunk;
	}
	return made;
}

/* Up to date again after switches that were missed. */
static __always_inline void resync(struct csf_thread_page *page, struct csf_ref *ref,
				   struct task_struct *p)
{
	__u64 now;

	write_begin(page);
	now = not_before(bpf_ktime_get_ns(), page->last_switch_tsc);
	if (page->state == CSF_ONCPU)
		missed_out(page, p, now);
	missed_in(page, ref, p, now);
	copy_task(page, p); /* its reader compares the switches with the kernel's */
	write_end(page);
}

/*
 * The page is made ready first and found by the switch program last, so that the two never write at
 * the same time. A switch in between is missed: then once more. So if there was no memory: what is
 * asked for without waiting may be refused while somebody else is being served.
 */
static __always_inline int follow(struct task_struct *p, struct csf_ref *ref, bool fresh)
{
	struct csf_thread_page *page = page_of(ref);
	struct csf_ref *made = 0;
	int i;

	if (!page)
		return EAGAIN;
	for (i = 0; i < 8; i++) {
		unsigned long switches = p->nvcsw + p->nivcsw;

		if (fresh)
			arm(page, p);
		else
			resync(page, ref, p);
		made = remember(p, ref);
		if (!made)
			continue;
		if (switches == p->nvcsw + p->nivcsw)
			return 0;
		forget(made, p->pid, p);
	}
	__sync_fetch_and_add(&lost[made ? CSF_LOST_RACE : CSF_LOST_STORAGE], 1);
	return made ? EAGAIN : ENOMEM;
}

/* The thread is here already; that it asks again may mean that it found its page behind. */
static __always_inline int registered(struct task_struct *p, struct csf_ref *known)
{
	struct csf_thread_page *page = page_of(known);
	struct csf_ref ref = *known;
	int err;

	if (page && page->state == CSF_ONCPU && page->nvcsw + page->nivcsw == p->nvcsw + p->nivcsw)
		return 0;
	forget(known, p->pid, p);
	err = follow(p, &ref, 0);
	if (err)
		give_slot(ref.chunk, ref.slot);
	return err;
}

static __always_inline int register_task(struct task_struct *p, struct csf_ticket *ticket)
{
	__u32 tgid = p->tgid;
	struct csf_client *client = bpf_map_lookup_elem(&clients, &tgid);
	struct csf_ref *known, ref = {};
	struct csf_chunk *use;
	__u32 index, *chunk;
	int slot, err;

	if (!client)
		return EACCES;
	if (p->flags & (PF_IO_WORKER | PF_KTHREAD | PF_USER_WORKER))
		return EPERM;
	known = ref_of(p);
	if (is_registered(known)) {
		ticket->chunk = known->chunk;
		ticket->slot = known->slot;
		return registered(p, known);
	}
	index = client->room;
	chunk = bpf_map_lookup_elem(&room, &index);
	if (!chunk)
		return EAGAIN;
	ref.chunk = *chunk;
	use = bpf_map_lookup_elem(&chunk_use, &ref.chunk);
	slot = use ? take_slot(use) : -1;
	if (slot < 0)
		return EAGAIN;
	ref.slot = slot;
	ref.start_time = p->start_time;
	err = follow(p, &ref, 1);
	if (err)
		give_slot(ref.chunk, ref.slot);
	ticket->chunk = ref.chunk;
	ticket->slot = ref.slot;
	return err;
}

SEC("iter/bpf_map_elem")
int csf_register(struct bpf_iter__bpf_map_elem *ctx)
{
	struct csf_ticket ticket = {};

	if (!ctx->value)
		return 0;
	ticket.err = register_task(bpf_get_current_task_btf(), &ticket);
	ticket.now_ns = bpf_ktime_get_ns();
	bpf_seq_write(ctx->meta->seq, &ticket, sizeof(ticket));
	return 0;
}

/* An iterator over cpu_irqs: fills in one CPU at a time. */
SEC("iter/bpf_map_elem")
int csf_count_irqs(struct bpf_iter__bpf_map_elem *ctx)
{
	struct csf_cpu_irqs *irqs = ctx->value;
	const struct kernel_stat *stat;
	__u32 *cpu = ctx->key;
	int i;

	if (!cpu || !irqs)
		return 0;
	stat = bpf_per_cpu_ptr(&kstat, *cpu);
	if (!stat)
		return 0;
	irqs->irqs = stat->irqs_sum;
	irqs->softirqs = 0;
	for (i = 0; i < 10; i++)
		irqs->softirqs += stat->softirqs[i];
	return 0;
}

/*
 * An iterator over cpu_clocks, in the service: learns when the events began to count. Both values
 * are of the event's last reading.
 */
SEC("iter/bpf_map_elem")
int csf_start_clocks(struct bpf_iter__bpf_map_elem *ctx)
{
	struct csf_cpu_clock *c = ctx->value;
	struct task_struct *me = bpf_get_current_task_btf();
	struct perf_event *event;
	__u64 at = 0, count = 0;
	struct file *file = 0;

	service_tgid = me->tgid;
	if (!c || c->fd < 0)
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), me->files->fdt->fd + c->fd);
	event = BPF_CORE_READ(file, private_data);
	bpf_core_read(&at, sizeof(at), &event->hw.prev_count);
	bpf_core_read(&count, sizeof(count), &event->count);
	c->start_ns = at - count;
	return 0;
}

/* An iterator over all maps: their numbers, in ascending order. */
SEC("iter/bpf_map")
int csf_map_ids(struct bpf_iter__bpf_map *ctx)
{
	struct bpf_map *map = ctx->map;
	__u32 id;

	if (!map)
		return 0;
	id = map->id;
	bpf_seq_write(ctx->meta->seq, &id, sizeof(id));
	return 0;
}
