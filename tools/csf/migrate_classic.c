// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "migrate_classic.h"
#include "csf.h"
#include "bpf/explain.h"
#include "format.h"
#include "migrate.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "migrate_classic.skel.h"

static int find_fields(struct csf_migrate_records *r)
{
	r->woken_pid = csf_format_offset("sched_wakeup", "pid", 4);
	r->moved_pid = csf_format_offset("sched_migrate_task", "pid", 4);
	r->moved_from = csf_format_offset("sched_migrate_task", "orig_cpu", 4);
	r->moved_to = csf_format_offset("sched_migrate_task", "dest_cpu", 4);
	r->freed_pid = csf_format_offset("sched_process_free", "pid", 4);
	if (r->woken_pid && r->moved_pid && r->moved_from && r->moved_to && r->freed_pid)
		return 0;
	csf_format_explain();
	return CSF_EXIT_FAIL;
}

/* What takes more than a TID. */
static int check_options(const struct csf_watch *w)
{
	const char *what = w->pid    ? "--pid (use --tid for a thread)" :
			   w->verify ? "--verify" :
				       NULL;

	if (!what)
		return 0;
	csf_explain_no_btf(what);
	return CSF_EXIT_FAIL;
}

/* The process and the name are where the thread's directory is, which /proc finds by the TID. */
static void name(struct csf_edge_task *e)
{
	char path[64], line[128];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/status", e->tid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		sscanf(line, "Name: %15[^\n]", e->comm);
		if (sscanf(line, "Tgid: %" SCNu32, &e->tgid) == 1)
			break;
	}
	if (f)
		fclose(f);
}

static int walk(struct csf_edges *edges)
{
	const struct csf_count *c = edges->walk_arg;
	int fd = bpf_object__find_map_fd_by_name(c->obj, "tasks");
	struct csf_edge_task e = { .kind = CSF_EDGE_ALIVE, .walk = edges->state->walk };
	struct csf_migrate_task t;
	uint32_t tid, *last = NULL;

	while (!bpf_map_get_next_key(fd, last, &tid)) {
		last = &tid;
		if (bpf_map_lookup_elem(fd, &tid, &t))
			continue;
		memcpy(e.comm, t.comm, sizeof(e.comm));
		e.task = e.tid = tid;
		e.tgid = t.tgid ? t.tgid : tid;
		memcpy(e.count, t.count, sizeof(e.count));
		if (!t.tgid) /* it has not ended yet */
			name(&e);
		e.process = e.tgid;
		csf_tasks_take(edges->tasks, &e);
	}
	return 0;
}

static void set_options(struct migrate_classic_bpf *skel, const struct csf_count *c,
			const struct csf_migrate_records *records, int nr_cpus)
{
	skel->rodata->records = *records;
	skel->rodata->only_tid = c->watch.tid;
	skel->rodata->nr_cpus = nr_cpus;
	bpf_map__set_max_entries(skel->maps.tasks, c->watch.max_tasks);
	bpf_map__set_max_entries(skel->maps.moves, nr_cpus * nr_cpus);
}

int csf_migrate_classic_load(struct csf_count *c, struct migrate_classic_bpf **loaded, int nr_cpus,
			     int (*map_moves)(void *own, int fd))
{
	struct csf_migrate_records records;
	struct migrate_classic_bpf *skel;
	int err;

	if (check_options(&c->watch) || csf_watch_kernel_pids(&c->watch) || find_fields(&records))
		return CSF_EXIT_FAIL;
	skel = *loaded = migrate_classic_bpf__open();
	if (!skel)
		return -errno;
	set_options(skel, c, &records, nr_cpus);
	err = migrate_classic_bpf__load(skel);
	if (!err)
		err = map_moves(c->own, bpf_map__fd(skel->maps.moves));
	if (!err)
		err = migrate_classic_bpf__attach(skel);
	if (err)
		return err;
	c->obj = skel->obj;
	c->edges.walk_fn = walk;
	c->edges.walk_arg = c;
	return csf_edges_begin_plain(&c->edges, c->obj, &skel->bss->edge_state, &c->tasks);
}

void csf_migrate_classic_unload(struct migrate_classic_bpf *skel)
{
	migrate_classic_bpf__destroy(skel);
}
