// SPDX-License-Identifier: GPL-2.0
/* csf runqlat: how long tasks wait for a CPU. */
#define _GNU_SOURCE
#include "csf.h"
#include "runqlat_load.h"
#include "slow.h"
#include "window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_NS = 256, OPT_FROM, OPT_CPU, OPT_CGROUP, OPT_COMM, OPT_OVER };

static const struct argp_option options[] = {
	{ "from", OPT_FROM, "WHEN", 0,
	  "Waits begin at wakeup (default), waking, or queue: the kernel's own count", 0 },
	{ "milliseconds", 'm', NULL, 0, "Buckets of milliseconds", 0 },
	{ "ns", OPT_NS, NULL, 0, "Buckets of nanoseconds", 0 },
	{ NULL, 'P', NULL, 0, "A histogram for each process", 0 },
	{ NULL, 'L', NULL, 0, "A histogram for each thread", 0 },
	{ "per-cpu", OPT_CPU, NULL, 0, "A histogram for each CPU", 0 },
	{ "per-cgroup", OPT_CGROUP, NULL, 0, "A histogram for each cgroup (v2)", 0 },
	{ "over", OPT_OVER, "USEC", 0, "Also show each longer wait, and who ran meanwhile", 0 },
	{ "comm", OPT_COMM, "NAME", 0, "Only tasks of this name", 0 },
	{ 0 },
};

static enum csf_from parse_from(const char *arg)
{
	unsigned int i;

	for (i = 0; i < sizeof(csf_from_names) / sizeof(*csf_from_names); i++)
		if (!strcmp(arg, csf_from_names[i]))
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
		if (w->pid)
			argp_error(state, "only one of PID and --pid");
		w->pid = csf_number(arg, "PID", 1, 1u << 22);
		return 0;
	default:
		argp_error(state, "'%s' is one argument too many", arg);
		return EINVAL;
	}
}

static error_t parse_breakdown(int key, struct csf_runqlat_options *o, struct argp_state *state)
{
	static const struct {
		int key;
		enum csf_by by;
	} ways[] = {
		{ 'P', CSF_BY_PROCESS },
		{ 'L', CSF_BY_THREAD },
		{ OPT_CPU, CSF_BY_CPU },
		{ OPT_CGROUP, CSF_BY_CGROUP },
	};
	unsigned int i;

	for (i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		if (ways[i].key != key)
			continue;
		if (o->by && o->by != ways[i].by)
			argp_error(state, "only one of -P, -L, --per-cpu and --per-cgroup");
		o->by = ways[i].by;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t set_unit(struct csf_runqlat_options *o, uint64_t ns, struct argp_state *state)
{
	if (o->unit_ns != 1000 && o->unit_ns != ns)
		argp_error(state, "only one of -m and --ns");
	o->unit_ns = ns;
	return 0;
}

/* No task has another name: nothing would be found, and nothing tell why. */
static const char *parse_comm(const char *arg, struct argp_state *state)
{
	size_t longest = sizeof(((struct csf_row *)0)->comm) - 1;

	if (!*arg)
		argp_error(state, "--comm: the name is empty");
	if (strlen(arg) > longest)
		argp_error(state,
			   "--comm: '%s' has %zu bytes; of names the kernel keeps the first "
			   "%zu: give those",
			   arg, strlen(arg), longest);
	return arg;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct csf_runqlat_options *o = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &o->watch;
		return 0;
	case 'm':
		return set_unit(o, 1000000, state);
	case OPT_NS:
		return set_unit(o, 1, state);
	case OPT_FROM:
		o->from = parse_from(arg);
		return 0;
	case OPT_COMM:
		o->comm = parse_comm(arg, state);
		return 0;
	case ARGP_KEY_ARG:
		return parse_argument(state, arg, &o->watch);
	case OPT_OVER:
		o->over_ns = 1000 * csf_number(arg, "--over", 1, UINT32_MAX);
		return 0;
	default:
		return parse_breakdown(key, o, state);
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

static void report(const struct csf_runqlat *r, struct csf_runqlat_options *o,
		   const struct csf_runqlat_edge *a, const struct csf_runqlat_edge *b)
{
	FILE *f = csf_report_begin();
	struct csf_window w;

	o->failed |= !csf_window_compare(&w, r, a, b);
	if (o->watch.json)
		csf_report_json(f, csf_window_json(r, &w));
	else
		csf_window_print(f, r, &w);
	csf_report_end(&o->watch, f);
	o->failed |= w.verify.failed > 0 || a->failed || b->failed;
	csf_window_free(&w);
}

static int watch(struct csf_runqlat *r, struct csf_runqlat_options *o, struct csf_slow_waits *slow)
{
	struct csf_watch_also also = csf_slow_also(slow);
	struct csf_runqlat_edge a = { 0 }, b = { 0 };

	csf_runqlat_mark(r);
	csf_runqlat_first_edge(r, &a);
	csf_watch_edge(&o->watch, a.at_ns);
	do {
		csf_watch_begin(&o->watch);
		csf_watch_wait(&o->watch, &also);
		csf_runqlat_edge(r, &b);
		csf_watch_edge(&o->watch, b.at_ns);
		csf_slow_show(slow);
		report(r, o, &a, &b);
		csf_runqlat_next(&a, &b);
	} while (csf_watch_more(&o->watch));
	csf_runqlat_edge_free(&a);
	return csf_watch_end(&o->watch);
}

static int watch_loaded(struct csf_runqlat *r, struct csf_runqlat_options *o)
{
	struct csf_slow_waits *slow = NULL;
	int err;

	if (o->over_ns) {
		slow = csf_slow_open(r->slow_fd, &o->watch);
		if (!slow) {
			fprintf(stderr, "csf: --over: %s\n", strerror(errno));
			return CSF_EXIT_FAIL;
		}
	}
	err = watch(r, o, slow);
	csf_slow_close(slow);
	return err;
}

/* Counts by thread are what the kernel's are compared with. */
static int check_options(struct csf_runqlat_options *o)
{
	if (!o->watch.verify || o->by == CSF_BY_THREAD)
		return 0;
	if (o->by) {
		fprintf(stderr, "csf: --verify compares threads: leave out the other breakdown\n");
		return CSF_EXIT_USAGE;
	}
	o->by = CSF_BY_THREAD;
	o->by_verify = true;
	return 0;
}

int csf_runqlat(int argc, char **argv)
{
	static struct csf_runqlat_options o = { .unit_ns = 1000 };
	struct csf_runqlat r;
	int err;

	argp_parse(&argp, argc, argv, 0, NULL, &o);
	err = check_options(&o);
	if (!err)
		err = csf_watch_kernel_pids(&o.watch);
	if (!err)
		err = csf_watch_prepare(&o.watch);
	if (!err)
		err = csf_runqlat_load(&r, &o);
	if (err)
		return err;
	err = watch_loaded(&r, &o);
	csf_runqlat_unload(&r);
	if (!err && o.failed)
		err = CSF_EXIT_FAIL;
	return err;
}
