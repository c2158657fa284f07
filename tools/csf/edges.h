/* SPDX-License-Identifier: GPL-2.0 */
/* Runs the programs of edge.bpf.h: walks at the edges, and in between the ring of births and ends. */
#ifndef CSF_EDGES_H
#define CSF_EDGES_H

#include <bpf/libbpf.h>
#include <stdbool.h>
#include <stdint.h>

#include "edge.h"
#include "tasks.h"
#include "watch.h"

struct csf_edges {
	struct bpf_link *walk; /* NULL: there are no iterators, so walk_fn does it */
	int (*walk_fn)(struct csf_edges *e); /* 0 or a negative error */
	void *walk_arg;
	struct ring_buffer *ring;
	volatile struct csf_edge_state *state;
	struct csf_tasks *tasks;
	struct csf_edge_state before, now; /* the state when the window began, and when it ended */
	uint64_t walk_ns; /* what the last walk took */
	uint64_t records; /* taken from the ring */
};

/* Of a skeleton that is loaded and attached, but for its iterator. 0 or a negative error. */
int csf_edges_begin(struct csf_edges *e, struct bpf_object *obj, struct csf_edge_state *state,
		    struct csf_tasks *tasks);

/* Without BTF: @obj has a ring of ends at most, or is NULL, and @walk finds the tasks. */
int csf_edges_begin_plain(struct csf_edges *e, struct bpf_object *obj, struct csf_edge_state *state,
			  struct csf_tasks *tasks);

/* The edge is now. Then csf_tasks_close() has been called. 0, or the exit code after a message. */
int csf_edges_walk(struct csf_edges *e);

/* For csf_watch_wait(). */
struct csf_watch_also csf_edges_also(struct csf_edges *e);

/* Waits for the final counts of tasks that ended in the window; a signal ends that. */
void csf_edges_settle(struct csf_edges *e, struct csf_watch *w);

/* In this window: records that did not fit into the ring, and events without a counter. */
uint64_t csf_edges_lost(const struct csf_edges *e, enum csf_edge_kind kind);
uint64_t csf_edges_failed(const struct csf_edges *e);

void csf_edges_next(struct csf_edges *e); /* after the report */
void csf_edges_end(struct csf_edges *e);

#endif /* CSF_EDGES_H */
