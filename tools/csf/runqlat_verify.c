// SPDX-License-Identifier: GPL-2.0
#include "runqlat_verify.h"
#include "printable.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * The kernel's clock and ours are read at different moments of a switch and of a wakeup: so much
 * may one wait differ, and so much a long one, by the rates of two clocks.
 */
#define SLACK_NS 20000
#define SLACK_PART 1000

static const struct csf_task_counters *find(const struct csf_runqlat_edge *e,
					    const struct csf_task_counters *t)
{
	size_t lo = 0, hi = e->nr_tasks;

	while (lo < hi) {
		size_t middle = lo + (hi - lo) / 2;

		if (e->tasks[middle].tid < t->tid)
			lo = middle + 1;
		else
			hi = middle;
	}
	if (lo < e->nr_tasks && e->tasks[lo].tid == t->tid &&
	    e->tasks[lo].start_time == t->start_time)
		return &e->tasks[lo];
	return NULL;
}

static void add_rows(struct csf_verified *v, int which, const struct csf_rows *later,
		     const struct csf_rows *earlier)
{
	const struct csf_rows_row *l = csf_rows_find(later, &v->key);
	const struct csf_rows_row *e = csf_rows_find(earlier, &v->key);

	v->samples[which] = (l ? l->samples : 0) - (e ? e->samples : 0);
	v->wait_ns[which] = (l ? l->total_ns : 0) - (e ? e->total_ns : 0);
}

/* Waits that had begun before we looked end in the kernel's counts alone. */
static bool samples_ok(const struct csf_verified *v, bool waited)
{
	return v->samples[0] <= v->pcount && v->pcount <= v->samples[1] + waited;
}

static bool queue_ok(const struct csf_verified *v)
{
	return v->wait_ns[0] <= v->run_delay_ns &&
	       (v->migrated || v->run_delay_ns <= v->wait_ns[1]);
}

static bool wakeup_ok(const struct csf_verified *v, bool waited)
{
	uint64_t slack = v->pcount * SLACK_NS + v->run_delay_ns / SLACK_PART;

	return waited || v->migrated || v->run_delay_ns <= v->wait_ns[1] + slack;
}

static void judge(struct csf_verified *v, enum csf_from from, const struct csf_task_counters *old,
		  const struct csf_task_counters *new)
{
	bool waited = from != CSF_FROM_QUEUE && old->waiting;

	v->pcount = new->pcount - old->pcount;
	v->run_delay_ns = new->run_delay - old->run_delay;
	v->migrated = new->migrations != old->migrations;
	v->ok = samples_ok(v, waited) &&
		(from == CSF_FROM_QUEUE ? queue_ok(v) : wakeup_ok(v, waited));
}

static bool compare(struct csf_verified *v, enum csf_from from, const struct csf_runqlat_edge *a,
		    const struct csf_runqlat_edge *b, const struct csf_task_counters *new)
{
	const struct csf_task_counters *old = find(a, new);

	if (!old)
		return false;
	memset(v, 0, sizeof(*v));
	v->key.pid = new->tid;
	v->key.id = new->start_time;
	memcpy(v->comm, new->comm, sizeof(v->comm));
	csf_make_printable(v->comm, sizeof(v->comm));
	add_rows(v, 0, &b->rows_before, &a->rows_after);
	add_rows(v, 1, &b->rows_after, &a->rows_before);
	judge(v, from, old, new);
	return v->pcount || v->samples[1];
}

int csf_runqlat_verify(struct csf_runqlat_verify *v, enum csf_from from,
		       const struct csf_runqlat_edge *a, const struct csf_runqlat_edge *b)
{
	size_t i;

	memset(v, 0, sizeof(*v));
	v->thread = calloc(b->nr_tasks + 1, sizeof(*v->thread));
	if (!v->thread)
		return -1;
	for (i = 0; i < b->nr_tasks; i++)
		if (compare(&v->thread[v->n], from, a, b, &b->tasks[i]))
			v->failed += !v->thread[v->n++].ok;
	return 0;
}

static double difference_us(const struct csf_verified *v)
{
	return ((double)v->wait_ns[0] - (double)v->run_delay_ns) / 1e3;
}

void csf_runqlat_verify_print(FILE *f, const struct csf_runqlat_verify *v)
{
	size_t i;

	fprintf(f, "%-8s %-16s %9s %9s %13s %13s %13s\n", "TID", "COMM", "SAMPLES", "PCOUNT",
		"WAIT ms", "RUN_DELAY ms", "DIFF us");
	for (i = 0; i < v->n; i++) {
		const struct csf_verified *t = &v->thread[i];

		fprintf(f,
			"%-8" PRIu32 " %-16s %9" PRIu64 " %9" PRIu64 " %13.3f %13.3f %13.3f%s%s\n",
			t->key.pid, t->comm, t->samples[0], t->pcount, (double)t->wait_ns[0] / 1e6,
			(double)t->run_delay_ns / 1e6, difference_us(t),
			t->migrated ? " migrated" : "", t->ok ? "" : " OUTSIDE");
	}
	fprintf(f, "verify: %zu threads, %zu outside the bound%s\n", v->n, v->failed,
		v->failed ? " (kernels that hide switches: see csf-runqlat(8))" : "");
}

static void add_number(struct json_object *o, const char *name, uint64_t n)
{
	json_object_object_add(o, name, json_object_new_uint64(n));
}

static struct json_object *json_thread(const struct csf_verified *t)
{
	struct json_object *o = json_object_new_object();

	add_number(o, "tid", t->key.pid);
	json_object_object_add(o, "comm", json_object_new_string(t->comm));
	add_number(o, "samples", t->samples[0]);
	add_number(o, "samples_at_most", t->samples[1]);
	add_number(o, "pcount", t->pcount);
	add_number(o, "wait_ns", t->wait_ns[0]);
	add_number(o, "wait_at_most_ns", t->wait_ns[1]);
	add_number(o, "run_delay_ns", t->run_delay_ns);
	json_object_object_add(o, "migrated", json_object_new_boolean(t->migrated));
	json_object_object_add(o, "ok", json_object_new_boolean(t->ok));
	return o;
}

struct json_object *csf_runqlat_verify_json(const struct csf_runqlat_verify *v)
{
	struct json_object *o = json_object_new_object(), *all = json_object_new_array();
	size_t i;

	for (i = 0; i < v->n; i++)
		json_object_array_add(all, json_thread(&v->thread[i]));
	add_number(o, "outside", v->failed);
	json_object_object_add(o, "threads", all);
	return o;
}
