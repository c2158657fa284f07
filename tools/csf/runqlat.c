// SPDX-License-Identifier: GPL-2.0
/* csf runqlat: how long tasks wait for a CPU. */
#define _GNU_SOURCE
#include "csf.h"
#include "runqlat_load.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_NS = 256, OPT_FROM, OPT_CPU, OPT_CGROUP, OPT_COMM, OPT_OVER };

static const struct argp_option options[] = {
	{ "from", OPT_FROM, "WHEN", 0,
	  "Waits begin at wakeup (default), waking, or queue: the kernel's own count", 0 },
	{ "milliseconds", 'm', NULL, 0, "Buckets of milliseconds", 0 },
	{ "ns", OPT_NS, NULL, 0, "Buckets of nanoseconds", 0 },
	{ "comm", OPT_COMM, "NAME", 0, "Only tasks of this name", 0 },
	{ 0 },
};

static const char *const from_names[] = { "wakeup", "queue", "waking" };

static enum csf_from parse_from(const char *arg)
{
	unsigned int i;

	for (i = 0; i < sizeof(from_names) / sizeof(*from_names); i++)
		if (!strcmp(arg, from_names[i]))
			return i;
	fprintf(stderr, "csf: --from must be wakeup, queue or waking, not '%s'\n", arg);
	exit(CSF_EXIT_USAGE);
}

