// SPDX-License-Identifier: GPL-2.0
/*
 * Whose page it is, from the thread's first snapshot to its end: threads, forks, execs, tids that
 * are used again. Knows lib/ only; what needs descriptors is in t_file.c and t_owner.c.
 */
#include "t.h"

#include <stddef.h>

static const char *self; /* this program, to be executed again */

/* A page just armed: its owner's, running, and nothing counted from before. */
static void check_new(const struct csf_snap *s, uint64_t before_ns)
{
	uint64_t since = t_mono_ns() - before_ns, sum = csf_cyc_to_ns(&s->p.hdr, t_sum(&s->p));

	CHECK(s->p.tid == (unsigned int)t_gettid(), "tid %u of thread %d", s->p.tid, t_gettid());
	CHECK(s->p.life == CSF_LIVE && s->p.state == CSF_ONCPU && s->extrapolated,
	      "life %d, state %d", s->p.life, s->p.state);
	CHECK(s->p.hdr.magic == CSF_MAGIC && s->p.hdr.version == CSF_ABI_VERSION &&
		      s->p.hdr.kind == CSF_KIND_THREAD && s->p.hdr.size >= sizeof(s->p),
	      "header %#x %u %u %u", s->p.hdr.magic, s->p.hdr.version, s->p.hdr.kind,
	      s->p.hdr.size);
	CHECK(sum <= since + since / 100 + 1000, "%llu ns on a page that is %llu ns old",
	      (unsigned long long)sum, (unsigned long long)since);
}

static void snap_new(struct csf_snap *s)
{
	uint64_t before = t_mono_ns();

	t_snap(s);
	check_new(s, before);
}

static int mappings(void)
{
	static char buf[1 << 20];
	int n = 0;

	t_read("/proc/self/maps", buf, sizeof(buf));
	for (char *at = buf; (at = strchr(at, '\n')); at++)
		n++;
	return n;
}

static void *snap_thread(void *arg)
{
	struct csf_snap s;

	snap_new(arg ? (struct csf_snap *)arg : &s);
	return NULL;
}

static void *exiting_thread(void *arg)
{
	snap_thread(arg);
	pthread_exit(NULL);
}

