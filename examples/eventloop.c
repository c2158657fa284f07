// SPDX-License-Identifier: MIT
/*
 * An event loop that explains its slow operations, and only those.
 *
 * Around each operation it takes two snapshots, which cost about as much as reading the clock. Only
 * when an operation took longer than the threshold does it look at what is in them.
 *
 *	eventloop                    run a mix of fast and slow operations
 *	eventloop --demo [DIR]       the same, with I/O in DIR, and check that each slow operation
 *	                             was slow for the reason it must be
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#include "lib/coarse_stat_fs.h"

#define ROUNDS 100 /* fast operations between two slow ones */
#define RIVALS 3 /* children that fight us for one CPU */
#define TRIES 5 /* of --demo, until an operation is slow for its own reason */
#define BLOCK 4096
#define BLOCKS 32
#define FAULT_BYTES (32u << 20)
#define TMPFS_MAGIC_ 0x01021994
#define RAMFS_MAGIC_ 0x858458f6u

struct operation {
	const char *name;
	int (*prepare)(void); /* 0, or -1 to leave it out; may be NULL */
	void (*run)(void);
	void (*finish)(void); /* may be NULL */
	int expected; /* the bucket that most of its time must be in */
};

/* What one operation did: all that is needed before and after it. */
struct measurement {
	struct csf_snap before, after;
	struct csf_cpu_snap cpus_before, cpus_after;
};

static const char *const bucket_names[CSF_NR_BUCKETS] = {
	[CSF_ONCPU] = "running",	  [CSF_RUNQ] = "waiting for a CPU",
	[CSF_SLEEP] = "sleeping",	  [CSF_DSLEEP] = "uninterruptible sleep",
	[CSF_IOWAIT] = "waiting for I/O",
};

static uint64_t cycles_per_ms;
static const char *disk_dir; /* NULL: leave the I/O out */
static char why_left_out[256];

static void die(const char *what)
{
	fprintf(stderr, "eventloop: %s: %s\n", what, strerror(errno));
	if (errno == ENOENT)
		fputs("Load the module and mount its file system:\n"
		      "  sudo insmod kmod/coarse_stat_fs.ko\n"
		      "  sudo mount -t " CSF_FS_NAME " none " CSF_MOUNT_POINT "\n"
		      "or let BPF write the pages, without the module:\n"
		      "  sudo build/csf run COMMAND\n",
		      stderr);
	exit(1);
}

/*
 * The operations
 */

