// SPDX-License-Identifier: GPL-2.0
/*
 * The thread page against independent truth: each bucket, each counter, each field copied from the
 * task. Knows lib/ only, not who writes the page.
 *
 * Bounds on durations are strict where time counts instructions (CSF_ACCEL=icount). Elsewhere the
 * guest's CPUs can be taken away at any moment, and there is room for that.
 */
#include "t.h"

#include <dirent.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/ptrace.h>

/* The header's conversion to ns, against the kernel's clock. */
static void test_clock_rate(void)
{
	uint64_t outer, inner;
	struct csf_snap a, b;
	double wall;

	t_snap(&a);
	outer = t_mono_ns();
	t_snap(&a);
	inner = t_mono_ns();
	t_sleep_ns(300 * T_MS);
	inner = t_mono_ns() - inner;
	t_snap(&b);
	outer = t_mono_ns() - outer;
	wall = t_diff(&a, &b).wall * 1e6;
	t_note("%u kHz, wall %.0f ns between %.0f and %.0f", b.p.hdr.clock_khz, wall, (double)inner,
	       (double)outer);
	CHECK(wall > (double)inner * 0.995 && wall < (double)outer * 1.005,
	      "%.0f ns of the page's clock in %.0f to %.0f ns", wall, (double)inner, (double)outer);
	CHECK(csf_ns_to_cyc(&b.p.hdr, 1000000000ull) / 1000 == b.p.hdr.clock_khz,
	      "1 s is %llu cycles of %u kHz",
	      (unsigned long long)csf_ns_to_cyc(&b.p.hdr, 1000000000ull), b.p.hdr.clock_khz);
}

static void test_sleep(void)
{
	unsigned int ms = 10 * t_patience();
	struct csf_snap a, b;
	struct t_diff_ d;
	double slept, awake;

	t_snap(&a);
	slept = (double)t_mono_ns();
	t_snap(&a);
	awake = t_awake_ms();
	t_sleep_ns(ms * T_MS);
	t_snap(&b);
	awake = t_awake_ms() - awake;
	slept = ((double)t_mono_ns() - slept) / 1e6;
	d = t_diff(&a, &b);
	t_note_diff(&d);
	CHECK(b.p.nr_block > a.p.nr_block, "slept without blocking");
	CHECK(d.sleep <= slept * 1.005, "slept %.3f ms of %.3f", d.sleep, slept);
	CHECK(d.sleep >= (t_icount() ? 1.0 : 0.8) * ms - awake,
	      "slept %.3f ms of %u, awake for %.3f", d.sleep, ms, awake);
	CHECK(!t_icount() || d.sleep <= 10.2, "slept %.3f ms", d.sleep);
	CHECK(d.dsleep < 0.5 && d.iowait < 0.5, "dsleep %.3f iowait %.3f", d.dsleep, d.iowait);
}

/* Two snapshots, and the CPU ms between them by the kernel's account: without them, and with them. */
struct busy {
	struct csf_snap a, b;
	double least, most;
	long blocks; /* a page fault may have to wait, where memory is short */
};

static double cpu_ms(void)
{
	return (double)t_clock_ns(CLOCK_THREAD_CPUTIME_ID) / 1e6;
}

static struct t_diff_ be_busy(struct busy *w, void (*spin)(uint64_t ns), uint64_t ns)
{
	double before, between;

	t_snap(&w->a);
	w->blocks = t_blocks();
	before = cpu_ms();
	t_snap(&w->a);
	between = cpu_ms();
	spin(ns);
	w->least = cpu_ms() - between;
	t_snap(&w->b);
	w->most = cpu_ms() - before;
	w->blocks = t_blocks() - w->blocks;
	return t_diff(&w->a, &w->b);
}

