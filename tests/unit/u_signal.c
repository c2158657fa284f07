// SPDX-License-Identifier: GPL-2.0
/*
 * A signal handler that takes a snapshot while the thread's first one is under way: at a random
 * instruction of it, by the CPU's trap flag. Both calls must come to a clean end, and the thread
 * must have one mapping. U_MS= is how long each test goes on.
 */
#include "u.h"

#include <signal.h>
#include <ucontext.h>

#define TRAP_FLAG 0x100

static volatile long steps_left;
static volatile int handled, handler_ret, handler_errno;
static struct csf_snap handler_snap;

static void on_trap(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = (ucontext_t *)context;
	int saved = errno;

	(void)sig;
	(void)info;
	if (--steps_left > 0)
		return;
	handled = 1;
	handler_ret = csf_thread_snap(&handler_snap);
	handler_errno = errno;
	uc->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	errno = saved;
}

/* Below the red zone of the caller. */
static inline void set_trap_flag(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq %0, (%%rsp)\n\tpopfq\n\t"
			 "lea 128(%%rsp), %%rsp" ::"i"(TRAP_FLAG)
			 : "memory", "cc");
}

static inline void clear_trap_flag(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq %0, (%%rsp)\n\tpopfq\n\t"
			 "lea 128(%%rsp), %%rsp" ::"i"(~TRAP_FLAG)
			 : "memory", "cc");
}

static int base_maps;

/* The first snapshot of a thread or process, interrupted after steps instructions. */
static int interrupted_snap(void)
{
	struct csf_snap s;
	int ret;

	handled = 0;
	errno = 12345;
	set_trap_flag();
	ret = csf_thread_snap(&s);
	clear_trap_flag();
	EXPECT(ret == 0);
	EXPECT(errno == 12345);
	EXPECT(s.extrapolated);
	if (!handled)
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
		steps_left = 100000000;
		if (u_in_thread(interrupted_snap))
			return -1;
	}
	return 100000000 - steps_left;
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

			steps_left = at;
			CHECK_EQ(u_in_thread(interrupted_snap), 0);
			if (u_bad)
				printf("# at instruction %ld of %ld\n", at, steps);
			ok += handled && !handler_ret;
			busy += handled && handler_ret;
			shorter += !handled;
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

			steps_left = at;
			CHECK_EQ(u_in_child(interrupted_snap), 0);
			if (u_bad)
				printf("# at instruction %ld\n", at);
		}
}

int main(void)
{
	const char *arg = getenv("U_MS");
	uint64_t ns = (arg ? strtoull(arg, NULL, 10) : 500) * 1000000;
	struct sigaction sa;

	u_start();
	u_make_thread_file();
	memset(&sa, 0, sizeof(sa));
	sa.sa_sigaction = on_trap;
	sa.sa_flags = SA_SIGINFO;
	if (sigaction(SIGTRAP, &sa, NULL))
		u_die("sigaction");
	test_process(u_now_ns() + ns);
	test_thread(u_now_ns() + ns);
	return u_done();
}
