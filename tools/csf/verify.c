// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "verify.h"

#include <inttypes.h>
#include <string.h>

/* One count of one thread at an edge. */
struct finding {
	uint64_t before, ours, after;
};

static uint64_t proc_count(const struct csf_proc_task *t, int i)
{
	if (t->has & CSF_PROC_SCHED)
		return t->migrations;
	return i ? t->involuntary : t->voluntary;
}

/* /proc has no wakeups. */
static int nr_counts(const struct csf_verify *v)
{
	return v->what & CSF_PROC_SCHED ? 1 : CSF_EDGE_COUNTS;
}

/* False if the thread was not there all the time. */
static bool look(const struct csf_verify *v, const struct csf_tasks *tasks,
		 const struct csf_task_row *r, struct finding *found)
{
	const struct csf_proc_task *before = csf_proc_find(&v->before, r->tid);
	const struct csf_proc_task *after = csf_proc_find(&v->after, r->tid);
	int i;

	if (!r->task || r->walk != tasks->walk || !before || !after)
		return false;
	for (i = 0; i < nr_counts(v); i++)
		found[i] =
			(struct finding){ proc_count(before, i), r->last[i], proc_count(after, i) };
	return true;
}

static bool is_outside(const struct csf_verify *v, const struct finding *found)
{
	int i;

	for (i = 0; i < nr_counts(v); i++)
		if (found[i].ours < found[i].before || found[i].ours > found[i].after)
			return true;
	return false;
}

static bool read_list(const struct csf_verify *v, struct csf_proc_list *list)
{
	csf_proc_free(list);
	if (!csf_proc_list(v->tgid, v->tid, v->what, list))
		return false;
	if (!list->nr && !v->tgid && !v->tid)
		fprintf(stderr, "csf: --verify: /proc shows no such counters here\n");
	return list->nr || v->tgid || v->tid;
}

bool csf_verify_before(struct csf_verify *v)
{
	return read_list(v, &v->before);
}

static void complain(const struct csf_verify *v, const struct csf_task_row *r,
		     const struct finding *found, const struct csf_columns *c)
{
	int i;

	for (i = 0; i < nr_counts(v); i++)
		fprintf(stderr,
			"csf: --verify: thread %" PRIu32 " (%.16s): %s %" PRIu64
			" is not from %" PRIu64 " to %" PRIu64 ", as /proc has it\n",
			r->tid, r->comm, c->names[i], found[i].ours, found[i].before,
			found[i].after);
}

bool csf_verify_after(struct csf_verify *v, const struct csf_tasks *tasks,
		      const struct csf_columns *c)
{
	struct finding found[CSF_EDGE_COUNTS];
	uint32_t i;

	if (!read_list(v, &v->after))
		return false;
	for (i = 1; i < tasks->tasks.nr; i++) {
		const struct csf_task_row *r = csf_task_row(tasks, i);

		if (!look(v, tasks, r, found))
			continue;
		v->compared++;
		if (!is_outside(v, found))
			continue;
		v->outside++;
		complain(v, r, found, c);
	}
	return true;
}

static bool counted(const struct csf_task_row *r)
{
	return r->count[0] || r->count[1];
}

void csf_verify_print(const struct csf_verify *v, const struct csf_tasks *tasks,
		      const struct csf_columns *c, FILE *f)
{
	struct finding found[CSF_EDGE_COUNTS];
	uint32_t i;
	int k;

	fprintf(f, "verify: %-7s %-15s", "TID", "COMM");
	for (k = 0; k < nr_counts(v); k++)
		fprintf(f, " %10s %10s %10s", "/PROC", c->headings[k], "/PROC");
	fprintf(f, "\n");
	for (i = 1; i < tasks->tasks.nr; i++) {
		const struct csf_task_row *r = csf_task_row(tasks, i);

		if (!counted(r) || !look(v, tasks, r, found))
			continue;
		fprintf(f, "verify: %-7" PRIu32 " %-15.16s", r->tid, r->comm);
		for (k = 0; k < nr_counts(v); k++)
			fprintf(f, " %10" PRIu64 " %10" PRIu64 " %10" PRIu64, found[k].before,
				found[k].ours, found[k].after);
		fprintf(f, "%s\n", is_outside(v, found) ? " OUTSIDE" : "");
	}
	fprintf(f, "verify: compared=%zu outside=%zu\n", v->compared, v->outside);
}

static void finding_json(const struct finding *found, const char *name, FILE *f)
{
	fprintf(f, ",\"%s\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", name, found->before,
		found->ours, found->after);
}

void csf_verify_json(const struct csf_verify *v, const struct csf_tasks *tasks,
		     const struct csf_columns *c, FILE *f)
{
	struct finding found[CSF_EDGE_COUNTS];
	const char *comma = "";
	uint32_t i;
	int k;

	fprintf(f, ",\"verify\":{\"compared\":%zu,\"outside\":%zu,\"threads\":[", v->compared,
		v->outside);
	for (i = 1; i < tasks->tasks.nr; i++) {
		const struct csf_task_row *r = csf_task_row(tasks, i);

		if (!counted(r) || !look(v, tasks, r, found))
			continue;
		fprintf(f, "%s{\"tid\":%" PRIu32, comma, r->tid);
		for (k = 0; k < nr_counts(v); k++)
			finding_json(&found[k], c->names[k], f);
		fprintf(f, "}");
		comma = ",";
	}
	fprintf(f, "]}");
}

bool csf_verify_next(struct csf_verify *v)
{
	bool good = !v->outside;

	v->compared = v->outside = 0;
	return good;
}

void csf_verify_free(struct csf_verify *v)
{
	csf_proc_free(&v->before);
	csf_proc_free(&v->after);
}
