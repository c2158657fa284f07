// SPDX-License-Identifier: GPL-2.0
/* csf_page_snap(): when it extrapolates, what it refuses, and that no copy is torn. */
#include "u.h"

#include <sched.h>

#define PAST 1000000000ull /* cycles between the page's last switch and now, at least */

/* So that "the CPU that reads" is one CPU throughout. */
static int stay_on_this_cpu(void)
{
	int cpu = sched_getcpu();
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		u_die("sched_setaffinity");
	return cpu;
}

static void fill_page(struct csf_thread_page *p)
{
	u_fill_thread_page(p);
	p->last_switch_tsc -= PAST;
	p->oncpu_cyc = 100;
	p->runq_cyc = 200;
	p->sleep_cyc = 300;
	p->dsleep_cyc = 400;
	p->iowait_cyc = 500;
}

static uint64_t bucket(const struct csf_thread_page *p, unsigned int state)
{
	const uint64_t buckets[] = { p->oncpu_cyc, p->runq_cyc, p->sleep_cyc, p->dsleep_cyc,
				     p->iowait_cyc };

	return buckets[state];
}

/* The snapshot of this page, against what the description says it must be. */
static void check_snap(const struct csf_thread_page *p, int extrapolated)
{
	uint64_t before = __builtin_ia32_rdtsc(), after;
	struct csf_snap s;
	unsigned int i;

	memset(&s, 0xff, sizeof(s));
	CHECK_EQ(csf_page_snap(p, &s), 0);
	after = csf_rdtsc();
	CHECK(s.tsc >= before && s.tsc <= after, "its clock is not between two readings of ours");
	CHECK_EQ(s.extrapolated, extrapolated);
	for (i = 0; i < CSF_NR_BUCKETS; i++) {
		uint64_t past = s.tsc - p->last_switch_tsc;
		uint64_t want = extrapolated && i == p->state ? past : 0;

		CHECK(bucket(&s.p, i) - bucket(p, i) == want, "bucket %u grew by %llu in state %u",
		      i, (unsigned long long)(bucket(&s.p, i) - bucket(p, i)), p->state);
	}
	s.p.oncpu_cyc = p->oncpu_cyc;
	s.p.runq_cyc = p->runq_cyc;
	s.p.sleep_cyc = p->sleep_cyc;
	s.p.dsleep_cyc = p->dsleep_cyc;
	s.p.iowait_cyc = p->iowait_cyc;
	CHECK(!memcmp(&s.p, p, sizeof(*p)), "another field than a bucket differs from the page");
}

static void check_lives_and_states(struct csf_thread_page *p, int may_extrapolate)
{
	for (p->life = CSF_LIVE; p->life <= CSF_DEAD; p->life++)
		for (p->state = CSF_ONCPU; p->state < CSF_NR_BUCKETS; p->state++)
			check_snap(p, may_extrapolate && p->life == CSF_LIVE);
}

static void test_flags(int cpu)
{
	struct csf_thread_page p;
	unsigned int flags, same;
	char name[80];

	fill_page(&p);
	for (flags = 0; flags < 4; flags++)
		for (same = 0; same < 2; same++) {
			int constant = !!(flags & CSF_F_TSC_CONSTANT),
			    synced = !!(flags & CSF_F_TSC_SYNCED);

			snprintf(name, sizeof(name), "flags %sconstant %ssynced, %s CPU",
				 constant ? "" : "not ", synced ? "" : "not ",
				 same ? "same" : "other");
			p.hdr.flags = flags;
			p.cpu = (__u32)(cpu + !same);
			TEST(name)
				check_lives_and_states(&p, constant && (synced || same));
		}
}

static void test_clocks(void)
{
	struct csf_thread_page p;
	struct csf_snap s;

	TEST("a last switch later than our clock: clamped, nothing added") {
		fill_page(&p);
		p.last_switch_tsc += 100 * PAST;
		CHECK_EQ(csf_page_snap(&p, &s), 0);
		CHECK_EQ(s.tsc, p.last_switch_tsc);
		CHECK_EQ(s.extrapolated, 1);
		CHECK(!memcmp(&s.p, &p, sizeof(p)), "a bucket changed");
	}
	TEST("a page in CLOCK_MONOTONIC") {
		uint64_t before = u_now_ns();

		fill_page(&p);
		p.hdr.clock = CSF_CLOCK_MONOTONIC;
		p.last_switch_tsc = before - 5000000;
		CHECK_EQ(csf_page_snap(&p, &s), 0);
		CHECK(s.tsc >= before && s.tsc <= u_now_ns(), "its clock is not between ours");
		CHECK_EQ(s.p.oncpu_cyc - p.oncpu_cyc, s.tsc - p.last_switch_tsc);
	}
}

static void check_refused(const struct csf_thread_page *p, int err)
{
	struct csf_snap s;

	memset(&s, 0xff, sizeof(s));
	errno = 0;
	CHECK_EQ(csf_page_snap(p, &s), -1);
	CHECK(errno == err, "errno is %s, not %s", strerror(errno), strerror(err));
	CHECK(u_is_zero(&s, sizeof(s)), "the snapshot is not zeroed");
}