static void test_spin(void)
{
	struct busy w;
	struct t_diff_ d = be_busy(&w, t_spin_ns, 30 * T_MS);
	int noise = !t_icount();

	t_note_diff(&d);
	t_note("CPU %.3f to %.3f ms by the kernel, %.3f by the page", w.least, w.most, d.oncpu);
	CHECK(d.oncpu < 1.01 * w.most + 3 * noise && d.oncpu > 0.99 * w.least - noise,
	      "on the CPU for %.3f ms, by the kernel's account %.3f to %.3f", d.oncpu, w.least,
	      w.most);
	CHECK(d.sleep + d.dsleep + d.iowait < 0.1 || w.blocks, "a busy loop slept %.3f ms",
	      d.sleep + d.dsleep + d.iowait);
}

/* The parent of a vfork() waits killably. */
static void test_vfork(void)
{
	unsigned int ms = 50 * t_patience();
	struct csf_snap a, b;
	struct t_diff_ d;
	double awake;
	pid_t pid;

	t_snap(&a);
	awake = t_awake_ms();
	pid = vfork();
	if (!pid) {
		t_sleep_ns(ms * T_MS);
		_exit(0);
	}
	t_snap(&b);
	awake = t_awake_ms() - awake;
	t_wait(pid);
	d = t_diff(&a, &b);
	t_note_diff(&d);
	CHECK(d.dsleep >= (t_icount() ? 0.95 * d.wall : 0.8 * ms - awake),
	      "dsleep %.3f ms of %.3f, awake for %.3f", d.dsleep, d.wall, awake);
	CHECK(d.sleep + d.iowait < 0.05 * d.wall, "sleep %.3f, iowait %.3f", d.sleep, d.iowait);
}

/* Reads for 0.3 s at least (more if slow), 16 times at least; the bytes read. */
static unsigned long long read_disk(int fd, void *buf, size_t size)
{
	uint64_t end = t_mono_ns() + 300 * T_MS * t_patience();
	unsigned long long bytes = 0;

	for (off_t at = 0; at < 16 * (off_t)size || t_mono_ns() < end; at += (off_t)size) {
		ssize_t n = pread(fd, buf, size, at % (1 << 20));

		if (!CHECK(n == (ssize_t)size, "read %zd bytes of the disk: %s", n,
			   strerror(errno)))
			break;
		bytes += size;
	}
	return bytes;
}

static int open_disk(void)
{
	const char *dev = getenv("CSF_DISK_DEV"), *dir = getenv("CSF_DISK_DIR");
	static char zeros[1 << 20];
	char path[256];
	int fd;

	if (dev)
		return open(dev, O_RDONLY | O_DIRECT | O_CLOEXEC);
	snprintf(path, sizeof(path), "%s/t_thread.disk", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, zeros, sizeof(zeros)) != sizeof(zeros) || fsync(fd))
		t_die("%s: %s", path, strerror(errno));
	close(fd);
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	unlink(path);
	return fd;
}

static void test_direct_io(void)
{
	static char buf[16384] __attribute__((aligned(4096)));
	unsigned long long bytes, seen;
	struct csf_snap a, b;
	struct t_diff_ d;
	double asleep;
	int fd;

	if (!getenv("CSF_DISK_DEV") && !getenv("CSF_DISK_DIR")) {
		t_skip("no disk: CSF_DISK_DEV and CSF_DISK_DIR are unset");
		return;
	}
	if (t_icount()) {
		t_skip("idle time jumps while the host works on a request");
		return;
	}
	fd = open_disk();
	if (!CHECK(fd >= 0, "cannot open the disk: %s", strerror(errno)))
		return;
	t_leave(); /* what follows the last switch is not copied yet */
	t_snap(&a);
	bytes = read_disk(fd, buf, sizeof(buf));
	t_leave();
	t_snap(&b);
	close(fd);
	d = t_diff(&a, &b);
	asleep = d.sleep + d.dsleep + d.iowait; /* not what it then waited for a CPU */
	seen = b.p.read_bytes - a.p.read_bytes;
	t_note_diff(&d);
	t_note("%llu bytes, iowait %.1f %% of the time asleep", bytes, d.iowait / asleep * 100);
	CHECK(d.iowait > 0 && d.iowait >= 0.9 * asleep, "iowait %.3f ms of %.3f ms asleep",
	      d.iowait, asleep);
	/* what the file system reads on its way, to find the blocks, is this thread's, too */
	CHECK(!(b.p.hdr.flags & CSF_F_IO) || (seen >= bytes && seen <= bytes + 65536),
	      "read %llu bytes, the page says %llu", bytes, seen);
}

