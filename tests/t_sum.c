// SPDX-License-Identifier: GPL-2.0
/*
 * The sum rule, on a million snapshots of a thread that is preempted, blocks and moves between CPUs
 * ten thousand times each meanwhile: to the cycle, always. Knows lib/ only.
 */
#include "t.h"

enum { SNAPSHOTS = 1000000, EVENTS = 10000, EVERY = 80 };

/* Preempts whatever runs on its CPU, often, for a moment. */
struct bully {
	pthread_t thread;
	int cpu, ready;
	const int *stop;
};

static void *bully_thread(void *arg)
{
	struct sched_param param = { .sched_priority = 1 };
	struct bully *b = arg;

	t_pin(b->cpu);
	if (sched_setscheduler(0, SCHED_FIFO, &param))
		t_die("SCHED_FIFO: %s", strerror(errno));
	__atomic_store_n(&b->ready, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(b->stop, __ATOMIC_ACQUIRE))
		t_sleep_ns(50000);
	return NULL;
}

/* Reads the clock such that nothing that follows is done before it. */
static uint64_t clock_then_fence(void)
{
	uint64_t now = csf_rdtsc();

#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_lfence();
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
	return now;
}

static void check_pair(const struct csf_snap *a, const struct csf_snap *b)
{
	const struct csf_thread_page *p = &a->p, *q = &b->p;
	long long off = (long long)(t_sum(q) - t_sum(p) - (b->tsc - a->tsc));

	CHECK(b->extrapolated, "a snapshot of the own thread is not extrapolated");
	CHECK(p->epoch == q->epoch, "the page was armed anew");
	CHECK(!off, "the buckets are %lld cycles off", off);
	CHECK(q->oncpu_cyc >= p->oncpu_cyc && q->runq_cyc >= p->runq_cyc &&
		      q->sleep_cyc >= p->sleep_cyc && q->dsleep_cyc >= p->dsleep_cyc &&
		      q->iowait_cyc >= p->iowait_cyc,
	      "a bucket shrank: oncpu %+lld runq %+lld sleep %+lld dsleep %+lld iowait %+lld",
	      (long long)(q->oncpu_cyc - p->oncpu_cyc), (long long)(q->runq_cyc - p->runq_cyc),
	      (long long)(q->sleep_cyc - p->sleep_cyc), (long long)(q->dsleep_cyc - p->dsleep_cyc),
	      (long long)(q->iowait_cyc - p->iowait_cyc));
	CHECK((int32_t)(q->seq - p->seq) >= 0 && !(q->seq & 1),
	      "the sequence count went from %u to %u", p->seq, q->seq);
}

/* Every so often the thread moves, or sleeps, or yields; and it is preempted all the time. */
static void disturb(unsigned long i, int cpus)
{
	if (i % EVERY == 0 && cpus > 1)
		t_pin((int)(i / EVERY % 2));
	else if (i % EVERY == EVERY / 2)
		t_sleep_ns(1);
}

struct events {
	unsigned long long preempt, block, migrate;
};

static struct events count(const struct csf_snap *a, const struct csf_snap *b)
{
	return (struct events){ b->p.nr_preempt - a->p.nr_preempt, b->p.nr_block - a->p.nr_block,
				b->p.nr_migrate - a->p.nr_migrate };
}

static int enough(const struct events *e, unsigned long n, int cpus)
{
	return n >= SNAPSHOTS && e->preempt >= EVENTS && e->block >= EVENTS &&
	       (e->migrate >= EVENTS || cpus < 2);
}

/*
 * Being preempted on the way to sleep, when the thread's state is no longer "running", is not a
 * block: the kernel's two counts tell. A block, on the other hand, can be over before it began.
 */
static void check_counts(const struct csf_snap *first)
{
	unsigned long long vol, inv;
	struct csf_snap last;
	struct events e;

	t_leave();
	t_snap(&last);
	e = count(first, &last);
	vol = last.p.nvcsw - first->p.nvcsw;
	inv = last.p.nivcsw - first->p.nivcsw;
	t_note("nvcsw %llu for %llu blocks, nivcsw %llu for %llu preemptions", vol, e.block, inv,
	       e.preempt);
	CHECK(vol + inv == e.block + e.preempt, "left %llu times, by nvcsw and nivcsw %llu",
	      e.block + e.preempt, vol + inv);
	CHECK(e.block <= vol && vol - e.block <= vol / 50, "%llu blocks, nvcsw %llu", e.block, vol);
}

static void snapshots(int cpus)
{
	struct csf_snap first, last, now = { 0 };
	struct events e = { 0 };
	unsigned long n;

	t_leave();
	t_snap(&first);
	last = first;
	for (n = 0; !enough(&e, n, cpus) && !t_.now->failed; n++) {
		uint64_t before, after;

		disturb(n, cpus);
		before = clock_then_fence();
		if (n & 1)
			t_snap(&now);
		else if (csf_thread_snap_ordered(&now))
			t_die("csf_thread_snap_ordered: %s", strerror(errno));
		after = csf_rdtsc();
		CHECK(before <= now.tsc && now.tsc <= after,
		      "the snapshot's clock is %lld and %lld cycles outside",
		      (long long)(before - now.tsc), (long long)(now.tsc - after));
		check_pair(&last, &now);
		check_pair(&first, &now);
		last = now;
		e = count(&first, &now);
	}
	t_note("%lu snapshots, %llu preemptions, %llu blocks, %llu migrations, 0 cycles off%s", n,
	       e.preempt, e.block, e.migrate, t_.now->failed ? " until the last" : "");
	check_counts(&first);
	t_note("%u blocks with a waker ahead, %u switch-ins with a delayed dequeue",
	       now.p.nr_waking - first.p.nr_waking, now.p.nr_guessed - first.p.nr_guessed);
}

static void test_sum(void)
{
	int cpus = t_cpus(), stop = 0;
	struct bully bullies[2] = { { .cpu = 0, .stop = &stop }, { .cpu = 1, .stop = &stop } };
	int n = cpus < 2 ? 1 : 2;

	t_limit(400);
	for (int i = 0; i < n; i++)
		bullies[i].thread = t_go(bully_thread, &bullies[i]);
	for (int i = 0; i < n; i++)
		while (!__atomic_load_n(&bullies[i].ready, __ATOMIC_ACQUIRE))
			t_sleep_ns(T_MS);
	snapshots(cpus);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < n; i++)
		t_join(bullies[i].thread);
	t_unpin();
}

/* A signal handler's snapshot lands anywhere in the interrupted thread's own. */
static struct csf_snap in_handler;
static volatile sig_atomic_t handled;

static void on_signal(int sig)
{
	(void)sig;
	if (csf_thread_snap(&in_handler))
		t_die("csf_thread_snap in a handler: %s", strerror(errno));
	handled++;
}

static void test_signals(void)
{
	struct itimerspec every = { { 0, 200000 }, { 0, 200000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct csf_snap a, b;
	timer_t timer;

	t_snap(&in_handler);
	signal(SIGUSR1, on_signal);
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &every, NULL))
		t_die("timer: %s", strerror(errno));
	t_snap(&a);
	while (handled < 1000 && !t_.now->failed) {
		t_snap(&b);
		check_pair(&a, &b);
		a = b;
	}
	timer_delete(timer);
	signal(SIGUSR1, SIG_IGN);
	t_snap(&b);
	check_pair(&in_handler, &b);
	t_note("%d signals", (int)handled);
}

int main(void)
{
	TEST("sum rule")
		test_sum();
	TEST("snapshots in a signal handler")
		test_signals();
	return t_done("t_sum");
}
