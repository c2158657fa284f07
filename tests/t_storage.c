// SPDX-License-Identifier: GPL-2.0
/*
 * The service beside another user of task storage that is in it at every switch and in system calls: no
 * switch is lost, or it is noticed, counted, and the page brought up to date. Knows lib/ only, but
 * for the program that keeps the storage busy.
 */
#include "t.h"

#include <limits.h>
#include <sys/prctl.h>

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
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* it burdens the whole machine */
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

/* Has the calling thread a page of its own? NULL, or what is wrong with it. */
static void *wrong_page(void *arg)
{
	struct csf_snap s;
	uint64_t kernel, ours;

	(void)arg;
	if (csf_thread_snap(&s))
		return (void *)"no page";
	sched_yield();
	kernel = snap_and_count(&s);
	ours = s.p.nvcsw + s.p.nivcsw;
	if (s.p.tid != (uint32_t)t_gettid())
		return (void *)"another thread's page";
	return ours == kernel ? NULL : (void *)"a page with other switches than the kernel's";
}

/* A new program, which was registered before it was executed; and so again. */
static int again(char **argv)
{
	const char *wrong = (const char *)wrong_page(NULL);
	int left = atoi(argv[2]);
	char number[16];
	void *other = NULL;

	for (int i = 0; i < 2 && !wrong && !other; i++)
		pthread_join(t_go(wrong_page, NULL), &other);
	wrong = wrong ? wrong : (const char *)other;
	if (wrong)
		printf("# a program found %s, with %d more to come\n", wrong, left);
	if (wrong || !left)
		return wrong != NULL;
	snprintf(number, sizeof(number), "%d", left - 1);
	t_sleep_ns(200000 + (uint64_t)left * 1000);
	execl("/proc/self/exe", argv[0], argv[1], number, (char *)NULL);
	return 99;
}

/* It has the CPU as soon as it wakes, whatever others are in the middle of. */
static void new_programs(void *arg)
{
	const struct sched_param first = { .sched_priority = 1 };

	(void)arg;
	t_pin(0);
	sched_setscheduler(0, SCHED_FIFO, &first);
	execl("/proc/self/exe", "t_storage", "--again", "300", (char *)NULL);
	_exit(99);
}

static volatile int no_more_naps;

static void *napping_thread(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;

	t_pin(0);
	while (!no_more_naps)
		t_sleep_ns(t_random(&seed) % 100000);
	return NULL;
}

/*
 * Where a registration ends in the middle of another user's access, the kernel may refuse to delete what
 * belongs to it: the next one must find nothing of it.
 */
static void test_ends(void)
{
	pthread_t naps[THREADS];
	struct busy b;

	t_limit(120);
	busy_start(&b);
	for (uintptr_t i = 0; i < THREADS; i++)
		naps[i] = t_go(napping_thread, (void *)i);
	t_in_child(new_programs, NULL);
	no_more_naps = 1;
	for (int i = 0; i < THREADS; i++)
		t_join(naps[i]);
	busy_stop(&b);
}

int main(int argc, char **argv)
{
	char *slash;

	if (argc == 3 && !strcmp(argv[1], "--again"))
		return again(argv);
	if (realpath(argv[0], busy_command) && (slash = strrchr(busy_command, '/')))
		snprintf(slash, sizeof(busy_command) - (slash - busy_command), "/../busy_storage");
	if (access(busy_command, X_OK)) {
		printf("there is no %s\n", busy_command);
		return 77;
	}
	TEST("another user of task storage")
		test_busy();
	TEST("registrations that end beside it")
		test_ends();
	return t_done("t_storage");
}
