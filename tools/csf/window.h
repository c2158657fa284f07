/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A window of csf runqlat that is over: the differences between its edges, and how they are shown.
 */
#ifndef CSF_WINDOW_H
#define CSF_WINDOW_H

#include "hist.h"
#include "rows.h"
#include "runqlat_load.h"
#include "runqlat_verify.h"

struct csf_window {
	struct csf_hist hist;
	struct csf_rows rows;
	uint64_t discarded[CSF_DISCARDS];
	bool open_known;
	uint64_t open_count;
	uint64_t open_ns;
	bool walked;
	/* --from queue: what the kernel counted and no switch ended, give or take */
	int64_t migration_ns;
	uint64_t uncertain_ns;
	int64_t not_shown;
	struct csf_runqlat_verify verify;
	uint64_t skipped; /* runs of programs that the kernel left out */
};

extern const char *const csf_from_names[3];

/* False after a message: there was no memory for all rows, or to verify them. */
bool csf_window_compare(struct csf_window *w, const struct csf_runqlat *r,
			const struct csf_runqlat_edge *a, const struct csf_runqlat_edge *b);
void csf_window_print(FILE *f, const struct csf_runqlat *r, const struct csf_window *w);
struct json_object *csf_window_json(const struct csf_runqlat *r, const struct csf_window *w);
void csf_window_free(struct csf_window *w);

#endif /* CSF_WINDOW_H */
