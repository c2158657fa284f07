// SPDX-License-Identifier: GPL-2.0
/*
 * Thread pages. An object is one thread's page and the preempt notifier that writes it.
 *
 * References: the registration of the notifier holds one, each open file another. Only the owner
 * opens, so a count of one means that nobody has the page open, and only the owner can change
 * that: paused is not stored anywhere. The count falls to zero
 *  - in release() by the owner: the last file unregisters and drops the registration's reference;
 *  - in open() by the owner after execve(), which ends an object: it starts a new one;
 *  - otherwise after the owner's death: the last switch hands the registration's reference on to
 *    be dropped (csf_bury), files of other processes may outlive that.
 *
 * execve() ends an object because the new program may have privileges that those who hold a
 * descriptor of the old one lack: /proc/PID/io would not show them the counters either.
 *
 * The object of current is found by walking its notifiers: there is no table to go stale, and no
 * address of a task to be compared, since the next task may be at the same one.
 */
#include <linux/irq_work.h>
#include <linux/llist.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include <linux/workqueue.h>

#include "csf.h"
#include "csf_bucket.h"

static_assert(CSF_TASK_UNINTERRUPTIBLE == TASK_UNINTERRUPTIBLE);
static_assert(CSF_TASK_DEAD == TASK_DEAD);
static_assert(CSF_TASK_WAKING == TASK_WAKING);
static_assert(CSF_TASK_RTLOCK_WAIT == TASK_RTLOCK_WAIT);
static_assert(CSF_TASK_FROZEN == TASK_FROZEN);
static_assert(sizeof(struct csf_thread_page) <= PAGE_SIZE);

struct csf_thread {
	struct preempt_notifier notifier;
	struct csf_thread_page *page;
	refcount_t refs;
	u64 exec_id; /* of the program that opened it: current->self_exec_id then */
	bool moved_asleep; /* see csf_migrate_probe() */
	union {
		struct llist_node dead; /* from the last switch to csf_bury() */
		struct rcu_head rcu; /* from there to csf_bury_rcu() */
	};
};

/* The dead of one CPU. Not in the object: an irq_work is written after its function returned. */
struct csf_graveyard {
	struct llist_head dead;
	struct irq_work work;
};

static DEFINE_PER_CPU(struct csf_graveyard, csf_graveyards);
static struct kmem_cache *csf_thread_cache;
static atomic64_t csf_epoch;
static u64 csf_cyc_per_ns; /* times 2^32 */

static void csf_sched_in(struct preempt_notifier *notifier, int cpu);
static void csf_sched_out(struct preempt_notifier *notifier, struct task_struct *next);

static struct preempt_ops csf_preempt_ops = {
	.sched_in = csf_sched_in,
	.sched_out = csf_sched_out,
};

/* The object of a task that is current or cannot run meanwhile: only a task changes its list. */
static struct csf_thread *csf_thread_of(struct task_struct *p)
{
	struct preempt_notifier *n;

	hlist_for_each_entry(n, &p->preempt_notifiers, link)
		if (n->ops == &csf_preempt_ops)
			return container_of(n, struct csf_thread, notifier);
	return NULL;
}

/*
 * Linux 6.12 and later: a task that went to sleep may stay queued for a while (delayed dequeue). If
 * it is moved to another CPU then, it gets a fresh last_queued and its sleep ends up in run_delay.
 * The only witness of the move is a tracepoint. It is used while there are objects.
 */
#ifdef CSF_HAVE_SCHED_DELAYED
static struct tracepoint *csf_migrate_tp;
static atomic_t csf_nr_threads;
static bool csf_probing; /* under csf_probe_lock */
static DEFINE_MUTEX(csf_probe_lock);

/* The task sleeps and its run queue is locked. */
static void csf_migrate_probe(void *data, struct task_struct *p, int cpu)
{
	struct csf_thread *t;

	if (!csf_sched_delayed(p))
		return;
	t = csf_thread_of(p);
	if (t)
		WRITE_ONCE(t->moved_asleep, true);
}

static void csf_probe_stop(struct work_struct *work)
{
	mutex_lock(&csf_probe_lock);
	if (csf_probing && !atomic_read(&csf_nr_threads)) {
		tracepoint_probe_unregister(csf_migrate_tp, csf_migrate_probe, NULL);
		csf_probing = false;
	}
	mutex_unlock(&csf_probe_lock);
}

