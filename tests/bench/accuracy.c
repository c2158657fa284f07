// SPDX-License-Identifier: GPL-2.0
/*
 * What the page says about operations whose nature is known, and what the other ways to ask the
 * kernel about one's own thread say about the same.
 *
 *	accuracy FILE		measure every operation, several times, by every way
 *	accuracy FILE OP	do one operation after a line on stdin, for a tool that watches
 *
 * FILE is read with O_DIRECT: 4 MiB or more on a disk. Prints lines "value OP WAY COLUMN VALUE",
 * the median over the repetitions; what a way cannot say has no line. The exit status is 1 if the
 * page is wrong. One thread on CPU 0 throughout.
 */
#include "tests/t.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "counters.h"
#include "median.h"
#include "taskstats.h"

#define REPEATS 9
#define READS 32
#define BLOCK 4096
#define FILE_BLOCKS 1024

enum { WALL, CPU, WAIT, SLEEP, DSLEEP, IOWAIT, SWITCHES, PREEMPTED, GUESSED, NR_COLUMNS };

static const char *const column_names[NR_COLUMNS] = {
	"wall_ms",   "cpu_ms",	 "wait_ms",   "sleep_ms", "dsleep_ms",
	"iowait_ms", "switches", "preempted", "guessed",
};

/* Operations */

static int file_fd;
static char *block;
static pid_t rival;

static void nothing(void)
{
}

static void sleep_10ms(void)
{
	t_sleep_ns(10 * T_MS);
}

static void spin_30ms(void)
{
	t_spin_wall_ns(30 * T_MS);
}

static void spin_60ms(void)
{
	t_spin_wall_ns(60 * T_MS);
}

static void read_direct(void)
{
	int i;

	for (i = 0; i < READS; i++) /* far apart: nothing is read ahead */
		if (pread(file_fd, block, BLOCK, (off_t)(i * 37 % FILE_BLOCKS) * BLOCK) != BLOCK)
			t_die("reading the file: %s", strerror(errno));
}

