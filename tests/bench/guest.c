// SPDX-License-Identifier: GPL-2.0
/*
 * What the module costs the kernel. Runs in a guest; guest.sh says when the module is loaded.
 *
 *	bench_guest insn|ns MEASURE...
 *
 * prints a line "MEASURE_insn VALUE LEAST MOST" each, VALUE being the median of many windows. In a
 * guest whose TSC counts instructions (QEMU's -icount shift=0) that is what a cost is given in. A
 * window is short against the scheduler's tick and against the periods of its load tracking, one of
 * which ends every million cycles for each task and queue: most windows hold nothing but what they
 * measure.
 */
#define _GNU_SOURCE
#include <err.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/coarse_stat_fs.h"
#include "median.h"

#define WINDOWS 1001
#define ROUND_TRIPS 5
#define CALLS 200
#define SLEEPERS 10000

static bool in_ns; /* else in ticks of the TSC */

static double now(void)
{
	struct timespec ts;

	if (!in_ns)
		return (double)__builtin_ia32_rdtsc();
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void check(int error, const char *what)
{
	if (error)
		errx(1, "%s: %s", what, strerror(error));
}

static pthread_t start(void *(*fn)(void *), size_t stack)
{
	pthread_attr_t attr;
	pthread_t t;

	check(pthread_attr_init(&attr), "pthread_attr_init");
	if (stack)
		check(pthread_attr_setstacksize(&attr, stack), "pthread_attr_setstacksize");
	check(pthread_create(&t, &attr, fn, NULL), "pthread_create");
	pthread_attr_destroy(&attr);
	return t;
}

static void register_me(void)
{
	struct csf_snap s;

	if (csf_thread_snap(&s))
		err(1, "csf_thread_snap");
}

/*
 * Two threads on one CPU that wake each other and sleep. Both are SCHED_BATCH: such threads do not
 * preempt each other, so every switch is a thread going to sleep.
 */
static volatile int turn;
static volatile bool done;
static bool both_registered;

static void hand_over(int me)
{
	turn = !me;
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	while (turn != me)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, !me, NULL, NULL, 0);
}

static void *partner(void *arg)
{
	if (both_registered)
		register_me();
	while (turn != 1)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	while (!done)
		hand_over(1);
	turn = 0;
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	return arg;
}

static long switches(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_nvcsw + ru.ru_nivcsw;
}

static double ping_pong_window(void)
{
	double start = now();
	int i;

	for (i = 0; i < ROUND_TRIPS; i++)
		hand_over(0);
	return (now() - start) / (2 * ROUND_TRIPS);
}

/* Until the scheduler's averages have forgotten what was before: their half-life is 32 ms. */
static void warm_up(void)
{
	double end = now() + 150e6;

	while (now() < end)
		ping_pong_window();
}

static void ping_pong(double *values)
{
	pthread_t t;
	long before;
	int i;

	done = false;
	turn = 0;
	if (both_registered)
		register_me();
	t = start(partner, 0);
	warm_up();
	before = switches();
	for (i = 0; i < WINDOWS; i++)
		values[i] = ping_pong_window();
	before += 2L * ROUND_TRIPS * WINDOWS;
	if (labs(switches() - before) > WINDOWS)
		errx(1, "%ld switches more than hand-overs", switches() - before);
	done = true;
	hand_over(0);
	check(pthread_join(t, NULL), "pthread_join");
}

static void registered_ping_pong(double *values)
{
	both_registered = true;
	ping_pong(values);
}

static int nr_asleep;

static void *sleeper(void *arg)
{
	register_me();
	__atomic_add_fetch(&nr_asleep, 1, __ATOMIC_RELAXED);
	pause();
	return arg;
}

/* They stay until the process ends. */
static void crowded_ping_pong(double *values)
{
	int i;

	for (i = 0; i < SLEEPERS; i++)
		start(sleeper, PTHREAD_STACK_MIN);
	while (__atomic_load_n(&nr_asleep, __ATOMIC_RELAXED) < SLEEPERS)
		usleep(10000);
	usleep(100000);
	registered_ping_pong(values);
}

