// SPDX-License-Identifier: MIT
/*
 * Tasks that never give up a CPU.
 *
 *	spin [-w] [SECONDS [COUNT]]
 *
 * COUNT children spin; SIGTERM ends them with their parent. They are forked, not executed, so that nothing
 * moves or wakes them: execve() and sched_setaffinity() can.
 *
 * -w: say "waiting" and fork at SIGUSR1, so that something can measure from the start on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t is_over;

static void end(int sig)
{
	(void)sig;
	is_over = 1;
}

static void spin(unsigned int seconds, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		return;
	signal(SIGALRM, end);
	alarm(seconds);
	while (!is_over)
		;
}

/* SIGUSR1 is blocked before the word is out, so it cannot come too early. */
static void wait_to_begin(void)
{
	sigset_t usr1;
	int sig;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	puts("waiting");
	sigwait(&usr1, &sig);
}

static unsigned int number(const char *s)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(s, &end, 10);
	if (end != s && !*end && !errno && n > 0 && n <= 100000)
		return (unsigned int)n;
	fprintf(stderr, "spin: '%s' is not a number from 1 to 100000\n", s);
	exit(2);
}

/* 0 if all were born; those that were end with us. */
static int start(unsigned int seconds, unsigned int count)
{
	pid_t parent = getpid(), pid;

	fputs("spinning", stdout);
	while (count--) {
		pid = fork();
		if (!pid) {
			spin(seconds, parent);
			_exit(0);
		}
		if (pid < 0) {
			perror("spin: fork");
			return -1;
		}
		printf(" %d", pid);
	}
	putchar('\n');
	if (!fflush(stdout))
		return 0;
	perror("spin: cannot write the output");
	return -1;
}

int main(int argc, char **argv)
{
	unsigned int seconds = 10, count = 1;
	int c, waits = 0;

	while ((c = getopt(argc, argv, "w")) == 'w')
		waits = 1;
	if (c != -1 || argc - optind > 2) {
		fputs("Usage: spin [-w] [SECONDS [COUNT]]\n", stderr);
		return 2;
	}
	if (optind < argc)
		seconds = number(argv[optind++]);
	if (optind < argc)
		count = number(argv[optind]);
	if (waits) {
		setvbuf(stdout, NULL, _IOLBF, 0);
		wait_to_begin();
	}
	if (start(seconds, count))
		return 1;
	while (wait(NULL) > 0)
		;
	return 0;
}
