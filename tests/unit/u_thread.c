// SPDX-License-Identifier: GPL-2.0
/* One mapping a thread: when it is made, and that it goes with the thread. */
#include "u.h"

#define NR_THREADS 8

static int snap(void)
{
	struct csf_snap s;

	EXPECT(!csf_thread_snap(&s));
	return 0;
}

static void test_first_use(void)
{
	struct csf_snap s, other;
	uint64_t before, after;
	int fds = u_count_fds();

	TEST("the first snapshot maps the page, once, and leaves no descriptor open") {
		CHECK_EQ(u_count_maps(u_thread_path), 0);
		CHECK_EQ(csf_thread_snap(&s), 0);
		CHECK_EQ(u_count_maps(u_thread_path), 1);
		CHECK_EQ(csf_thread_snap(&s), 0);
		CHECK_EQ(csf_thread_snap_ordered(&s), 0);
		CHECK_EQ(u_count_maps(u_thread_path), 1);
		CHECK_EQ(u_count_fds(), fds);
	}
	TEST("a snapshot is a copy as of a clock between two readings of ours") {
		before = csf_rdtsc();
		CHECK_EQ(csf_thread_snap_ordered(&s), 0);
		after = csf_rdtsc();
		CHECK(s.tsc >= before && s.tsc <= after, "%llu is not in %llu..%llu",
		      (unsigned long long)s.tsc, (unsigned long long)before,
		      (unsigned long long)after);
		CHECK_EQ(s.extrapolated, 1);
		CHECK_EQ(s.p.oncpu_cyc, s.tsc - s.p.last_switch_tsc);
	}
	TEST("errno is left alone on success, in a thread's first call too") {
		errno = 12345;
		CHECK_EQ(csf_thread_snap(&other), 0);
		CHECK_EQ(errno, 12345);
	}
}

static int first_call_keeps_errno(void)
{
	struct csf_snap s;

	errno = 12345;
	EXPECT(!csf_thread_snap(&s));
	EXPECT(errno == 12345);
	return 0;
}

/*
 * Threads that take a snapshot and stay until told to go.
 */
static pthread_barrier_t mapped, leave;

static void *stay(void *arg)
{
	struct csf_snap s;
	int ret = csf_thread_snap(&s);

	*(const void **)arg = csf_tls_.page;
	pthread_barrier_wait(&mapped);
	pthread_barrier_wait(&leave);
	return (void *)(intptr_t)ret;
}

static void *end_by_exit(void *arg)
{
	stay(arg);
	pthread_exit(NULL);
}

static void *end_by_cancel(void *arg)
{
	stay(arg);
	pause();
	return NULL;
}

static void test_threads(const char *name, void *(*fn)(void *), int cancel)
{
	pthread_t threads[NR_THREADS];
	const void *pages[NR_THREADS];
	int base = u_count_maps(u_thread_path);
	int i, j;

	pthread_barrier_init(&mapped, NULL, NR_THREADS + 1);
	pthread_barrier_init(&leave, NULL, NR_THREADS + 1);
	TEST(name) {
		for (i = 0; i < NR_THREADS; i++)
			pthread_create(&threads[i], NULL, fn, &pages[i]);
		pthread_barrier_wait(&mapped);
		CHECK_EQ(u_count_maps(u_thread_path), base + NR_THREADS);
		for (i = 0; i < NR_THREADS; i++)
			for (j = 0; j < i; j++)
				CHECK(pages[i] != pages[j], "two threads have one mapping");
		pthread_barrier_wait(&leave);
		for (i = 0; i < NR_THREADS; i++) {
			if (cancel)
				pthread_cancel(threads[i]);
			pthread_join(threads[i], NULL);
		}
		CHECK_EQ(u_count_maps(u_thread_path), base);
	}
	pthread_barrier_destroy(&mapped);
	pthread_barrier_destroy(&leave);
}

static int no_snap(void)
{
	return 0;
}

static int many_snaps(void)
{
	int i;

	for (i = 0; i < 1000; i++)
		if (snap())
			return 1;
	return 0;
}

/*
 * A destructor of the program's own, which runs before or after the library's: a snapshot in it
 * maps the page again, and the library's destructor runs again. So does one in a child made there.
 */
static pthread_key_t late_keys[2];
static int late_result[2];

static void snap_late(void *arg)
{
	*(int *)arg = u_in_child(snap) || snap() ? -1 : 1;
}

static int end_with_late_snaps(void)
{
	int i;

	for (i = 0; i < 2; i++)
		pthread_setspecific(late_keys[i], &late_result[i]);
	return snap();
}

/*
 * A request that arrives before the first snapshot waits until after it: half a mapping would stay.
 */
static int cancelled_after;

static void *cancel_pending(void *arg)
{
	struct csf_snap s;

	(void)arg;
	pthread_cancel(pthread_self());
	cancelled_after = !csf_thread_snap(&s);
	pthread_testcancel();
	cancelled_after = 0;
	return NULL;
}

