// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "table.h"
#include "csf.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { SORT_SUM = CSF_EDGE_COUNTS, SORT_PID };

static const struct argp_option options[] = {
	{ "threads", 'T', NULL, 0, "A row for each thread, not for each process", 0 },
	{ "top", 'n', "N", 0, "Print the first N rows only", 0 },
	{ "sort", 's', "KEY", 0, "Sort by a column's name in lower case, by total, or by pid", 0 },
	{ 0 },
};

/* What begins like a heading, or a JSON name, is a name of that column. */
static bool names_column(const struct csf_columns *c, int i, const char *key)
{
	return *key && (!strcasecmp(key, c->headings[i]) || !strcasecmp(key, c->names[i]));
}

static int sort_key(const struct csf_columns *c, const char *key)
{
	int i;

	for (i = 0; i < CSF_EDGE_COUNTS; i++)
		if (names_column(c, i, key))
			return i;
	if (!strcmp(key, "total"))
		return SORT_SUM;
	if (!strcmp(key, "pid"))
		return SORT_PID;
	fprintf(stderr, "csf: --sort must be %s, %s, total or pid, not '%s'\n", c->names[0],
		c->names[1], key);
	exit(CSF_EXIT_USAGE);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct csf_table *t = state->input;

	switch (key) {
	case 'T':
		t->per_thread = true;
		return 0;
	case 'n':
		t->top = csf_number(arg, "--top", 1, UINT32_MAX);
		return 0;
	case 's':
		t->sort = sort_key(t->columns, arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp csf_table_argp = { options, parse, NULL, NULL, NULL, NULL, NULL };

static struct csf_line thread_line(const struct csf_tasks *tasks, uint32_t i)
{
	const struct csf_task_row *r = csf_task_row(tasks, i);
	struct csf_line line = { .pid = csf_process_row(tasks, r->process)->tgid,
				 .tid = r->tid,
				 .comm = r->comm };

	memcpy(line.count, r->count, sizeof(line.count));
	return line;
}

static struct csf_line process_line(const struct csf_tasks *tasks, uint32_t i)
{
	const struct csf_process_row *p = csf_process_row(tasks, i);
	struct csf_line line = { .pid = p->tgid, .comm = p->comm };

	memcpy(line.count, p->count, sizeof(line.count));
	return line;
}

static struct csf_line line_of(const struct csf_tasks *tasks, uint32_t i)
{
	return tasks->per_thread ? thread_line(tasks, i) : process_line(tasks, i);
}

struct csf_line csf_line(const struct csf_lines *l, size_t i)
{
	return line_of(l->tasks, l->rows[i]);
}

static uint64_t weight(const struct csf_line *line, int sort)
{
	return sort == SORT_SUM ? line->count[0] + line->count[1] :
	       sort == SORT_PID ? 0 :
				  line->count[sort];
}

struct order {
	const struct csf_tasks *tasks;
	int sort;
};

/* Most first; what is equal by PID. */
static int compare(const void *a, const void *b, void *arg)
{
	const struct order *o = arg;
	struct csf_line x = line_of(o->tasks, *(const uint32_t *)a);
	struct csf_line y = line_of(o->tasks, *(const uint32_t *)b);
	uint64_t wx = weight(&x, o->sort), wy = weight(&y, o->sort);

	if (wx != wy)
		return wx < wy ? 1 : -1;
	if (x.pid != y.pid)
		return x.pid < y.pid ? -1 : 1;
	return (x.tid > y.tid) - (x.tid < y.tid);
}

static void collect(struct csf_lines *l, uint32_t nr)
{
	struct csf_line line;
	uint32_t i;
	int k;

	for (i = 1; i < nr; i++) {
		line = line_of(l->tasks, i);
		if (!line.count[0] && !line.count[1])
			continue;
		l->rows[l->nr++] = i;
		for (k = 0; k < CSF_EDGE_COUNTS; k++)
			l->sum[k] += line.count[k];
	}
}

bool csf_lines_make(struct csf_lines *l, const struct csf_table *t, const struct csf_tasks *tasks)
{
	uint32_t nr = tasks->per_thread ? tasks->tasks.nr : tasks->processes.nr;
	struct order o = { tasks, t->sort };

	memset(l, 0, sizeof(*l));
	l->tasks = tasks;
	l->rows = malloc((nr + 1) * sizeof(*l->rows));
	if (!l->rows) {
		fprintf(stderr, "csf: no memory to sort %u rows\n", nr);
		return false;
	}
	collect(l, nr);
	qsort_r(l->rows, l->nr, sizeof(*l->rows), compare, &o);
	l->shown = t->top && t->top < l->nr ? t->top : l->nr;
	return true;
}

void csf_lines_free(struct csf_lines *l)
{
	free(l->rows);
}

void csf_table_print(const struct csf_table *t, const struct csf_lines *l, FILE *f)
{
	const struct csf_columns *c = t->columns;
	size_t i;

	fprintf(f, "%-7s ", "PID");
	if (t->per_thread)
		fprintf(f, "%-7s ", "TID");
	fprintf(f, "%-15s %10s %10s\n", "COMM", c->headings[0], c->headings[1]);
	for (i = 0; i < l->shown; i++) {
		struct csf_line line = csf_line(l, i);

		fprintf(f, "%-7" PRIu32 " ", line.pid);
		if (t->per_thread)
			fprintf(f, "%-7" PRIu32 " ", line.tid);
		fprintf(f, "%-15.15s %10" PRIu64 " %10" PRIu64 "\n", line.comm, line.count[0],
			line.count[1]);
	}
	if (l->shown < l->nr)
		fprintf(f, "(%zu more rows)\n", l->nr - l->shown);
}

static void line_json(const struct csf_columns *c, const struct csf_line *line, FILE *f)
{
	struct json_object *comm = json_object_new_string(line->comm);
	int i;

	fprintf(f, "{\"pid\":%" PRIu32, line->pid);
	if (line->tid)
		fprintf(f, ",\"tid\":%" PRIu32, line->tid);
	fprintf(f, ",\"comm\":%s",
		json_object_to_json_string_ext(comm, JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(comm);
	for (i = 0; i < CSF_EDGE_COUNTS; i++)
		fprintf(f, ",\"%s\":%" PRIu64, c->names[i], line->count[i]);
	fprintf(f, "}");
}

void csf_table_json(const struct csf_table *t, const struct csf_lines *l, FILE *f)
{
	const struct csf_columns *c = t->columns;
	size_t i;

	fprintf(f, "\"nr_tasks\":%zu", l->nr);
	for (i = 0; i < CSF_EDGE_COUNTS; i++)
		fprintf(f, ",\"%s\":%" PRIu64, c->names[i], l->sum[i]);
	fprintf(f, ",\"tasks\":[");
	for (i = 0; i < l->shown; i++) {
		struct csf_line line = csf_line(l, i);

		if (i)
			fprintf(f, ",");
		line_json(c, &line, f);
	}
	fprintf(f, "]");
}
