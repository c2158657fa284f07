/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A small test frame around lib/coarse_stat_fs.h.
 *
 *	TEST("name") { ... CHECK(cond, "why it is wrong, %d", x); ... }
 *	return t_done("t_mine");
 *
 * prints one line per case: "ok NAME", "not ok NAME: why (file:line)" or "skip NAME: why", and
 * lines that begin with "# " for figures. A case fails with its first failed CHECK, in whatever
 * thread or forked child that is, and goes on. Leave a TEST block with continue, never with break.
 *
 * CSF_ONLY=text runs only the cases whose name contains the text. CSF_ACCEL says what the guest
 * runs on: "icount" (time is instructions: bounds on durations are strict), "tcg" or "kvm".
 */
#ifndef T_H
#define T_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/coarse_stat_fs.h"

#define T_MS 1000000ull /* in nanoseconds */
#define T_SEC 1000000000ull

/* The running case; in shared memory, so that a child's failure counts. */
struct t_case_ {
	int failed;
	int skipped;
	char why[480];
};

struct t_run_ {
	struct t_case_ *now;
	const char *name;
	pid_t pid;
	int passed, failed, skipped;
};

static struct t_run_ t_;

#define TEST(name) for (int t_more_ = t_begin_(name); t_more_; t_more_ = t_end_())
/* The reasons are looked at after the condition: errno is one of them. */
#define CHECK(cond, ...) ((cond) ? 1 : t_fail_(__FILE__, __LINE__, __VA_ARGS__))
#define t_die(...) t_die_(__FILE__, __LINE__, __VA_ARGS__)

static inline void t_result_(const char *result)
{
	const char *why = t_.now->why;

	printf("%s %s%s%s\n", result, t_.name, *why ? ": " : "", why);
	fflush(stdout);
}

/* The case hangs: say which one it was. */
static inline void t_timeout_(int sig)
{
	(void)sig;
	snprintf(t_.now->why, sizeof(t_.now->why), "timed out");
	t_result_("not ok");
	_exit(1);
}

/* Zeroes that this process and its children have in common, until the last of them ends. */
static inline void *t_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return p;
}

static inline void t_init_(void)
{
	t_.now = (struct t_case_ *)t_shared(sizeof(*t_.now));
	t_.pid = getpid();
	signal(SIGALRM, t_timeout_);
}

/*
 * CSF_PATIENCE: how many times slower this kernel is than others, by what it checks. Limits are so many
 * times longer there, and so is what a test lets pass to measure it: what it claims is then the same share
 * of it. 1 if unset.
 */
static inline unsigned int t_patience(void)
{
	const char *text = getenv("CSF_PATIENCE");
	char *end;
	unsigned long n = text ? strtoul(text, &end, 10) : 1;

	if (text && (*end || !n || n > 1000)) {
		fprintf(stderr, "CSF_PATIENCE must be a number from 1 to 1000, not '%s'\n", text);
		exit(2);
	}
	return (unsigned int)n;
}

/* Seconds that the running case may take, in a kernel that is not slow; 120 unless it says otherwise. */
static inline void t_limit(unsigned int seconds)
{
	alarm(seconds * t_patience());
}

static inline int t_begin_(const char *name)
{
	const char *only = getenv("CSF_ONLY");

	if (only && !strstr(name, only))
		return 0;
	if (!t_.now)
		t_init_();
	memset(t_.now, 0, sizeof(*t_.now));
	t_.name = name;
	fflush(stdout);
	t_limit(120);
	return 1;
}

static inline int t_end_(void)
{
	t_limit(0);
	if (t_.now->failed) {
		t_.failed++;
		t_result_("not ok");
	} else if (t_.now->skipped) {
		t_.skipped++;
		t_result_("skip");
	} else {
		t_.passed++;
		t_result_("ok");
	}
	return 0;
}

/* The program's last line and its exit status. A program that ran nothing has failed. */
static inline int t_done(const char *program)
{
	printf("%s: %d passed, %d failed, %d skipped\n", program, t_.passed, t_.failed, t_.skipped);
	fflush(stdout);
	return t_.failed || !(t_.passed + t_.skipped);
}

