// SPDX-License-Identifier: GPL-2.0
#include "window.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const csf_from_names[3] = { "wakeup", "queue", "waking" };

static const char *const row_names[] = {
	[CSF_BY_PROCESS] = "processes",
	[CSF_BY_THREAD] = "threads",
	[CSF_BY_CPU] = "cpus",
	[CSF_BY_CGROUP] = "cgroups",
};

static const char *const discard_names[CSF_DISCARDS] = {
	[CSF_NEGATIVE] = "negative",	     [CSF_STALE] = "stale",
	[CSF_UNSEEN_START] = "unseen_start", [CSF_UNSEEN_END] = "unseen_end",
	[CSF_NO_ROOM] = "no_room",	     [CSF_ROWS_FULL] = "rows_full",
	[CSF_EVENTS_LOST] = "events_lost",
};

/* How far @n is below @least or above @most. */
static int64_t outside(uint64_t n, uint64_t least, uint64_t most)
{
	return n < least ? (int64_t)(n - least) : n > most ? (int64_t)(n - most) : 0;
}

static void kernel_growth(struct csf_window *w, const struct csf_runqlat_edge *a,
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
	w->not_shown = outside(
		pcount, csf_hist_samples(&b->before.hist) - csf_hist_samples(&a->after.hist),
		csf_hist_samples(&b->after.hist) - csf_hist_samples(&a->before.hist));
}

bool csf_window_compare(struct csf_window *w, const struct csf_runqlat *r,
			const struct csf_runqlat_edge *a, const struct csf_runqlat_edge *b)
{
	const struct csf_runqlat_counts *then = a->chained ? &a->before : &a->after;
	const struct csf_runqlat_counts *now = &b->before;
	unsigned int i;
	int err = 0;

	memset(w, 0, sizeof(*w));
	w->hist = now->hist;
	csf_hist_subtract(&w->hist, &then->hist);
	for (i = 0; i < CSF_DISCARDS; i++)
		w->discarded[i] = now->discarded[i] - then->discarded[i];
	w->open_known = b->all;
	w->open_count = b->walk.waiting + now->open_count - then->open_count;
	w->open_ns = b->walk.waiting_ns + now->open_ns - then->open_ns;
	w->walked = a->walked && b->walked;
	if (w->walked)
		kernel_growth(w, a, b);
	w->skipped = b->skipped - a->skipped;
	if (r->options->by)
		err = csf_rows_growth(&w->rows, &b->rows_before,
				      a->chained ? &a->rows_before : &a->rows_after);
	if (r->options->watch.verify)
		err |= csf_runqlat_verify(&w->verify, r->options->from, a, b);
	if (err)
		fprintf(stderr, "csf: no memory for all rows\n");
	return !err;
}

void csf_window_free(struct csf_window *w)
{
	csf_rows_free(&w->rows);
	free(w->verify.thread);
}

static void print_discarded(FILE *f, const struct csf_window *w)
{
	const char *before = "discarded: ";
	unsigned int i;

	for (i = 0; i < CSF_DISCARDS; i++) {
		if (!w->discarded[i])
			continue;
		fprintf(f, "%s%s=%" PRIu64, before, discard_names[i], w->discarded[i]);
		before = " ";
	}
	if (w->skipped)
		fprintf(f, "%sskipped=%" PRIu64, before, w->skipped);
	if (*before == ' ' || w->skipped)
		fprintf(f, "\n");
}

/* --verify has rows of its own need. */
static bool shows_rows(const struct csf_runqlat_options *o)
{
	return o->by && !o->by_verify;
}

/* What the kernel counted as waiting and no switch that we saw ended. */
static void print_rest(FILE *f, const struct csf_window *w)
{
	fprintf(f, "ended by migration: %.3f ms, +/- %.3f", (double)w->migration_ns / 1e6,
		(double)w->uncertain_ns / 1e6);
	if (w->not_shown)
		fprintf(f, ", with %" PRId64 " switches that the kernel did not show",
			w->not_shown);
	fprintf(f, "\n");
}

void csf_window_print(FILE *f, const struct csf_runqlat *r, const struct csf_window *w)
{
	const struct csf_runqlat_options *o = r->options;

	if (shows_rows(o))
		csf_rows_print(f, &w->rows, o->by, o->unit_ns);
	csf_hist_print_table(f, &w->hist);
	if (w->open_known && w->open_count)
		fprintf(f, "open: %" PRIu64 " waits, %.3f ms of them seen\n", w->open_count,
			(double)w->open_ns / 1e6);
	print_discarded(f, w);
	if (o->from == CSF_FROM_QUEUE && w->walked)
		print_rest(f, w);
	if (o->watch.stats)
		csf_cost_print(&r->cost, r->object, f);
	if (o->watch.verify)
		csf_runqlat_verify_print(f, &w->verify);
	csf_hist_print_percentiles(f, &w->hist);
	csf_hist_print_sum(f, &w->hist);
}

static void add_number(struct json_object *o, const char *name, uint64_t n)
{
	json_object_object_add(o, name, json_object_new_uint64(n));
}

static struct json_object *json_discarded(const struct csf_window *w)
{
	struct json_object *o = json_object_new_object();
	unsigned int i;

	for (i = 0; i < CSF_DISCARDS; i++)
		if (discard_names[i])
			add_number(o, discard_names[i], w->discarded[i]);
	add_number(o, "skipped", w->skipped);
	return o;
}

static struct json_object *json_open(const struct csf_window *w)
{
	struct json_object *o = json_object_new_object();

	add_number(o, "count", w->open_count);
	add_number(o, "wait_ns", w->open_ns);
	return o;
}

static struct json_object *json_stats(const struct csf_runqlat *r)
{
	struct json_object *o = NULL;
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	csf_cost_json(&r->cost, r->object, f);
	if (!fclose(f))
		o = json_tokener_parse(text);
	free(text);
	return o;
}

static void add_kernel_growth(struct json_object *doc, const struct csf_window *w)
{
	json_object_object_add(doc, "ended_by_migration_ns",
			       json_object_new_int64(w->migration_ns));
	add_number(doc, "uncertain_ns", w->uncertain_ns);
	json_object_object_add(doc, "not_shown", json_object_new_int64(w->not_shown));
}

struct json_object *csf_window_json(const struct csf_runqlat *r, const struct csf_window *w)
{
	const struct csf_runqlat_options *o = r->options;
	struct json_object *doc = json_object_new_object();
	char seconds[32];

	json_object_object_add(doc, "tool", json_object_new_string("runqlat"));
	json_object_object_add(doc, "from", json_object_new_string(csf_from_names[o->from]));
	snprintf(seconds, sizeof(seconds), "%.6f", csf_watch_seconds(&o->watch));
	json_object_object_add(doc, "seconds",
			       json_object_new_double_s(csf_watch_seconds(&o->watch), seconds));
	csf_hist_json(doc, &w->hist);
	if (w->open_known)
		json_object_object_add(doc, "open", json_open(w));
	json_object_object_add(doc, "discarded", json_discarded(w));
	if (o->from == CSF_FROM_QUEUE && w->walked)
		add_kernel_growth(doc, w);
	if (shows_rows(o))
		json_object_object_add(doc, row_names[o->by],
				       csf_rows_json(&w->rows, o->by, o->unit_ns));
	if (o->watch.stats)
		json_object_object_add(doc, "stats", json_stats(r));
	if (o->watch.verify)
		json_object_object_add(doc, "verify", csf_runqlat_verify_json(&w->verify));
	return doc;
}
