// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "count.h"
#include "bpf/probe.h"
#include "csf.h"

#include <errno.h>
#include <string.h>

#include "cswitch.skel.h"

static int load(struct csf_count *c)
{
	struct cswitch_bpf *skel = cswitch_bpf__open();
	int err;

	if (!skel)
		return -errno;
	c->own = skel;
	CSF_COUNT_FILTER(c, skel->rodata);
	bpf_program__set_autoattach(skel->progs.edge_walk, false);
	err = cswitch_bpf__load(skel);
	if (!err)
		err = cswitch_bpf__attach(skel);
	c->obj = skel->obj;
	c->state = &skel->bss->edge_state;
	return err;
}

static void tell(struct csf_edges *e, const struct csf_proc_task *t)
{
	struct csf_edge_task edge = {
		.task = t->start << 22 ^ t->tid, /* TIDs have 22 bits */
		.process = t->tgid,
		.count = { t->voluntary, t->involuntary },
		.tid = t->tid,
		.tgid = t->tgid,
		.kind = CSF_EDGE_ALIVE,
		.walk = e->state->walk,
	};

	memcpy(edge.comm, t->comm, sizeof(edge.comm));
	csf_tasks_take(e->tasks, &edge);
}

/* Without BTF: /proc has the same counts, of who is there. */
static int walk(struct csf_edges *e)
{
	const struct csf_count *c = e->walk_arg;
	struct csf_proc_list list;
	size_t i;

	if (!csf_proc_list(c->watch.pid, c->watch.tid, CSF_PROC_STATUS | CSF_PROC_START, &list))
		return -ENOMEM;
	for (i = 0; i < list.nr; i++)
		if (list.tasks[i].has == (CSF_PROC_STATUS | CSF_PROC_START))
			tell(e, &list.tasks[i]);
	csf_proc_free(&list);
	return 0;
}

static int load_plain(struct csf_count *c)
{
	static struct csf_edge_state state;

	fprintf(stderr,
		"csf: %s: the counts are those of /proc, without tasks that end in the window\n",
		csf_has_btf() ? "--no-btf" : "this kernel has no BTF (/sys/kernel/btf/vmlinux)");
	c->edges.walk_fn = walk;
	c->edges.walk_arg = c;
	return csf_edges_begin_plain(&c->edges, NULL, &state, &c->tasks);
}

static void unload(struct csf_count *c)
{
	cswitch_bpf__destroy(c->own);
}

static const struct csf_counter counter = {
	.name = "cswitch",
	.doc = "Count the voluntary and involuntary context switches of each process, exactly, "
	       "for SECONDS or until Ctrl-C.\v"
	       "Processes and threads that were born or ended meanwhile are included. Needs root, or "
	       "CAP_BPF and CAP_PERFMON.",
	.columns = { { "VOLUNTARY", "INVOLUNT" }, { "voluntary", "involuntary" } },
	.sort = CSF_EDGE_COUNTS,
	.proc = CSF_PROC_STATUS,
	.load = load,
	.load_plain = load_plain,
	.unload = unload,
};

int csf_cswitch(int argc, char **argv)
{
	return csf_count_run(&counter, NULL, argc, argv);
}
