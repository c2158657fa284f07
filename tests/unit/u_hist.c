// SPDX-License-Identifier: GPL-2.0
/* The histograms of csf runqlat: which slot, its edges, percentiles, differences. */
#include "u.h"

#include "tools/csf/hist.c" /* NOLINT(bugprone-suspicious-include): for what is static */

static const uint64_t units[] = { 1, 1000, 1000000 };

static bool holds(uint64_t unit, uint64_t ns)
{
	struct csf_hist h = { .unit_ns = unit };
	uint32_t slot = csf_fine_slot(csf_steps(ns, unit));
	struct csf_range r = csf_hist_slot(&h, slot);

	return slot < CSF_FINE_SLOTS && r.lo_ns <= ns && ns < r.hi_ns;
}

static bool row_holds(uint64_t unit, uint64_t ns)
{
	uint32_t row = csf_row_slot(csf_fine_slot(csf_steps(ns, unit)));
	uint64_t lo = row ? unit << row : 0, hi = unit * 2 << row;

	return lo <= ns && ns < hi;
}

static void slots(void)
{
	size_t u;

	for (u = 0; u < 3; u++) {
		uint64_t ns;
		int bit, i;

		for (ns = 0; ns < 300000; ns++)
			if (!holds(units[u], ns) || !row_holds(units[u], ns))
				CHECK(0, "%llu ns, unit %llu", (unsigned long long)ns,
				      (unsigned long long)units[u]);
		for (bit = 18; bit < 50; bit++)
			for (i = -3; i <= 3; i++) {
				ns = ((uint64_t)1 << bit) * units[u] / 8 + (uint64_t)(int64_t)i;
				CHECK(ns >> 55 || (holds(units[u], ns) && row_holds(units[u], ns)),
				      "%llu ns, unit %llu", (unsigned long long)ns,
				      (unsigned long long)units[u]);
			}
		CHECK(csf_fine_slot(csf_steps(UINT64_MAX, units[u])) < CSF_FINE_SLOTS,
		      "the longest");
	}
}

/* A division by 125 that is none must be one for all of 32 bits. */
static void division(void)
{
	uint64_t ns;

	for (ns = 0; ns >> 32 == 0; ns += ns < 1000000 ? 1 : 99991)
		CHECK(csf_steps(ns, 1000) == ns / 125, "%llu", (unsigned long long)ns);
	CHECK(csf_steps(UINT32_MAX, 1000) == UINT32_MAX / 125, "the last");
	CHECK(csf_steps((uint64_t)UINT32_MAX + 1, 1000) == ((uint64_t)UINT32_MAX + 1) / 125,
	      "the first");
}

static void add_wait(struct csf_hist *h, uint64_t ns)
{
	h->slots[csf_fine_slot(csf_steps(ns, h->unit_ns))]++;
	h->total_ns += ns;
	if (ns > h->max_ns)
		h->max_ns = ns;
}

static void percentile_ranges(void)
{
	struct csf_hist h = { .unit_ns = 1000 };
	struct csf_range r;
	int i;

	for (i = 1; i <= 1000; i++)
		add_wait(&h, (uint64_t)i * 1000);
	for (i = 0; i < CSF_PERCENTILES; i++) {
		uint64_t truth = (uint64_t)(csf_percentiles[i].per_mille * 1000);

		r = csf_hist_percentile(&h, csf_percentiles[i].per_mille);
		CHECK(r.lo_ns <= truth && truth <= r.hi_ns && r.hi_ns - r.lo_ns <= truth / 8,
		      "%s: %llu to %llu", csf_percentiles[i].text, (unsigned long long)r.lo_ns,
		      (unsigned long long)r.hi_ns);
	}
	CHECK(csf_hist_percentile(&h, 1000).hi_ns == 1000000, "the longest wait bounds all");
}

static void differences(void)
{
	struct csf_hist before = { .unit_ns = 1000 }, after;

	add_wait(&before, 5000000);
	after = before;
	add_wait(&after, 7000);
	after.max_ns = 5000000;
	csf_hist_subtract(&after, &before);
	CHECK(csf_hist_samples(&after) == 1 && after.total_ns == 7000, "one wait more");
	CHECK(after.max_ns >= 7000 && after.max_ns < 8000, "the longest of it: %llu",
	      (unsigned long long)after.max_ns);
}

int main(void)
{
	u_start();
	TEST("slots hold what they say")
		slots();
	TEST("the division is exact")
		division();
	TEST("percentiles lie in their ranges")
		percentile_ranges();
	TEST("a window is a difference")
		differences();
	return u_done();
}
