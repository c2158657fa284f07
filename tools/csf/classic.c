// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "classic.h"
#include "csf.h"
#include "format.h"
#include "runqlat_classic.h"
#include "bpf/explain.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runqlat_classic.skel.h"

static int find_fields(struct csf_records *r)
{
	r->prev_pid = csf_format_offset("sched_switch", "prev_pid", 4);
	r->prev_state = csf_format_offset("sched_switch", "prev_state", sizeof(long));
	r->next_pid = csf_format_offset("sched_switch", "next_pid", 4);
	r->next_comm = csf_format_offset("sched_switch", "next_comm", 16);
	r->woken_pid = csf_format_offset("sched_wakeup", "pid", 4);
	r->freed_pid = csf_format_offset("sched_process_free", "pid", 4);
	if (r->prev_pid && r->prev_state && r->next_pid && r->next_comm && r->woken_pid &&
	    r->freed_pid)
		return 0;
	csf_format_explain();
	return CSF_EXIT_FAIL;
}

/* What takes more than a TID. */
static int check_options(const struct csf_runqlat_options *o)
{
	const char *what = o->from == CSF_FROM_QUEUE ? "--from queue" :
			   o->watch.pid		     ? "--pid (use --tid for a thread)" :
			   o->watch.cgroup	     ? "--cgroup" :
			   o->comm		     ? "--comm" :
			   o->by == CSF_BY_PROCESS   ? "-P (use -L for threads)" :
			   o->by == CSF_BY_CGROUP    ? "--per-cgroup" :
			   o->watch.verify	     ? "--verify" :
						       NULL;

	if (!what)
		return 0;
	csf_explain_no_btf(what);
	return CSF_EXIT_FAIL;
}

static void size_maps(struct runqlat_classic_bpf *skel, const struct csf_runqlat_options *o)
{
	int cpus = libbpf_num_possible_cpus();

	bpf_map__set_max_entries(skel->maps.cpus, cpus);
	bpf_map__set_max_entries(skel->maps.starts, o->watch.max_tasks);
	if (o->by)
		bpf_map__set_max_entries(skel->maps.rows, o->watch.max_tasks);
	if (!o->over_ns)
		return;
	bpf_map__set_max_entries(skel->maps.histories, cpus);
	bpf_map__set_max_entries(skel->maps.slow_waits, CSF_SLOW_BYTES);
}

static int load(struct csf_runqlat *r, const struct csf_runqlat_options *o,
		const struct csf_records *records)
{
	struct runqlat_classic_bpf *skel = runqlat_classic_bpf__open();
	int err;

	if (!skel)
		return -errno;
	r->classic = skel;
	r->object = skel->obj;
	skel->rodata->records = *records;
	skel->rodata->only_tid = o->watch.tid;
	skel->rodata->unit_ns = o->unit_ns;
	skel->rodata->over_ns = o->over_ns;
	skel->rodata->rows_by = o->by;
	bpf_program__set_autoload(skel->progs.csf_waking, o->from == CSF_FROM_WAKING);
	size_maps(skel, o);
	err = runqlat_classic_bpf__load(skel);
	if (!err)
		err = csf_runqlat_map(r, bpf_map__fd(skel->maps.cpus));
	if (!err)
		err = runqlat_classic_bpf__attach(skel);
	r->rows_fd = bpf_map__fd(skel->maps.rows);
	r->slow_fd = bpf_map__fd(skel->maps.slow_waits);
	return err;
}

int csf_classic_load(struct csf_runqlat *r, const struct csf_runqlat_options *o)
{
	struct csf_records records;
	int err = check_options(o);

	if (!err)
		err = find_fields(&records);
	if (err)
		return err;
	err = load(r, o, &records);
	if (!err)
		return 0;
	csf_explain_load(err);
	return CSF_EXIT_FAIL;
}

/* In one go: who asks for one key after another begins anew when the last one has been deleted meanwhile. */
bool csf_classic_walk(const struct csf_runqlat *r, struct csf_walk *walk)
{
	uint32_t n = bpf_map__max_entries(r->classic->maps.starts), batch, i;
	uint32_t *tids = calloc(n, sizeof(*tids));
	uint64_t *since = calloc(n, sizeof(*since)), now;
	bool ok = tids && since &&
		  (!bpf_map_lookup_batch(bpf_map__fd(r->classic->maps.starts), NULL, &batch, tids,
					 since, &n, NULL) ||
		   errno == ENOENT);

	memset(walk, 0, sizeof(*walk));
	if (!ok) {
		perror("csf: cannot read who waits");
		n = 0;
	}
	now = csf_now_ns();
	for (i = 0; i < n; i++) {
		walk->waiting += since[i] != 0;
		walk->waiting_ns += since[i] && now > since[i] ? now - since[i] : 0;
	}
	free(tids);
	free(since);
	return ok;
}

void csf_classic_unload(struct csf_runqlat *r)
{
	runqlat_classic_bpf__destroy(r->classic);
}