static void sleep_ms(unsigned int ms)
{
	struct timespec left = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/*
 * Counters are copied to the page when the thread leaves its CPU. A shorter sleep may be over
 * before the thread has left.
 */
static void leave_cpu(void)
{
	sleep_ms(1);
}

static void spin_ms(unsigned int ms)
{
	uint64_t start = csf_rdtsc();

	while (csf_rdtsc() - start < ms * cycles_per_ms)
		;
}

static void fast(void)
{
	static volatile unsigned int sink;
	int i;

	for (i = 0; i < 100; i++)
		sink += (unsigned int)i;
	(void)sink;
}

static void nap(void)
{
	sleep_ms(25);
}

static void busy(void)
{
	spin_ms(30);
}

/* O_DIRECT goes to the disk each time, whatever is cached. */
static int disk_fd = -1;
static void *disk_buf;

static int disk_fails(const char *what)
{
	snprintf(why_left_out, sizeof(why_left_out), "%s: %s: %s", disk_dir, what, strerror(errno));
	if (disk_fd >= 0)
		close(disk_fd);
	free(disk_buf);
	disk_fd = -1;
	disk_buf = NULL;
	return -1;
}

static int is_in_memory(void)
{
	struct statfs fs;

	return !statfs(disk_dir, &fs) && ((unsigned long)fs.f_type == TMPFS_MAGIC_ ||
					  (unsigned long)fs.f_type == RAMFS_MAGIC_);
}

static int disk_prepare(void)
{
	char path[4096];
	int i;

	if (!disk_dir)
		return -1;
	if (is_in_memory()) {
		snprintf(why_left_out, sizeof(why_left_out),
			 "%s is a file system in memory: its I/O never waits", disk_dir);
		return -1;
	}
	if ((size_t)snprintf(path, sizeof(path), "%s/eventloop.XXXXXX", disk_dir) >= sizeof(path)) {
		errno = ENAMETOOLONG;
		return disk_fails("cannot make a file");
	}
	disk_fd = mkostemp(path, O_DIRECT);
	if (disk_fd < 0)
		return disk_fails("cannot make a file to read with O_DIRECT");
	unlink(path);
	if (posix_memalign(&disk_buf, BLOCK, BLOCK))
		die("no memory");
	memset(disk_buf, 'x', BLOCK);
	for (i = 0; i < BLOCKS; i++)
		if (write(disk_fd, disk_buf, BLOCK) != BLOCK)
			return disk_fails("cannot write with O_DIRECT");
	if (fsync(disk_fd))
		return disk_fails("cannot write to the disk");
	return 0;
}

static void disk_read(void)
{
	int i;

	for (i = 0; i < BLOCKS; i++)
		if (pread(disk_fd, disk_buf, BLOCK, (off_t)i * BLOCK) != BLOCK)
			die("cannot read the file just written");
}

static void disk_finish(void)
{
	close(disk_fd);
	free(disk_buf);
	disk_fd = -1;
	disk_buf = NULL;
}

/* Rivals that want the CPU we are on, all the time. */
static cpu_set_t all_cpus;
static pid_t rivals[RIVALS];

static pid_t start_rival(void)
{
	pid_t parent = getpid(), pid;
	int started[2];
	char c;

	if (pipe(started))
		die("pipe");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent || write(started[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			fast();
	}
	close(started[1]);
	if (read(started[0], &c, 1) != 1)
		die("a rival for the CPU did not start");
	close(started[0]);
	return pid;
}

static int fight_prepare(void)
{
	cpu_set_t one;
	int i;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_getaffinity(0, sizeof(all_cpus), &all_cpus) ||
	    sched_setaffinity(0, sizeof(one), &one))
		die("cannot stay on one CPU");
	for (i = 0; i < RIVALS; i++)
		rivals[i] = start_rival();
	return 0;
}

static void fight(void)
{
	spin_ms(120);
}

static void fight_finish(void)
{
	int i;

	for (i = 0; i < RIVALS; i++) {
		kill(rivals[i], SIGKILL);
		waitpid(rivals[i], NULL, 0);
	}
	sched_setaffinity(0, sizeof(all_cpus), &all_cpus);
}

/* The parent of a vfork() waits, uninterruptible, until the child ends. */
static void vfork_wait(void)
{
	/* NOLINTNEXTLINE(clang-analyzer-security.insecureAPI.vfork): it is what this shows */
	pid_t pid = vfork();

	if (!pid) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Vfork): changes nothing of the parent's */
		sleep_ms(25);
		_exit(0);
	}
	if (pid < 0)
		die("vfork");
	waitpid(pid, NULL, 0);
}

/*
 * Page faults are work of the kernel on our CPU time. To see how many they were, leave the CPU
 * after.
 */
