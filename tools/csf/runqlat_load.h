/* SPDX-License-Identifier: GPL-2.0 */
/* The BPF programs of csf runqlat: loading them, and reading what they have counted. */
#ifndef CSF_RUNQLAT_LOAD_H
#define CSF_RUNQLAT_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cost.h"
#include "hist.h"
#include "rows.h"
#include "runqlat.h"
#include "watch.h"

struct csf_runqlat_options {
	struct csf_watch watch;
	enum csf_from from;
	enum csf_by by;
	bool by_verify; /* not asked for, but --verify needs it */
	bool failed; /* --verify */
	uint64_t unit_ns;
	uint64_t over_ns;
	const char *comm;
};

struct bpf_object;
struct bpf_link;
struct runqlat_bpf;
struct runqlat_classic_bpf;

struct csf_runqlat {
	const struct csf_runqlat_options *options;
	struct bpf_object *object;
	struct runqlat_bpf *skel; /* or, without BTF, */
	struct runqlat_classic_bpf *classic;
	struct bpf_link *walk_link;
	struct csf_runqlat_cpu *cpus; /* mapped */
	unsigned int nr_cpus;
	int rows_fd;
	int slow_fd;
	struct csf_cost cost;
};

/* Loads and attaches. 0, or the exit code after a message. */
int csf_runqlat_load(struct csf_runqlat *r, const struct csf_runqlat_options *options);
void csf_runqlat_unload(struct csf_runqlat *r);

/* Maps what each CPU counts. 0, or a negative error. */
int csf_runqlat_map(struct csf_runqlat *r, int cpus_fd);

/*
 * Notes who waits already, so that the end of such a wait is not taken for a task out of nowhere.
 */
void csf_runqlat_mark(struct csf_runqlat *r);

/* The sums over all CPUs at a moment. */
struct csf_runqlat_counts {
	struct csf_hist hist;
	uint64_t discarded[CSF_DISCARDS];
	uint64_t open_count;
	uint64_t open_ns;
	uint64_t gone_delay_ns;
	uint64_t gone_pcount;
	uint64_t overtaken_count;
	uint64_t overtaken_ns;
};

void csf_runqlat_read(struct csf_runqlat *r, struct csf_runqlat_counts *c);

/*
 * An edge of a window: what had been counted before and after a walk over all tasks, and what the
 * walk found. Growth of the kernel's counters is known to what happened during the walks.
 */
struct csf_runqlat_edge {
	struct csf_runqlat_counts before;
	struct csf_runqlat_counts after;
	struct csf_rows rows_before;
	struct csf_rows rows_after;
	struct csf_walk walk;
	struct csf_task_counters *tasks; /* of each task, for --verify; sorted by TID */
	size_t nr_tasks;
	uint64_t at_ns; /* when it was taken: before the walk, but where the first window begins */
	uint64_t skipped; /* runs of programs that the kernel left out */
	uint64_t max_ns; /* the longest wait that has ended since the last edge */
	bool walked; /* over the same tasks as at any other edge, and all of them */
	bool all; /* tasks that wait were found */
	bool failed; /* the walk, or reading the rows */
	bool chained; /* a window ended here, and the next one begins at the same moment */
};

void csf_runqlat_edge(struct csf_runqlat *r, struct csf_runqlat_edge *e);
void csf_runqlat_first_edge(struct csf_runqlat *r, struct csf_runqlat_edge *e);

/*
 * The next window begins where this one ended, when @b was begun: @a is that edge, @b is free for
 * another.
 */
void csf_runqlat_next(struct csf_runqlat_edge *a, struct csf_runqlat_edge *b);
void csf_runqlat_edge_free(struct csf_runqlat_edge *e);

#endif /* CSF_RUNQLAT_LOAD_H */
