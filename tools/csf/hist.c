// SPDX-License-Identifier: GPL-2.0
#include "hist.h"
#include "slots.h"

#include <inttypes.h>

#define BAR 40

const struct csf_percentile csf_percentiles[CSF_PERCENTILES] = {
	{ "p50", "p50", 500 },
	{ "p90", "p90", 900 },
	{ "p99", "p99", 990 },
	{ "p99.9", "p99_9", 999 },
};

static unsigned int nr_slots(const struct csf_hist *h)
{
	return h->coarse ? CSF_ROW_SLOTS : CSF_FINE_SLOTS;
}

/* The least number of steps that is in the slot. */
static uint64_t first_step(const struct csf_hist *h, unsigned int i)
{
	if (h->coarse)
		return i ? (uint64_t)CSF_FINE << (i < 60 ? i : 60) : 0;
	if (i < CSF_FINE)
		return i;
	return (CSF_FINE + (uint64_t)(i % CSF_FINE)) << (i / CSF_FINE - 1);
}

/* Rounded up: a wait is a whole number of ns, also where a step is less than one. */
static uint64_t steps_to_ns(const struct csf_hist *h, uint64_t steps)
{
	__extension__ unsigned __int128 ns =
		((unsigned __int128)steps * h->unit_ns + CSF_FINE - 1) / CSF_FINE;

	return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

struct csf_range csf_hist_slot(const struct csf_hist *h, unsigned int i)
{
	return (struct csf_range){
		steps_to_ns(h, first_step(h, i)),
		i + 1 < nr_slots(h) ? steps_to_ns(h, first_step(h, i + 1)) : UINT64_MAX,
	};
}

uint64_t csf_hist_samples(const struct csf_hist *h)
{
	uint64_t n = 0;
	unsigned int i;

	for (i = 0; i < nr_slots(h); i++)
		n += h->slots[i];
	return n;
}

struct csf_range csf_hist_percentile(const struct csf_hist *h, double per_mille)
{
	double want = (double)csf_hist_samples(h) * per_mille / 1000;
	struct csf_range r = { 0, 0 };
	uint64_t n = 0;
	unsigned int i;

	for (i = 0; i < nr_slots(h); i++) {
		n += h->slots[i];
		if (!h->slots[i] || (double)n < want)
			continue;
		r = csf_hist_slot(h, i);
		break;
	}
	if (r.hi_ns > h->max_ns)
		r.hi_ns = h->max_ns;
	return r;
}

/* The slot of the longest wait says what it was at least and at most. */
static void bound_max(struct csf_hist *h)
{
	struct csf_range r = { 0, 1 };
	unsigned int i;

	for (i = 0; i < nr_slots(h); i++)
		if (h->slots[i])
			r = csf_hist_slot(h, i);
	if (h->max_ns < r.lo_ns)
		h->max_ns = r.lo_ns;
	if (h->max_ns >= r.hi_ns)
		h->max_ns = r.hi_ns - 1;
}

void csf_hist_subtract(struct csf_hist *later, const struct csf_hist *earlier)
{
	unsigned int i;

	for (i = 0; i < nr_slots(later); i++)
		later->slots[i] -= earlier->slots[i];
	later->total_ns -= earlier->total_ns;
	bound_max(later);
}

static const char *unit_name(const struct csf_hist *h)
{
	return h->unit_ns == 1 ? "nsecs" : h->unit_ns == 1000 ? "usecs" : "msecs";
}

void csf_hist_fold(uint64_t *rows, const struct csf_hist *h)
{
	unsigned int i, row;

	for (i = 0; i < nr_slots(h); i++) {
		row = h->coarse ? i : csf_row_slot(i);
		rows[row] += h->slots[i];
	}
}

static uint64_t largest(const uint64_t *rows)
{
	uint64_t max = 0;
	unsigned int i;

	for (i = 0; i < CSF_ROW_SLOTS; i++)
		if (rows[i] > max)
			max = rows[i];
	return max;
}

static void print_row(FILE *f, unsigned int i, uint64_t count, uint64_t max)
{
	int stars = (int)((double)count * BAR / (double)max);

	fprintf(f, "%8" PRIu64 " -> %-8" PRIu64 " : %-8" PRIu64 " |%.*s\n",
		i ? UINT64_C(1) << i : 0, (UINT64_C(2) << i) - 1, count, stars,
		"****************************************");
}

void csf_hist_print_table(FILE *f, const struct csf_hist *h)
{
	uint64_t rows[CSF_ROW_SLOTS] = { 0 }, max;
	unsigned int i;

	csf_hist_fold(rows, h);
	max = largest(rows);
	fprintf(f, "%-20s %-10s\n", unit_name(h), "count");
	for (i = 0; i < CSF_ROW_SLOTS; i++)
		if (rows[i])
			print_row(f, i, rows[i], max);
}

void csf_hist_print_percentiles(FILE *f, const struct csf_hist *h)
{
	unsigned int i;

	if (!csf_hist_samples(h))
		return;
	for (i = 0; i < CSF_PERCENTILES; i++) {
		struct csf_range r = csf_hist_percentile(h, csf_percentiles[i].per_mille);

		fprintf(f, "%s=%.10g..%.10g ", csf_percentiles[i].text, (double)r.lo_ns / 1e3,
			(double)r.hi_ns / 1e3);
	}
	fprintf(f, "max=%.3f us\n", (double)h->max_ns / 1e3);
}

void csf_hist_print_sum(FILE *f, const struct csf_hist *h)
{
	uint64_t n = csf_hist_samples(h);

	fprintf(f, "samples=%" PRIu64 " total_wait=%.3f ms avg=%.1f us\n", n,
		(double)h->total_ns / 1e6, n ? (double)h->total_ns / 1e3 / (double)n : 0.0);
}