static void *cancelled_thread(void *arg)
{
	struct csf_snap s;

	snap_new(&s);
	__atomic_store_n((int *)arg, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static void cancel_one(void)
{
	int ready = 0;
	pthread_t thread = t_go(cancelled_thread, &ready);

	while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
		t_sleep_ns(100000);
	pthread_cancel(thread);
	t_join(thread);
}

/* A thread takes its mapping with it, however it ends. */
static void test_unmapped(void)
{
	struct csf_snap mine;
	int before;

	t_snap(&mine);
	t_join(t_go(snap_thread, NULL));
	cancel_one(); /* the first time, glibc loads a library for it */
	before = mappings();
	for (int i = 0; i < 100; i++) {
		t_join(t_go(snap_thread, NULL));
		t_join(t_go(exiting_thread, NULL));
		cancel_one();
	}
	CHECK(mappings() <= before + 5, "%d mappings after 300 threads, before %d", mappings(),
	      before);
}

struct one_thread {
	struct csf_snap s;
	struct t_diff_ d;
	double awake;
};

/* One thread sleeps, one works: each page has its own thread's time only. */
static void *sleeping_thread(void *arg)
{
	struct one_thread *one = arg;
	struct csf_snap s;
	double awake;

	snap_new(&s);
	awake = t_awake_ms();
	t_sleep_ns(200 * T_MS * t_patience());
	t_snap(&one->s);
	one->awake = t_awake_ms() - awake;
	one->d = t_diff(&s, &one->s);
	return NULL;
}

static void *working_thread(void *arg)
{
	struct one_thread *one = arg;
	struct csf_snap s;

	snap_new(&s);
	t_spin_ns(200 * T_MS * t_patience());
	t_snap(&one->s);
	one->d = t_diff(&s, &one->s);
	return NULL;
}

static void test_independent(void)
{
	unsigned int slow = t_patience();
	struct one_thread a, b;
	pthread_t sleeper = t_go(sleeping_thread, &a), worker = t_go(working_thread, &b);

	t_join(sleeper);
	t_join(worker);
	CHECK(a.s.p.epoch != b.s.p.epoch && a.s.p.tid != b.s.p.tid, "two threads, one page");
	CHECK(a.d.sleep > 190 * slow - a.awake && a.d.oncpu < 100 * slow,
	      "the sleeper: sleep %.3f, cpu %.3f", a.d.sleep, a.d.oncpu);
	CHECK(b.d.oncpu > 190 * slow && b.d.sleep < 50 * slow, "the worker: sleep %.3f, cpu %.3f",
	      b.d.sleep, b.d.oncpu);
}

/* Many threads at once: each has its page, no two have the same arming. */
enum { CROWD = 1500 };

struct crowd {
	pthread_barrier_t barrier;
	struct csf_snap snaps[CROWD];
	int next;
};

static void *crowd_thread(void *arg)
{
	struct crowd *c = arg;
	struct csf_snap *s = &c->snaps[__atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)], later;

	snap_new(s);
	pthread_barrier_wait(&c->barrier);
	t_snap(&later);
	t_diff(s, &later);
	CHECK(later.p.tid == s->p.tid, "the page is that of thread %u", later.p.tid);
	return NULL;
}

static int by_epoch(const void *a, const void *b)
{
	const struct csf_snap *x = a, *y = b;

	return (x->p.epoch > y->p.epoch) - (x->p.epoch < y->p.epoch);
}

static void test_crowd(void)
{
	static struct crowd c;
	static pthread_t threads[CROWD];

	pthread_barrier_init(&c.barrier, NULL, CROWD);
	for (int i = 0; i < CROWD; i++)
		threads[i] = t_go(crowd_thread, &c);
	for (int i = 0; i < CROWD; i++)
		t_join(threads[i]);
	qsort(c.snaps, CROWD, sizeof(c.snaps[0]), by_epoch);
	for (int i = 1; i < CROWD; i++)
		CHECK(c.snaps[i].p.epoch > c.snaps[i - 1].p.epoch, "epoch %llu twice",
		      (unsigned long long)c.snaps[i].p.epoch);
}

/* With few tids, each is used many times; no thread sees what its namesake left. */
static void test_tids_again(void)
{
	static unsigned char seen[4096];
	char before[32];
	struct csf_snap s;
	int again = 0;

	t_read("/proc/sys/kernel/pid_max", before, sizeof(before));
	if (t_write("/proc/sys/kernel/pid_max", "1000")) {
		t_skip("pid_max: %s", strerror(errno));
		return;
	}
	for (int i = 0; i < 3000; i++) {
		t_join(t_go(snap_thread, &s));
		again += seen[s.p.tid % 4096]++ != 0;
	}
	t_write("/proc/sys/kernel/pid_max", before);
	t_note("3000 threads, %d with a tid that another had before", again);
	CHECK(again > 1000, "only %d tids were used again", again);
}

/* A forked child starts its own account; its parent's goes on. */
static void forked_child(void *arg)
{
	const struct csf_snap *parents = arg;
	unsigned int ms = 20 * t_patience();
	struct csf_snap s, later;
	char buf[CSF_DIFF_BUFSZ];
	double awake;

	snap_new(&s);
	CHECK(s.p.epoch != parents->p.epoch, "the child has its parent's page");
	errno = 0;
	CHECK(csf_format_diff(buf, sizeof(buf), parents, &s) == -1 && errno == ESTALE,
	      "a difference of two threads: errno %d, \"%s\"", errno, buf);
	awake = t_awake_ms();
	t_sleep_ns(ms * T_MS);
	t_snap(&later);
	awake = t_awake_ms() - awake;
	CHECK(t_diff(&s, &later).sleep > 0.75 * ms - awake, "slept %.3f ms of %u, awake for %.3f",
	      t_diff(&s, &later).sleep, ms, awake);
}

static void grandchild(void *arg)
{
	struct csf_snap s;

	forked_child(arg);
	t_snap(&s);
	t_in_child(forked_child, &s);
}

static void test_fork(void)
{
	struct csf_snap a, b;

	t_snap(&a);
	t_in_child(forked_child, &a);
	t_in_child(grandchild, &a);
	t_snap(&b);
	CHECK(b.p.tid == (unsigned int)t_gettid(), "the parent lost its page");
	t_diff(&a, &b);
}

/* Forks while other threads live: the child has one thread and its page. */
static void *forking_thread(void *arg)
{
	struct csf_snap a, b;

	(void)arg;
	snap_new(&a);
	t_in_child(forked_child, &a);
	t_snap(&b);
	t_diff(&a, &b);
	return NULL;
}

static void test_fork_in_thread(void)
{
	pthread_t threads[8];

	for (int i = 0; i < 8; i++)
		threads[i] = t_go(forking_thread, NULL);
	for (int i = 0; i < 8; i++)
		t_join(threads[i]);
}

/* In the child of a vfork() the parent's memory is there, but the parent does not run. */
static void test_vfork(void)
{
	volatile int ret = 0, err = 0;
	struct csf_snap a, b;
	pid_t pid;

	t_snap(&a);
	pid = vfork();
	if (!pid) {
		t_sleep_ns(20 * T_MS); /* the parent is asleep by then */
		ret = csf_thread_snap(&b);
		err = errno;
		_exit(0);
	}
	t_wait(pid);
	CHECK(ret == -1 && err == ESRCH, "a vfork child's snapshot: %d, errno %d", ret, err);
	t_snap(&b);
	t_diff(&a, &b);
}

/* What the program is when it was executed by test_exec(); the old epoch is its argument. */
static int executed(const char *epoch)
{
	struct csf_snap s;

	TEST("executed") {
		snap_new(&s);
		CHECK(s.p.epoch != strtoull(epoch, NULL, 10), "the old program's page");
		CHECK(s.p.nr_migrate < 10 && s.p.nr_block < 10, "%llu blocks so far",
		      (unsigned long long)s.p.nr_block);
		if (t_.now->failed)
			t_note("%s", t_.now->why);
		_exit(t_.now->failed);
	}
	return 1;
}

static void exec_again(const struct csf_snap *s)
{
	char epoch[32];

	snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)s->p.epoch);
	execl(self, self, "executed", epoch, (char *)NULL);
	t_die("%s: %s", self, strerror(errno));
}

