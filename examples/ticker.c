// SPDX-License-Identifier: MIT
/*
 * A task that cares for latency: it wakes every millisecond and works for a moment. It prints what the
 * kernel's own counters say of it, from its first tick to its last.
 *
 *	ticker [-w] [TICKS [WORK]]
 *
 * -w: say "waiting" and begin at SIGUSR1, so that something can measure from the first tick on; stay at the
 * end, until the next SIGUSR1, so that its /proc can be read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct counters {
	unsigned long long run_ns, wait_ns; /* on a CPU; runnable without one */
	struct rusage ru;
};

static int read_counters(struct counters *c)
{
	FILE *f = fopen("/proc/self/schedstat", "re");
	int n = f ? fscanf(f, "%llu %llu", &c->run_ns, &c->wait_ns) : 0;

	if (f)
		fclose(f);
	if (n != 2)
		fputs("ticker: cannot read /proc/self/schedstat\n", stderr);
	return n == 2 ? getrusage(RUSAGE_SELF, &c->ru) : -1;
}

static void tick(long work)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	volatile long i;

	for (i = 0; i < work; i++)
		;
	nanosleep(&ms, NULL);
}

static void report(const struct counters *a, const struct counters *b)
{
	printf("ticker pid=%d schedstat run_delay=%.3f ms  rusage nvcsw=%ld nivcsw=%ld\n", getpid(),
	       (double)(b->wait_ns - a->wait_ns) / 1e6, b->ru.ru_nvcsw - a->ru.ru_nvcsw,
	       b->ru.ru_nivcsw - a->ru.ru_nivcsw);
}

/* SIGUSR1 is blocked before the word is out, so it cannot come too early. */
static void wait_to_begin(sigset_t *usr1)
{
	int sig;

	sigprocmask(SIG_BLOCK, usr1, NULL);
	printf("ticker pid=%d waiting\n", getpid());
	sigwait(usr1, &sig);
}

static long number(const char *s)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(s, &end, 10);
	if (end != s && !*end && !errno && n > 0)
		return n;
	fprintf(stderr, "ticker: '%s' is not a number above 0\n", s);
	exit(2);
}

int main(int argc, char **argv)
{
	long i, ticks = 3000, work = 20000;
	struct counters before, after;
	int c, sig, waits = 0;
	sigset_t usr1;

	while ((c = getopt(argc, argv, "w")) == 'w')
		waits = 1;
	if (c != -1 || argc - optind > 2) {
		fputs("Usage: ticker [-w] [TICKS [WORK]]\n", stderr);
		return 2;
	}
	if (optind < argc)
		ticks = number(argv[optind++]);
	if (optind < argc)
		work = number(argv[optind]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	if (waits)
		wait_to_begin(&usr1);
	if (read_counters(&before))
		return 1;
	for (i = 0; i < ticks; i++)
		tick(work);
	if (read_counters(&after))
		return 1;
	report(&before, &after);
	if (waits)
		sigwait(&usr1, &sig);
	if (ferror(stdout) || fflush(stdout)) {
		fputs("ticker: cannot write the output\n", stderr);
		return 1;
	}
	return 0;
}
