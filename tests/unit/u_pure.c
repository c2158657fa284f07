// SPDX-License-Identifier: GPL-2.0
/* The pure functions: time conversions against 128-bit arithmetic, buckets against the table. */
#include "u.h"

#include "csf_bucket.h"

__extension__ typedef unsigned __int128 u128;

static const uint64_t edges[] = { 0,
				  1,
				  2,
				  999999,
				  1000000,
				  1000001,
				  0x7fffffff,
				  0xffffffff,
				  0x100000000,
				  0x100000001,
				  0x7fffffffffffffff,
				  0x8000000000000000,
				  0xfffffffffffffffe,
				  0xffffffffffffffff };
#define NR_EDGES (sizeof(edges) / sizeof(edges[0]))

static uint64_t wide_to_ns(uint64_t cyc, uint32_t mult, uint32_t shift)
{
	return (uint64_t)((u128)cyc * mult >> shift);
}

static uint64_t wide_to_cyc(uint64_t ns, uint32_t khz)
{
	return (uint64_t)((u128)ns * khz / 1000000);
}

static int same_ns(const struct csf_hdr *h, uint64_t cyc)
{
	uint64_t got = csf_cyc_to_ns(h, cyc), want = wide_to_ns(cyc, h->mult, h->shift);

	return CHECK(got == want, "%llu cycles, mult %u, shift %u: %llu, not %llu",
		     (unsigned long long)cyc, h->mult, h->shift, (unsigned long long)got,
		     (unsigned long long)want);
}

static int same_cyc(const struct csf_hdr *h, uint64_t ns)
{
	uint64_t got = csf_ns_to_cyc(h, ns), want = wide_to_cyc(ns, h->clock_khz);

	return CHECK(got == want, "%llu ns at %u kHz: %llu, not %llu", (unsigned long long)ns,
		     h->clock_khz, (unsigned long long)got, (unsigned long long)want);
}

static void test_edges(void)
{
	struct csf_hdr h;
	size_t i, j;

	u_fill_hdr(&h, CSF_KIND_THREAD, 0);
	TEST("cyc_to_ns at the edges")
		for (i = 0; i < NR_EDGES; i++)
			for (j = 0; j < NR_EDGES; j++)
				for (h.shift = 0; h.shift <= 32; h.shift++) {
					h.mult = (uint32_t)edges[j];
					same_ns(&h, edges[i]);
				}
	TEST("ns_to_cyc at the edges")
		for (i = 0; i < NR_EDGES; i++)
			for (j = 0; j < NR_EDGES; j++) {
				h.clock_khz = (uint32_t)edges[j];
				same_cyc(&h, edges[i]);
			}
}

static void test_random(void)
{
	struct csf_hdr h;
	int i;

	u_fill_hdr(&h, CSF_KIND_THREAD, 0);
	TEST("cyc_to_ns of random values")
		for (i = 0; i < 500000; i++) {
			h.mult = (uint32_t)u_random_edgy();
			h.shift = (uint32_t)(u_random() % 33);
			if (!same_ns(&h, u_random_edgy()))
				break;
		}
	TEST("ns_to_cyc of random values")
		for (i = 0; i < 500000; i++) {
			h.clock_khz = (uint32_t)u_random_edgy();
			if (!same_cyc(&h, u_random_edgy()))
				break;
		}
}

/* A header as a writer makes it: the most precise mult that fits. */
static void fill_rate(struct csf_hdr *h, uint32_t khz)
{
	u128 mult;

	h->clock_khz = khz;
	for (h->shift = 32;; h->shift--) {
		mult = (((u128)1000000 << h->shift) + khz / 2) / khz;
		if (mult < 0x100000000ull)
			break;
	}
	h->mult = (uint32_t)mult;
}

static void test_round_trip(void)
{
	struct csf_hdr h;
	int i;

	u_fill_hdr(&h, CSF_KIND_THREAD, 0);
	TEST("to ns and back, at real clock rates, within 1e-8 and 1 ns")
		for (i = 0; i < 100000; i++) {
			uint64_t ns = u_random() >> (4 + u_random() % 60), back;

			fill_rate(&h, (uint32_t)(400000 + u_random() % 6000000));
			back = csf_cyc_to_ns(&h, csf_ns_to_cyc(&h, ns));
			if (!CHECK(ns - back <= ns / 100000000 + 4 ||
					   back - ns <= ns / 100000000 + 4,
				   "%llu ns at %u kHz come back as %llu", (unsigned long long)ns,
				   h.clock_khz, (unsigned long long)back))
				break;
		}
	TEST("the identity of a clock in ns")
		for (i = 0; i < 1000; i++) {
			uint64_t v = u_random_edgy();

			h.mult = 1;
			h.shift = 0;
			h.clock_khz = 1000000;
			CHECK_EQ(csf_cyc_to_ns(&h, v), v);
			CHECK_EQ(csf_ns_to_cyc(&h, v), v);
		}
}

/* State values as include/linux/sched.h of Linux has them, from 6.1 on. */
static const struct {
	const char *name;
	unsigned int state;
	unsigned int bucket;
} blocked[] = {
	{ "interruptible", 0x0001, CSF_SLEEP },
	{ "interruptible, freezable", 0x2001, CSF_SLEEP },
	{ "uninterruptible", 0x0002, CSF_DSLEEP },
	{ "uninterruptible, freezable", 0x2002, CSF_DSLEEP },
	{ "killable, as a vfork() parent", 0x0102, CSF_DSLEEP },
	{ "idle wait of a kernel thread", 0x0402, CSF_DSLEEP },
	{ "stopped", 0x0104, CSF_SLEEP },
	{ "traced", 0x0008, CSF_SLEEP },
	{ "traced, wakekill", 0x0108, CSF_SLEEP },
	{ "parked", 0x0040, CSF_SLEEP },
	{ "already being woken", 0x0200, CSF_SLEEP },
	{ "signal pending, state reset", 0x0000, CSF_SLEEP },
	{ "waiting for an RT lock", 0x1000, CSF_DSLEEP },
	{ "frozen", 0x8000, CSF_DSLEEP },
};

static void test_buckets(void)
{
	char name[80];
	size_t i;

	for (i = 0; i < sizeof(blocked) / sizeof(blocked[0]); i++) {
		unsigned int state = blocked[i].state;

		snprintf(name, sizeof(name), "bucket: %s", blocked[i].name);
		TEST(name) {
			CHECK_EQ(csf_bucket(0, 0, state), blocked[i].bucket);
			CHECK_EQ(csf_bucket(0, 1, state), CSF_IOWAIT);
			CHECK_EQ(csf_bucket(1, 0, state), CSF_RUNQ);
			CHECK_EQ(csf_bucket(1, 1, state), CSF_RUNQ);
		}
	}
	TEST("bucket: no state is running, no blocked one is runnable") {
		unsigned int state;

		for (state = 0; state < 0x20000; state++) {
			CHECK(csf_bucket(0, 0, state) != CSF_ONCPU &&
				      csf_bucket(0, 0, state) != CSF_RUNQ,
			      "state %#x", state);
			CHECK_EQ(csf_bucket(0, 1, state), CSF_IOWAIT);
			CHECK_EQ(csf_bucket(1, 0, state), CSF_RUNQ);
		}
	}
}

int main(void)
{
	u_start();
	test_edges();
	test_random();
	test_round_trip();
	test_buckets();
	return u_done();
}
