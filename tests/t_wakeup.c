// SPDX-License-Identifier: GPL-2.0
/*
 * Waiting after a wakeup, against the kernel's trace events, and the one kind of sleep that the
 * kernel itself books as waiting. Knows lib/ only.
 */
#include "t.h"

#include <sys/mount.h>

#define TRACING "/sys/kernel/tracing"
#define SECOND TRACING "/instances/t_wakeup"

static void tracing(const char *dir, const char *file, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (t_write(path, value))
		t_die("%s > %s: %s", value, path, strerror(errno));
}

static int tracing_there(void)
{
	if (access(TRACING "/trace", R_OK))
		mount("none", TRACING, "tracefs", 0, NULL);
	return !access(TRACING "/events/sched/sched_waking/enable", W_OK);
}

/* Records one thread's wakeups and switches by the page's own clock. */
static void tracing_start(const char *dir, pid_t tid, uint32_t clock)
{
	char filter[128];

	tracing(dir, "trace_clock", clock == CSF_CLOCK_TSC ? "x86-tsc" : "mono");
	snprintf(filter, sizeof(filter), "pid==%d", tid);
	tracing(dir, "events/sched/sched_waking/filter", filter);
	tracing(dir, "events/sched/sched_wakeup/filter", filter);
	snprintf(filter, sizeof(filter), "next_pid==%d || prev_pid==%d", tid, tid);
	tracing(dir, "events/sched/sched_switch/filter", filter);
	tracing(dir, "trace", "");
	tracing(dir, "events/sched/sched_waking/enable", "1");
	tracing(dir, "events/sched/sched_wakeup/enable", "1");
	tracing(dir, "events/sched/sched_switch/enable", "1");
}

static void tracing_stop(const char *dir)
{
	tracing(dir, "events/sched/sched_waking/enable", "0");
	tracing(dir, "events/sched/sched_wakeup/enable", "0");
	tracing(dir, "events/sched/sched_switch/enable", "0");
	tracing(dir, "events/sched/sched_waking/filter", "0");
	tracing(dir, "events/sched/sched_wakeup/filter", "0");
	tracing(dir, "events/sched/sched_switch/filter", "0");
}

/* The time stamp of a trace line, "... 123.456789: sched_waking: ..." or cycles, in clock units. */
static uint64_t stamp(const char *line, const char *event)
{
	const char *end = event, *start;
	char *rest;
	uint64_t whole;

	while (end > line && end[-1] != ':')
		end--;
	start = end > line ? end - 1 : line;
	while (start > line && start[-1] != ' ')
		start--;
	whole = strtoull(start, &rest, 10);
	if (*rest != '.')
		return whole;
	return whole * T_SEC + strtoull(rest + 1, NULL, 10) * 1000; /* the trace has microseconds */
}

enum { NAPS = 200, ROUNDS = 5 };

/* A wakeup begins with the one, queues the thread, and ends with the other. */
struct waits {
	double waking, wakeup; /* us from there to the switch in, in all */
};

/*
 * Of each wakeup and the switch that it led to; and of each switch away from the thread while it
 * could run, as to the threads that handle a timer with PREEMPT_RT.
 */
static struct waits parse_trace(const struct csf_snap *s, long blocks)
{
	uint64_t waking_sum = 0, wakeup_sum = 0, waking = 0, wakeup = 0;
	FILE *f = fopen(TRACING "/trace", "r");
	char line[512], next[32];
	long n = 0, begun = 0;

	if (!f)
		t_die(TRACING "/trace: %s", strerror(errno));
	snprintf(next, sizeof(next), " next_pid=%d ", t_gettid());
	while (fgets(line, sizeof(line), f)) {
		const char *begins = strstr(line, " sched_waking:");
		const char *ends = strstr(line, " sched_wakeup:");
		const char *in = strstr(line, " sched_switch:");

		if (line[0] != '#' && begins) {
			waking = stamp(line, begins);
			begun = 1;
		}
		if (line[0] != '#' && ends)
			wakeup = stamp(line, ends);
		if (line[0] != '#' && in && !strstr(line, next) && strstr(line, " prev_state=R")) {
			waking = wakeup = stamp(line, in);
			begun = 0;
		}
		if (line[0] == '#' || !in || !waking || !wakeup || !strstr(line, next))
			continue;
		waking_sum += stamp(line, in) - waking;
		wakeup_sum += stamp(line, in) - wakeup;
		n += begun;
		waking = wakeup = begun = 0;
	}
	fclose(f);
	CHECK(n <= NAPS && n > blocks * 9 / 10, "%ld triples of trace events of %ld wakeups", n,
	      blocks);
	return (struct waits){ t_ms(s, waking_sum) * 1000, t_ms(s, wakeup_sum) * 1000 };
}