/* Two busy threads on one CPU: each waits while the other one runs. */
static void test_contention(void)
{
	unsigned long long preempted, blocked;
	double share, least, most;
	struct t_rival rival;
	struct t_diff_ d;
	struct busy w;

	t_pin(t_cpus() - 1);
	t_rival_start(&rival, t_cpus() - 1, 0);
	d = be_busy(&w, t_spin_wall_ns, 2 * T_SEC);
	t_rival_stop(&rival);
	t_unpin();
	share = d.runq / d.wall * 100;
	least = (d.wall - w.most) / d.wall * 100;
	most = (d.wall - w.least) / d.wall * 100;
	t_note_diff(&d);
	t_note("waiting %.2f %% of the time, by the kernel's account of its CPU time %.2f to %.2f",
	       share, least, most);
	/* the switches themselves are waiting to the page, running to the kernel, and long if slow */
	CHECK(share > least - 3 && share < most + (t_patience() > 1 ? 6 : 3),
	      "waited %.2f %%, was without the CPU %.2f to %.2f %%", share, least, most);
	CHECK(!t_icount() || (share > 47 && share < 53), "waited %.2f %% of the time", share);
	CHECK(share > 20 && (share < 80 || !t_in_guest()), "waited %.2f %% of the time", share);
	preempted = w.b.p.nr_preempt - w.a.p.nr_preempt;
	blocked = w.b.p.nr_block - w.a.p.nr_block;
	CHECK(preempted && !blocked, "%llu preemptions, %llu blocks", preempted, blocked);
}

/* What the thread gives away by sched_yield() is waiting, and never a block. */
static void test_yield(void)
{
	unsigned long long switches, yields = 0;
	struct csf_snap a, b;
	struct t_rival rival;
	struct t_diff_ d;

	t_pin(t_cpus() - 1);
	t_rival_start(&rival, t_cpus() - 1, 1);
	t_work();
	t_snap(&a);
	t_snap(&b);
	do { /* the scheduler need not give the CPU to the other each time */
		t_work();
		sched_yield();
		t_snap(&b);
		switches = b.p.nr_preempt - a.p.nr_preempt;
	} while (++yields < 500 || (switches < 50 && yields < 1000000));
	t_rival_stop(&rival);
	t_unpin();
	d = t_diff(&a, &b);
	t_note("%llu switches by %llu yields, waited %.3f ms of %.3f", switches, yields, d.runq,
	       d.wall);
	CHECK(switches == b.p.nivcsw - a.p.nivcsw && switches >= 50,
	      "%llu preemptions, nivcsw %llu", switches,
	      (unsigned long long)(b.p.nivcsw - a.p.nivcsw));
	CHECK(b.p.nr_block == a.p.nr_block, "%llu blocks",
	      (unsigned long long)(b.p.nr_block - a.p.nr_block));
	CHECK(d.runq > 0 && d.sleep + d.dsleep + d.iowait == 0, "waited %.3f ms, slept %.3f",
	      d.runq, d.sleep + d.dsleep + d.iowait);
}

/* Has the CPU to itself for a while, some time after it was told to; nobody else gets on. */
struct hog {
	int cpu, go;
};

static void set_policy(int policy, int priority)
{
	struct sched_param param = { .sched_priority = priority };

	if (sched_setscheduler(0, policy, &param))
		t_die("policy %d: %s", policy, strerror(errno));
}

