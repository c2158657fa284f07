// SPDX-License-Identifier: GPL-2.0
/*
 * A signal handler that takes a snapshot while the thread's first one is under way, or its end: at a
 * random instruction of it, by the CPU's trap flag. Both must come to a clean end, and the thread
 * must have one mapping, and then none. U_MS= is how long each test goes on.
 */
#include "u_step.h"

#include <sys/syscall.h>

static volatile int handler_ret, handler_errno;
static struct csf_snap handler_snap;

static void snap_in_handler(void)
{
	handler_ret = csf_thread_snap(&handler_snap);
	handler_errno = errno;
}

static int base_maps;

/* The first snapshot of a thread or process, interrupted after steps instructions. */
static int interrupted_snap(void)
{
	struct csf_snap s;
	int ret;

	u_handled = 0;
	errno = 12345;
	u_step_begin();
	ret = csf_thread_snap(&s);
	u_step_end();
	EXPECT(ret == 0);
	EXPECT(errno == 12345);
	EXPECT(s.extrapolated);
	if (!u_handled)
		return 0;
	EXPECT(handler_ret == 0 || (handler_ret == -1 && handler_errno == EBUSY));
	EXPECT(handler_ret == 0 || u_is_zero(&handler_snap, sizeof(handler_snap)));
	EXPECT(u_count_maps(u_thread_path) == base_maps + 1);
	EXPECT(csf_thread_snap(&s) == 0);
	EXPECT(u_count_maps(u_thread_path) == base_maps + 1);
	return 0;
}

/*
 * How many instructions it takes once the dynamic linker has done its part: the traps until the
 * end. A TID of one digit less and a clock that is read at once take some less.
 */
static long count_steps(void)
{
	int i;

	for (i = 0; i < 2; i++) {
		u_steps_left = 100000000;
		if (u_in_thread(interrupted_snap))
			return -1;
	}
	return 100000000 - u_steps_left;
}

/*
 * Half of them early: before the thread has said that it is busy. Late ones cost a trap an
 * instruction.
 */
static long any_of(long steps)
{
	return 1 + (long)(u_random() % (uint64_t)(u_random() % 2 ? 64 : steps - 1));
}

static void test_thread(uint64_t until)
{
	long steps = count_steps(), ok = 0, busy = 0, shorter = 0;

	base_maps = u_count_maps(u_thread_path);
	TEST("a handler at any instruction of a thread's first snapshot") {
		CHECK(steps > 50, "%ld steps", steps);
		while ((u_now_ns() < until || !ok || !busy) && !u_bad &&
		       u_now_ns() < until + 10000000000) {
			long at = any_of(steps);

			u_steps_left = at;
			CHECK_EQ(u_in_thread(interrupted_snap), 0);
			if (u_bad)
				printf("# at instruction %ld of %ld\n", at, steps);
			ok += u_handled && !handler_ret;
			busy += u_handled && handler_ret;
			shorter += !u_handled;
		}
		CHECK_EQ(u_count_maps(u_thread_path), base_maps);
		CHECK(ok && busy, "%ld handlers had a snapshot, %ld EBUSY", ok, busy);
		CHECK(shorter <= (ok + busy) / 4, "%ld of %ld handlers did not run", shorter,
		      shorter + ok + busy);
		printf("# %ld instructions; %ld handlers had a snapshot, %ld EBUSY, %ld came late\n",
		       steps, ok, busy, shorter);
	}
}

/* In a process that has not used the library at all; the linker's instructions are among these. */
static void test_process(uint64_t until)
{
	TEST("a handler at any instruction of a process's first snapshot")
		while (u_now_ns() < until && !u_bad) {
			long at = any_of(7000);

			u_steps_left = at;
			CHECK_EQ(u_in_child(interrupted_snap), 0);
			if (u_bad)
				printf("# at instruction %ld\n", at);
		}
}

/*
 * A handler that finds another writer, whose clock is another. The snapshot that it interrupted is
 * one of the old page, or of the new one; its time is by that page's clock.
 */
static void make_file_with_clock(uint32_t clock)
{
	struct csf_thread_page p;

	u_fill_thread_page(&p);
	p.hdr.clock = clock;
	if (clock == CSF_CLOCK_MONOTONIC)
		p.last_switch_tsc = u_now_ns();
	u_write_thread_file(&p);
}

static void map_in_handler(void)
{
	csf_page_drop_(&csf_tls_);
	handler_ret = csf_thread_map_();
}

static uint64_t now_by(uint32_t clock)
{
	return clock == CSF_CLOCK_TSC ? __builtin_ia32_rdtsc() : u_now_ns();
}

static int snap_of_two(uint32_t first, uint32_t second)
{
	uint64_t before[3], after;
	struct csf_snap s;

	make_file_with_clock(first);
	EXPECT(!csf_thread_snap(&s));
	make_file_with_clock(second);
	before[CSF_CLOCK_TSC] = now_by(CSF_CLOCK_TSC);
	before[CSF_CLOCK_MONOTONIC] = now_by(CSF_CLOCK_MONOTONIC);
	u_handled = 0;
	u_step_begin();
	EXPECT(!csf_thread_snap(&s));
	u_step_end();
	after = now_by(s.p.hdr.clock);
	EXPECT(!u_handled || !handler_ret);
	EXPECT(s.tsc >= before[s.p.hdr.clock] && s.tsc <= after);
	EXPECT(s.p.oncpu_cyc == s.tsc - s.p.last_switch_tsc);
	return 0;
}

