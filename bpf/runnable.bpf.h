/* SPDX-License-Identifier: GPL-2.0 */
/* Whether a task that is switched out was preempted, as the kernel decides it. */
#ifndef CSF_RUNNABLE_BPF_H
#define CSF_RUNNABLE_BPF_H

#include "bpf/kernel.h"

static __always_inline bool is_runnable(struct task_struct *p)
{
	struct sched_entity___delayed *se = (void *)&p->se;
	struct task_struct___blocked *b = (void *)p;

	if (!p->on_rq)
		return 0;
	if (bpf_core_field_exists(se->sched_delayed) && se->sched_delayed)
		return 0;
	return !bpf_core_field_exists(b->is_blocked) || !b->is_blocked;
}

#endif /* CSF_RUNNABLE_BPF_H */
