/* SPDX-License-Identifier: GPL-2.0 */
/* Tables of tasks with two counts each: their options, and printing them. */
#ifndef CSF_TABLE_H
#define CSF_TABLE_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tasks.h"

/* What the columns are called, as text and in JSON. */
struct csf_columns {
	const char *headings[CSF_EDGE_COUNTS];
	const char *names[CSF_EDGE_COUNTS];
};

/* Filled by csf_table_argp. */
struct csf_table {
	const struct csf_columns *columns;
	bool per_thread;
	uint32_t top; /* rows to print; 0: all */
	int sort; /* a column, CSF_EDGE_COUNTS for their sum, or one more for PID */
};

extern const struct argp csf_table_argp;

/* A row, whatever it is of. */
struct csf_line {
	uint64_t count[CSF_EDGE_COUNTS];
	uint32_t pid;
	uint32_t tid; /* 0: of all threads of the process */
	const char *comm;
};

struct csf_lines {
	const struct csf_tasks *tasks;
	uint32_t *rows; /* that have counted anything, sorted */
	size_t nr;
	size_t shown;
	uint64_t sum[CSF_EDGE_COUNTS]; /* of all */
};

/* False, after a message, if there is no memory. */
bool csf_lines_make(struct csf_lines *l, const struct csf_table *t, const struct csf_tasks *tasks);
struct csf_line csf_line(const struct csf_lines *l, size_t i);
void csf_lines_free(struct csf_lines *l);

void csf_table_print(const struct csf_table *t, const struct csf_lines *l, FILE *f);

/* The members "tasks", "nr_tasks" and the sums, without braces around. */
void csf_table_json(const struct csf_table *t, const struct csf_lines *l, FILE *f);

#endif /* CSF_TABLE_H */
