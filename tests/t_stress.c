// SPDX-License-Identifier: GPL-2.0
/*
 * Thousands of threads that let go of their pages in every way that lib/ allows, at random:
 *
 *  returns    the thread returns: lib/ unmaps, then the thread ends
 *  exits      pthread_exit() from deep inside
 *  cancelled  another thread cancels it
 *  vanishes   the bare system call: the thread ends while its page is mapped
 *  leaves     the process ends by exit_group() while threads are in use of their pages
 *  killed     likewise, by SIGKILL from outside
 *  forks      the thread forks a child that has a page too; the child ends first or last
 *  executes   the thread executes a program, which ends all others and takes their mappings away
 *
 * Orders in which descriptors and mappings go, and pages passed between processes, need the file
 * interface: t_fuzz.c has them.
 *
 * CSF_STRESS_SECONDS (20) is for how long, CSF_SEED the seed. There is more time if a busy host needs that; a
 * slow kernel (CSF_PATIENCE) has fewer threads to make.
 */
#include "t.h"

enum { RETURNS, EXITS, CANCELLED, VANISHES, LEAVES, KILLED, FORKS, EXECUTES, ORDERS };

static const char *const order_names[ORDERS] = { "returns", "exits",  "cancelled", "vanishes",
						 "leaves",  "killed", "forks",	   "executes" };

enum { GROUP = 8, DRIVERS = 2 };

/* Shared by all processes. */
struct stress {
	unsigned long orders[ORDERS]; /* threads that let go of their pages in this order */
	int stop;
};

static struct stress *stress;
static const char *self;

/* So many threads end, or are about to, in this order. */
static void account(int order, unsigned long threads)
{
	__atomic_fetch_add(&stress->orders[order], threads, __ATOMIC_RELAXED);
}

/* Two snapshots, the second after having been away or not. */
static void use_page(int block)
{
	struct csf_snap a, b;

	t_snap(&a);
	if (block)
		t_sleep_ns(1000);
	t_snap(&b);
	t_diff(&a, &b);
	CHECK(b.p.tid == (unsigned int)t_gettid(), "the page of %u", b.p.tid);
	CHECK(t_sum(&b.p) == b.tsc - (a.tsc - t_sum(&a.p)), "the sum is off since the start");
}

static void *returning(void *arg)
{
	use_page(arg != NULL);
	return NULL;
}

static void *exiting(void *arg)
{
	use_page(arg != NULL);
	pthread_exit(NULL);
}

static void *vanishing(void *arg)
{
	use_page(arg != NULL);
	syscall(SYS_exit, 0);
	return NULL;
}

static void *waiting(void *arg)
{
	use_page(0);
	__atomic_fetch_add((int *)arg, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static void *spinning(void *arg)
{
	use_page(0);
	__atomic_fetch_add((int *)arg, 1, __ATOMIC_RELEASE);
	for (;;)
		use_page(0);
	return NULL;
}

static void wait_for(const int *count, int n)
{
	while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < n)
		t_sleep_ns(50000);
}

/* A few threads at once, then all joined. */
static void group(void *(*fn)(void *), int order, uint64_t random)
{
	pthread_t threads[GROUP];

	for (int i = 0; i < GROUP; i++)
		threads[i] = t_go(fn, random >> i & 1 ? threads : NULL);
	for (int i = 0; i < GROUP; i++) {
		t_join(threads[i]);
		account(order, 1);
	}
}

static void cancel_group(void)
{
	pthread_t threads[GROUP];
	int ready = 0;

	for (int i = 0; i < GROUP; i++)
		threads[i] = t_go(waiting, &ready);
	wait_for(&ready, GROUP);
	for (int i = 0; i < GROUP; i++)
		pthread_cancel(threads[i]);
	for (int i = 0; i < GROUP; i++) {
		t_join(threads[i]);
		account(CANCELLED, 1);
	}
}

/* In a child: threads asleep and one at work, until this one does something that ends them all. */
static void busy_group(int order)
{
	int *ready = calloc(1, sizeof(*ready)); /* outlives this function */

	use_page(0);
	for (int i = 1; i < GROUP; i++)
		t_go(i > 1 ? waiting : spinning, ready);
	wait_for(ready, GROUP - 1);
	account(order, GROUP);
}

static void vanish_child(void *arg)
{
	/* what they leave mapped goes with this process */
	group(vanishing, VANISHES, (uint64_t)(uintptr_t)arg);
}

static void leave_child(void *arg)
{
	(void)arg;
	busy_group(LEAVES);
}

static void killed_child(void *arg)
{
	(void)arg;
	busy_group(KILLED);
	raise(SIGKILL);
}

static void exec_child(void *arg)
{
	(void)arg;
	busy_group(EXECUTES);
	execl(self, self, "executed", (char *)NULL);
	t_die("%s: %s", self, strerror(errno));
}

static void forked_child(void *arg)
{
	use_page(0);
	if (arg)
		t_sleep_ns(200000); /* the parent goes first */
}

static void *forking(void *arg)
{
	pid_t pid;

	use_page(0);
	pid = t_fork(forked_child, arg);
	account(FORKS, 2);
	if (!arg)
		t_wait(pid);
	return NULL;
}

static void fork_child(void *arg)
{
	int status;

	for (int i = 0; i < GROUP / 2; i++)
		t_join(t_go(forking, arg));
	while (waitpid(-1, &status, 0) > 0)
		CHECK(!status, "a child ended with status %#x", status);
}

static void end_by_kill(void)
{
	int status;
	pid_t pid = t_fork(killed_child, NULL);

	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
	      "killed, with status %#x", status);
}