static DECLARE_DELAYED_WORK(csf_probe_stop_work, csf_probe_stop);

static int csf_probe_get(void)
{
	int err = 0;

	mutex_lock(&csf_probe_lock);
	if (!csf_probing)
		err = tracepoint_probe_register(csf_migrate_tp, csf_migrate_probe, NULL);
	if (!err) {
		csf_probing = true;
		atomic_inc(&csf_nr_threads);
	}
	mutex_unlock(&csf_probe_lock);
	return err;
}

/* Patching the tracepoint in and out for each of many short-lived threads would be dear: wait. */
static void csf_probe_put(void)
{
	if (atomic_dec_and_test(&csf_nr_threads))
		schedule_delayed_work(&csf_probe_stop_work, HZ);
}

static void csf_probe_find(struct tracepoint *tp, void *data)
{
	if (!strcmp(tp->name, "sched_migrate_task"))
		csf_migrate_tp = tp;
}

static int csf_probe_init(void)
{
	for_each_kernel_tracepoint(csf_probe_find, NULL);
	return csf_migrate_tp ? 0 : -ENOENT;
}

static void csf_probe_exit(void)
{
	cancel_delayed_work_sync(&csf_probe_stop_work);
	csf_probe_stop(NULL);
	tracepoint_synchronize_unregister();
}
#else
static int csf_probe_get(void)
{
	return 0;
}

static void csf_probe_put(void)
{
}

static int csf_probe_init(void)
{
	return 0;
}

static void csf_probe_exit(void)
{
}
#endif

static __always_inline bool csf_was_moved(const struct csf_thread *t)
{
#ifdef CSF_HAVE_SCHED_DELAYED
	return t->moved_asleep;
#else
	return false;
#endif
}

static __always_inline u64 *csf_bucket_cyc(struct csf_thread_page *p)
{
	return &p->oncpu_cyc + p->state;
}

/*
 * What is counted for current, plainly: by itself with preemption on, so that it can be switched
 * out in the middle, or by the tick, which can come while we read. The load is whole and finds the
 * count before or after; for KCSAN it would be a race.
 */
#define csf_counted(x) data_race(READ_ONCE(x))

static __always_inline void csf_copy_io(struct csf_thread_page *p, const struct task_struct *me)
{
#ifdef CONFIG_TASK_XACCT
	p->rchar = csf_counted(me->ioac.rchar);
	p->wchar = csf_counted(me->ioac.wchar);
	p->syscr = csf_counted(me->ioac.syscr);
	p->syscw = csf_counted(me->ioac.syscw);
#endif
#ifdef CONFIG_TASK_IO_ACCOUNTING
	p->read_bytes = csf_counted(me->ioac.read_bytes);
	p->write_bytes = csf_counted(me->ioac.write_bytes);
	p->cancelled_write_bytes = csf_counted(me->ioac.cancelled_write_bytes);
#endif
}

static __always_inline void csf_copy_task(struct csf_thread_page *p, const struct task_struct *me)
{
	p->sum_exec_ns = csf_counted(me->se.sum_exec_runtime);
	p->run_delay_ns = me->sched_info.run_delay;
	p->pcount = me->sched_info.pcount;
	p->nvcsw = me->nvcsw;
	p->nivcsw = me->nivcsw;
	p->utime_ns = csf_counted(me->utime);
	p->stime_ns = csf_counted(me->stime);
	p->min_flt = csf_counted(me->min_flt);
	p->maj_flt = csf_counted(me->maj_flt);
	csf_copy_io(p, me);
}

/*
 * Starts from zero. Preemption is off: no switch of the owner, the only other writer, comes
 * between.
 */
static void csf_arm(struct csf_thread *t)
{
	struct csf_thread_page *p = t->page;
	u32 seq = p->seq;

	memset(p, 0, sizeof(*p));
	csf_hdr_init(&p->hdr, CSF_KIND_THREAD, sizeof(*p));
	p->seq = seq;
	p->state = CSF_ONCPU;
	p->life = CSF_LIVE;
	p->cpu = smp_processor_id();
	p->tid = current->pid;
	p->epoch = atomic64_inc_return(&csf_epoch);
	csf_copy_task(p, current);
	t->exec_id = current->self_exec_id;
	t->moved_asleep = false;
	p->last_switch_tsc = rdtsc();
}

