// SPDX-License-Identifier: GPL-2.0
/*
 * The service beside another user of task storage that is in it at every switch and in system calls: no
 * switch is lost, or it is noticed, counted, and the page brought up to date. Knows lib/ only, but
 * for the program that keeps the storage busy.
 */
#include "t.h"

#include <limits.h>

enum { THREADS = 4 };
static const uint64_t busy_ns = 10 * T_SEC;

static char busy_command[PATH_MAX];

struct busy {
	pid_t pid;
	FILE *says;
};

static void busy_start(struct busy *b)
{
	char line[64];
	int pipe_fds[2];

	if (pipe(pipe_fds))
		t_die("pipe: %s", strerror(errno));
	b->pid = fork();
	if (!b->pid) {
		dup2(pipe_fds[1], 1);
		execl(busy_command, "busy_storage", (char *)NULL);
		_exit(99);
	}
	close(pipe_fds[1]);
	b->says = fdopen(pipe_fds[0], "r");
	if (!b->says || !fgets(line, sizeof(line), b->says))
		t_die("%s does not start", busy_command);
}

static void busy_stop(struct busy *b)
{
	char line[64] = "";

	kill(b->pid, SIGTERM);
	CHECK(fgets(line, sizeof(line), b->says), "it says nothing at its end");
	t_note("the other user's own requests: %.*s", (int)strcspn(line, "\n"), line);
	fclose(b->says);
	waitpid(b->pid, NULL, 0);
}

/* The kernel's count of the calling thread's switches. */
static uint64_t switches(void)
{
	struct rusage ru;

	getrusage(RUSAGE_THREAD, &ru);
	return (uint64_t)(ru.ru_nvcsw + ru.ru_nivcsw);
}

/* A snapshot and that count, of one moment. */
static uint64_t snap_and_count(struct csf_snap *s)
{
	uint64_t before, after;

	do {
		before = switches();
		t_snap(s);
		after = switches();
	} while (before != after);
	return before;
}

struct load {
	pthread_t thread;
	uint64_t seed, switches, lost, guessed, snaps;
};

/* System calls, sleeps and yields, with a snapshot between any two. */
static void *load_thread(void *arg)
{
	struct load *l = arg;
	struct csf_snap a, b;
	uint64_t end, kernel, ours;

	t_snap(&a); /* registers */
	kernel = snap_and_count(&a);
	end = t_mono_ns() + busy_ns;
	while (t_mono_ns() < end) {
		switch (t_random(&l->seed) % 4) {
		case 0:
			t_sleep_ns(t_random(&l->seed) % 200000);
			break;
		case 1:
			sched_yield();
			break;
		default:
			for (int i = 0; i < 20; i++)
				syscall(SYS_getppid);
		}
		t_snap(&b);
		t_diff(&a, &b);
		l->snaps++;
	}
	l->switches = snap_and_count(&b) - kernel;
	ours = b.p.nr_block + b.p.nr_preempt - a.p.nr_block - a.p.nr_preempt;
	l->guessed = b.p.nr_guessed - a.p.nr_guessed;
	l->lost = l->switches - ours;
	CHECK(!l->lost || l->guessed, "%llu of %llu switches are lost, and nothing says so",
	      (unsigned long long)l->lost, (unsigned long long)l->switches);
	CHECK(b.p.nvcsw + b.p.nivcsw == kernel + l->switches, "the page is behind: %llu switches",
	      (unsigned long long)(b.p.nvcsw + b.p.nivcsw - kernel));
	return NULL;
}

static void test_busy(void)
{
	struct load l[THREADS] = { { 0 } }, all = { 0 };
	struct busy b;

	busy_start(&b);
	for (int i = 0; i < THREADS; i++) {
		l[i].seed = (uint64_t)i;
		l[i].thread = t_go(load_thread, &l[i]);
	}
	for (int i = 0; i < THREADS; i++) {
		t_join(l[i].thread);
		all.switches += l[i].switches;
		all.lost += l[i].lost;
		all.guessed += l[i].guessed;
		all.snaps += l[i].snaps;
	}
	busy_stop(&b);
	t_note("%llu switches, %llu lost, %llu guessed; %llu snapshots",
	       (unsigned long long)all.switches, (unsigned long long)all.lost,
	       (unsigned long long)all.guessed, (unsigned long long)all.snaps);
}

int main(int argc, char **argv)
{
	char *slash;

	(void)argc;
	if (realpath(argv[0], busy_command) && (slash = strrchr(busy_command, '/')))
		snprintf(slash, sizeof(busy_command) - (slash - busy_command), "/../busy_storage");
	if (access(busy_command, X_OK)) {
		printf("there is no %s\n", busy_command);
		return 77;
	}
	TEST("another user of task storage")
		test_busy();
	return t_done("t_storage");
}