static inline void t_why_(const char *file, int line, const char *fmt, va_list ap)
{
	size_t size = sizeof(t_.now->why);
	int n;

	if (__atomic_exchange_n(&t_.now->failed, 1, __ATOMIC_ACQ_REL))
		return; /* the first reason is the one that counts */
	n = vsnprintf(t_.now->why, size, fmt, ap);
	if (n >= 0 && (size_t)n < size)
		snprintf(t_.now->why + n, size - n, " (%s:%d)", file, line);
}

__attribute__((format(printf, 3, 4))) static inline int t_fail_(const char *file, int line,
								const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	t_why_(file, line, fmt, ap);
	va_end(ap);
	return 0;
}

/* Ends the program: what the test needs does not work. */
__attribute__((noreturn, format(printf, 3, 4))) static inline void
t_die_(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	t_why_(file, line, fmt, ap);
	va_end(ap);
	if (getpid() == t_.pid)
		t_result_("not ok");
	_exit(1);
}

__attribute__((format(printf, 1, 2))) static inline void t_skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(t_.now->why, sizeof(t_.now->why), fmt, ap);
	va_end(ap);
	t_.now->skipped = 1;
}

/* A figure for people to read. */
__attribute__((format(printf, 1, 2))) static inline void t_note(const char *fmt, ...)
{
	va_list ap;

	printf("# %s: ", t_.name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

static inline int t_accel_is(const char *accel)
{
	const char *now = getenv("CSF_ACCEL");

	return now && !strcmp(now, accel);
}

/* All of it: what has to come from a file system when it first runs is waited for. */
static inline void t_read_code(void)
{
	mlockall(MCL_CURRENT);
	munlockall();
}

/* Nobody else uses this machine, and its kernel hides nothing. */
static inline int t_in_guest(void)
{
	return getenv("CSF_ACCEL") != NULL;
}

/* Time is counted in instructions: durations do not depend on the machine the guest runs on. */
static inline int t_icount(void)
{
	return t_accel_is("icount");
}

static inline pid_t t_gettid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static inline uint64_t t_clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * T_SEC + (uint64_t)ts.tv_nsec;
}

static inline uint64_t t_mono_ns(void)
{
	return t_clock_ns(CLOCK_MONOTONIC);
}

static inline void t_sleep_ns(uint64_t ns)
{
	struct timespec ts = { (time_t)(ns / T_SEC), (long)(ns % T_SEC) };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* User code that takes some microseconds and makes no system call. */
static inline void t_work(void)
{
	for (volatile int i = 0; i < 2000; i++)
		;
}

/* Busy until the thread has used this much CPU time, by the kernel's account. */
static inline void t_spin_ns(uint64_t ns)
{
	uint64_t end = t_clock_ns(CLOCK_THREAD_CPUTIME_ID) + ns;

	while (t_clock_ns(CLOCK_THREAD_CPUTIME_ID) < end)
		t_work();
}

/* How often the calling thread has blocked, by the kernel's count. */
static inline long t_blocks(void)
{
	struct rusage ru;

	getrusage(RUSAGE_THREAD, &ru);
	return ru.ru_nvcsw;
}

/* Busy until this much time has passed. */
static inline void t_spin_wall_ns(uint64_t ns)
{
	uint64_t end = t_mono_ns() + ns;

	while (t_mono_ns() < end)
		t_work();
}

/* splitmix64: any seed will do, and neighbours have nothing in common. */
static inline uint64_t t_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static inline void t_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		t_die("cannot move to CPU %d: %s", cpu, strerror(errno));
}

static inline void t_unpin(void)
{
	cpu_set_t set;

	memset(&set, 0xff, sizeof(set));
	sched_setaffinity(0, sizeof(set), &set);
}

static inline int t_cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* EAGAIN is what clone() says while another thread of the process is about to execve(). */
static inline pthread_t t_go(void *(*fn)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err, tries = 0;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128UL * 1024);
	while ((err = pthread_create(&thread, &attr, fn, arg)) == EAGAIN && tries++ < 2000)
		t_sleep_ns(T_MS);
	pthread_attr_destroy(&attr);
	if (err)
		t_die("pthread_create: %s", strerror(err));
	return thread;
}