static error_t parse_argument(struct argp_state *state, char *arg, struct csf_watch *w)
{
	switch (state->arg_num) {
	case 0:
		w->seconds = csf_number(arg, "SECONDS", 1, 1u << 30);
		return 0;
	case 1:
		w->pid = csf_number(arg, "PID", 1, 1u << 22);
		return 0;
	default:
		argp_error(state, "'%s' is one argument too many", arg);
		return EINVAL;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct csf_runqlat_options *o = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &o->watch;
		return 0;
	case 'm':
		o->unit_ns = 1000000;
		return 0;
	case OPT_NS:
		o->unit_ns = 1;
		return 0;
	case OPT_FROM:
		o->from = parse_from(arg);
		return 0;
	case OPT_COMM:
		o->comm = arg;
		return 0;
	case ARGP_KEY_ARG:
		return parse_argument(state, arg, &o->watch);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_child children[] = { { &csf_watch_argp, 0, NULL, 0 }, { 0 } };

static const struct argp argp = {
	options,
	parse,
	"[SECONDS [PID]]",
	"Show how long tasks wait for a CPU, as a histogram: for SECONDS, or until Ctrl-C."
	"\vNeeds root, or CAP_BPF and CAP_PERFMON. See csf-runqlat(8).",
	children,
	NULL,
	NULL
};

static const char *const discard_names[CSF_DISCARDS] = {
	[CSF_NEGATIVE] = "negative",	     [CSF_STALE] = "stale",
	[CSF_UNSEEN_START] = "unseen_start", [CSF_UNSEEN_END] = "unseen_end",
	[CSF_NO_ROOM] = "no_room",	     [CSF_ROWS_FULL] = "rows_full",
	[CSF_EVENTS_LOST] = "events_lost",
};

/* A window that is over: differences between its edges. */
struct window {
	struct csf_hist hist;
	uint64_t discarded[CSF_DISCARDS];
	uint64_t open_count;
	uint64_t open_ns;
	bool walked;
	/* --from queue: what the kernel counted and no switch showed, give or take */
	int64_t migration_ns;
	uint64_t uncertain_ns;
	int64_t unseen;
};

static void kernel_growth(struct window *w, const struct csf_runqlat_edge *a,
			  const struct csf_runqlat_edge *b)
{
	uint64_t delay = b->walk.run_delay_ns + b->after.gone_delay_ns - a->walk.run_delay_ns -
			 a->after.gone_delay_ns;
	uint64_t pcount =
		b->walk.pcount + b->after.gone_pcount - a->walk.pcount - a->after.gone_pcount;
	uint64_t least = b->before.hist.total_ns - a->after.hist.total_ns;
	uint64_t most = b->after.hist.total_ns - a->before.hist.total_ns;

	w->uncertain_ns = (most - least + 1) / 2;
	w->migration_ns = (int64_t)(delay - least - (most - least) / 2);
	w->unseen = (int64_t)(pcount - csf_hist_samples(&w->hist));
}

static void compare_edges(struct window *w, const struct csf_runqlat_edge *a,
			  const struct csf_runqlat_edge *b)
{
	unsigned int i;

	memset(w, 0, sizeof(*w));
	w->hist = b->before.hist;
	csf_hist_subtract(&w->hist, &a->after.hist);
	for (i = 0; i < CSF_DISCARDS; i++)
		w->discarded[i] = b->before.discarded[i] - a->after.discarded[i];
	w->open_count = b->walk.waiting + b->before.open_count - a->after.open_count;
	w->open_ns = b->walk.waiting_ns + b->before.open_ns - a->after.open_ns;
	w->walked = a->walked && b->walked;
	if (w->walked)
		kernel_growth(w, a, b);
}

static void print_discarded(FILE *f, const struct window *w)
{
	const char *before = "discarded: ";
	unsigned int i;

	for (i = 0; i < CSF_DISCARDS; i++) {
		if (!w->discarded[i])
			continue;
		fprintf(f, "%s%s=%" PRIu64, before, discard_names[i], w->discarded[i]);
		before = " ";
	}
	if (*before == ' ')
		fprintf(f, "\n");
}

/* What the kernel counted as waiting and no switch that we saw ended. */
static void print_rest(FILE *f, const struct window *w)
{
	fprintf(f, "ended by migration: %.3f ms, +/- %.3f", (double)w->migration_ns / 1e6,
		(double)w->uncertain_ns / 1e6);
	if (w->unseen)
		fprintf(f, ", with %" PRId64 " switches that the kernel did not show", w->unseen);
	fprintf(f, "\n");
}

static void print_window(FILE *f, const struct csf_runqlat_options *o, const struct window *w)
{
	csf_hist_print_table(f, &w->hist);
	if (w->open_count)
		fprintf(f, "open: %" PRIu64 " waits, %.3f ms so far\n", w->open_count,
			(double)w->open_ns / 1e6);
	print_discarded(f, w);
	if (o->from == CSF_FROM_QUEUE && w->walked)
		print_rest(f, w);
	csf_hist_print_percentiles(f, &w->hist);
	csf_hist_print_sum(f, &w->hist);
}

static void add_number(struct json_object *o, const char *name, uint64_t n)
{
	json_object_object_add(o, name, json_object_new_uint64(n));
}

static struct json_object *json_discarded(const struct window *w)
{
	struct json_object *o = json_object_new_object();
	unsigned int i;

	for (i = 0; i < CSF_DISCARDS; i++)
		if (discard_names[i])
			add_number(o, discard_names[i], w->discarded[i]);
	return o;
}

static struct json_object *json_window(const struct csf_runqlat_options *o, const struct window *w)
{
	struct json_object *doc = json_object_new_object(), *open = json_object_new_object();

	json_object_object_add(doc, "tool", json_object_new_string("runqlat"));
	json_object_object_add(doc, "from", json_object_new_string(from_names[o->from]));
	json_object_object_add(doc, "seconds",
			       json_object_new_double(csf_watch_seconds(&o->watch)));
	csf_hist_json(doc, &w->hist);
	add_number(open, "count", w->open_count);
	add_number(open, "wait_ns", w->open_ns);
	json_object_object_add(doc, "open", open);
	json_object_object_add(doc, "discarded", json_discarded(w));
	if (o->from == CSF_FROM_QUEUE && w->walked) {
		json_object_object_add(doc, "ended_by_migration_ns",
				       json_object_new_int64(w->migration_ns));
		add_number(doc, "uncertain_ns", w->uncertain_ns);
		json_object_object_add(doc, "not_shown", json_object_new_int64(w->unseen));
	}
	return doc;
}

static void report(struct csf_runqlat_options *o, const struct csf_runqlat_edge *a,
		   const struct csf_runqlat_edge *b)
{
	FILE *f = csf_report_begin();
	struct window w;

	compare_edges(&w, a, b);
	if (o->watch.json)
		csf_report_json(f, json_window(o, &w));
	else
		print_window(f, o, &w);
	csf_report_end(&o->watch, f);
}

/* The next window begins where this one ended. */
static void move_on(struct csf_runqlat_edge *a, struct csf_runqlat_edge *b)
{
	free(a->tasks);
	*a = *b;
	a->after = a->before;
	memset(b, 0, sizeof(*b));
}

static int watch(struct csf_runqlat *r, struct csf_runqlat_options *o)
{
	struct csf_runqlat_edge a = { 0 }, b = { 0 };
	bool more;

	csf_runqlat_mark(r);
	csf_runqlat_edge(r, &a);
	do {
		csf_watch_begin(&o->watch);
		csf_watch_wait(&o->watch, NULL);
		csf_runqlat_edge(r, &b);
		more = csf_watch_more(&o->watch);
		report(o, &a, &b);
		move_on(&a, &b);
	} while (more);
	free(a.tasks);
	return csf_watch_end(&o->watch);
}

int csf_runqlat(int argc, char **argv)
{
	static struct csf_runqlat_options o = { .unit_ns = 1000 };
	struct csf_runqlat r;
	int err;

	argp_parse(&argp, argc, argv, 0, NULL, &o);
	err = csf_watch_prepare(&o.watch);
	if (!err)
		err = csf_runqlat_load(&r, &o);
	if (err)
		return err;
	err = watch(&r, &o);
	csf_runqlat_unload(&r);
	return err;
}
