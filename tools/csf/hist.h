/* SPDX-License-Identifier: GPL-2.0 */
/* Histograms of waits: arithmetic and printing, without BPF. */
#ifndef CSF_HIST_H
#define CSF_HIST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runqlat.h"

struct csf_hist {
	uint64_t slots[CSF_FINE_SLOTS];
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t unit_ns;
	bool coarse; /* a row's: whole doublings only */
};

/* A wait that is in slot @i took [lo, hi) ns. */
struct csf_range {
	uint64_t lo_ns;
	uint64_t hi_ns;
};

#define CSF_PERCENTILES 4
extern const struct csf_percentile {
	const char *text;
	const char *json;
	double per_mille;
} csf_percentiles[CSF_PERCENTILES];

struct csf_range csf_hist_slot(const struct csf_hist *h, unsigned int i);
uint64_t csf_hist_samples(const struct csf_hist *h);

/* Where the wait lies that @per_mille of the samples do not exceed; no further than the longest. */
struct csf_range csf_hist_percentile(const struct csf_hist *h, double per_mille);

/*
 * The samples that @later has more than @earlier; max_ns is @later's, but never outside its highest
 * slot.
 */
void csf_hist_subtract(struct csf_hist *later, const struct csf_hist *earlier);

/* The article's table, percentiles, and last its line "samples=N total_wait=X ms avg=Y us". */
void csf_hist_print_table(FILE *f, const struct csf_hist *h);
void csf_hist_print_percentiles(FILE *f, const struct csf_hist *h);
void csf_hist_print_sum(FILE *f, const struct csf_hist *h);

/* Adds up to whole doublings (CSF_ROW_SLOTS of them), which is what is printed. */
void csf_hist_fold(uint64_t *rows, const struct csf_hist *h);

struct json_object;

/* Adds samples, total_wait_ns, max_ns, percentiles_ns, percentiles_above_ns and buckets. */
void csf_hist_json(struct json_object *o, const struct csf_hist *h);

#endif /* CSF_HIST_H */