static void test_cancel(void)
{
	int base = u_count_maps(u_thread_path), fds = u_count_fds();
	pthread_t thread;

	TEST("a pending cancellation does not end the first snapshot half-way") {
		pthread_create(&thread, NULL, cancel_pending, NULL);
		pthread_join(thread, NULL);
		CHECK_EQ(cancelled_after, 1);
		CHECK_EQ(u_count_maps(u_thread_path), base);
		CHECK_EQ(u_count_fds(), fds);
	}
}

static void test_ends(void)
{
	int base, i;

	pthread_key_create(&late_keys[1], snap_late); /* [0] is older than the library's */
	TEST("a thread that took no snapshot has no mapping") {
		base = u_count_maps(u_thread_path);
		CHECK_EQ(u_in_thread(no_snap), 0);
		CHECK_EQ(u_count_maps(u_thread_path), base);
	}
	TEST("snapshots in other destructors work, and their mapping goes too") {
		base = u_count_maps(u_thread_path);
		CHECK_EQ(u_in_thread(end_with_late_snaps), 0);
		CHECK_EQ(late_result[0], 1);
		CHECK_EQ(late_result[1], 1);
		CHECK_EQ(u_count_maps(u_thread_path), base);
	}
	TEST("1000 threads, one after the other, leave nothing") {
		base = u_count_maps(u_thread_path);
		for (i = 0; i < 1000; i++)
			if (!CHECK_EQ(u_in_thread(i % 100 ? snap : many_snaps), 0))
				break;
		CHECK_EQ(u_count_maps(u_thread_path), base);
	}
}

static void *detached(void *arg)
{
	struct csf_snap s;

	__atomic_store_n((int *)arg, csf_thread_snap(&s) ? -1 : 1, __ATOMIC_RELEASE);
	return NULL;
}

static void test_detached(void)
{
	int base = u_count_maps(u_thread_path), done = 0, tries = 0;
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	TEST("a detached thread unmaps its page") {
		pthread_create(&thread, &attr, detached, &done);
		while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE) ||
		       (u_count_maps(u_thread_path) != base && tries++ < 1000))
			u_sleep_ms(1);
		CHECK_EQ(done, 1);
		CHECK_EQ(u_count_maps(u_thread_path), base);
	}
}

/*
 * Pages that cannot be the caller's own. The page of a running thread says that it runs.
 */
static int refused_as(unsigned int state, unsigned int life)
{
	struct csf_thread_page p;
	struct csf_snap s;

	u_fill_thread_page(&p);
	p.state = (__u16)state;
	p.life = (__u16)life;
	u_write_thread_file(&p);
	memset(&s, 0xff, sizeof(s));
	EXPECT(csf_thread_snap(&s) == -1);
	EXPECT(errno == ESRCH);
	EXPECT(u_is_zero(&s, sizeof(s)));
	return 0;
}

static int sleeping(void)
{
	return refused_as(CSF_DSLEEP, CSF_LIVE); /* a vfork() child sees its parent's page so */
}

static int paused(void)
{
	return refused_as(CSF_ONCPU, CSF_PAUSED);
}

static int dead(void)
{
	return refused_as(CSF_ONCPU, CSF_DEAD);
}

static int monotonic(void)
{
	uint64_t before, after;
	struct csf_thread_page p;
	struct csf_snap s;

	u_fill_thread_page(&p);
	p.hdr.clock = CSF_CLOCK_MONOTONIC;
	p.last_switch_tsc = u_now_ns();
	u_write_thread_file(&p);
	before = u_now_ns();
	EXPECT(!csf_thread_snap(&s));
	after = u_now_ns();
	EXPECT(s.tsc >= before && s.tsc <= after);
	EXPECT(s.p.oncpu_cyc == s.tsc - s.p.last_switch_tsc);
	before = csf_rdtsc();
	EXPECT(before >= after && before <= u_now_ns());
	return 0;
}

static void test_pages(void)
{
	TEST("a page that says its thread sleeps is not the caller's: ESRCH")
		CHECK_EQ(u_in_thread(sleeping), 0);
	TEST("a paused page: ESRCH")
		CHECK_EQ(u_in_thread(paused), 0);
	TEST("a dead page: ESRCH")
		CHECK_EQ(u_in_thread(dead), 0);
	TEST("csf_rdtsc() and the snapshot follow a page in CLOCK_MONOTONIC")
		CHECK_EQ(u_in_thread(monotonic), 0);
	u_make_thread_file();
}

int main(void)
{
	u_start();
	u_make_thread_file();
	pthread_key_create(&late_keys[0], snap_late);
	test_first_use();
	TEST("errno is left alone by a second thread's first call")
		CHECK_EQ(u_in_thread(first_call_keeps_errno), 0);
	test_threads("threads have a mapping each, until they return", stay, 0);
	test_threads("... until they call pthread_exit()", end_by_exit, 0);
	test_threads("... until they are cancelled", end_by_cancel, 1);
	test_cancel();
	test_ends();
	test_detached();
	test_pages();
	return u_done();
}