static void test_refused(void)
{
	struct csf_thread_page good, p;

	fill_page(&good);
	TEST("wrong magic, version, kind, clock: EPROTO") {
		p = good;
		p.hdr.magic ^= 1;
		check_refused(&p, EPROTO);
		p = good;
		p.hdr.version++;
		check_refused(&p, EPROTO);
		p = good;
		p.hdr.kind = CSF_KIND_CPU;
		check_refused(&p, EPROTO);
		p = good;
		p.hdr.clock = 3;
		check_refused(&p, EPROTO);
		p = good;
		p.hdr.shift = 33;
		check_refused(&p, EPROTO);
		memset(&p, 0, sizeof(p));
		check_refused(&p, EPROTO);
	}
	TEST("a page that is being written for ever: EAGAIN, within a second") {
		uint64_t start = u_now_ns();

		p = good;
		p.seq = 7;
		check_refused(&p, EAGAIN);
		CHECK(u_now_ns() - start < 1000000000, "it took %llu ms",
		      (unsigned long long)(u_now_ns() - start) / 1000000);
	}
	TEST("errno is left alone on success") {
		struct csf_snap s;

		errno = 12345;
		CHECK_EQ(csf_page_snap(&good, &s), 0);
		CHECK_EQ(errno, 12345);
	}
}

/*
 * A writer as the module is one. In each state of the page bucket number i holds (i + 1) * n, and
 * the clock of the last switch is their sum after the start.
 */
static struct csf_thread_page shared;
static uint64_t clock_start;
static int stop;

static void write_page(struct csf_thread_page *p, uint32_t n)
{
	__atomic_store_n(&p->seq, 2 * n + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	p->oncpu_cyc = n;
	p->runq_cyc = 2ull * n;
	p->sleep_cyc = 3ull * n;
	p->dsleep_cyc = 4ull * n;
	p->iowait_cyc = 5ull * n;
	p->last_switch_tsc = clock_start + 15ull * n;
	p->state = (__u16)(n % CSF_NR_BUCKETS);
	p->cancelled_write_bytes = n; /* the last field */
	p->cpu = n; /* one of the first */
	__atomic_store_n(&p->seq, 2 * n + 2, __ATOMIC_RELEASE);
}

static void *writer(void *arg)
{
	uint32_t n = 0;

	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		/* A writer without a pause leaves readers nothing but odd counts. */
		uint64_t start = __builtin_ia32_rdtsc(), pause = u_random() % 2000;

		while (__builtin_ia32_rdtsc() - start < pause)
			;
		write_page(&shared, ++n);
	}
	return (void *)(uintptr_t)n;
}

static const char *whats_wrong(const struct csf_snap *s)
{
	const struct csf_thread_page *p = &s->p;

	if (p->oncpu_cyc + p->runq_cyc + p->sleep_cyc + p->dsleep_cyc + p->iowait_cyc !=
	    s->tsc - clock_start)
		return "the buckets do not add up to the clock";
	if (p->cancelled_write_bytes != p->cpu || p->seq != 2 * p->cpu + 2)
		return "first and last field are of two writes";
	if (p->last_switch_tsc != clock_start + 15ull * p->cpu ||
	    p->state != p->cpu % CSF_NR_BUCKETS)
		return "the switch is of another write";
	return NULL;
}

struct tally {
	uint64_t snaps, busy, torn, versions;
	const char *wrong;
};

static void *reader(void *arg)
{
	struct tally *t = (struct tally *)arg;
	struct csf_snap s;
	uint32_t last = 0;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (csf_page_snap(&shared, &s)) {
			t->busy++; /* EAGAIN: the writer lost its CPU while it wrote */
			continue;
		}
		t->snaps++;
		if (s.p.cpu != last)
			__atomic_add_fetch(&t->versions, 1, __ATOMIC_RELAXED);
		last = s.p.cpu;
		if (whats_wrong(&s)) {
			t->wrong = whats_wrong(&s);
			t->torn++;
		}
	}
	return NULL;
}

static void test_torn(void)
{
	struct tally t = { 0, 0, 0, 0, NULL };
	uint64_t start = u_now_ns();
	pthread_t threads[2];
	void *writes;

	fill_page(&shared);
	clock_start = shared.last_switch_tsc - 100 * PAST;
	write_page(&shared, 0);
	TEST("no copy of a page is torn while a writer writes all the time") {
		pthread_create(&threads[0], NULL, writer, NULL);
		pthread_create(&threads[1], NULL, reader, &t);
		/* Only what both do at a time counts, and they may have to share a CPU. */
		while (__atomic_load_n(&t.versions, __ATOMIC_RELAXED) < 2000 &&
		       u_now_ns() - start < 2000000000)
			u_sleep_ms(10);
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		pthread_join(threads[0], &writes);
		pthread_join(threads[1], NULL);
		CHECK(!t.torn, "%llu of %llu: %s", (unsigned long long)t.torn,
		      (unsigned long long)t.snaps, t.wrong);
		CHECK(t.snaps > 1000 && t.versions > 50, "only %llu copies of %llu versions",
		      (unsigned long long)t.snaps, (unsigned long long)t.versions);
		printf("# %llu copies of %llu versions, %llu writes, %llu times EAGAIN\n",
		       (unsigned long long)t.snaps, (unsigned long long)t.versions,
		       (unsigned long long)(uintptr_t)writes, (unsigned long long)t.busy);
	}
}

int main(void)
{
	u_start();
	test_torn(); /* first: afterwards this thread stays on one CPU */
	test_flags(stay_on_this_cpu());
	test_clocks();
	test_refused();
	return u_done();
}