/*
 * The scheduler's clock at one moment and the TSC at the same: reading the one by the other costs a
 * third of asking local_clock(). Renewed every 10 ms, so that not even a TSC whose rate the kernel
 * still refines leads it astray by a microsecond; at every use where the kernel distrusts the TSC.
 */
struct csf_clock {
	u64 tsc;
	u64 ns;
};

static DEFINE_PER_CPU(struct csf_clock, csf_clocks);
static u64 csf_clock_max_age; /* cycles */
static u32 csf_flags_now; /* csf_flags() at the last renewal on any CPU */

/* Called in sched_in. A long gap between the two clocks (SMI, stolen vCPU) spoils an attempt. */
static void csf_clock_renew(void)
{
	struct csf_clock *clock = this_cpu_ptr(&csf_clocks);
	u64 best = U64_MAX;
	int tries;

	local_irq_disable();
	for (tries = 0; tries < 3; tries++) {
		u64 before = rdtsc(), ns = local_clock(), gap = rdtsc() - before;

		if (gap >= best)
			continue;
		best = gap;
		clock->tsc = before + gap / 2;
		clock->ns = ns;
	}
	local_irq_enable();
	WRITE_ONCE(csf_flags_now, csf_flags());
	if (!(READ_ONCE(csf_flags_now) & CSF_F_TSC_SYNCED))
		WRITE_ONCE(csf_clock_max_age, 0);
}

/*
 * When the kernel queued current, after it had slept: ns after this CPU's csf_clock.ns.
 *
 * last_arrival less the growth of run_delay is when it was queued first, whatever CPUs it was
 * queued on. It is not the whole wait: last_arrival can be read before the wakeup, so ours ends
 * now.
 */
static __always_inline s64 csf_queued(const struct csf_thread_page *p)
{
	const struct sched_info *info = &current->sched_info;

	return info->last_arrival - this_cpu_read(csf_clocks.ns) -
	       (info->run_delay - p->run_delay_ns);
}

static __always_inline void csf_switch_in(struct csf_thread *t, int cpu, u64 now, u64 past,
					  u64 waited)
{
	struct csf_thread_page *p = t->page;

	/* readers in other threads spin meanwhile */
	local_irq_disable();
	csf_write_begin(&p->seq);
	*csf_bucket_cyc(p) += past - waited;
	p->runq_cyc += waited;
	p->last_switch_tsc = now;
	p->nr_switch_in++;
	if (p->cpu != cpu) {
		p->cpu = cpu;
		p->nr_migrate++;
	}
	p->state = CSF_ONCPU;
	p->hdr.flags = READ_ONCE(csf_flags_now);
	csf_write_end(&p->seq);
	local_irq_enable();
}

/* As csf_sched_in() finds it, for any queued, and for a thread that was moved asleep. */
static u64 csf_waited_slow(struct csf_thread *t, u64 now, u64 past)
{
	struct csf_thread_page *p = t->page;
	s64 queued = csf_queued(p), waited = now - this_cpu_read(csf_clocks.tsc);

	if (current->sched_info.pcount == p->pcount)
		return 0;
	if (t->moved_asleep) { /* its sleep is in run_delay: all we know is the end of the wait */
		queued += current->sched_info.run_delay - p->run_delay_ns;
		csf_write_begin(&p->seq);
		p->nr_guessed++;
		csf_write_end(&p->seq);
	}
	if (queued < 0)
		waited += mul_u64_u64_shr(-queued, csf_cyc_per_ns, 32);
	else
		waited -= mul_u64_u64_shr(queued, csf_cyc_per_ns, 32);
	return clamp_t(s64, waited, 0, past);
}

/* Out of line, so that the usual switch saves no registers for calls it does not make. */
static noinline void csf_switch_in_slow(struct csf_thread *t, int cpu, u64 now)
{
	u64 past = now - t->page->last_switch_tsc, waited = past;

	csf_clock_renew();
	if (t->page->state != CSF_RUNQ)
		waited = csf_waited_slow(t, now, past);
	t->moved_asleep = false;
	csf_switch_in(t, cpu, now, past, waited);
}