static void faults(void)
{
	char *p =
		mmap(NULL, FAULT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i;

	if (p == MAP_FAILED)
		die("no memory");
	madvise(p, FAULT_BYTES, MADV_NOHUGEPAGE);
	for (i = 0; i < FAULT_BYTES; i += BLOCK)
		p[i] = 1;
	munmap(p, FAULT_BYTES);
	leave_cpu();
}

static const struct operation fast_operation = { "a fast operation", NULL, fast, NULL, CSF_ONCPU };

static const struct operation slow_operations[] = {
	{ "sleep for 25 ms", NULL, nap, NULL, CSF_SLEEP },
	{ "busy loop for 30 ms", NULL, busy, NULL, CSF_ONCPU },
	{ "read 32 blocks with O_DIRECT", disk_prepare, disk_read, disk_finish, CSF_IOWAIT },
	{ "share one CPU with 3 busy rivals", fight_prepare, fight, fight_finish, CSF_RUNQ },
	{ "wait for a vfork() child", NULL, vfork_wait, NULL, CSF_DSLEEP },
	{ "touch 32 MiB of fresh memory", NULL, faults, NULL, CSF_ONCPU },
};

#define NR_SLOW (sizeof(slow_operations) / sizeof(slow_operations[0]))

/*
 * The report: how to read each field of two snapshots
 */

static double ms(const struct csf_hdr *h, uint64_t cycles)
{
	return (double)csf_cyc_to_ns(h, cycles) / 1e6;
}

/* The five differences, in the order of the states; their sum is the difference of the clock. */
static void bucket_cycles(const struct measurement *m, uint64_t cycles[CSF_NR_BUCKETS])
{
	const struct csf_thread_page *a = &m->before.p, *b = &m->after.p;

	cycles[CSF_ONCPU] = b->oncpu_cyc - a->oncpu_cyc;
	cycles[CSF_RUNQ] = b->runq_cyc - a->runq_cyc;
	cycles[CSF_SLEEP] = b->sleep_cyc - a->sleep_cyc;
	cycles[CSF_DSLEEP] = b->dsleep_cyc - a->dsleep_cyc;
	cycles[CSF_IOWAIT] = b->iowait_cyc - a->iowait_cyc;
}

static int largest(const uint64_t cycles[CSF_NR_BUCKETS])
{
	int i, best = 0;

	for (i = 1; i < CSF_NR_BUCKETS; i++)
		if (cycles[i] > cycles[best])
			best = i;
	return best;
}

static void report_times(const struct measurement *m)
{
	const struct csf_hdr *h = &m->after.p.hdr;
	uint64_t wall = m->after.tsc - m->before.tsc;
	uint64_t cycles[CSF_NR_BUCKETS];
	int i, most;

	bucket_cycles(m, cycles);
	most = largest(cycles);
	printf("   mostly %s: %.1f of %.1f ms\n", bucket_names[most], ms(h, cycles[most]),
	       ms(h, wall));
	for (i = 0; i < CSF_NR_BUCKETS; i++)
		printf("     %-22s %9.3f ms %5.1f %%\n", bucket_names[i], ms(h, cycles[i]),
		       100.0 * (double)cycles[i] / (double)wall);
}

/*
 * Counters of the thread are plain differences. They are as old as the last time it left its CPU.
 */
static void report_counters(const struct csf_thread_page *a, const struct csf_thread_page *b)
{
	printf("   thread %u on CPU %u: preempted %" PRIu64 ", blocked %" PRIu64
	       ", migrated %" PRIu64 " times\n",
	       b->tid, b->cpu, (uint64_t)(b->nr_preempt - a->nr_preempt),
	       (uint64_t)(b->nr_block - a->nr_block), (uint64_t)(b->nr_migrate - a->nr_migrate));
	printf("   page faults: %" PRIu64 " minor, %" PRIu64 " major\n",
	       (uint64_t)(b->min_flt - a->min_flt), (uint64_t)(b->maj_flt - a->maj_flt));
	if (b->hdr.flags & CSF_F_IO) {
		printf("   system calls: %" PRIu64 " reads of %" PRIu64 " bytes, %" PRIu64
		       " writes of %" PRIu64 " bytes\n",
		       (uint64_t)(b->syscr - a->syscr), (uint64_t)(b->rchar - a->rchar),
		       (uint64_t)(b->syscw - a->syscw), (uint64_t)(b->wchar - a->wchar));
		printf("   block I/O: %" PRIu64 " bytes read, %" PRIu64 " written\n",
		       (uint64_t)(b->read_bytes - a->read_bytes),
		       (uint64_t)(b->write_bytes - a->write_bytes));
	}
	printf("   schedstat: ran %.3f ms, waited %.3f ms\n",
	       (double)(b->sum_exec_ns - a->sum_exec_ns) / 1e6,
	       (double)(b->run_delay_ns - a->run_delay_ns) / 1e6);
}

/* The whole machine's times, in ns: they tell whether it was busy, and move once in a period. */
static void report_machine(const struct csf_cpu_snap *a, const struct csf_cpu_snap *b)
{
	if (!a->update_mono_ns) /* the writer has only begun to count */
		return;
	printf("   all %u CPUs, in %.1f ms: user %.1f, system %.1f, iowait %.1f, steal %.1f ms\n",
	       b->row.online, (double)(b->update_mono_ns - a->update_mono_ns) / 1e6,
	       (double)(b->row.user_ns - a->row.user_ns) / 1e6,
	       (double)(b->row.system_ns - a->row.system_ns) / 1e6,
	       (double)(b->row.iowait_ns - a->row.iowait_ns) / 1e6,
	       (double)(b->row.steal_ns - a->row.steal_ns) / 1e6);
}

static void report(const struct operation *op, const struct measurement *m)
{
	char line[CSF_DIFF_BUFSZ];

	printf("\n== %s\n", op->name);
	csf_format_diff(line, sizeof(line), &m->before, &m->after); /* on an error it says which */
	puts(line);
	report_times(m);
	report_counters(&m->before.p, &m->after.p);
	report_machine(&m->cpus_before, &m->cpus_after);
}

/*
 * The loop
 */

/* Runs one operation; 1 if it took at least threshold cycles, and only then is m->after filled. */
static int measure(const struct operation *op, uint64_t threshold, struct measurement *m)
{
	uint64_t start;

	if (csf_cpu_snap(&m->cpus_before, CSF_CPU_ALL))
		die("cannot read " CSF_CPU_PATH);
	if (csf_thread_snap(&m->before))
		die("cannot read " CSF_THREAD_PATH);
	start = csf_rdtsc();
	op->run();
	if (csf_rdtsc() - start < threshold)
		return 0;
	if (csf_thread_snap(&m->after))
		die("cannot read " CSF_THREAD_PATH);
	if (csf_cpu_snap(&m->cpus_after, CSF_CPU_ALL))
		die("cannot read " CSF_CPU_PATH);
	return 1;
}

/* Was the operation slow for its reason, and does every cycle have a place? */
static int judge(const struct operation *op, const struct measurement *m)
{
	uint64_t cycles[CSF_NR_BUCKETS], sum = 0;
	int i;

	bucket_cycles(m, cycles);
	for (i = 0; i < CSF_NR_BUCKETS; i++)
		sum += cycles[i];
	if (sum != m->after.tsc - m->before.tsc) {
		printf("   NOT OK: the parts are %" PRIu64 " cycles, the whole is %" PRIu64 "\n",
		       sum, m->after.tsc - m->before.tsc);
		return 1;
	}
	if (largest(cycles) != op->expected) {
		printf("   NOT OK: should be mostly %s\n", bucket_names[op->expected]);
		return 1;
	}
	printf("   ok: mostly %s, as it must be; the parts add up to the whole, to the cycle\n",
	       bucket_names[op->expected]);
	return 0;
}

/* A disk behind a cache may answer without a wait; then there is nothing to explain. */
static int never_waited(const struct operation *op, const struct measurement *m)
{
	return op->run == disk_read && m->after.p.iowait_cyc == m->before.p.iowait_cyc &&
	       m->after.p.dsleep_cyc == m->before.p.dsleep_cyc;
}

/* What came of one operation: all well, not as expected, or not to be judged here. */
enum verdict { RIGHT, WRONG, LEFT_OUT };

static enum verdict run_once(const struct operation *op, uint64_t threshold)
{
	struct measurement m;
	int slow;

	if (op->prepare && op->prepare()) {
		if (disk_dir)
			printf("\n== %s\n   skipped: %s\n", op->name, why_left_out);
		return LEFT_OUT;
	}
	leave_cpu(); /* the last report's writes are not this operation's */
	slow = measure(op, threshold, &m);
	if (op->finish)
		op->finish();
	if (slow)
		report(op, &m);
	if (!disk_dir)
		return RIGHT;
	if (slow && !never_waited(op, &m))
		return judge(op, &m) ? WRONG : RIGHT;
	if (op->run != disk_read) {
		printf("\n== %s\n   NOT OK: it was not slow\n", op->name);
		return WRONG;
	}
	printf("   skipped: %s: the reads never waited, so there is nothing to judge\n", disk_dir);
	return LEFT_OUT;
}

/*
 * On a busy machine the others can be the largest part of anything: the report says so; try again.
 */
static int run_slow(const struct operation *op, uint64_t threshold, int *left_out)
{
	enum verdict verdict;
	int tries = 0;

	do {
		if (tries)
			printf("   once more: is this machine busy?\n");
		verdict = run_once(op, threshold);
	} while (verdict == WRONG && ++tries < TRIES);
	*left_out += disk_dir && verdict == LEFT_OUT;
	return verdict == WRONG;
}

static int loop(double slow_ms)
{
	int failed = 0, left_out = 0, unplanned = 0;
	struct measurement m;
	uint64_t threshold;
	size_t i;
	int round;

	if (csf_thread_snap(&m.before))
		die("cannot read " CSF_THREAD_PATH);
	cycles_per_ms = csf_ns_to_cyc(&m.before.p.hdr, 1000000);
	threshold = (uint64_t)(slow_ms * (double)cycles_per_ms);
	for (i = 0; i < NR_SLOW; i++) {
		for (round = 0; round < ROUNDS; round++) {
			if (!measure(&fast_operation, threshold, &m))
				continue;
			report(&fast_operation, &m);
			unplanned++;
		}
		failed += run_slow(&slow_operations[i], threshold, &left_out);
	}
	printf("\n%zu operations; those above took %g ms or more", NR_SLOW * (ROUNDS + 1), slow_ms);
	if (unplanned)
		printf(", %d of them normally fast", unplanned);
	putchar('\n');
	if (disk_dir)
		printf("demo: %zu passed, %d failed, %d skipped\n",
		       NR_SLOW - (size_t)failed - (size_t)left_out, failed, left_out);
	return failed != 0;
}

static int usage(FILE *to, int status)
{
	fputs("Usage: eventloop [--slow MS] [--demo [DIR]]\n"
	      "Run fast and slow operations and report where the time of the slow ones went.\n\n"
	      "  --slow MS     report operations of at least MS milliseconds (default 1)\n"
	      "  --demo [DIR]  also read from a disk, by a file made in DIR (default .); exit\n"
	      "                with 1 unless each slow operation was slow for the right reason\n"
	      "  --help        print this help\n",
	      to);
	return status;
}

static double parse_ms(const char *arg)
{
	double value;
	char *end;

	value = strtod(arg, &end);
	if (end == arg || *end || !(value > 0 && value <= 1000)) {
		fprintf(stderr, "eventloop: --slow: '%s' is not a number of ms up to 1000\n", arg);
		exit(usage(stderr, 2));
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "demo", no_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ "slow", required_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 },
	};
	double slow_ms = 1;
	int c, ret;

	while ((c = getopt_long(argc, argv, "dhs:", options, NULL)) != -1) {
		if (c == 'h')
			ret = usage(stdout, 0);
		else if (c == 'd')
			disk_dir = ".";
		else if (c == 's')
			slow_ms = parse_ms(optarg);
		else
			return usage(stderr, 2);
		if (c == 'h')
			goto out;
	}
	if (disk_dir && optind < argc)
		disk_dir = argv[optind++];
	if (optind < argc) {
		fprintf(stderr, "eventloop: unexpected argument '%s'\n", argv[optind]);
		return usage(stderr, 2);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	ret = loop(slow_ms);
out:
	if (fflush(stdout) || ferror(stdout))
		die("cannot write the output");
	return ret;
}
