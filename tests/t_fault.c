// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that cannot be had, at each place in turn where open() and mmap() ask for some: the kernel's
 * fault injection (CONFIG_FAILSLAB, CONFIG_FAIL_PAGE_ALLOC) lets the Nth request of a system call fail.
 * Each must be ENOMEM, or no failure that a program could see, and nothing may stay behind: kmemleak and
 * the memory cgroup say whether anything did. For tests/debug/; skipped by kernels without it.
 *
 * CSF_FAULTS (10000) is how many.
 */
#include "t.h"

#define CGROUP "/sys/fs/cgroup/csf-fault"
#define FAR 0x100000000000 /* where no page table is yet */
#define FAR_STEP (1ul << 40)
#define SLACK (512 << 10) /* of the cgroup's kernel memory: cached stacks, batched counts */

enum op { OPEN_THREAD, MAP_THREAD, OPEN_CPU, MAP_CPU, NR_OPS };

static const char *const op_names[] = { "open thread-self", "mmap thread-self", "open cpu",
					"mmap cpu" };

struct tally {
	unsigned long injected[NR_OPS], failed[NR_OPS], deepest[NR_OPS];
};

static struct tally *tally;
static unsigned long wanted;

static unsigned long injected(void)
{
	unsigned long sum = 0;

	for (int op = 0; op < NR_OPS; op++)
		sum += tally->injected[op];
	return sum;
}

/* The calling thread's request number @n from now on fails; 0: none does. */
static void arm(int fd, unsigned long n)
{
	char text[24];
	int len = snprintf(text, sizeof(text), "%lu", n);

	if (pwrite(fd, text, (size_t)len, 0) != len)
		t_die("fail-nth: %s", strerror(errno));
}

/* Did it fail? There are fewer requests if not. */
static int disarm(int fd)
{
	char text[24] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
		t_die("fail-nth: %s", strerror(errno));
	arm(fd, 0);
	return atoi(text) == 0;
}

static int open_page(enum op op)
{
	return open(op < OPEN_CPU ? CSF_THREAD_PATH : CSF_CPU_PATH, O_RDONLY | O_CLOEXEC);
}