static void *hog_thread(void *arg)
{
	struct hog *h = arg;

	t_pin(h->cpu);
	set_policy(SCHED_FIFO, 2);
	while (!__atomic_load_n(&h->go, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
	t_sleep_ns(4 * T_MS * t_patience());
	t_spin_wall_ns(100 * T_MS * t_patience());
	return NULL;
}

/*
 * Asleep for 20 ms, awake behind somebody who does not let it on the CPU for 80 more. PREEMPT_RT ends
 * the sleep of ordinary threads in a thread, which would have to wait for that CPU as well; that of
 * real-time ones, in the interrupt.
 */
static void test_wait_after_sleep(void)
{
	struct hog hog = { .cpu = t_cpus() - 1 };
	pthread_t thread = t_go(hog_thread, &hog);
	unsigned int slow = t_patience();
	struct csf_snap a, b;
	struct t_diff_ d;

	t_pin(hog.cpu);
	set_policy(SCHED_FIFO, 1);
	t_sleep_ns(20 * T_MS);
	__atomic_store_n(&hog.go, 1, __ATOMIC_RELEASE);
	t_snap(&a);
	t_sleep_ns(20 * T_MS * slow);
	t_snap(&b);
	set_policy(SCHED_OTHER, 0);
	t_join(thread);
	t_unpin();
	d = t_diff(&a, &b);
	t_note_diff(&d);
	CHECK(d.runq > 65 * slow && d.sleep > (t_icount() ? 19.9 : 18) * slow,
	      "waited %.3f ms, slept %.3f", d.runq, d.sleep);
	CHECK(!t_icount() || d.sleep < 20.3, "slept %.3f ms", d.sleep);
}

static void test_migrate(void)
{
	struct csf_snap a, b;

	if (t_cpus() < 2) {
		t_skip("one CPU");
		return;
	}
	t_pin(0);
	t_snap(&a);
	CHECK(a.p.cpu == 0, "on CPU 0, the page says %u", a.p.cpu);
	for (int i = 1; i <= 100; i++) {
		t_pin(i & 1);
		t_snap(&b);
		if (!CHECK(b.p.cpu == (unsigned int)(i & 1) && sched_getcpu() == (i & 1),
			   "on CPU %d, the page says %u", i & 1, b.p.cpu))
			break;
	}
	t_unpin();
	CHECK(b.p.nr_migrate - a.p.nr_migrate == 100, "100 moves, the page has %llu",
	      (unsigned long long)(b.p.nr_migrate - a.p.nr_migrate));
	t_diff(&a, &b);
}

/* nr_preempt and nr_block against the kernel's own two counters. */
static void test_switch_counts(void)
{
	unsigned long long in, out, vol;
	struct csf_snap a, b;
	struct t_rival rival;

	t_rival_start(&rival, 0, 1);
	t_pin(0);
	t_leave();
	t_snap(&a);
	for (int i = 0; i < 500; i++) {
		t_sleep_ns(1000);
		sched_yield();
	}
	t_leave();
	t_snap(&b);
	t_rival_stop(&rival);
	t_unpin();
	t_diff(&a, &b);
	in = b.p.nr_switch_in - a.p.nr_switch_in;
	out = b.p.nr_preempt + b.p.nr_block - a.p.nr_preempt - a.p.nr_block;
	vol = b.p.nvcsw - a.p.nvcsw;
	t_note("%llu preemptions and %llu blocks, nivcsw %llu and nvcsw %llu",
	       (unsigned long long)(b.p.nr_preempt - a.p.nr_preempt),
	       (unsigned long long)(b.p.nr_block - a.p.nr_block),
	       (unsigned long long)(b.p.nivcsw - a.p.nivcsw), vol);
	CHECK(in == out, "left the CPU %llu times, got it %llu times", out, in);
	CHECK(out == vol + b.p.nivcsw - a.p.nivcsw, "left %llu times, nvcsw + nivcsw say %llu", out,
	      vol + (unsigned long long)(b.p.nivcsw - a.p.nivcsw));
	/* A wakeup can come between the kernel's count and the moment the thread is gone. */
	CHECK(vol - (b.p.nr_block - a.p.nr_block) <= vol / 50, "%llu blocks, nvcsw %llu",
	      (unsigned long long)(b.p.nr_block - a.p.nr_block), vol);
}

/* What the page copies, as /proc shows it. */
struct task_values {
	unsigned long long sum_exec, run_delay, pcount, nvcsw, nivcsw, min_flt, maj_flt;
	unsigned long long rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled;
};

static void read_task(struct task_values *v)
{
	char buf[4096], *at;

	if (t_read("/proc/thread-self/schedstat", buf, sizeof(buf)) < 0 ||
	    sscanf(buf, "%llu %llu %llu", &v->sum_exec, &v->run_delay, &v->pcount) != 3)
		t_die("schedstat: %s", buf);
	t_read("/proc/thread-self/status", buf, sizeof(buf));
	v->nvcsw = t_number(buf, "\nvoluntary_ctxt_switches:");
	v->nivcsw = t_number(buf, "\nnonvoluntary_ctxt_switches:");
	t_read("/proc/thread-self/stat", buf, sizeof(buf));
	at = strrchr(buf, ')');
	if (!at || sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %llu %*u %llu", &v->min_flt,
			  &v->maj_flt) != 2)
		t_die("stat: %s", buf);
	if (t_read("/proc/thread-self/io", buf, sizeof(buf)) < 0)
		return;
	v->rchar = t_number(buf, "\nrchar:");
	v->wchar = t_number(buf, "\nwchar:");
	v->syscr = t_number(buf, "\nsyscr:");
	v->syscw = t_number(buf, "\nsyscw:");
	v->read_bytes = t_number(buf, "\nread_bytes:");
	v->write_bytes = t_number(buf, "\nwrite_bytes:");
	v->cancelled = t_number(buf, "\ncancelled_write_bytes:");
}

/* Something of everything that is counted. */
static void be_active(void)
{
	size_t size = 64UL * 4096;
	char buf[1000], *p;
	int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);

	for (int i = 0; i < 20; i++)
		if (read(zero, buf, sizeof(buf)) < 0 || (i & 1 && write(zero, buf, 100) < 0))
			t_die("/dev/zero: %s", strerror(errno));
	close(zero);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < size; i += 4096)
		*(volatile char *)(p + i) = 1;
	munmap(p, size);
}

