// SPDX-License-Identifier: GPL-2.0
/*
 * What the file system of the kernel module allows and refuses: opening, mapping, writing, who may,
 * who pays, and the period of the cpu page. Whose page it is while descriptors come and go is in
 * t_owner.c.
 */
#include "t_fd.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>

#define PARAMETER "/sys/module/coarse_stat_fs/parameters/period_us"
#define FAILS(call, err)                                                                \
	do {                                                                            \
		errno = 0;                                                              \
		CHECK((long)(call) == -1 && errno == (err), #call ": errno %d", errno); \
	} while (0)

static const char *const paths[] = { CSF_THREAD_PATH, CSF_CPU_PATH };

enum { PATHS = 2 };

static void test_modes(void)
{
	struct stat st;

	for (int i = 0; i < PATHS; i++) {
		CHECK(!stat(paths[i], &st), "%s: %s", paths[i], strerror(errno));
		CHECK(st.st_mode == (S_IFREG | 0444), "%s has mode %o", paths[i], st.st_mode);
		CHECK(i ? st.st_size > 0 : st.st_size == T_PAGE, "%s has %ld bytes", paths[i],
		      (long)st.st_size);
	}
}

static void test_open_for_writing(void)
{
	for (int i = 0; i < PATHS; i++) {
		FAILS(open(paths[i], O_WRONLY), EACCES);
		FAILS(open(paths[i], O_RDWR), EACCES);
		FAILS(open(paths[i], O_RDONLY | O_TRUNC), EACCES);
		FAILS(open(paths[i], O_RDWR | O_TRUNC | O_CREAT, 0666), EACCES);
		FAILS(open(paths[i], O_WRONLY | O_APPEND), EACCES);
	}
}

/* The names and their attributes are what they are. */
static void test_attributes(void)
{
	struct stat before, after;

	for (int i = 0; i < PATHS; i++) {
		stat(paths[i], &before);
		CHECK(truncate(paths[i], 0) == -1, "%s can be truncated", paths[i]);
		CHECK(chmod(paths[i], 0666) == -1, "%s can be made writable", paths[i]);
		CHECK(chown(paths[i], 1, 1) == -1, "%s can be given away", paths[i]);
		CHECK(unlink(paths[i]) == -1, "%s can be removed", paths[i]);
		CHECK(rename(paths[i], CSF_MOUNT_POINT "/other") == -1, "%s can be renamed",
		      paths[i]);
		stat(paths[i], &after);
		CHECK(before.st_mode == after.st_mode && before.st_size == after.st_size &&
			      before.st_uid == after.st_uid,
		      "%s has changed", paths[i]);
	}
	CHECK(open(CSF_MOUNT_POINT "/new", O_CREAT | O_RDWR, 0600) == -1, "a file can be made");
	CHECK(mkdir(CSF_MOUNT_POINT "/new", 0700) == -1, "a directory can be made");
	CHECK(symlink("x", CSF_MOUNT_POINT "/new") == -1, "a link can be made");
}

static void test_read_write(void)
{
	char buf[8] = { 0 };

	for (int i = 0; i < PATHS; i++) {
		int fd = t_open(paths[i]);

		FAILS(read(fd, buf, sizeof(buf)), EINVAL);
		FAILS(pread(fd, buf, sizeof(buf), 0), EINVAL);
		FAILS(write(fd, buf, sizeof(buf)), EBADF);
		FAILS(ioctl(fd, FIONBIO + 0x100, buf), ENOTTY);
		CHECK(ftruncate(fd, 0) == -1, "ftruncate");
		t_close(fd);
	}
}

/* st_size is the length to map; nothing longer, and not from elsewhere. */
static void test_lengths(void)
{
	for (int i = 0; i < PATHS; i++) {
		int fd = t_open(paths[i]);
		const struct csf_hdr *h;
		struct stat st;
		size_t len;
		void *p;

		fstat(fd, &st);
		len = (size_t)st.st_size;
		p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
		if (!CHECK(p != MAP_FAILED, "%s: %s", paths[i], strerror(errno)))
			continue;
		h = p;
		CHECK(h->magic == CSF_MAGIC && h->kind == (i ? CSF_KIND_CPU : CSF_KIND_THREAD) &&
			      h->size <= len && len < h->size + T_PAGE,
		      "%s: %u bytes of %zu", paths[i], h->size, len);
		len = (len + T_PAGE - 1) / T_PAGE * T_PAGE;
		FAILS(mmap(NULL, len + T_PAGE, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
		FAILS(mmap(NULL, len + 1, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
		FAILS(mmap(NULL, T_PAGE, PROT_READ, MAP_SHARED, fd, T_PAGE), EINVAL);
		FAILS(mmap(NULL, T_PAGE, PROT_READ, MAP_SHARED, fd, 1L << 40), EINVAL);
		FAILS(mmap(NULL, T_PAGE, PROT_READ, MAP_PRIVATE, fd, 0), EINVAL);
		/* bigger in place, bigger elsewhere, or a second one */
		CHECK(mremap(p, len, len + T_PAGE, 0) == MAP_FAILED, "mremap grows it");
		CHECK(mremap(p, len, len + T_PAGE, MREMAP_MAYMOVE) == MAP_FAILED,
		      "mremap grows it");
		munmap(p, len);
		t_close(fd);
	}
}

static void test_protection(void)
{
	for (int i = 0; i < PATHS; i++) {
		int fd = t_open(paths[i]);
		void *p = mmap(NULL, T_PAGE, PROT_READ, MAP_SHARED, fd, 0);

		FAILS(mmap(NULL, T_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EACCES);
		FAILS(mmap(NULL, T_PAGE, PROT_WRITE, MAP_SHARED, fd, 0), EACCES);
		CHECK(mmap(NULL, T_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED,
		      "a private copy to write to");
		FAILS(mmap(NULL, T_PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0), EPERM);
		FAILS(mprotect(p, T_PAGE, PROT_READ | PROT_WRITE), EACCES);
		FAILS(mprotect(p, T_PAGE, PROT_WRITE), EACCES);
		CHECK(mprotect(p, T_PAGE, PROT_READ | PROT_EXEC) == -1, "made executable");
		CHECK(!mprotect(p, T_PAGE, PROT_NONE) && !mprotect(p, T_PAGE, PROT_READ),
		      "cannot be hidden and shown again: %s", strerror(errno));
		CHECK(((struct csf_hdr *)p)->magic == CSF_MAGIC, "the page is gone");
		munmap(p, T_PAGE);
		t_close(fd);
	}
}

/* Old programs' personality makes readable mappings executable: not these. */
static void old_personality(void *arg)
{
	char maps[16384], *line;
	int fd = t_open_self();

	(void)arg;
	personality(READ_IMPLIES_EXEC);
	t_map(fd);
	t_read("/proc/self/maps", maps, sizeof(maps));
	line = strstr(maps, "thread-self");
	while (line && line > maps && line[-1] != '\n')
		line--;
	CHECK(line && strstr(line, " r--s "), "mapped as %.80s", line ? line : "nothing");
}

static void test_personality(void)
{
	t_in_child(old_personality, NULL);
}

/* No way around the protection: the debugger's interfaces, and the kernel writing for us. */
static void test_forced_writes(void)
{
	int fd = t_open_self(), mem = open("/proc/self/mem", O_RDWR), zero = t_open("/dev/zero");
	const struct csf_thread_page *page = t_map(fd);
	void *at = (void *)(uintptr_t)page;
	char byte = 'x';
	struct iovec here = { &byte, 1 }, there = { at, 1 };

	if (mem >= 0)
		CHECK(pwrite(mem, &byte, 1, (off_t)(uintptr_t)at) != 1, "/proc/self/mem");
	CHECK(process_vm_writev(getpid(), &here, 1, &there, 1, 0) != 1, "process_vm_writev");
	FAILS(read(zero, at, 1), EFAULT);
	CHECK(page->hdr.magic == CSF_MAGIC, "the page was written to");
	close(mem);
	t_close(zero);
	t_unmap(page);
	t_close(fd);
}

static sigjmp_buf fault;

static void on_fault(int sig)
{
	siglongjmp(fault, sig);
}

/* A forked child does not have the mapping: it would be its parent's. */
static void look_at(void *arg)
{
	const volatile struct csf_thread_page *page = arg;
	char maps[16384];

	t_read("/proc/self/maps", maps, sizeof(maps));
	CHECK(!strstr(maps, "thread-self"), "the child has the mapping");
	signal(SIGSEGV, on_fault);
	if (!sigsetjmp(fault, 1))
		CHECK(page->hdr.magic != CSF_MAGIC, "the child can read it");
}

static void test_dontcopy(void)
{
	int fd = t_open_self();
	const struct csf_thread_page *page = t_map(fd);

	t_in_child(look_at, (void *)(uintptr_t)page);
	t_unmap(page);
	t_close(fd);
}

static void as_nobody(void *arg)
{
	(void)arg;
	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		t_die("setresuid: %s", strerror(errno));
	for (int i = 0; i < PATHS; i++) {
		int fd = t_open(paths[i]);

		CHECK(t_map(fd)->hdr.magic == CSF_MAGIC, "%s", paths[i]);
	}
	test_open_for_writing();
	test_attributes();
}

static void test_nobody(void)
{
	t_in_child(as_nobody, NULL);
}

static int fresh_cgroup(const char *root, const char *dir)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", root);
	if (access(path, W_OK)) {
		mkdir(root, 0755);
		if (mount("none", root, "cgroup2", 0, NULL))
			return -1;
	}
	t_write(path, "+memory");
	if (mkdir(dir, 0755) && errno != EEXIST)
		return -1;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	return access(path, R_OK);
}

/* The kernel adds up its CPUs' counts every two seconds; until then some hundred pages can be missing. */
static long kernel_memory(const char *dir)
{
	char path[128], buf[8192];

	t_sleep_ns(2500 * T_MS);
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	t_read(path, buf, sizeof(buf));
	return (long)t_number(buf, "\nkernel ");
}

enum { PAYERS = 300 };

static void *payer(void *arg)
{
	pthread_barrier_t *b = arg;

	pthread_barrier_wait(b); /* all are there */
	pthread_barrier_wait(b); /* the test has looked */
	t_close(dup(t_open_self()));
	pthread_barrier_wait(b);
	pthread_barrier_wait(b);
	return NULL;
}

static void payers(void *arg)
{
	const char *dir = arg;
	static pthread_t threads[PAYERS];
	pthread_barrier_t b;
	char path[128];
	long before, after;

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	if (t_write(path, "0"))
		t_die("%s: %s", path, strerror(errno));
	pthread_barrier_init(&b, NULL, PAYERS + 1);
	for (int i = 0; i < PAYERS; i++)
		threads[i] = t_go(payer, &b);
	pthread_barrier_wait(&b);
	before = kernel_memory(dir);
	pthread_barrier_wait(&b);
	pthread_barrier_wait(&b);
	after = kernel_memory(dir);
	t_note("%d threads that open their pages cost their cgroup %ld bytes", PAYERS,
	       after - before);
	CHECK(after - before >= (long)PAYERS * T_PAGE, "charged %ld bytes for %d pages",
	      after - before, PAYERS);
	pthread_barrier_wait(&b);
	for (int i = 0; i < PAYERS; i++)
		t_join(threads[i]);
}

/* The opener's memory cgroup pays, so that nobody can use up the machine's memory this way. */
static void test_charged(void)
{
	const char *root = access("/sys/fs/cgroup/cgroup.subtree_control", W_OK) ?
				   "/tmp/t_file.cgroup" :
				   "/sys/fs/cgroup";
	char dir[64];

	snprintf(dir, sizeof(dir), "%s/t_file", root);
	if (fresh_cgroup(root, dir)) {
		t_skip("no memory controller of cgroup v2");
		return;
	}
	t_in_child(payers, dir);
	rmdir(dir);
	if (!strncmp(root, "/tmp", 4))
		umount2(root, MNT_DETACH);
}

static const struct csf_cpu_page *map_cpu(int fd)
{
	struct stat st;
	void *p;

	fstat(fd, &st);
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		t_die("mmap: %s", strerror(errno));
	return p;
}

/* Of some updates, in ms. */
static double measured_period(const volatile struct csf_cpu_page *page, int updates)
{
	uint64_t last = page->update_mono_ns, start;
	int n = -1; /* the first one may still be of the old period */

	for (start = last; n < updates; t_sleep_ns(100000)) {
		uint64_t now = page->update_mono_ns;

		if (now == last)
			continue;
		last = now;
		if (++n == 0)
			start = now;
	}
	return (double)(last - start) / 1e6 / updates;
}

static void try_period(const volatile struct csf_cpu_page *page, unsigned int us, int updates)
{
	double ms, most = us / 1e3 * (t_icount() ? 1.05 : 2) + (t_icount() ? 0 : 20);
	char text[16], buf[16];

	snprintf(text, sizeof(text), "%u", us);
	CHECK(!t_write(PARAMETER, text), "period_us=%s: %s", text, strerror(errno));
	t_read(PARAMETER, buf, sizeof(buf));
	CHECK((unsigned int)atoi(buf) == us, "period_us is %s after %u was written", buf, us);
	ms = measured_period(page, updates);
	t_note("period_us=%u: an update every %.3f ms", us, ms);
	CHECK(page->period_us == us, "the page says %u us", page->period_us);
	CHECK(ms > us / 1e3 * 0.7 && ms < most * t_patience(),
	      "an update every %.3f ms with period_us=%u", ms, us);
}

static void test_period(void)
{
	static const char *const bad[] = { "999",	 "1000001", "0",       "-1",
					   "-10000",	 "abc",	    "",	       " ",
					   "10000x",	 "1e4",	    "10000.5", "4294977296",
					   "10000 10000" };
	int fd = t_open(CSF_CPU_PATH);
	const struct csf_cpu_page *page = map_cpu(fd);
	char before[16], now[16];

	t_read(PARAMETER, before, sizeof(before));
	CHECK(atoi(before) == 10000, "the default is %s", before);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (!*bad[i])
			continue;
		errno = 0;
		CHECK(t_write(PARAMETER, bad[i]) == -1 && errno == EINVAL, "period_us=%s: errno %d",
		      bad[i], errno);
		t_read(PARAMETER, now, sizeof(now));
		CHECK(!strcmp(now, before), "period_us=%s made it %s", bad[i], now);
	}
	try_period(page, 1000, 50);
	try_period(page, 1000000, 1);
	try_period(page, 50000, 10); /* from a second: takes effect at once */
	try_period(page, 10000, 20);
	munmap((void *)(uintptr_t)page, page->hdr.size);
	t_close(fd);
}

/* How often a function of the module runs, from the trace events of what calls it. */
static unsigned long updates_seen(int open_it)
{
	static char trace[1 << 20];
	const char *event = "/sys/kernel/tracing/events/workqueue/workqueue_execute_start/enable";
	int fd = open_it ? t_open(CSF_CPU_PATH) : -1;
	unsigned long n = 0;

	t_write("/sys/kernel/tracing/trace", "");
	if (t_write(event, "1"))
		return ~0ul;
	t_sleep_ns(300 * T_MS * t_patience());
	t_write(event, "0");
	t_read("/sys/kernel/tracing/trace", trace, sizeof(trace));
	for (char *at = trace; (at = strstr(at, "csf_cpu")); at++)
		n++;
	if (fd >= 0)
		t_close(fd);
	return n;
}

/* Nobody has the file open: nothing runs for it. */
static void test_idle(void)
{
	unsigned long with = updates_seen(1), without = updates_seen(0);

	if (with == ~0ul) {
		t_skip("no trace events of work queues");
		return;
	}
	t_note("%lu updates in %.1f s while open, %lu while not", with, 0.3 * t_patience(),
	       without);
	CHECK(with >= 10 && !without, "%lu updates while open, %lu while not", with, without);
}

/* All rows of one sequence count are of one update; here with nothing but the page itself. */
static void test_cpu_layout(void)
{
	int fd = t_open(CSF_CPU_PATH);
	const struct csf_cpu_page *page = map_cpu(fd);
	struct stat st;

	fstat(fd, &st);
	CHECK(page->rows_offset + (size_t)page->nr_rows * page->row_size <= (size_t)st.st_size,
	      "%u rows of %u bytes from %u on, in %ld bytes", page->nr_rows, page->row_size,
	      page->rows_offset, (long)st.st_size);
	CHECK(page->hdr.size == page->rows_offset + page->nr_rows * page->row_size, "size %u",
	      page->hdr.size);
	CHECK(page->resolution_ns >= 1 && page->resolution_ns <= 10 * T_MS, "steps of %u ns",
	      page->resolution_ns);
	CHECK(page->update_mono_ns + 5 * T_SEC > t_mono_ns(), "not updated when it was opened");
	munmap((void *)(uintptr_t)page, (size_t)st.st_size);
	t_close(fd);
}

/* Not there, and there again: the library says so, and recovers. */
static void without_mount(void *arg)
{
	struct csf_snap s;

	(void)arg;
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		t_die("unshare: %s", strerror(errno));
	CHECK(!umount2(CSF_MOUNT_POINT, MNT_DETACH), "umount: %s", strerror(errno));
	FAILS(csf_thread_snap(&s), ENOENT);
	CHECK(!s.tsc && !s.extrapolated, "a failed snapshot has values");
	CHECK(!mount("none", CSF_MOUNT_POINT, CSF_FS_NAME, 0, NULL), "mount: %s", strerror(errno));
	t_sleep_ns(150 * T_MS);
	CHECK(!csf_thread_snap(&s), "after mounting: %s", strerror(errno));
}

static void test_unmounted(void)
{
	t_in_child(without_mount, NULL);
}

/* io_uring without a library: one request, and its result. */
struct ring {
	int fd;
	struct io_uring_params p;
	char *sq, *cq;
	struct io_uring_sqe *sqes;
};

static int ring_setup(struct ring *r)
{
	size_t sq_size, cq_size;

	memset(r, 0, sizeof(*r));
	r->fd = (int)syscall(SYS_io_uring_setup, 4, &r->p);
	if (r->fd < 0)
		return -1;
	sq_size = r->p.sq_off.array + r->p.sq_entries * sizeof(__u32);
	cq_size = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
	r->sq = mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
	r->cq = mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
	r->sqes = mmap(NULL, r->p.sq_entries * sizeof(*r->sqes), PROT_READ | PROT_WRITE, MAP_SHARED,
		       r->fd, IORING_OFF_SQES);
	return r->sq == MAP_FAILED || r->cq == MAP_FAILED || r->sqes == MAP_FAILED ? -1 : 0;
}

/* openat() by a worker thread of the kernel's; its result. */
static int ring_open(struct ring *r, const char *path)
{
	struct io_uring_sqe *sqe = &r->sqes[0];
	struct io_uring_cqe *cqe;
	__u32 *tail = (__u32 *)(r->sq + r->p.sq_off.tail);
	__u32 *head = (__u32 *)(r->cq + r->p.cq_off.head);

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_OPENAT;
	sqe->flags = IOSQE_ASYNC;
	sqe->fd = AT_FDCWD;
	sqe->addr = (uintptr_t)path;
	sqe->open_flags = O_RDONLY;
	((__u32 *)(r->sq + r->p.sq_off.array))[*tail & (r->p.sq_entries - 1)] = 0;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		t_die("io_uring_enter: %s", strerror(errno));
	cqe = (struct io_uring_cqe *)(r->cq + r->p.cq_off.cqes) + (*head & (r->p.cq_entries - 1));
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return cqe->res;
}

/* "self" in a kernel worker is nobody's thread. */
static void io_uring_child(void *arg)
{
	struct ring r;
	int fd;

	(void)arg;
	if (ring_setup(&r)) {
		t_skip("io_uring: %s", strerror(errno));
		return;
	}
	fd = ring_open(&r, "/dev/null");
	CHECK(fd >= 0, "io_uring cannot even open /dev/null: %d", fd);
	fd = ring_open(&r, CSF_THREAD_PATH);
	t_note("opened by a worker of io_uring: %s", fd < 0 ? strerror(-fd) : "a descriptor");
	CHECK(fd < 0, "a worker of io_uring can be registered");
}

static void test_io_uring(void)
{
	t_in_child(io_uring_child, NULL);
}

int main(void)
{
	TEST("modes")
		test_modes();
	TEST("open for writing")
		test_open_for_writing();
	TEST("attributes")
		test_attributes();
	TEST("read and write")
		test_read_write();
	TEST("mapping lengths")
		test_lengths();
	TEST("protection")
		test_protection();
	TEST("old personality")
		test_personality();
	TEST("forced writes")
		test_forced_writes();
	TEST("not copied by fork")
		test_dontcopy();
	TEST("unprivileged")
		test_nobody();
	TEST("charged to the opener")
		test_charged();
	TEST("cpu page layout")
		test_cpu_layout();
	TEST("period_us")
		test_period();
	TEST("idle while nobody looks")
		test_idle();
	TEST("not mounted")
		test_unmounted();
	TEST("io_uring")
		test_io_uring();
	return t_done("t_file");
}