/* Where each try needs page tables of its own. */
static void *map_page(int fd, unsigned long n)
{
	return mmap((void *)(FAR + n % 16 * FAR_STEP), CSF_SLOT_SIZE, PROT_READ,
		    MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
}

static void must_be_a_page(int fd, const char *after)
{
	const struct csf_hdr *h = mmap(NULL, CSF_SLOT_SIZE, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(h != MAP_FAILED, "mmap after %s: %s", after, strerror(errno));
	if (h == MAP_FAILED)
		return;
	CHECK(h->magic == CSF_MAGIC, "the page after %s has magic %#x", after, h->magic);
	munmap((void *)h, CSF_SLOT_SIZE);
}

static void judge(enum op op, unsigned long n, int failed, int err)
{
	__atomic_fetch_add(&tally->injected[op], 1, __ATOMIC_RELAXED);
	if (tally->deepest[op] < n)
		tally->deepest[op] = n;
	if (!failed)
		return;
	__atomic_fetch_add(&tally->failed[op], 1, __ATOMIC_RELAXED);
	CHECK(err == ENOMEM, "%s, request %lu: %s", op_names[op], n, strerror(err));
}

/* With its Nth request failing; true if it has that many. */
static int try_open(int nth, enum op op, unsigned long n)
{
	int fd, err, hit;

	arm(nth, n);
	fd = open_page(op);
	err = errno;
	hit = disarm(nth);
	if (hit)
		judge(op, n, fd < 0, err);
	else
		CHECK(fd >= 0, "%s without a fault: %s", op_names[op], strerror(err));
	if (fd < 0)
		fd = open_page(op);
	CHECK(fd >= 0, "%s after a fault: %s", op_names[op], strerror(errno));
	if (fd >= 0)
		must_be_a_page(fd, op_names[op]);
	close(fd);
	return hit;
}

static int try_map(int nth, enum op op, unsigned long n)
{
	int fd = open_page(op), err, hit;
	void *p;

	if (fd < 0)
		t_die("%s: %s", op_names[op - 1], strerror(errno));
	arm(nth, n);
	p = map_page(fd, n);
	err = errno;
	hit = disarm(nth);
	if (hit)
		judge(op, n, p == MAP_FAILED, err);
	else
		CHECK(p != MAP_FAILED, "%s without a fault: %s", op_names[op], strerror(err));
	if (p != MAP_FAILED) {
		CHECK(((const struct csf_hdr *)p)->magic == CSF_MAGIC, "no page in %s",
		      op_names[op]);
		munmap(p, CSF_SLOT_SIZE);
	}
	must_be_a_page(fd, op_names[op]);
	close(fd);
	return hit;
}

/* A thread that no page knows yet. */
static void *one_thread(void *arg)
{
	int nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);

	if (nth < 0)
		t_die("fail-nth: %s", strerror(errno));
	for (int op = 0; op < NR_OPS; op++) {
		unsigned long n = 1;

		while ((op & 1 ? try_map : try_open)(nth, (enum op)op, n))
			n++;
	}
	close(nth);
	return arg;
}

static void inject(void *arg)
{
	(void)arg;
	if (t_write(CGROUP "/cgroup.procs", "0"))
		t_die("%s: %s", CGROUP, strerror(errno));
	while (injected() < wanted && !t_.now->failed)
		t_join(t_go(one_thread, NULL));
}

static void set(const char *where, const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", where, name);
	if (t_write(path, value))
		t_die("%s: %s", path, strerror(errno));
}

/* Requests that could wait for memory count as well; by default those never fail. */
static void set_up(void)
{
	set("failslab", "ignore-gfp-wait", "N");
	set("failslab", "verbose", "0");
	set("fail_page_alloc", "ignore-gfp-wait", "N");
	set("fail_page_alloc", "ignore-gfp-highmem", "N");
	set("fail_page_alloc", "min-order", "0");
	set("fail_page_alloc", "verbose", "0");
	if (mkdir(CGROUP, 0755) && errno != EEXIST)
		t_die("%s: %s", CGROUP, strerror(errno));
}

static unsigned long long kernel_memory(void)
{
	char buf[8192];

	if (t_read(CGROUP "/memory.stat", buf, sizeof(buf)) <= 0)
		t_die("%s/memory.stat: %s", CGROUP, strerror(errno));
	return t_number(buf, "\nkernel ");
}

static void test_inject(void)
{
	t_limit(3000);
	CHECK(!t_in_child(inject, NULL), "the child says why");
	for (int op = 0; op < NR_OPS; op++) {
		t_note("%s: %lu faults at %lu places, %lu of them seen by the program",
		       op_names[op], tally->injected[op], tally->deepest[op], tally->failed[op]);
		CHECK(tally->failed[op], "no %s has failed", op_names[op]);
	}
	CHECK(injected() >= wanted, "%lu faults", injected());
}

/* The objects of ended threads go after an RCU grace period. */
static void test_memory(void)
{
	unsigned long long left;
	int tries = 0;

	while ((left = kernel_memory()) > SLACK && tries++ < 100)
		t_sleep_ns(100 * T_MS);
	t_note("%llu KiB of kernel memory left in the cgroup", left >> 10);
	CHECK(left <= SLACK, "%llu KiB are left after %lu faults", left >> 10, injected());
}

/* kmemleak reports what it has twice found unreachable, and not before it is 5 s old. */
static void test_leak(void)
{
	static char buf[1 << 16];
	int leaks = 0;

	t_limit(900);
	t_sleep_ns(6 * T_SEC);
	for (int i = 0; i < 2; i++)
		CHECK(!t_write("/sys/kernel/debug/kmemleak", "scan"), "%s", strerror(errno));
	if (t_read("/sys/kernel/debug/kmemleak", buf, sizeof(buf)) < 0)
		buf[0] = 0;
	for (const char *at = buf; (at = strstr(at, "unreferenced object")); at++)
		leaks++;
	if (leaks)
		t_note("kmemleak:\n%.3000s", buf);
	CHECK(!strstr(buf, "coarse_stat_fs") && !strstr(buf, "csf_"), "ours are lost");
	CHECK(!leaks, "%d objects are lost", leaks);
}

int main(void)
{
	const char *faults = getenv("CSF_FAULTS");

	if (access("/proc/self/fail-nth", W_OK) || access("/sys/kernel/debug/failslab", F_OK)) {
		printf("skip fault: this kernel injects no faults\n");
		return 77;
	}
	wanted = faults ? strtoul(faults, NULL, 10) : 10000;
	tally = t_shared(sizeof(*tally));
	set_up();
	TEST("faults in open and mmap")
		test_inject();
	TEST("memory given back")
		test_memory();
	if (!access("/sys/kernel/debug/kmemleak", F_OK))
		TEST("kmemleak")
			test_leak();
	rmdir(CGROUP);
	return t_done("t_fault");
}
