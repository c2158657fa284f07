/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What kernels before the newest lack. Call sites use the newest interface; each shim says when
 * that came. Kbuild looks for the CSF_HAVE_* in the kernel's headers.
 */
#ifndef CSF_COMPAT_H
#define CSF_COMPAT_H

#include <linux/hrtimer.h>
#include <linux/kernel_stat.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/tick.h>
#include <linux/version.h>

#ifndef CONFIG_X86_64
#error "coarse_stat_fs reads the TSC: it is for x86-64 only"
#endif
#if KERNEL_VERSION(6, 1, 0) > LINUX_VERSION_CODE
#error "coarse_stat_fs needs Linux 6.1 or later"
#endif
#ifndef CONFIG_PREEMPT_NOTIFIERS
#error "coarse_stat_fs needs a kernel with CONFIG_PREEMPT_NOTIFIERS (selected by KVM)"
#endif
#ifndef CONFIG_SCHED_INFO
#error "coarse_stat_fs needs a kernel with CONFIG_SCHED_INFO (selected by SCHEDSTATS)"
#endif

/* 6.4 introduced PF_USER_WORKER (vhost); before it only io_uring had such threads. */
#ifndef PF_USER_WORKER
#define PF_USER_WORKER 0
#endif

/* 6.12 lets a sleeping task stay queued (delayed dequeue); before it no task was. */
static inline bool csf_sched_delayed(const struct task_struct *p)
{
#ifdef CSF_HAVE_SCHED_DELAYED
	return p->se.sched_delayed;
#else
	return false;
#endif
}

#if defined(CONFIG_SCHED_PROXY_EXEC) && !defined(CSF_HAVE_IS_BLOCKED)
#error "before 7.2 SCHED_PROXY_EXEC does not tell whether a queued task waits for a mutex"
#endif

/* 7.2 keeps a task that waits for a mutex queued (proxy execution); before it no task was. */
static inline bool csf_is_blocked(const struct task_struct *p)
{
#ifdef CSF_HAVE_IS_BLOCKED
	return p->is_blocked;
#else
	return false;
#endif
}

/* The kernel's own word; a task can be preempted with any state set. */
static inline bool csf_task_runnable(const struct task_struct *p)
{
	return p->on_rq && !csf_sched_delayed(p) && !csf_is_blocked(p);
}

/* 6.3 introduced vm_flags_mod(); before it vm_flags is a plain field. */
#ifndef CSF_HAVE_VM_FLAGS_MOD
static inline void vm_flags_mod(struct vm_area_struct *vma, vm_flags_t set, vm_flags_t clear)
{
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
}
#endif

/* 6.3 introduced struct mnt_idmap; before it inode operations get a user namespace there. */
#ifndef CSF_HAVE_MNT_IDMAP
#define mnt_idmap user_namespace
#endif

/* 6.13 introduced hrtimer_setup(); before it the function is set by hand. */
#ifndef CSF_HAVE_HRTIMER_SETUP
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*function)(struct hrtimer *),
				 clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = function;
}
#endif

/* By 7.2 kill_anon_super() drops what simple_fill_super() made; before it kill_litter_super(). */
#ifdef CSF_HAVE_KILL_LITTER_SUPER
#define csf_kill_super kill_litter_super
#else
#define csf_kill_super kill_anon_super
#endif

/*
 * 7.2 counts the idle time of a tickless CPU in kcpustat; before it the tick code knows better,
 * for CPUs that are online and were tickless (else it says -1), as fs/proc/stat.c does it.
 */
#ifndef CSF_HAVE_KCPUSTAT_IDLE
static inline u64 csf_nohz_ns(u64 us, u64 kcpustat_ns)
{
	return us == -1ULL ? kcpustat_ns : us * NSEC_PER_USEC;
}
#endif

static inline void csf_kcpustat_fetch(struct kernel_cpustat *stat, int cpu)
{
	kcpustat_cpu_fetch(stat, cpu);
#ifndef CSF_HAVE_KCPUSTAT_IDLE
	if (cpu_online(cpu)) {
		u64 *s = stat->cpustat;

		s[CPUTIME_IDLE] = csf_nohz_ns(get_cpu_idle_time_us(cpu, NULL), s[CPUTIME_IDLE]);
		s[CPUTIME_IOWAIT] =
			csf_nohz_ns(get_cpu_iowait_time_us(cpu, NULL), s[CPUTIME_IOWAIT]);
	}
#endif
}

#endif /* CSF_COMPAT_H */
