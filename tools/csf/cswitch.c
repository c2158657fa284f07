// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "count.h"
#include "csf.h"

#include <errno.h>

#include "cswitch.skel.h"

static int load(struct csf_count *c)
{
	struct cswitch_bpf *skel = cswitch_bpf__open();
	int err;

	if (!skel)
		return -errno;
	c->own = skel;
	skel->rodata->only_tgid = c->watch.pid;
	skel->rodata->only_tid = c->watch.tid;
	skel->rodata->only_cgroup = c->cgroup.id;
	skel->rodata->only_cgroup_level = c->cgroup.level;
	bpf_program__set_autoattach(skel->progs.edge_walk, false);
	err = cswitch_bpf__load(skel);
	if (!err)
		err = cswitch_bpf__attach(skel);
	c->obj = skel->obj;
	c->state = &skel->bss->edge_state;
	return err;
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
	.unload = unload,
};

int csf_cswitch(int argc, char **argv)
{
	return csf_count_run(&counter, NULL, argc, argv);
}