#define BETWEEN(field, page)                                              \
	CHECK(lo.field <= s.p.page && s.p.page <= hi.field,               \
	      "%s: %llu before, page %llu, %llu after", #field, lo.field, \
	      (unsigned long long)s.p.page, hi.field)

/* The page's copies are as of the last leave: between a reading before it and one after. */
static void test_copies(void)
{
	struct task_values lo = { 0 }, hi = { 0 };
	struct csf_snap s;
	int io = access("/proc/thread-self/io", R_OK) == 0;

	for (int i = 0; i < 20; i++) {
		be_active();
		read_task(&lo);
		t_leave();
		t_snap(&s);
		read_task(&hi);
		BETWEEN(sum_exec, sum_exec_ns);
		BETWEEN(run_delay, run_delay_ns);
		BETWEEN(pcount, pcount);
		BETWEEN(nvcsw, nvcsw);
		BETWEEN(nivcsw, nivcsw);
		BETWEEN(min_flt, min_flt);
		BETWEEN(maj_flt, maj_flt);
	}
	CHECK(!!(s.p.hdr.flags & CSF_F_IO) == io, "/proc/PID/io is %s, flags are %#x",
	      io ? "there" : "missing", s.p.hdr.flags);
	BETWEEN(rchar, rchar);
	BETWEEN(wchar, wchar);
	BETWEEN(syscr, syscr);
	BETWEEN(syscw, syscw);
	BETWEEN(read_bytes, read_bytes);
	BETWEEN(write_bytes, write_bytes);
	BETWEEN(cancelled, cancelled_write_bytes);
	CHECK(s.p.min_flt >= 64 && (!io || s.p.wchar >= 1000), "%llu faults, %llu bytes written",
	      (unsigned long long)s.p.min_flt, (unsigned long long)s.p.wchar);
}