static void vfork_10ms(void)
{
	pid_t pid = vfork();

	if (!pid) {
		t_sleep_ns(10 * T_MS);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

/* A process of its own, so that a tool that watches ours does not count it. */
static void start_rival(void)
{
	rival = fork();
	if (!rival) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			t_work();
	}
	t_sleep_ns(50 * T_MS);
}

static void stop_rival(void)
{
	kill(rival, SIGKILL);
	waitpid(rival, NULL, 0);
}

static const struct op {
	const char *name;
	void (*run)(void);
	double least; /* ms off the CPU */
	int where; /* where those go; WALL: there are none to speak of */
	bool contended;
} ops[] = {
	{ "nothing", nothing, 0, WALL, false },
	{ "sleep_10ms", sleep_10ms, 10, SLEEP, false },
	{ "spin_30ms", spin_30ms, 0, WALL, false },
	{ "two_spinners_60ms", spin_60ms, 10, WAIT, true },
	{ "read_direct_32", read_direct, 0.1, IOWAIT, false },
	{ "vfork_10ms", vfork_10ms, 10, DSLEEP, false },
};
#define NR_OPS (sizeof(ops) / sizeof(*ops))

/* Ways to ask: each fills in the columns it knows, in ms and counts since some moment */

static int schedstat_fd, stat_fd, counters_fd;
static struct taskstats_conn taskstats;
static bool delay_accounting;

static void ask_clock(double *v)
{
	v[CPU] = (double)t_clock_ns(CLOCK_THREAD_CPUTIME_ID) / 1e6;
	v[WALL] = (double)t_mono_ns() / 1e6;
}

static void ask_page(double *v)
{
	static struct csf_snap last;
	struct csf_snap s;

	t_snap(&s);
	CHECK(!last.tsc || t_sum(&s.p) - t_sum(&last.p) == s.tsc - last.tsc,
	      "the parts do not add up");
	last = s;
	v[WALL] = t_ms(&s, s.tsc);
	v[CPU] = t_ms(&s, s.p.oncpu_cyc);
	v[WAIT] = t_ms(&s, s.p.runq_cyc);
	v[SLEEP] = t_ms(&s, s.p.sleep_cyc);
	v[DSLEEP] = t_ms(&s, s.p.dsleep_cyc);
	v[IOWAIT] = t_ms(&s, s.p.iowait_cyc);
	v[SWITCHES] = (double)(s.p.nr_preempt + s.p.nr_block);
	v[PREEMPTED] = (double)s.p.nr_preempt;
	v[GUESSED] = (double)s.p.nr_guessed;
}

static void ask_getrusage(double *v)
{
	struct rusage ru;

	getrusage(RUSAGE_THREAD, &ru);
	v[CPU] = (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1e3 +
		 (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e3;
	v[SWITCHES] = (double)(ru.ru_nvcsw + ru.ru_nivcsw);
	v[PREEMPTED] = (double)ru.ru_nivcsw;
}

static void pread_text(int fd, char *buf, size_t size)
{
	ssize_t n = pread(fd, buf, size - 1, 0);

	if (n < 0)
		t_die("reading /proc: %s", strerror(errno));
	buf[n] = 0;
}

static void ask_schedstat(double *v)
{
	unsigned long long ran, waited;
	char buf[128];

	pread_text(schedstat_fd, buf, sizeof(buf));
	if (sscanf(buf, "%llu %llu", &ran, &waited) != 2)
		t_die("schedstat says '%s'", buf);
	v[CPU] = (double)ran / 1e6;
	v[WAIT] = (double)waited / 1e6;
}

/* utime and stime are the fields 14 and 15, delayacct_blkio_ticks is 42. */
static void ask_stat(double *v)
{
	double tick_ms = 1e3 / (double)sysconf(_SC_CLK_TCK), field[50] = { 0 };
	char buf[1024], *at;
	int i;

	pread_text(stat_fd, buf, sizeof(buf));
	at = strrchr(buf, ')') + 4; /* the state is a letter */
	for (i = 4; i < 50; i++)
		field[i] = (double)strtoull(at, &at, 10);
	v[CPU] = (field[14] + field[15]) * tick_ms;
	if (delay_accounting)
		v[IOWAIT] = field[42] * tick_ms;
}

static void ask_counters(double *v)
{
	struct counters c;

	if (read(counters_fd, &c, sizeof(c)) != sizeof(c))
		t_die("reading perf events: %s", strerror(errno));
	v[CPU] = (double)c.task_clock_ns / 1e6;
	v[SWITCHES] = (double)c.switches;
}

static void ask_taskstats(double *v)
{
	struct taskstats ts;

	if (taskstats_of(&taskstats, t_gettid(), &ts))
		t_die("taskstats: %s", strerror(errno));
	v[CPU] = (double)ts.cpu_run_virtual_total / 1e6; /* ac_utime and ac_stime are sampled */
	v[WAIT] = (double)ts.cpu_delay_total / 1e6;
	v[SWITCHES] = (double)(ts.nvcsw + ts.nivcsw);
	v[PREEMPTED] = (double)ts.nivcsw;
	if (delay_accounting)
		v[IOWAIT] = (double)ts.blkio_delay_total / 1e6;
}

enum { CLOCK, PAGE, GETRUSAGE, SCHEDSTAT, STAT, TASKSTATS, COUNTERS, NR_WAYS };

static struct way {
	const char *name;
	void (*ask)(double *v); /* null: not here */
} ways[NR_WAYS] = {
	[CLOCK] = { "clocks", ask_clock },
	[PAGE] = { "page", ask_page },
	[GETRUSAGE] = { "getrusage", ask_getrusage },
	[SCHEDSTAT] = { "schedstat", ask_schedstat },
	[STAT] = { "proc_stat", ask_stat },
	[TASKSTATS] = { "taskstats", ask_taskstats },
	[COUNTERS] = { "perf_counters", ask_counters },
};

static void leave_out(struct way *w)
{
	printf("# %s is left out: %s\n", w->name, strerror(errno));
	w->ask = NULL;
}

static int open_read(const char *path, int flags)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | flags);

	if (fd < 0)
		t_die("%s: %s", path, strerror(errno));
	return fd;
}

/* What the kernel accounts from a thread's start on; it has to have been on by then. */
static bool accounts_delays(void)
{
	char buf[16];

	return t_read("/proc/sys/kernel/task_delayacct", buf, sizeof(buf)) > 0 && atoi(buf);
}

static void open_ways(void)
{
	schedstat_fd = open_read("/proc/thread-self/schedstat", 0);
	stat_fd = open_read("/proc/thread-self/stat", 0);
	counters_fd = counters_open();
	if (counters_fd < 0)
		leave_out(&ways[COUNTERS]);
	if (taskstats_open(&taskstats))
		leave_out(&ways[TASKSTATS]);
	delay_accounting = accounts_delays();
	if (!delay_accounting)
		printf("# I/O wait of taskstats and stat is left out: kernel.task_delayacct is 0\n");
}

/*
 * Measuring: each way in repetitions of its own, for some bring up to date what others then read.
 * The page looks on, and the clocks when it is the page's turn.
 */

static double results[NR_OPS][NR_WAYS][NR_COLUMNS][REPEATS];
static double off[NR_OPS][NR_WAYS][REPEATS]; /* the CPU time, from that of the way that looks on */

static void ask(int way, double *v)
{
	int c;

	for (c = 0; c < NR_COLUMNS; c++)
		v[c] = NAN;
	ways[way].ask(v);
}

/* Anywhere between two ticks of the scheduler. */
static void any_phase(void)
{
	static uint64_t seed = 1;

	t_spin_wall_ns(t_random(&seed) % (10 * T_MS));
}

static void measure_once(size_t op, int way, int repeat)
{
	double before[2][NR_COLUMNS], after[2][NR_COLUMNS];
	int witness = way == PAGE ? CLOCK : PAGE, c;

	any_phase();
	ask(witness, before[1]);
	ask(way, before[0]);
	ops[op].run();
	ask(way, after[0]);
	ask(witness, after[1]);
	for (c = 0; c < NR_COLUMNS; c++)
		results[op][way][c][repeat] = after[0][c] - before[0][c];
	off[op][way][repeat] =
		fabs(results[op][way][CPU][repeat] - (after[1][CPU] - before[1][CPU]));
}

static double middle(size_t op, int way, int column)
{
	double v[REPEATS];

	memcpy(v, results[op][way][column], sizeof(v));
	return !ways[way].ask || isnan(v[0]) ? NAN : median(v, REPEATS);
}

static void print_values(size_t op)
{
	int way, c;

	for (way = 0; way < NR_WAYS; way++) {
		if (!ways[way].ask)
			continue;
		for (c = 0; c < NR_COLUMNS; c++)
			if (!isnan(middle(op, way, c)))
				printf("value %s %s %s %.4f\n", ops[op].name, ways[way].name,
				       column_names[c], middle(op, way, c));
		qsort(off[op][way], REPEATS, sizeof(double), compare_doubles);
		printf("value %s %s cpu_off_at_worst_ms %.4f\n", ops[op].name, ways[way].name,
		       off[op][way][REPEATS - 1]);
	}
}

/*
 * The clocks are the judges: what they say, the page must say. The scheduler counts a thread as
 * running some microseconds before it does, so its clock cannot be held against ours any closer.
 * The rest is where the operation spends it, or waiting for a CPU on a busy machine.
 */
static void judge_page(size_t op)
{
	double rest = middle(op, PAGE, WALL) - middle(op, PAGE, CPU);
	double most = 0.05 + 0.02 * middle(op, PAGE, SWITCHES);
	double there, wait = middle(op, PAGE, WAIT);

	CHECK(off[op][PAGE][REPEATS / 2] < most, "the CPU time is off by %.4f ms",
	      off[op][PAGE][REPEATS / 2]);
	if (ops[op].where == WALL)
		return;
	there = middle(op, PAGE, ops[op].where);
	CHECK(there >= ops[op].least, "only %.4f ms of %.4f are where they belong", there, rest);
	CHECK((ops[op].where == WAIT ? 0 : there) + wait > 0.9 * rest,
	      "%.4f and %.4f ms waiting make %.4f", there, wait, rest);
}

static void measure(size_t op)
{
	int i, way;

	if (ops[op].contended)
		start_rival();
	for (i = 0; i < REPEATS; i++)
		for (way = 0; way < NR_WAYS; way++)
			if (ways[way].ask)
				measure_once(op, way, i);
	if (ops[op].contended)
		stop_rival();
	print_values(op);
	judge_page(op);
}

/* For a tool that was started while this waits, and that ends while this waits again. */
static void perform(size_t op)
{
	double before[NR_COLUMNS], after[NR_COLUMNS];
	char line[16];
	int c;

	if (ops[op].contended)
		start_rival();
	ask_page(before);
	printf("ready %d\n", getpid());
	fflush(stdout);
	if (read(0, line, sizeof(line)) < 0)
		t_die("stdin: %s", strerror(errno));
	ask_page(before);
	ops[op].run();
	ask_page(after);
	for (c = 0; c < NR_COLUMNS; c++)
		printf("value %s page %s %.4f\n", ops[op].name, column_names[c],
		       after[c] - before[c]);
	fflush(stdout);
	if (read(0, line, sizeof(line)) < 0)
		t_die("stdin: %s", strerror(errno));
	if (ops[op].contended)
		stop_rival();
}

static void open_file(const char *path)
{
	file_fd = open_read(path, O_DIRECT);
	if (posix_memalign((void **)&block, BLOCK, BLOCK))
		t_die("no memory");
	read_direct();
}

int main(int argc, char **argv)
{
	size_t op;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: accuracy FILE [OPERATION]\n");
		return 2;
	}
	TEST("the page, FILE and the other ways can be read") {
		t_pin(0);
		open_file(argv[1]);
		open_ways();
	}
	for (op = 0; op < NR_OPS; op++) {
		if (argc == 3 && strcmp(argv[2], ops[op].name))
			continue;
		TEST(ops[op].name) {
			if (argc == 3)
				perform(op);
			else
				measure(op);
		}
	}
	return t_done("accuracy");
}