static int snap_of_module(void)
{
	return snap_of_two(CSF_CLOCK_TSC, CSF_CLOCK_MONOTONIC);
}

static int snap_of_service(void)
{
	return snap_of_two(CSF_CLOCK_MONOTONIC, CSF_CLOCK_TSC);
}

/* In threads of their own, with a handler at any instruction. */
static void step_through(int (*fn)(void), uint64_t until)
{
	long steps, n = 0;

	u_steps_left = 100000000;
	CHECK_EQ(u_in_thread(fn), 0);
	steps = 100000000 - u_steps_left;
	for (; (u_now_ns() < until || !n) && !u_bad; n += u_handled) {
		long at = 1 + (long)(u_random() % (uint64_t)steps);

		u_steps_left = at;
		if (!CHECK_EQ(u_in_thread(fn), 0))
			printf("# at instruction %ld of %ld: %d\n", at, steps, handler_ret);
	}
	printf("# %ld instructions; %ld handlers\n", steps, n);
}

static void test_clock(const char *name, int (*fn)(void), uint64_t until)
{
	u_handler = map_in_handler;
	TEST(name)
		step_through(fn, until);
	u_make_thread_file();
}

/*
 * A handler that forks, where the child goes on with the snapshot that was interrupted. That one may
 * be of the parent's page, which is mapped here, unlike the module's; no later one may.
 */
static volatile int is_child;

static void fork_in_handler(void)
{
	pid_t pid = (pid_t)syscall(SYS_fork);

	is_child = !pid;
	if (pid)
		handler_ret = u_wait(pid);
}

static int snap_after_fork(void)
{
	struct csf_snap s;

	csf_tls_.thread_failed.err = 0; /* ESRCH, if it was made at once */
	EXPECT(!csf_thread_snap(&s));
	EXPECT(csf_guard_->pid == getpid());
	EXPECT(csf_guard_->gen && csf_tls_.gen == csf_guard_->gen);
	return 0;
}

static int forked_snap(void)
{
	struct csf_snap s;
	int ret;

	u_handled = is_child = 0;
	u_step_begin();
	ret = csf_thread_snap(&s);
	u_step_end();
	if (is_child)
		_exit(snap_after_fork());
	EXPECT(!ret);
	EXPECT(!u_handled || !handler_ret);
	return 0;
}

static void test_fork(uint64_t until)
{
	u_handler = fork_in_handler;
	TEST("a handler that forks at any instruction of a thread's first snapshot")
		step_through(forked_snap, until);
}

/*
 * Destructors are called in the order in which their keys were made, so these two have the library's
 * between them.
 */
static pthread_key_t begin_key, end_key;

static void begin_end(void *arg)
{
	(void)arg;
	u_step_begin();
}

static void end_end(void *arg)
{
	u_step_end();
	(void)arg;
}

static int interrupted_end(void)
{
	struct csf_snap s;

	u_handled = 0;
	EXPECT(!pthread_setspecific(begin_key, &s));
	EXPECT(!pthread_setspecific(end_key, &s));
	EXPECT(!csf_thread_snap(&s));
	return 0;
}

static void test_end(uint64_t until)
{
	int base = u_count_maps(u_thread_path);
	long steps, n = 0;

	TEST("a handler at any instruction of a thread's end") {
		CHECK(begin_key < csf_key_ && csf_key_ < end_key, "keys in another order");
		u_steps_left = 100000000;
		CHECK_EQ(u_in_thread(interrupted_end), 0);
		steps = 100000000 - u_steps_left;
		CHECK(steps > 50, "%ld steps", steps);
		for (; (u_now_ns() < until || !n) && !u_bad; n += u_handled) {
			long at = 1 + (long)(u_random() % (uint64_t)steps);

			u_steps_left = at;
			CHECK_EQ(u_in_thread(interrupted_end), 0);
			CHECK(!u_handled || !handler_ret, "errno %d", handler_errno);
			CHECK_EQ(u_count_maps(u_thread_path), base);
			if (u_bad)
				printf("# at instruction %ld of %ld\n", at, steps);
		}
		printf("# %ld instructions; %ld handlers\n", steps, n);
	}
}

int main(void)
{
	const char *arg = getenv("U_MS");
	uint64_t ns = (arg ? strtoull(arg, NULL, 10) : 500) * 1000000;

	u_start();
	u_make_thread_file();
	u_step_start();
	u_handler = snap_in_handler;
	if (pthread_key_create(&begin_key, begin_end))
		u_die("pthread_key_create");
	test_process(u_now_ns() + ns);
	test_thread(u_now_ns() + ns);
	if (pthread_key_create(&end_key, end_end))
		u_die("pthread_key_create");
	test_end(u_now_ns() + ns);
	test_fork(u_now_ns() + ns);
	test_clock("a handler that finds a service in place of the module", snap_of_module,
		   u_now_ns() + ns);
	test_clock("... and the reverse", snap_of_service, u_now_ns() + ns);
	return u_done();
}