/* utime and stime are sampled, so they are about right only. Few system calls: they may be slow. */
static void test_times(void)
{
	unsigned int few = 4 * t_patience();
	double user, system, cpu;
	struct csf_snap a, b;
	uint64_t end;

	t_leave();
	t_snap(&a);
	end = t_clock_ns(CLOCK_THREAD_CPUTIME_ID) + 400 * T_MS;
	for (unsigned int i = 0; i % few || t_clock_ns(CLOCK_THREAD_CPUTIME_ID) < end; i++)
		t_work();
	t_leave();
	t_snap(&b);
	user = (double)(b.p.utime_ns - a.p.utime_ns) / 1e6;
	system = (double)(b.p.stime_ns - a.p.stime_ns) / 1e6;
	cpu = t_diff(&a, &b).oncpu;
	t_note("user %.3f ms + system %.3f of %.3f ms on the CPU", user, system, cpu);
	CHECK(user > system, "user %.3f ms, system %.3f of a busy loop", user, system);
	/* a tick counts whole for whoever it finds: elsewhere that can be this thread too often */
	CHECK(user + system < (t_icount() ? 1.1 : 1.6) * cpu + 10 &&
		      user + system > (t_icount() ? 0.9 : 0.2) * cpu - 10,
	      "user %.3f ms and system %.3f of %.3f on the CPU", user, system, cpu);
}

struct kid {
	int stop, ready, go;
	int bucket; /* where the time must have gone */
	double got;
};

static double bucket_ms(const struct t_diff_ *d, int bucket)
{
	const double by_bucket[] = { d->oncpu, d->runq, d->sleep, d->dsleep, d->iowait };

	return by_bucket[bucket];
}

/* Stops itself; somebody else lets it go on. */
static void stopped_child(void *arg)
{
	int traced = *(int *)arg;
	struct csf_snap a, b;
	struct t_diff_ d;

	if (traced)
		ptrace(PTRACE_TRACEME, 0, 0, 0);
	t_snap(&a);
	raise(SIGSTOP);
	t_snap(&b);
	d = t_diff(&a, &b);
	t_note_diff(&d);
	CHECK(d.sleep > 90, "slept %.3f ms while stopped", d.sleep);
}

static void test_stopped(int traced)
{
	int status;
	pid_t pid = t_fork(stopped_child, &traced);

	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "it did not stop");
	t_sleep_ns(100 * T_MS);
	if (traced)
		ptrace(PTRACE_CONT, pid, 0, 0);
	else
		kill(pid, SIGCONT);
	t_wait(pid);
}

static void spinning_child(void *arg)
{
	struct kid *k = arg;
	struct csf_snap a, b;
	struct t_diff_ d;

	t_snap(&a);
	__atomic_store_n(&k->ready, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&k->stop, __ATOMIC_ACQUIRE))
		t_work();
	t_snap(&b);
	d = t_diff(&a, &b);
	t_note_diff(&d);
	CHECK(bucket_ms(&d, k->bucket) > 180, "%.3f ms in bucket %d while frozen",
	      bucket_ms(&d, k->bucket), k->bucket);
}

static void put(const char *dir, const char *name, const char *value)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	CHECK(!t_write(path, value), "%s > %s: %s", value, path, strerror(errno));
}

/*
 * A frozen busy loop. cgroup v2 freezes in an interruptible sleep, v1 in one that is not; the
 * letter in /proc says what the kernel takes it for.
 */