static void thread_snap(double *values)
{
	struct csf_snap s;
	int i, call;

	register_me();
	for (i = 0; i < WINDOWS; i++) {
		double start = now();

		for (call = 0; call < CALLS; call++) {
			csf_thread_snap(&s);
			__asm__ __volatile__("" : : "r"(&s) : "memory");
		}
		values[i] = (now() - start) / CALLS;
	}
}

static void cpu_snap(double *values)
{
	struct csf_cpu_snap c;
	int i, call;

	if (csf_cpu_snap(&c, CSF_CPU_ALL))
		err(1, "csf_cpu_snap");
	for (i = 0; i < WINDOWS; i++) {
		double start = now();

		for (call = 0; call < CALLS; call++) {
			csf_cpu_snap(&c, CSF_CPU_ALL);
			__asm__ __volatile__("" : : "r"(&c) : "memory");
		}
		values[i] = (now() - start) / CALLS;
	}
}

static void clock_gettime_loop(double *values)
{
	struct timespec ts;
	int i, call;

	for (i = 0; i < WINDOWS; i++) {
		double start = now();

		for (call = 0; call < CALLS; call++)
			clock_gettime(CLOCK_MONOTONIC, &ts);
		values[i] = (now() - start) / CALLS;
	}
}

/* A thread's first snapshot: open, fstat, mmap, close, and the faults that bring the page in. */
static double first_snap;

static void *first_use(void *arg)
{
	double start = now();

	register_me();
	first_snap = now() - start;
	return arg;
}

static void open_map(double *values)
{
	int i;

	register_me(); /* what only a process's first thread does */
	for (i = 0; i < WINDOWS; i++) {
		check(pthread_join(start(first_use, 0), NULL), "pthread_join");
		values[i] = first_snap;
		usleep(1000); /* what a thread leaves behind must not be in the next one's bill */
	}
}

/* The ruler itself: a loop of two instructions. */
static void instruction(double *values)
{
	double tick;
	int i;

	for (i = 0; i < WINDOWS; i++) {
		long n = 100000;
		double start = now();

		__asm__ __volatile__("1: dec %0\n\tjnz 1b" : "+r"(n));
		values[i] = (now() - start) / 200000;
	}
	tick = median(values, WINDOWS);
	if (!in_ns && (tick < 0.99 || tick > 1.01))
		errx(1, "the TSC makes %.3f ticks an instruction: is this an icount guest?", tick);
}

static const struct measure {
	const char *name;
	void (*fill)(double *values);
} measures[] = {
	{ "instruction", instruction },
	{ "switch_base", ping_pong },
	{ "switch_module_unregistered", ping_pong },
	{ "switch_module_registered", registered_ping_pong },
	{ "switch_10k", crowded_ping_pong },
	{ "thread_snap", thread_snap },
	{ "clock_gettime", clock_gettime_loop },
	{ "cpu_snap", cpu_snap },
	{ "open_map", open_map },
};

static const struct measure *find(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(measures) / sizeof(*measures); i++)
		if (!strcmp(measures[i].name, name))
			return &measures[i];
	errx(2, "there is no measure '%s'", name);
}

static void settle(void)
{
	struct sched_param param = { 0 };
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		err(1, "sched_setaffinity");
	if (sched_setscheduler(0, SCHED_BATCH, &param))
		err(1, "sched_setscheduler");
}

int main(int argc, char **argv)
{
	double values[WINDOWS], middle;
	int i;

	if (argc < 3)
		errx(2, "usage: bench_guest insn|ns MEASURE...");
	in_ns = !strcmp(argv[1], "ns");
	settle();
	for (i = 2; i < argc; i++) {
		find(argv[i])->fill(values);
		middle = median(values, WINDOWS);
		printf("%s_%s %.2f %.2f %.2f\n", argv[i], argv[1], middle, values[0],
		       values[WINDOWS - 1]);
		fflush(stdout);
	}
	return 0;
}
