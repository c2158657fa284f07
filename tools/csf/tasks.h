/* SPDX-License-Identifier: GPL-2.0 */
/* The counts of each task, or of each process, in a window: what the programs of edge.bpf.h tell, put together. */
#ifndef CSF_TASKS_H
#define CSF_TASKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "edge.h"

/* What could not be counted, and why. */
enum csf_tasks_loss {
	CSF_LOSS_UNFINISHED, /* ended, but the kernel has not told the final counts */
	CSF_LOSS_MOVED, /* came into the watched cgroup inside the window, or left it: counts unknown */
	CSF_LOSS_APPEARED, /* the same where no cgroup is watched: nobody told of a birth */
	CSF_LOSS_MEMORY, /* no memory to remember the task */
	CSF_LOSS_BACKWARDS, /* a count that shrank, which must not happen */
	CSF_LOSS_UNSEEN, /* born and ended in the window, where only /proc tells of tasks */
	CSF_LOSSES,
};

struct csf_task_row {
	uint64_t task; /* its address; 0: it has ended */
	uint64_t last[CSF_EDGE_COUNTS]; /* since birth */
	uint64_t count[CSF_EDGE_COUNTS]; /* in this window */
	uint32_t tid;
	uint32_t process; /* an index */
	uint32_t next; /* of the same hash value */
	uint32_t walk; /* the last that saw it */
	char comm[16];
};

struct csf_process_row {
	uint64_t process; /* its address; 0: all of its threads have ended, and no more can come */
	uint64_t count[CSF_EDGE_COUNTS];
	uint32_t tgid;
	uint32_t live; /* threads */
	uint32_t next;
	char comm[16];
};

/* Rows found by an address, and used again. */
struct csf_pool {
	char *rows;
	uint32_t *buckets;
	uint32_t nr; /* rows ever used; row 0 is nobody's */
	uint32_t size;
	uint32_t mask;
	uint32_t free; /* the first of a list */
};

struct csf_edge_list {
	struct csf_edge_task *edges;
	size_t nr;
};

struct csf_tasks {
	struct csf_pool tasks, processes;
	bool no_births; /* nobody tells of them: whoever is new was born in the window */
	bool no_ends; /* nor of ends */
	bool may_move; /* a cgroup is watched, which tasks join and leave */
	bool per_thread; /* else rows of tasks that ended are given up at once */
	uint32_t walk; /* that began the window */
	bool closing; /* the walk at the end is done; what came later is kept for the next window */
	uint64_t new_tasks; /* in this window, where nobody tells of births */
	struct csf_edge_list later;
	struct csf_edge_list strangers; /* seen by that walk, but not known to have been born */
	uint64_t lost[CSF_LOSSES];
};

/* The first walk has number 1. */
void csf_tasks_begin(struct csf_tasks *t, bool per_thread);

/* To be called with all records, in the order in which they come: those of the ring before a walk, then the walk's. */
void csf_tasks_take(struct csf_tasks *t, const struct csf_edge_task *e);

/* All records of the walk that ends the window, or lies before the first, have been taken. */
void csf_tasks_close(struct csf_tasks *t);

/* How many tasks have ended in the window whose final counts are still to come. */
uint32_t csf_tasks_unfinished(struct csf_tasks *t);

/* Of those that the walk did not see, the ones that live have left the watched cgroup. */
void csf_tasks_leave(struct csf_tasks *t, bool (*lives)(uint32_t tid));

/* No more are waited for: what is missing is counted as lost, and the window can be reported. */
void csf_tasks_settle(struct csf_tasks *t);

/* The next window begins where the walk was. */
void csf_tasks_next(struct csf_tasks *t);

void csf_tasks_end(struct csf_tasks *t);

static inline struct csf_task_row *csf_task_row(const struct csf_tasks *t, uint32_t i)
{
	return (struct csf_task_row *)t->tasks.rows + i;
}

static inline struct csf_process_row *csf_process_row(const struct csf_tasks *t, uint32_t i)
{
	return (struct csf_process_row *)t->processes.rows + i;
}

#endif /* CSF_TASKS_H */
