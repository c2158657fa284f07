// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "edges.h"
#include "csf.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernel frees tasks after a grace period; where RCU is lazy it may take ten seconds. */
#define PATIENCE_MS 11000
#define LOOK_MS 10

static bool lives(uint32_t tid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%" PRIu32, tid);
	return !access(path, F_OK);
}

static int take(void *ctx, void *data, size_t size)
{
	struct csf_edges *e = ctx;

	(void)size;
	e->records++;
	csf_tasks_take(e->tasks, data);
	return 0;
}

int csf_edges_begin(struct csf_edges *e, struct bpf_object *obj, struct csf_edge_state *state,
		    struct csf_tasks *tasks)
{
	memset(e, 0, sizeof(*e));
	e->state = state;
	e->tasks = tasks;
	e->walk =
		bpf_program__attach_iter(bpf_object__find_program_by_name(obj, "edge_walk"), NULL);
	if (!e->walk)
		return -errno;
	e->ring =
		ring_buffer__new(bpf_object__find_map_fd_by_name(obj, "edge_ring"), take, e, NULL);
	return e->ring ? 0 : -errno;
}

int csf_edges_begin_plain(struct csf_edges *e, struct bpf_object *obj, struct csf_edge_state *state,
			  struct csf_tasks *tasks)
{
	e->state = state;
	e->tasks = tasks;
	tasks->no_births = true;
	tasks->no_ends = !obj;
	if (!obj)
		return 0;
	e->ring =
		ring_buffer__new(bpf_object__find_map_fd_by_name(obj, "edge_ring"), take, e, NULL);
	return e->ring ? 0 : -errno;
}

/* Iterators return whole records. */
static int read_tasks(struct csf_edges *e, int fd)
{
	static struct csf_edge_task records[512];
	size_t i;
	ssize_t n;

	while ((n = read(fd, records, sizeof(records))) > 0 || (n < 0 && errno == EAGAIN))
		for (i = 0; n > 0 && i < n / sizeof(*records); i++)
			csf_tasks_take(e->tasks, &records[i]);
	return (int)n;
}

static int walk_by_iterator(struct csf_edges *e)
{
	int fd = bpf_iter_create(bpf_link__fd(e->walk)), err;

	if (fd < 0)
		return fd;
	err = read_tasks(e, fd) ? -errno : 0;
	close(fd);
	return err;
}

static void take_all(struct csf_edges *e)
{
	if (e->ring)
		ring_buffer__consume(e->ring);
}

int csf_edges_walk(struct csf_edges *e)
{
	uint64_t begin = csf_now_ns();
	int err;

	e->state->walk++;
	take_all(e);
	err = e->walk ? walk_by_iterator(e) : e->walk_fn(e);
	if (err)
		fprintf(stderr, "csf: cannot walk over all tasks: %s\n", strerror(-err));
	if (!e->walk) /* who ended meanwhile, and nobody has told of its birth */
		take_all(e);
	csf_tasks_close(e->tasks);
	e->now = *e->state;
	e->walk_ns = csf_now_ns() - begin;
	return err ? CSF_EXIT_FAIL : 0;
}

static void consume(void *arg)
{
	take_all(arg);
}

struct csf_watch_also csf_edges_also(struct csf_edges *e)
{
	return (struct csf_watch_also){ e->ring ? ring_buffer__epoll_fd(e->ring) : -1, consume, e };
}

void csf_edges_settle(struct csf_edges *e, struct csf_watch *w)
{
	struct pollfd fd = { .fd = w->signal_fd, .events = POLLIN };
	int ms;

	if (w->stopped)
		csf_watch_forget_signals(w);
	take_all(e);
	if (w->cgroup)
		csf_tasks_leave(e->tasks, lives);
	for (ms = 0; e->ring && ms < PATIENCE_MS && csf_tasks_unfinished(e->tasks); ms += LOOK_MS) {
		if (poll(&fd, 1, LOOK_MS) == 1) {
			w->stopped = true;
			break;
		}
		take_all(e);
	}
	csf_tasks_settle(e->tasks);
	e->now = *e->state;
}

uint64_t csf_edges_lost(const struct csf_edges *e, enum csf_edge_kind kind)
{
	return e->now.lost[kind] - e->before.lost[kind];
}

uint64_t csf_edges_failed(const struct csf_edges *e)
{
	return e->now.failed - e->before.failed;
}

void csf_edges_next(struct csf_edges *e)
{
	e->before = e->now;
	csf_tasks_next(e->tasks);
}

void csf_edges_end(struct csf_edges *e)
{
	ring_buffer__free(e->ring);
	bpf_link__destroy(e->walk);
}