/*
 * How long 200 sleeps of 100 us made the thread wait for its idle CPU, in us, by the page. Of them it
 * blocks in those whose timer does not expire before.
 */
static double naps(long *blocks)
{
	struct csf_snap a, b;
	long before = t_blocks();

	t_snap(&a);
	for (int i = 0; i < NAPS; i++)
		t_sleep_ns(100000);
	t_snap(&b);
	*blocks = t_blocks() - before;
	return t_diff(&a, &b).runq * 1000;
}

/* The same by the trace events, recorded once or by a second recorder too. */
static struct waits naps_traced(int recorders, double *page)
{
	struct csf_snap s;
	long blocks;

	t_snap(&s);
	if (recorders > 1)
		tracing_start(SECOND, t_gettid(), s.p.hdr.clock);
	tracing_start(TRACING, t_gettid(), s.p.hdr.clock);
	*page = naps(&blocks);
	tracing_stop(TRACING);
	if (recorders > 1)
		tracing_stop(SECOND);
	return parse_trace(&s, blocks);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double v[ROUNDS])
{
	qsort(v, ROUNDS, sizeof(*v), by_size);
	return v[ROUNDS / 2];
}

/* Medians, in us */
struct latencies {
	double page; /* by the page, nobody recording */
	double both; /* by the page, recording once */
	struct waits share; /* of the trace's that is, in the same naps */
	struct waits once; /* by the trace events in the same naps */
	struct waits twice; /* by the trace events, recorded twice */
};

static void measure_latencies(struct latencies *l)
{
	double page[ROUNDS], both[ROUNDS], unused, times[6][ROUNDS];
	long blocks;

	mkdir(SECOND, 0755);
	t_pin(t_cpus() - 1);
	naps(&blocks);
	for (int i = 0; i < ROUNDS; i++) {
		struct waits once, twice;

		page[i] = naps(&blocks);
		once = naps_traced(1, &both[i]);
		twice = naps_traced(2, &unused);
		times[0][i] = once.waking;
		times[1][i] = once.wakeup;
		times[2][i] = twice.waking;
		times[3][i] = twice.wakeup;
		times[4][i] = both[i] / once.waking;
		times[5][i] = both[i] / once.wakeup;
	}
	t_unpin();
	rmdir(SECOND); /* its memory is freed in the background: the CPU would not be idle */
	l->page = median(page);
	l->both = median(both);
	l->once = (struct waits){ median(times[0]), median(times[1]) };
	l->twice = (struct waits){ median(times[2]), median(times[3]) };
	l->share = (struct waits){ median(times[4]), median(times[5]) };
}

/*
 * The thread is queued between sched_waking and sched_wakeup; from either to sched_switch is what
 * bounds its wait. Recording an event costs as much as a good part of the time in question, so
 * everything is recorded twice, too: what that adds is what the first recorder added. The page is
 * read with nobody recording. Without a steady clock only the same naps can be compared, recording
 * included.
 *
 * The trace can be the judge only in a kernel of our choosing: on a virtual machine whose kernel runs
 * old text in some contexts, it was seen to lack the switches from the idle task.
 */
static void test_idle_wakeups(void)
{
	double most, least;
	struct latencies l;

	if (!t_in_guest()) {
		t_skip("compared in guests: a host's trace may lack switches");
		return;
	}
	if (!tracing_there()) {
		t_skip("no tracefs");
		return;
	}
	measure_latencies(&l);
	most = 2 * l.once.waking - l.twice.waking;
	least = 2 * l.once.wakeup - l.twice.wakeup;
	t_note("waited %.1f us by the page, by trace events %.1f to %.1f", l.page, least, most);
	t_note("waited %.1f us by the page while recording, by trace events %.1f to %.1f: %.2f to %.2f",
	       l.both, l.once.wakeup, l.once.waking, l.share.waking, l.share.wakeup);
	if (t_icount())
		CHECK(l.page > (least + most) / 2 * 0.9 && l.page < most * 1.1,
		      "waited %.1f us, by the trace events %.1f to %.1f", l.page, least, most);
	CHECK(l.share.wakeup > 0.6 && l.share.waking < 1.6,
	      "waited %.2f of the time from waking, %.2f of that from wakeup", l.share.waking,
	      l.share.wakeup);
}

struct sleeper {
	pthread_t thread;
	pid_t tid; /* set when it is about to sleep */
	int moved;
	struct t_diff_ d;
	double run_delay;
	unsigned int delayed;
};

static const double nap_ms = 1000;

