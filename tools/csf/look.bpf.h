/* SPDX-License-Identifier: GPL-2.0 */
/* What the programs that watch tasks have in common: which tasks, set before they are loaded. */
#ifndef CSF_LOOK_BPF_H
#define CSF_LOOK_BPF_H

#include "bpf/kernel.h"

const volatile __u32 only_tgid; /* 0: all */
const volatile __u32 only_tid;
const volatile __u64 only_cgroup; /* its id, and how deep it lies */
const volatile __u32 only_cgroup_level;

/* 6.1 keeps the ancestors themselves; before, cgroups had their ids. */
static __always_inline __u64 ancestor_id(struct cgroup *c, __u32 level)
{
	struct cgroup___ids *old = (void *)c;
	struct cgroup *up = 0;
	__u64 id = 0;

	if (bpf_core_field_exists(c->ancestors)) {
		bpf_core_read(&up, sizeof(up), &c->ancestors[level & 255]);
		return BPF_CORE_READ(up, kn, id);
	}
	bpf_core_read(&id, sizeof(id), &old->ancestor_ids[level & 255]);
	return id;
}

/* Of the task itself: in sched_wakeup, current is the one that wakes it. */
static __always_inline bool in_cgroup(struct task_struct *p)
{
	struct cgroup *c = BPF_CORE_READ(p, cgroups, dfl_cgrp);

	if ((__u32)BPF_CORE_READ(c, level) < only_cgroup_level)
		return 0;
	return ancestor_id(c, only_cgroup_level) == only_cgroup;
}

/* Idle tasks never are. */
static __always_inline bool watched(struct task_struct *p)
{
	if (only_tid ? p->pid != only_tid : !p->pid)
		return 0;
	if (only_tgid && p->tgid != only_tgid)
		return 0;
	return !only_cgroup || in_cgroup(p);
}

#endif /* CSF_LOOK_BPF_H */
