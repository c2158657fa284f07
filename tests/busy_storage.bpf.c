// SPDX-License-Identifier: GPL-2.0
/* Another user of task storage, at every switch and in system calls; see busy_storage.c. */
#include "bpf/kernel.h"

char LICENSE[] SEC("license") = "GPL";

const volatile bool create_anywhere;
__u64 gets, failures;

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} theirs SEC(".maps");

static __always_inline void count(struct task_struct *p, bool create)
{
	__u64 *n = bpf_task_storage_get(&theirs, p, 0, create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);

	__sync_fetch_and_add(&gets, 1);
	if (n)
		(*n)++;
	else if (create)
		__sync_fetch_and_add(&failures, 1);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(busy_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	count(prev, create_anywhere);
	count(next, create_anywhere);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(busy_enter)
{
	count(bpf_get_current_task_btf(), create_anywhere);
	return 0;
}

/*
 * Programs at tracepoints are not preempted, but this one can be, in the middle of it: before 6.2
 * nobody on that CPU gets anything until it goes on. Several times, to be in it most of the time.
 * Before 6.4 a storage is made by kmalloc(), whose locks sleep with PREEMPT_RT: a switch is no place for
 * that, and a kernel in which it was tried did hang.
 */
SEC("fentry/hrtimer_nanosleep")
int BPF_PROG(busy_sleep)
{
	struct task_struct *p = bpf_get_current_task_btf();
	int i;

	for (i = 0; i < 1000; i++)
		count(p, 1);
	return 0;
}
