// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "count.h"
#include "bpf/explain.h"
#include "bpf/probe.h"
#include "csf.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct csf_count *c = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &c->watch;
		state->child_inputs[1] = &c->table;
		return 0;
	case ARGP_KEY_ARG:
		if (state->arg_num)
			argp_error(state, "'%s' is one argument too many", arg);
		c->watch.seconds = csf_number(arg, "SECONDS", 1, 1u << 30);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

uint32_t csf_count_namespace(void)
{
	const uint32_t machine = 0xeffffffc; /* PROC_PID_INIT_INO */
	struct stat st;

	if (stat("/proc/self/ns/pid", &st) || st.st_ino == machine)
		return 0;
	return st.st_ino;
}

static void parse_arguments(struct csf_count *c, int argc, char **argv)
{
	const struct argp_child children[] = { { &csf_watch_argp, 0, NULL, 0 },
					       { &csf_table_argp, 0, NULL, 0 },
					       { 0 } };
	const struct argp argp = { NULL, parse, "[SECONDS]", c->counter->doc, children, NULL, NULL };

	argp_parse(&argp, argc, argv, 0, NULL, c);
}

static int load_plain(struct csf_count *c)
{
	int err;

	if (c->watch.cgroup) {
		csf_explain_no_btf("--cgroup");
		return CSF_EXIT_FAIL;
	}
	c->plain = true;
	err = c->counter->load_plain(c);
	if (err < 0)
		csf_explain_load(err);
	return err ? CSF_EXIT_FAIL : 0;
}

static int load(struct csf_count *c)
{
	int err;

	csf_explain_begin();
	if (c->watch.no_btf || !csf_has_btf())
		return load_plain(c);
	err = c->counter->load(c);
	if (!err)
		err = csf_edges_begin(&c->edges, c->obj, c->state, &c->tasks);
	if (!err)
		return 0;
	csf_explain(err, 5, 8);
	return CSF_EXIT_FAIL;
}

struct loss {
	const char *name;
	const char *what;
	uint64_t nr;
};

#define NR_LOSSES 9

static void find_losses(const struct csf_count *c, struct loss *l)
{
	const uint64_t *lost = c->tasks.lost;

	l[0] = (struct loss){ "unfinished", "tasks that ended, but whose final counts never came",
			      lost[CSF_LOSS_UNFINISHED] };
	l[1] = (struct loss){ "moved",
			      "tasks that came into the cgroup or left it inside the window",
			      lost[CSF_LOSS_MOVED] };
	l[2] = (struct loss){ "memory", "tasks for which there was no memory",
			      lost[CSF_LOSS_MEMORY] };
	l[3] = (struct loss){ "backwards", "counts that went backwards", lost[CSF_LOSS_BACKWARDS] };
	l[4] = (struct loss){ "births", "births that came too fast to be noted",
			      csf_edges_lost(&c->edges, CSF_EDGE_BORN) };
	l[5] = (struct loss){ "ends", "ends that came too fast to be noted",
			      csf_edges_lost(&c->edges, CSF_EDGE_FREED) };
	l[7] = (struct loss){ "unseen", "tasks that were born and ended in the window",
			      lost[CSF_LOSS_UNSEEN] };
	l[8] = (struct loss){ "appeared",
			      "tasks that were there at the end, but neither at the beginning "
			      "nor seen to be born",
			      lost[CSF_LOSS_APPEARED] };
	l[6] = (struct loss){ "uncounted", "wakeups of tasks that could not be given a counter",
			      csf_edges_failed(&c->edges) };
}

static uint64_t maps_kib(const struct csf_count *c)
{
	return c->obj ? csf_cost_maps(c->obj) : 0;
}

static void print_stats(struct csf_count *c, FILE *f)
{
	if (c->obj)
		csf_cost_print(&c->cost, c->obj, f);
	fprintf(f,
		"cost: %" PRIu64 " us for the walk, %" PRIu64 " births and ends, %" PRIu64
		" KiB resident, %" PRIu64 " KiB of maps\n",
		c->edges.walk_ns / 1000, c->edges.records, csf_cost_resident(), maps_kib(c));
}

static void print_text(struct csf_count *c, const struct csf_lines *lines, FILE *f)
{
	const struct csf_columns *columns = &c->counter->columns;
	struct loss l[NR_LOSSES];
	int i;

	if (c->later)
		fprintf(f, "\n");
	csf_table_print(&c->table, lines, f);
	if (c->counter->print)
		c->counter->print(c, f);
	fprintf(f, "tasks=%zu %s=%" PRIu64 " %s=%" PRIu64 " seconds=%.3f\n", lines->nr,
		columns->names[0], lines->sum[0], columns->names[1], lines->sum[1],
		csf_watch_seconds(&c->watch));
	find_losses(c, l);
	for (i = 0; i < NR_LOSSES; i++)
		if (l[i].nr)
			fprintf(f, "not counted: %" PRIu64 " %s\n", l[i].nr, l[i].what);
	if (c->watch.verify)
		csf_verify_print(&c->verify, &c->tasks, columns, f);
	if (c->watch.stats)
		print_stats(c, f);
}

