/* SPDX-License-Identifier: GPL-2.0 */
/* A histogram each for processes, threads, CPUs or cgroups. */
#ifndef CSF_ROWS_H
#define CSF_ROWS_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "hist.h"
#include "runqlat.h"

struct csf_rows_row {
	struct csf_row_key key; /* cpu is 0 but in rows of CPUs */
	uint64_t slots[CSF_ROW_SLOTS];
	uint64_t samples;
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t named_ns;
	char comm[16];
};

/* Sorted by key. */
struct csf_rows {
	struct csf_rows_row *row;
	size_t n;
};

/* From the map; what was there is freed. 0, or -1 after a message. */
int csf_rows_read(struct csf_rows *rows, int map_fd, enum csf_by by);
void csf_rows_free(struct csf_rows *rows);

const struct csf_rows_row *csf_rows_find(const struct csf_rows *rows,
					 const struct csf_row_key *key);

/*
 * What @later has more than @earlier; those that have nothing are dropped, the longest total comes
 * first.
 */
int csf_rows_growth(struct csf_rows *growth, const struct csf_rows *later,
		    const struct csf_rows *earlier);

void csf_rows_print(FILE *f, const struct csf_rows *rows, enum csf_by by, uint64_t unit_ns);
struct json_object *csf_rows_json(const struct csf_rows *rows, enum csf_by by, uint64_t unit_ns);

#endif /* CSF_ROWS_H */
