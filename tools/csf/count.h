/* SPDX-License-Identifier: GPL-2.0 */
/* The course of the commands that count something of each task: edges, report, next window. */
#ifndef CSF_COUNT_H
#define CSF_COUNT_H

#include "cost.h"
#include "edges.h"
#include "table.h"
#include "tasks.h"
#include "verify.h"
#include "watch.h"

struct csf_count;

/* What such a command brings. */
struct csf_counter {
	const char *name;
	const char *doc; /* for --help */
	struct csf_columns columns;
	int sort; /* unless --sort says otherwise */
	/* Opens and loads its programs and attaches them; c->obj and c->state. 0 or a negative error. */
	int (*load)(struct csf_count *c);
	/* The same without BTF, and csf_edges_begin_plain(). */
	int (*load_plain)(struct csf_count *c);
	void (*unload)(struct csf_count *c);
	/* More to report; NULL: nothing. */
	void (*print)(struct csf_count *c, FILE *f);
	void (*json)(struct csf_count *c, FILE *f); /* members, each with a comma before it */
	void (*edge)(struct csf_count *c); /* right after a walk; NULL: nothing */
	unsigned int proc; /* what of /proc has the same counts, for --verify */
};

struct csf_count {
	const struct csf_counter *counter;
	struct csf_watch watch;
	struct csf_table table;
	struct csf_tasks tasks;
	struct csf_edges edges;
	struct csf_cost cost;
	struct csf_verify verify;
	struct bpf_object *obj;
	struct csf_edge_state *state;
	bool plain; /* there is no BTF */
	bool later; /* a window after the first */
	uint64_t births; /* of all tasks, when the window began; where nobody tells */
	void *own; /* the command's */
};

/*
 * Tells the programs what to look for. The numbers of a PID namespace that is not the machine's mean
 * nothing to filters outside of edge.bpf.h.
 */
#define CSF_COUNT_FILTER(c, rodata)                                \
	do {                                                       \
		(rodata)->edge_namespace = csf_count_namespace();  \
		if ((rodata)->edge_namespace) {                    \
			(rodata)->edge_tgid = (c)->watch.pid;      \
			(rodata)->edge_tid = (c)->watch.tid;       \
		} else {                                           \
			(rodata)->only_tgid = (c)->watch.pid;      \
			(rodata)->only_tid = (c)->watch.tid;       \
		}                                                  \
		(rodata)->only_cgroup = (c)->watch.in.id;          \
		(rodata)->only_cgroup_level = (c)->watch.in.level; \
	} while (0)

/* The number of our PID namespace; 0 if it is the machine's. */
uint32_t csf_count_namespace(void);

int csf_count_run(const struct csf_counter *counter, void *own, int argc, char **argv);

#endif /* CSF_COUNT_H */