static void *exec_thread(void *arg)
{
	struct csf_snap s;

	(void)arg;
	for (int i = 0; i < 50; i++)
		t_sleep_ns(10000);
	snap_new(&s);
	exec_again(&s);
	return NULL;
}

static void exec_child(void *arg)
{
	struct csf_snap s;

	snap_new(&s);
	for (int i = 0; i < 50; i++)
		t_sleep_ns(10000);
	if (!arg)
		exec_again(&s);
	t_join(t_go(exec_thread, NULL));
}

static void test_exec(void)
{
	t_in_child(exec_child, NULL);
}

/* The thread that calls execve() takes the leader's place, its tid included. */
static void test_exec_in_thread(void)
{
	int yes = 1;

	t_in_child(exec_child, &yes);
}

/* Reading one's own account needs no privilege. */
static void nobody(void *arg)
{
	struct csf_snap s, later;

	(void)arg;
	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		t_die("setresuid: %s", strerror(errno));
	snap_new(&s);
	t_sleep_ns(T_MS);
	t_snap(&later);
	t_diff(&s, &later);
}

static void test_nobody(void)
{
	t_in_child(nobody, NULL);
}

/* The process's first thread may end long before the process. */
static void *last_thread(void *arg)
{
	unsigned int ms = 50 * t_patience();
	struct csf_snap s, later;
	double awake;

	(void)arg;
	snap_new(&s);
	awake = t_awake_ms();
	t_sleep_ns(ms * T_MS);
	t_snap(&later);
	awake = t_awake_ms() - awake;
	CHECK(t_diff(&s, &later).sleep > 0.8 * ms - awake, "slept %.3f ms of %u, awake for %.3f",
	      t_diff(&s, &later).sleep, ms, awake);
	_exit(t_.now->failed);
}

static void leave_first(void *arg)
{
	struct csf_snap s;

	snap_new(&s);
	t_go(last_thread, arg);
	pthread_exit(NULL);
}

static void test_leader_ends(void)
{
	t_in_child(leave_first, NULL);
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 3 && !strcmp(argv[1], "executed"))
		return executed(argv[2]);
	TEST("unmapped at the thread's end")
		test_unmapped();
	TEST("independent threads")
		test_independent();
	TEST("many threads at once")
		test_crowd();
	TEST("tids used again")
		test_tids_again();
	TEST("fork")
		test_fork();
	TEST("fork in threads")
		test_fork_in_thread();
	TEST("vfork child")
		test_vfork();
	TEST("exec")
		test_exec();
	TEST("exec in a thread")
		test_exec_in_thread();
	TEST("unprivileged")
		test_nobody();
	TEST("leader ends first")
		test_leader_ends();
	return t_done("t_life");
}
