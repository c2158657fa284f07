// SPDX-License-Identifier: GPL-2.0
/*
 * What a snapshot costs on this machine, against other ways to learn the same.
 *
 *	native JSON	writes JSON, prints a table; the exit status is 1 if a bar is missed
 *
 * Every cost is the median of many short rounds, and each round measures everything once: whatever
 * disturbs the machine disturbs few rounds, or all things alike. Where no writer is mounted, pages
 * of our own take its place, and the library maps them as it maps the real ones.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "include/uapi/coarse_stat_fs.h"
#include "counters.h"
#include "loops.h"
#include "median.h"
#include "taskstats.h"

#define ROUNDS 101
#define ATTEMPTS 3 /* a bar counts as missed if each of these misses it */
#define ROUND_NS 50000.0 /* far less than a scheduler's tick */

const char *bench_thread_path = CSF_MOUNT_POINT "/thread-self";
const char *bench_cpu_path = CSF_MOUNT_POINT "/cpu";

static int schedstat_fd, procstat_fd, counters_fd;
static struct taskstats_conn taskstats;
static char text[1 << 17];

static void clock_gettime_loop(long n)
{
	struct timespec ts;

	while (n--)
		clock_gettime(CLOCK_MONOTONIC, &ts);
}

static void thread_cputime_loop(long n)
{
	struct timespec ts;

	while (n--)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
}

static void getrusage_loop(long n)
{
	struct rusage ru;

	while (n--)
		getrusage(RUSAGE_THREAD, &ru);
}

static int open_or_die(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		err(2, "%s", path);
	return fd;
}

static void pread_or_die(int fd)
{
	if (pread(fd, text, sizeof(text), 0) <= 0)
		err(2, "pread");
}

static void schedstat_pread_loop(long n)
{
	while (n--)
		pread_or_die(schedstat_fd);
}

static void schedstat_open_read_loop(long n)
{
	while (n--) {
		int fd = open_or_die("/proc/thread-self/schedstat");

		pread_or_die(fd);
		close(fd);
	}
}

static void procstat_read_loop(long n)
{
	while (n--)
		pread_or_die(procstat_fd);
}

static void taskstats_loop(long n)
{
	pid_t me = getpid();
	struct taskstats ts;

	while (n--)
		if (taskstats_of(&taskstats, me, &ts))
			err(2, "taskstats");
}

static void counters_loop(long n)
{
	struct counters c;

	while (n--)
		if (read(counters_fd, &c, sizeof(c)) != sizeof(c))
			err(2, "reading perf events");
}

enum {
	RDTSC,
	RDTSCP,
	SNAP,
	SNAP_CLANG,
	SNAP_ORDERED,
	CPU_SNAP,
	CLOCK_GETTIME,
	GETRUSAGE,
	THREAD_CPUTIME,
	SCHEDSTAT_PREAD,
	SCHEDSTAT_OPEN,
	PROCSTAT,
	TASKSTATS,
	COUNTERS,
	NR_ITEMS
};

static struct item {
	const char *name;
	loop_fn *loop; /* null: not on this machine */
	long calls; /* a round */
	double ns[ROUNDS];
	double median;
} items[NR_ITEMS] = {
	[RDTSC] = { .name = "rdtsc_ns", .loop = gcc_rdtsc },
	[RDTSCP] = { .name = "rdtscp_ns", .loop = gcc_rdtscp },
	[SNAP] = { .name = "thread_snap_ns", .loop = gcc_thread_snap },
	[SNAP_CLANG] = { .name = "thread_snap_clang_ns", .loop = clang_thread_snap },
	[SNAP_ORDERED] = { .name = "thread_snap_ordered_ns", .loop = gcc_thread_snap_ordered },
	[CPU_SNAP] = { .name = "cpu_snap_ns", .loop = gcc_cpu_snap },
	[CLOCK_GETTIME] = { .name = "clock_gettime_ns", .loop = clock_gettime_loop },
	[GETRUSAGE] = { .name = "getrusage_thread_ns", .loop = getrusage_loop },
	[THREAD_CPUTIME] = { .name = "thread_cputime_ns", .loop = thread_cputime_loop },
	[SCHEDSTAT_PREAD] = { .name = "schedstat_pread_ns", .loop = schedstat_pread_loop },
	[SCHEDSTAT_OPEN] = { .name = "schedstat_open_read_ns", .loop = schedstat_open_read_loop },
	[PROCSTAT] = { .name = "procstat_read_ns", .loop = procstat_read_loop },
	[TASKSTATS] = { .name = "taskstats_ns", .loop = taskstats_loop },
	[COUNTERS] = { .name = "perf_counters_read_ns", .loop = counters_loop },
};

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e9 + ts.tv_nsec;
}

static double ns_a_call(loop_fn *loop, long calls)
{
	double start = now_ns();

	loop(calls);
	return (now_ns() - start) / calls;
}

/* As many calls as fill a round. */
static void calibrate(struct item *it)
{
	double ns;

	ns_a_call(it->loop, 100);
	ns = ns_a_call(it->loop, 100);
	it->calls = ns < ROUND_NS ? (long)(ROUND_NS / ns) : 1;
}

static void measure(void)
{
	struct item *it;
	int round;

	for (round = 0; round < ROUNDS; round++)
		for (it = items; it < items + NR_ITEMS; it++)
			if (it->loop)
				it->ns[round] = ns_a_call(it->loop, it->calls);
	for (it = items; it < items + NR_ITEMS; it++)
		it->median = median(it->ns, ROUNDS);
}