/* Preemption is off, the run queue is not locked, interrupts are on. */
static void csf_sched_in(struct preempt_notifier *notifier, int cpu)
{
	struct csf_thread *t = container_of(notifier, struct csf_thread, notifier);
	const struct csf_thread_page *p = t->page;
	u64 now = rdtsc(), past = now - p->last_switch_tsc, waited = past;
	u64 age = now - this_cpu_read(csf_clocks.tsc);

	if (unlikely(p->life != CSF_LIVE))
		return;
	if (unlikely(age > READ_ONCE(csf_clock_max_age) || csf_was_moved(t)))
		return csf_switch_in_slow(t, cpu, now);
	if (p->state != CSF_RUNQ) {
		u64 queued = csf_queued(p);
		bool stayed = current->sched_info.pcount == p->pcount; /* in the queue, that is */

		if (unlikely(!stayed && queued >= NSEC_PER_SEC / 4))
			return csf_switch_in_slow(t, cpu, now); /* or else it overflows */
		waited = stayed ? 0 : clamp_t(s64, age - (queued * csf_cyc_per_ns >> 32), 0, past);
	}
	csf_switch_in(t, cpu, now, past, waited);
}

/* Asked at switches, too: one can come in the middle of execve(). */
static bool csf_executed(const struct csf_thread *t)
{
	return READ_ONCE(current->self_exec_id) != t->exec_id;
}

static void csf_set_life(struct csf_thread_page *p, u16 life)
{
	csf_write_begin(&p->seq);
	p->life = life;
	csf_write_end(&p->seq);
}

/* The last switch of a thread; or its first after execve(), or after somebody else closed last. */
static noinline void csf_end(struct csf_thread *t, unsigned int state)
{
	struct csf_thread_page *p = t->page;
	bool dead = state & CSF_TASK_DEAD;

	if (p->life == CSF_LIVE)
		csf_set_life(p, dead || csf_executed(t) ? CSF_DEAD : CSF_PAUSED);
	if (dead) {
		struct csf_graveyard *g = this_cpu_ptr(&csf_graveyards);

		/* Unlinking the notifier here would cut the walk that called us short. */
		llist_add(&t->dead, &g->dead);
		irq_work_queue(&g->work);
	}
}

/* The run queue is locked and interrupts are off: no wakeup, no printk. */
static void csf_sched_out(struct preempt_notifier *notifier, struct task_struct *next)
{
	struct csf_thread *t = container_of(notifier, struct csf_thread, notifier);
	struct csf_thread_page *p = t->page;
	const struct task_struct *me = current;
	unsigned int state = READ_ONCE(me->__state);
	bool runnable = csf_task_runnable(me);
	u64 now = rdtsc();

	if (unlikely(p->life != CSF_LIVE || csf_executed(t)))
		return csf_end(t, state);
	csf_write_begin(&p->seq);
	p->oncpu_cyc += now - p->last_switch_tsc;
	p->last_switch_tsc = now;
	if (runnable) {
		p->state = CSF_RUNQ;
		p->nr_preempt++;
	} else {
		p->state = csf_bucket(false, me->in_iowait, state);
		p->nr_block++;
		if (unlikely(state & CSF_TASK_WAKING))
			p->nr_waking++;
	}
	csf_copy_task(p, me);
	csf_write_end(&p->seq);
	if (unlikely(state & CSF_TASK_DEAD || refcount_read(&t->refs) == 1))
		csf_end(t, state);
}

static void csf_thread_free(struct csf_thread *t)
{
	free_page((unsigned long)t->page);
	kmem_cache_free(csf_thread_cache, t);
	csf_probe_put();
	module_put(THIS_MODULE);
}

static void csf_thread_put(struct csf_thread *t)
{
	if (refcount_dec_and_test(&t->refs))
		csf_thread_free(t);
}

static void csf_bury_rcu(struct rcu_head *rcu)
{
	csf_thread_put(container_of(rcu, struct csf_thread, rcu));
}

static void csf_bury(struct irq_work *work)
{
	struct csf_graveyard *g = container_of(work, struct csf_graveyard, work);
	struct csf_thread *t, *next;

	llist_for_each_entry_safe(t, next, llist_del_all(&g->dead), dead)
		call_rcu(&t->rcu, csf_bury_rcu);
}

/* An object that is not registered yet; what it takes here, csf_thread_free() gives back. */
static struct csf_thread *csf_thread_alloc(void)
{
	struct csf_thread *t = kmem_cache_zalloc(csf_thread_cache, GFP_KERNEL);
	int err = -ENOMEM;