static inline void t_join(pthread_t thread)
{
	int err = pthread_join(thread, NULL);

	if (err)
		t_die("pthread_join: %s", strerror(err));
}

/* A child process that ends with status 0 unless a CHECK failed in it. */
static inline pid_t t_fork(void (*fn)(void *), void *arg)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		t_die("fork: %s", strerror(errno));
	if (pid)
		return pid;
	fn(arg);
	_exit(t_.now->failed);
}

/* Waits for the child's end; 0 if it ended well. */
static inline int t_wait(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) != pid)
		if (errno != EINTR)
			t_die("waitpid: %s", strerror(errno));
	CHECK(!WIFSIGNALED(status), "a child died of signal %d", WTERMSIG(status));
	CHECK(!WIFEXITED(status) || !WEXITSTATUS(status), "a child ended with status %d",
	      WEXITSTATUS(status));
	return status;
}

static inline void t_kill(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
}

/* A child that keeps CPU 0 busy until it is killed. */
static inline void t_spin(void *arg)
{
	(void)arg;
	t_pin(0);
	for (;;)
		t_work();
}

static inline int t_in_child(void (*fn)(void *), void *arg)
{
	return t_wait(t_fork(fn, arg));
}

/* All of a small file, 0-terminated; the length, or -1. */
static inline ssize_t t_read(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t n = 0;

	*buf = 0;
	if (fd < 0)
		return -1;
	while (len < size - 1 && (n = read(fd, buf + len, size - 1 - len)) > 0)
		len += (size_t)n;
	close(fd);
	buf[len] = 0;
	return n < 0 ? -1 : (ssize_t)len;
}

/* What /proc has for the state of any thread: R, S, D and so on. */
static inline char t_state_letter(pid_t tid)
{
	char path[64], buf[512], *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", tid);
	t_read(path, buf, sizeof(buf));
	at = strrchr(buf, ')');
	return (char)(at ? at[2] : '?');
}

/* 0, or -1 with errno. */
static inline int t_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	ssize_t n;
	int err;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	err = errno;
	close(fd);
	errno = err;
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* The number behind a key such as "\nrchar:" in a text that may begin with the key's word. */
static inline unsigned long long t_number(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	size_t len = strlen(key);

	if (!at && key[0] == '\n' && !strncmp(text, key + 1, len - 1))
		at = text - 1;
	if (!at)
		t_die("no \"%s\" in \"%.60s\"", key, text);
	return strtoull(at + len, NULL, 10);
}

/*
 * For lower bounds on sleep, in ms: so long the calling thread has run, and waited to run, by the kernel's
 * account. In a slow kernel as much of the time that a test sleeps may pass before and after the sleep
 * itself. Always 0 in others: there it may not.
 */
static inline double t_awake_ms(void)
{
	unsigned long long waited = 0;
	char buf[128];

	if (t_patience() == 1)
		return 0;
	if (t_read("/proc/thread-self/schedstat", buf, sizeof(buf)) < 0 ||
	    sscanf(buf, "%*u %llu", &waited) != 1)
		t_die("schedstat: %s", buf);
	return (double)(t_clock_ns(CLOCK_THREAD_CPUTIME_ID) + waited) / 1e6;
}

/*
 * A snapshot of the calling thread; the program ends if there is none. A service says EAGAIN if it
 * has no page left and the kernel takes more than a second to let it have more, as it does where
 * others keep all CPUs busy; then many threads that wait are short of descriptors, too. Asked again
 * there are some.
 */
#define t_snap(s) t_snap_(s, __FILE__, __LINE__)
static inline void t_snap_(struct csf_snap *s, const char *file, int line)
{
	uint64_t end = t_mono_ns() + (getenv(CSF_SOCKET_ENV) ? 60 * T_SEC : 0);

	while (csf_thread_snap(s)) {
		if ((errno != EAGAIN && errno != EMFILE) || t_mono_ns() > end)
			t_die_(file, line, "csf_thread_snap: %s", strerror(errno));
		t_sleep_ns(10 * T_MS);
	}
}