static void json_stats(struct csf_count *c, FILE *f)
{
	fprintf(f,
		",\"stats\":{\"walk_ns\":%" PRIu64 ",\"records\":%" PRIu64
		",\"resident_kib\":%" PRIu64 ",\"maps_kib\":%" PRIu64 ",\"programs\":",
		c->edges.walk_ns, c->edges.records, csf_cost_resident(), maps_kib(c));
	if (c->obj)
		csf_cost_json(&c->cost, c->obj, f);
	else
		fprintf(f, "{}");
	fprintf(f, "}");
}

/* Written as it goes: objects for all tasks would take more memory than the tasks. */
static void print_json(struct csf_count *c, const struct csf_lines *lines, FILE *f)
{
	struct loss l[NR_LOSSES];
	const char *comma = "";
	int i;

	fprintf(f, "{\"tool\":\"%s\",\"seconds\":%.6f,", c->counter->name,
		csf_watch_seconds(&c->watch));
	csf_table_json(&c->table, lines, f);
	if (c->counter->json)
		c->counter->json(c, f);
	fprintf(f, ",\"discarded\":{");
	find_losses(c, l);
	for (i = 0; i < NR_LOSSES; i++, comma = ",")
		fprintf(f, "%s\"%s\":%" PRIu64, comma, l[i].name, l[i].nr);
	fprintf(f, "}");
	if (c->watch.verify)
		csf_verify_json(&c->verify, &c->tasks, &c->counter->columns, f);
	if (c->watch.stats)
		json_stats(c, f);
	fprintf(f, "}\n");
}

static int report(struct csf_count *c)
{
	struct csf_lines lines;
	FILE *f;

	if (!csf_lines_make(&lines, &c->table, &c->tasks))
		return CSF_EXIT_FAIL;
	f = csf_report_begin();
	if (c->watch.json)
		print_json(c, &lines, f);
	else
		print_text(c, &lines, f);
	csf_report_end(&c->watch, f);
	csf_lines_free(&lines);
	return 0;
}

/* Where nobody tells of births, the kernel's count of them tells how many of the born are not there any more. */
static void find_unseen(struct csf_count *c)
{
	uint64_t births = csf_proc_births(), born = births - c->births;

	if (!c->tasks.no_ends || c->watch.pid || c->watch.tid)
		return;
	if (c->births && born > c->tasks.new_tasks)
		c->tasks.lost[CSF_LOSS_UNSEEN] = born - c->tasks.new_tasks;
	c->births = births;
}

static int edge(struct csf_count *c)
{
	int err;

	if (c->watch.verify && !csf_verify_before(&c->verify))
		return CSF_EXIT_FAIL;
	csf_watch_edge(&c->watch, csf_now_ns());
	err = csf_edges_walk(&c->edges);
	find_unseen(c);
	if (c->counter->edge)
		c->counter->edge(c);
	if (!err && c->watch.verify &&
	    !csf_verify_after(&c->verify, &c->tasks, &c->counter->columns))
		err = CSF_EXIT_FAIL;
	return err;
}

static int window(struct csf_count *c)
{
	const struct csf_watch_also also = csf_edges_also(&c->edges);

	csf_edges_next(&c->edges);
	csf_watch_begin(&c->watch);
	csf_watch_wait(&c->watch, &also);
	if (edge(c))
		return CSF_EXIT_FAIL;
	csf_edges_settle(&c->edges, &c->watch);
	return report(c) | (csf_verify_next(&c->verify) ? 0 : CSF_EXIT_FAIL);
}

static int watch(struct csf_count *c)
{
	int err = edge(c) || window(c);

	while (!err && csf_watch_more(&c->watch)) {
		c->later = true;
		err = window(c);
	}
	return err;
}

int csf_count_run(const struct csf_counter *counter, void *own, int argc, char **argv)
{
	struct csf_count c = { .counter = counter, .own = own };
	int err;

	c.table.columns = &counter->columns;
	c.table.sort = counter->sort;
	c.cost.fd = -1;
	parse_arguments(&c, argc, argv);
	err = csf_watch_prepare(&c.watch);
	if (err)
		return err;
	c.verify.what = counter->proc;
	c.verify.tgid = c.watch.pid;
	c.verify.tid = c.watch.tid;
	if (c.watch.stats)
		csf_cost_begin(&c.cost);
	csf_tasks_begin(&c.tasks, c.table.per_thread);
	c.tasks.may_move = c.watch.cgroup;
	err = load(&c);
	if (!err)
		err = watch(&c);
	csf_edges_end(&c.edges);
	counter->unload(&c);
	csf_verify_free(&c.verify);
	csf_tasks_end(&c.tasks);
	csf_cost_end(&c.cost);
	return csf_watch_end(&c.watch) || err ? CSF_EXIT_FAIL : 0;
}