static void freeze(const char *dir, const char *file, const char *on, const char *off, int bucket)
{
	struct kid *k = t_shared(sizeof(*k));
	char pid_text[16], letter;
	pid_t pid;

	mkdir(dir, 0755);
	k->bucket = bucket;
	pid = t_fork(spinning_child, k);
	while (!__atomic_load_n(&k->ready, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
	snprintf(pid_text, sizeof(pid_text), "%d", pid);
	put(dir, "cgroup.procs", pid_text);
	put(dir, file, on);
	for (unsigned int i = 0; i < 100 * t_patience() && t_state_letter(pid) == 'R'; i++)
		t_sleep_ns(10 * T_MS);
	t_sleep_ns(200 * T_MS);
	letter = t_state_letter(pid);
	put(dir, file, off);
	__atomic_store_n(&k->stop, 1, __ATOMIC_RELEASE);
	t_wait(pid);
	rmdir(dir);
	CHECK(letter == (bucket == CSF_SLEEP ? 'S' : 'D'), "/proc shows the frozen task as %c",
	      letter);
}

static void test_frozen(const char *type, const char *options, int bucket)
{
	char root[] = "/tmp/csf-t-XXXXXX", dir[32];

	if (!mkdtemp(root))
		t_die("mkdtemp: %s", strerror(errno));
	if (mount("none", root, type, 0, options)) {
		t_skip("no %s %s: %s", type, options ? options : "", strerror(errno));
		rmdir(root);
		return;
	}
	snprintf(dir, sizeof(dir), "%s/t", root);
	if (options)
		freeze(dir, "freezer.state", "FROZEN", "THAWED", bucket);
	else
		freeze(dir, "cgroup.freeze", "1", "0", bucket);
	umount2(root, MNT_DETACH);
	rmdir(root);
}

static int kernel_log_has(const char *text)
{
	static char log[1 << 20];
	int n = klogctl(3 /* SYSLOG_ACTION_READ_ALL */, log, sizeof(log) - 1);

	log[n > 0 ? n : 0] = 0;
	return strstr(log, text) != NULL;
}

/* The flags are what the CPU says of itself and what the kernel thinks of the clock. */
static void test_flags(void)
{
	static char cpuinfo[65536];
	char sources[256];
	struct csf_snap s;
	int constant, unstable;

	t_leave();
	t_snap(&s);
	if (s.p.hdr.clock != CSF_CLOCK_TSC) {
		CHECK((s.p.hdr.flags & 3) == 3, "flags %#x for the kernel's own clock",
		      s.p.hdr.flags);
		return;
	}
	t_read("/proc/cpuinfo", cpuinfo, sizeof(cpuinfo));
	t_read("/sys/devices/system/clocksource/clocksource0/available_clocksource", sources,
	       sizeof(sources));
	constant = strstr(cpuinfo, " constant_tsc") && strstr(cpuinfo, " nonstop_tsc");
	unstable = kernel_log_has("Marking TSC unstable") || kernel_log_has("TSC found unstable");
	t_note("flags %#x; constant_tsc and nonstop_tsc %s; the kernel %s; clock sources %s",
	       s.p.hdr.flags, constant ? "yes" : "no",
	       unstable ? "gave the TSC up" : "trusts the TSC", sources);
	CHECK(!!(s.p.hdr.flags & CSF_F_TSC_CONSTANT) == constant, "flags %#x", s.p.hdr.flags);
	CHECK(!!(s.p.hdr.flags & CSF_F_TSC_SYNCED) == !unstable, "flags %#x", s.p.hdr.flags);
	CHECK(!unstable || !strstr(sources, "tsc "), "the log and the clock sources disagree");
}

int main(void)
{
	t_read_code();
	TEST("clock rate")
		test_clock_rate();
	TEST("TSC flags")
		test_flags();
	TEST("sleep")
		test_sleep();
	TEST("spin")
		test_spin();
	TEST("vfork")
		test_vfork();
	TEST("O_DIRECT read")
		test_direct_io();
	TEST("two on one CPU")
		test_contention();
	TEST("awake behind another")
		test_wait_after_sleep();
	TEST("yield")
		test_yield();
	TEST("migrations")
		test_migrate();
	TEST("switch counts")
		test_switch_counts();
	TEST("copies of /proc")
		test_copies();
	TEST("user and system time")
		test_times();
	TEST("stopped")
		test_stopped(0);
	TEST("traced")
		test_stopped(1);
	TEST("frozen by cgroup v1")
		test_frozen("cgroup", "freezer", CSF_DSLEEP);
	TEST("frozen by cgroup v2")
		test_frozen("cgroup2", NULL, CSF_SLEEP);
	return t_done("t_thread");
}