	if (!t)
		return ERR_PTR(err);
	t->page = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!t->page)
		goto free_thread;
	err = csf_probe_get();
	if (err)
		goto free_page;
	__module_get(THIS_MODULE);
	refcount_set(&t->refs, 1);
	preempt_notifier_init(&t->notifier, &csf_preempt_ops);
	return t;

free_page:
	free_page((unsigned long)t->page);
free_thread:
	kmem_cache_free(csf_thread_cache, t);
	return ERR_PTR(err);
}

/* The object of current, unless an earlier program in this thread opened it: that one is let go. */
static struct csf_thread *csf_thread_current(void)
{
	struct csf_thread *t = csf_thread_of(current);

	if (!t || !csf_executed(t))
		return t;
	preempt_disable();
	csf_set_life(t->page, CSF_DEAD); /* there may have been no switch since */
	preempt_enable();
	preempt_notifier_unregister(&t->notifier);
	csf_thread_put(t);
	return NULL;
}

static int csf_thread_open(struct inode *inode, struct file *file)
{
	struct csf_thread *known, *t;
	int err = csf_open_check(file);

	if (err)
		return err;
	/* they work for others: whose thread is "self" in io_uring's worker? */
	if (current->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		return -EPERM;
	known = csf_thread_current();
	t = known ?: csf_thread_alloc();
	if (IS_ERR(t))
		return PTR_ERR(t);
	preempt_disable(); /* no switch may see a page half made */
	if (refcount_read(&t->refs) == 1)
		csf_arm(t);
	refcount_inc(&t->refs);
	if (!known)
		preempt_notifier_register(&t->notifier);
	preempt_enable();
	file->private_data = t;
	return 0;
}

static int csf_thread_release(struct inode *inode, struct file *file)
{
	struct csf_thread *t = file->private_data, *own = csf_thread_of(current);
	bool owner = own && own == t;

	csf_thread_put(t);
	/* Only the owner opens, so that one here stays one. */
	if (owner && refcount_read(&t->refs) == 1) {
		preempt_notifier_unregister(&t->notifier);
		csf_thread_put(t);
	}
	return 0;
}

/*
 * The file keeps the object, and so the page, until after the last of its mappings is gone. Mapped
 * by its number, the page cannot be pinned. Not by remap_pfn_range(): if that finds no memory for
 * page tables, it warns (x86's PAT, which looks for the mapping that was not made).
 */
static int csf_thread_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct csf_thread *t = file->private_data;
	int err = csf_mmap_check(vma, PAGE_SIZE);

	if (err)
		return err;
	vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTDUMP, 0);
	switch (vmf_insert_pfn(vma, vma->vm_start, PHYS_PFN(virt_to_phys(t->page)))) {
	case VM_FAULT_NOPAGE:
		return 0;
	case VM_FAULT_OOM:
		return -ENOMEM;
	default:
		return -EINVAL;
	}
}

const struct file_operations csf_thread_fops = {
	.owner = THIS_MODULE,
	.open = csf_thread_open,
	.release = csf_thread_release,
	.mmap = csf_thread_mmap,
	.llseek = noop_llseek,
};

int csf_thread_init(void)
{
	int err = csf_probe_init(), cpu;

	if (err)
		return err;
	csf_thread_cache = KMEM_CACHE(csf_thread, SLAB_ACCOUNT);
	if (!csf_thread_cache)
		return -ENOMEM;
	/* Hard: with PREEMPT_RT a thread runs others, and may write to them after irq_work_sync. */
	for_each_possible_cpu(cpu)
		per_cpu(csf_graveyards, cpu).work = IRQ_WORK_INIT_HARD(csf_bury);
	csf_cyc_per_ns = div_u64((u64)tsc_khz << 32, NSEC_PER_MSEC);
	csf_clock_max_age = (u64)tsc_khz * 10;
	csf_flags_now = csf_flags();
	preempt_notifier_inc();
	return 0;
}

void csf_thread_exit(void)
{
	int cpu;

	preempt_notifier_dec();
	/* no object is left, but the code that freed the last may still be on its way out */
	for_each_possible_cpu(cpu)
		irq_work_sync(&per_cpu(csf_graveyards, cpu).work);
	rcu_barrier();
	csf_probe_exit();
	kmem_cache_destroy(csf_thread_cache);
}