/*
 * Works until it has had more than its share, in one go, so that the scheduler (6.12 and later)
 * leaves it in the queue for a while when it goes to sleep. On a busy machine it may never get
 * that.
 */
static void work_too_long(struct csf_snap *s)
{
	uint64_t enough = t_clock_ns(CLOCK_MONOTONIC) + T_SEC;

	t_spin_ns(2 * T_MS);
	do
		t_snap(s);
	while (t_ms(s, s->tsc - s->p.last_switch_tsc) < 2 && t_clock_ns(CLOCK_MONOTONIC) < enough);
}

static void *sleeper_thread(void *arg)
{
	struct sleeper *s = arg;
	struct csf_snap a, b;

	t_pin(0);
	work_too_long(&a);
	__atomic_store_n(&s->tid, t_gettid(), __ATOMIC_RELEASE);
	t_sleep_ns(T_SEC);
	t_snap(&b);
	s->d = t_diff(&a, &b);
	t_leave(); /* run_delay is copied then */
	t_snap(&b);
	s->run_delay = (double)(b.p.run_delay_ns - a.p.run_delay_ns) / 1e6;
	s->delayed = b.p.nr_guessed - a.p.nr_guessed;
	return NULL;
}

/* Moves it as soon as it is asleep; 1 if it did. */
static int try_to_move(struct sleeper *s)
{
	pid_t tid = __atomic_load_n(&s->tid, __ATOMIC_ACQUIRE);
	cpu_set_t set;

	if (s->moved || !tid || t_state_letter(tid) != 'S')
		return 0;
	CPU_ZERO(&set);
	CPU_SET(1, &set);
	if (sched_setaffinity(tid, sizeof(set), &set))
		t_die("sched_setaffinity: %s", strerror(errno));
	s->moved = 1;
	return 1;
}

struct moved {
	int n, delayed,
		fooled, /* of n sleepers, the kernel's run_delay has the sleep of that many */
		wrong;
	double worst; /* longest time in the run queue, ms */
};

enum { BATCH = 10 };

/* A virtual CPU can stand still between the start of a nap and the switch: on the CPU, to a guest. */
static void judge(struct moved *m, const struct sleeper *s)
{
	double slept = s->d.sleep + s->d.oncpu;

	m->n++;
	m->delayed += s->delayed != 0;
	m->wrong += slept <= 0.95 * nap_ms;
	m->fooled += s->run_delay > 0.8 * nap_ms && s->d.runq < 0.5 * nap_ms;
	if (s->d.runq > m->worst)
		m->worst = s->d.runq;
	CHECK(slept > 0.95 * nap_ms, "slept %.3f ms of a nap of %.0f, waited %.3f, ran %.3f",
	      s->d.sleep, nap_ms, s->d.runq, s->d.oncpu);
}

static void one_batch(struct moved *m)
{
	struct sleeper sleepers[BATCH] = { { 0 } };
	int left = BATCH;

	for (int i = 0; i < BATCH; i++)
		sleepers[i].thread = t_go(sleeper_thread, &sleepers[i]);
	for (; left; t_sleep_ns(100000))
		for (int i = 0; i < BATCH; i++)
			left -= try_to_move(&sleepers[i]);
	for (int i = 0; i < BATCH; i++) {
		t_join(sleepers[i].thread);
		judge(m, &sleepers[i]);
	}
}

/* First in line for a CPU, to be in time; the threads it makes are not. */
static void set_policy(int policy, int priority)
{
	struct sched_param param = { .sched_priority = priority };

	if (sched_setscheduler(0, policy, &param))
		t_die("sched_setscheduler: %s", strerror(errno));
}

/* Moved between CPUs while asleep: the sleep stays sleep. */
static void test_moved(void)
{
	struct moved m = { 0 };
	struct t_rival rivals[2];

	if (t_cpus() < 2) {
		t_skip("one CPU");
		return;
	}
	t_rival_start(&rivals[0], 0, 0);
	t_rival_start(&rivals[1], 1, 0);
	set_policy(SCHED_FIFO | SCHED_RESET_ON_FORK, 1);
	for (int i = 0; i < 100 / BATCH; i++)
		one_batch(&m);
	set_policy(SCHED_OTHER, 0);
	t_rival_stop(&rivals[0]);
	t_rival_stop(&rivals[1]);
	t_note("%d sleepers moved, longest wait %.3f ms; dequeue delayed for %d", m.n, m.worst,
	       m.delayed);
	t_note("schedstat's run_delay has the sleep of %d of them, the page lacks that of %d",
	       m.fooled, m.wrong);
}

int main(void)
{
	TEST("wakeups on an idle CPU")
		test_idle_wakeups();
	TEST("moved while asleep")
		test_moved();
	return t_done("t_wakeup");
}