/*
 * Leaves the CPU, for what is copied then. One sleep may not do: its timer can expire before the
 * thread gets to sleep.
 */
static inline void t_leave(void)
{
	struct csf_snap a, b;

	t_snap(&a);
	do {
		t_sleep_ns(T_MS);
		t_snap(&b);
	} while (b.p.nr_switch_in == a.p.nr_switch_in);
}

static inline uint64_t t_sum(const struct csf_thread_page *p)
{
	return p->oncpu_cyc + p->runq_cyc + p->sleep_cyc + p->dsleep_cyc + p->iowait_cyc;
}

struct t_diff_ {
	double wall, oncpu, runq, sleep, dsleep, iowait; /* ms */
};

static inline double t_ms(const struct csf_snap *s, uint64_t cyc)
{
	return (double)csf_cyc_to_ns(&s->p.hdr, cyc) / 1e6;
}

/* The buckets' growth in ms. No pair of snapshots may break the sum rule, whatever the test. */
static inline struct t_diff_ t_diff(const struct csf_snap *a, const struct csf_snap *b)
{
	struct t_diff_ d;

	CHECK(a->p.epoch == b->p.epoch, "snapshots of epochs %llu and %llu",
	      (unsigned long long)a->p.epoch, (unsigned long long)b->p.epoch);
	CHECK(a->extrapolated && b->extrapolated, "a snapshot is not extrapolated");
	CHECK(t_sum(&b->p) - t_sum(&a->p) == b->tsc - a->tsc, "buckets are %lld cycles off",
	      (long long)(t_sum(&b->p) - t_sum(&a->p) - (b->tsc - a->tsc)));
	d.wall = t_ms(b, b->tsc - a->tsc);
	d.oncpu = t_ms(b, b->p.oncpu_cyc - a->p.oncpu_cyc);
	d.runq = t_ms(b, b->p.runq_cyc - a->p.runq_cyc);
	d.sleep = t_ms(b, b->p.sleep_cyc - a->p.sleep_cyc);
	d.dsleep = t_ms(b, b->p.dsleep_cyc - a->p.dsleep_cyc);
	d.iowait = t_ms(b, b->p.iowait_cyc - a->p.iowait_cyc);
	return d;
}

static inline void t_note_diff(const struct t_diff_ *d)
{
	t_note("wall %.3f ms = cpu %.3f + runq %.3f + sleep %.3f + dsleep %.3f + iowait %.3f",
	       d->wall, d->oncpu, d->runq, d->sleep, d->dsleep, d->iowait);
}

/* The other tests' competitor: busy on one CPU until told to stop. */
struct t_rival {
	pthread_t thread;
	int cpu;
	int yields; /* gives the CPU away all the time */
	int running, stop;
};

static inline void *t_rival_(void *arg)
{
	struct t_rival *r = (struct t_rival *)arg;

	t_pin(r->cpu);
	__atomic_store_n(&r->running, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
		t_work();
		if (r->yields)
			sched_yield();
	}
	return NULL;
}

static inline void t_rival_start(struct t_rival *r, int cpu, int yields)
{
	memset(r, 0, sizeof(*r));
	r->cpu = cpu;
	r->yields = yields;
	r->thread = t_go(t_rival_, r);
	while (!__atomic_load_n(&r->running, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
}

static inline void t_rival_stop(struct t_rival *r)
{
	__atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE);
	t_join(r->thread);
}

/*
 * The kernel module's reference count, or -1 where there is no module. After everything that
 * held one has ended it is back at its base within a few grace periods.
 */
static inline int t_module_refs(void)
{
	char buf[32];

	return t_read("/sys/module/coarse_stat_fs/refcnt", buf, sizeof(buf)) < 0 ? -1 : atoi(buf);
}

static inline int t_module_refs_settle(int base)
{
	for (int i = 0; i < 2000 && t_module_refs() > base; i++)
		t_sleep_ns(10 * T_MS);
	return t_module_refs();
}

#endif /* T_H */