static void one_round(uint64_t random)
{
	switch (random >> 32 & 7) {
	case 0:
		t_in_child(vanish_child, (void *)(uintptr_t)(random & 0xff));
		break;
	case 1:
		t_in_child(leave_child, NULL);
		break;
	case 2:
		end_by_kill();
		break;
	case 3:
		t_in_child(exec_child, NULL);
		break;
	case 4:
		t_in_child(fork_child, random & 1 ? stress : NULL);
		break;
	case 5:
		cancel_group();
		break;
	case 6:
		group(exiting, EXITS, random);
		break;
	default:
		group(returning, RETURNS, random);
	}
}

struct driver {
	uint64_t random;
	int cpu;
};

/*
 * Seven of eight rounds stay on one CPU. The rest spreads, for the races that need two, but where
 * CPUs are virtual each unmapping then waits for the other one to be scheduled.
 */
static void driver(void *arg)
{
	struct driver *d = arg;

	while (!__atomic_load_n(&stress->stop, __ATOMIC_ACQUIRE) && !t_.now->failed) {
		uint64_t random = t_random(&d->random);

		if (random >> 60 & 7)
			t_pin(d->cpu);
		else
			t_unpin();
		one_round(random);
	}
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

enum { MORE = 80 }; /* seconds, if a busy host needs them */

/* Threads there must be, and of each order. With little time there may be any number. */
static unsigned long enough(unsigned int seconds)
{
	return seconds < 20 ? 0 : (t_accel_is("kvm") ? 80000 : 8000) / t_patience();
}

static unsigned long enough_of_each(unsigned int seconds)
{
	return seconds < 20 ? 0 : 500 / t_patience();
}

static unsigned long of_order(int order)
{
	return __atomic_load_n(&stress->orders[order], __ATOMIC_RELAXED);
}

static int is_enough(unsigned int seconds)
{
	unsigned long threads = 0;

	for (int i = 0; i < ORDERS; i++) {
		threads += of_order(i);
		if (of_order(i) < enough_of_each(seconds))
			return 0;
	}
	return threads >= enough(seconds);
}

static void run(uint64_t seed, unsigned int seconds)
{
	uint64_t end = t_mono_ns() + T_SEC * t_patience() * (seconds + MORE);
	pid_t pids[DRIVERS];

	for (int i = 0; i < DRIVERS; i++) {
		struct driver d = { t_random(&seed), i % t_cpus() };

		pids[i] = t_fork(driver, &d);
	}
	t_sleep_ns(seconds * T_SEC);
	while (!is_enough(seconds) && !t_.now->failed && t_mono_ns() < end)
		t_sleep_ns(T_SEC);
	__atomic_store_n(&stress->stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < DRIVERS; i++)
		t_wait(pids[i]);
}

static void test_stress(void)
{
	unsigned int seconds = (unsigned int)number("CSF_STRESS_SECONDS", 20);
	uint64_t seed = number("CSF_SEED", t_mono_ns()), start = t_mono_ns();
	unsigned long threads = 0;
	int base = t_module_refs();

	t_limit(seconds + MORE + 20);
	t_note("CSF_SEED=%llu", (unsigned long long)seed);
	run(seed, seconds);
	for (int i = 0; i < ORDERS; i++) {
		threads += of_order(i);
		t_note("%6lu %s", of_order(i), order_names[i]);
		CHECK(of_order(i) >= enough_of_each(seconds), "%s: %lu threads only",
		      order_names[i], of_order(i));
	}
	t_note("%lu threads in %.0f s", threads, (double)(t_mono_ns() - start) / 1e9);
	CHECK(threads >= enough(seconds), "%lu threads in %u s, not %lu", threads, seconds,
	      enough(seconds));
	if (base >= 0)
		CHECK(t_module_refs_settle(base) == base, "the module has %d references, had %d",
		      t_module_refs(), base);
}

int main(int argc, char **argv)
{
	struct csf_snap s;

	if (argc == 2 && !strcmp(argv[1], "executed"))
		return csf_thread_snap(&s) != 0 || s.p.tid != (unsigned int)getpid();
	self = argv[0];
	stress = t_shared(sizeof(*stress));
	TEST("release orders")
		test_stress();
	return t_done("t_stress");
}