static double ratio(int a, int b)
{
	return items[a].median / items[b].median;
}

/* One requirement: items[a] / items[b] <= most, where it applies. */
struct bar {
	int a, b;
	double most;
	const char *what;
};

static const struct bar bars[] = {
	{ SNAP, RDTSCP, 0.9, "gcc: snapshot / rdtscp" },
	{ SNAP_CLANG, RDTSCP, 1.0, "clang: snapshot / rdtscp" },
	{ CPU_SNAP, PROCSTAT, 0.02, "cpu snapshot / reading /proc/stat" },
};
#define NR_BARS (sizeof(bars) / sizeof(*bars))

/* Where rdtsc is hardly cheaper than rdtscp, nothing that reads a clock can be. */
static bool applies(const struct bar *bar)
{
	return items[bar->a].loop && (bar->b != RDTSCP || ratio(RDTSC, RDTSCP) <= 0.7);
}

static bool missed(const struct bar *bar)
{
	return applies(bar) && ratio(bar->a, bar->b) > bar->most;
}

static int nr_missed(void)
{
	size_t i;
	int n = 0;

	for (i = 0; i < NR_BARS; i++)
		n += missed(&bars[i]);
	return n;
}

static void print_table(void)
{
	const struct item *it;
	size_t i;

	for (it = items; it < items + NR_ITEMS; it++)
		if (it->loop)
			printf("%-24s %9.2f  %7.2f x rdtscp\n", it->name, it->median,
			       it->median / items[RDTSCP].median);
	for (i = 0; i < NR_BARS; i++) {
		const struct bar *bar = &bars[i];

		printf("%s: %.4f, bar %.2f: %s\n", bar->what, ratio(bar->a, bar->b), bar->most,
		       !applies(bar) ? "does not apply here" :
		       missed(bar)   ? "MISSED" :
				       "ok");
	}
}

static void write_json(const char *path)
{
	const char *separator = "{";
	const struct item *it;
	FILE *f = fopen(path, "w");

	if (!f)
		err(2, "%s", path);
	for (it = items; it < items + NR_ITEMS; it++)
		if (it->loop) {
			fprintf(f, "%s\n\t\"%s\": %.2f", separator, it->name, it->median);
			separator = ",";
		}
	fprintf(f, "\n}\n");
	if (fclose(f))
		err(2, "%s", path);
}

/* Makes a file of size bytes that a path names and nobody else sees; returns its contents. */
static void *make_file(const char *name, size_t size, const char **path)
{
	static char paths[2][64];
	static int nr;
	int fd = memfd_create(name, 0);
	void *p;

	if (fd < 0 || ftruncate(fd, (off_t)size))
		err(2, "memfd");
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		err(2, "mmap");
	snprintf(paths[nr], sizeof(paths[nr]), "/proc/self/fd/%d", fd);
	*path = paths[nr++];
	return p;
}

static void fill_header(struct csf_hdr *h, int kind, size_t size)
{
	h->magic = CSF_MAGIC;
	h->version = CSF_ABI_VERSION;
	h->kind = (__u16)kind;
	h->size = (__u32)size;
	h->flags = CSF_F_TSC_CONSTANT | CSF_F_TSC_SYNCED | CSF_F_IO;
	h->clock_khz = 1000000;
	h->clock = CSF_CLOCK_TSC;
	h->mult = 1;
}

static void make_pages(void)
{
	size_t page_size = (size_t)sysconf(_SC_PAGESIZE), nr_rows, size;
	struct csf_thread_page *t;
	struct csf_cpu_page *c;

	t = make_file("thread-self", page_size, &bench_thread_path);
	fill_header(&t->hdr, CSF_KIND_THREAD, sizeof(*t));
	t->state = CSF_ONCPU;
	t->life = CSF_LIVE;

	nr_rows = 1 + (size_t)sysconf(_SC_NPROCESSORS_CONF);
	size = sizeof(*c) + nr_rows * sizeof(struct csf_cpu_row);
	size = (size + page_size - 1) / page_size * page_size;
	c = make_file("cpu", size, &bench_cpu_path);
	fill_header(&c->hdr, CSF_KIND_CPU, size);
	c->nr_rows = (__u32)nr_rows;
	c->row_size = sizeof(struct csf_cpu_row);
	c->rows_offset = sizeof(*c);
}

/* These take privileges, and kernels that have them. */
static void open_others(void)
{
	counters_fd = counters_open();
	if (counters_fd < 0) {
		printf("# perf events are left out: %s\n", strerror(errno));
		items[COUNTERS].loop = NULL;
	}
	if (taskstats_open(&taskstats)) {
		printf("# taskstats is left out: %s\n", strerror(errno));
		items[TASKSTATS].loop = NULL;
	}
}

/* One CPU throughout: a migration in a round would cost more than what it measures. */
static void stay_here(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv)
{
	struct item *it;
	int attempt;

	if (argc != 2)
		errx(2, "usage: native JSON");
	if (access(bench_thread_path, R_OK))
		make_pages();
	schedstat_fd = open_or_die("/proc/thread-self/schedstat");
	procstat_fd = open_or_die("/proc/stat");
	open_others();
	stay_here();
	for (it = items; it < items + NR_ITEMS; it++)
		if (it->loop)
			calibrate(it);
	for (attempt = 0; attempt < ATTEMPTS; attempt++) {
		measure();
		if (!nr_missed())
			break;
	}
	print_table();
	write_json(argv[1]);
	return nr_missed() != 0;
}
