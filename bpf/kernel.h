/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few kernel types that our BPF programs read. Offsets are those of the running kernel (CO-RE),
 * so only names and types matter here, and building needs nobody's BTF.
 */
#ifndef CSF_BPF_KERNEL_H
#define CSF_BPF_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define bool _Bool

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sched_info {
	unsigned long pcount;
	unsigned long long run_delay;
	unsigned long long last_arrival;
	unsigned long long last_queued;
};

/* the run queue of one CPU */
struct rq {
	__u64 clock;
	struct sched_info rq_sched_info; /* the sums of all tasks that ran here */
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 nr_migrations;
	struct cfs_rq *cfs_rq; /* of a task of any class; not without CONFIG_FAIR_GROUP_SCHED */
};

/* 6.12: a sleeping task may stay queued for a while. */
struct sched_entity___delayed {
	unsigned char sched_delayed;
};

struct task_io_accounting {
	__u64 rchar;
	__u64 wchar;
	__u64 syscr;
	__u64 syscw;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 cancelled_write_bytes;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[]; /* 6.1 */
};

struct cgroup___ids {
	int level;
	__u64 ancestor_ids[]; /* before 6.1 */
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

/* Where task_struct has it, it is the first. */
struct thread_info {
	unsigned int cpu; /* 5.16 on x86 */
};

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[]; /* one in each namespace, from the machine's down to the task's own */
};

typedef struct {
	char value[8];
} local64_t;

struct hw_perf_event {
	local64_t prev_count;
};

struct perf_event {
	local64_t count;
	struct hw_perf_event hw;
};

struct file {
	void *private_data;
};

struct fdtable {
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	unsigned int
		on_cpu; /* unsigned, as the next: their width changed, and libbpf fits only those */
	unsigned int on_rq;
	struct sched_entity se;
	unsigned in_iowait : 1;
	unsigned int pid;
	unsigned int tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid; /* NULL after the task's end */
	struct signal_struct *signal;
	struct css_set *cgroups;
	char comm[16];
	struct files_struct *files;
	__u64 utime;
	__u64 stime;
	unsigned long nvcsw;
	unsigned long nivcsw;
	__u64 start_time;
	unsigned long min_flt;
	unsigned long maj_flt;
	struct sched_info sched_info;
	struct task_io_accounting ioac;
	void *bpf_storage;
};

/* before 5.16, on x86 */
struct task_struct___cpu {
	unsigned int cpu;
};

/* before 5.14 */
struct task_struct___state {
	volatile long state;
};

/* 7.2: a task that waits for a mutex may stay queued (proxy execution). */
struct task_struct___blocked {
	unsigned char is_blocked;
};

/* interrupts of one CPU */
struct kernel_stat {
	unsigned long irqs_sum;
	unsigned int softirqs[10];
};

struct seq_file {
	void *private;
};

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_map {
	__u32 id;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task; /* NULL after the last */
};

struct bpf_iter__bpf_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
};

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
};

#pragma clang attribute pop

#endif /* CSF_BPF_KERNEL_H */
