// SPDX-License-Identifier: GPL-2.0
/*
 * What the service must not let anybody do, tried as ordinary users: write a page, see another
 * process's, register somebody else, or be led astray by namespaces and set-user-ID programs.
 */
#include "t_serve.h"

#include <linux/io_uring.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

enum { ALICE = 61001, BOB = 61002 };

static const char *self; /* this program, to be executed again */

/* Two snapshots around a sleep and some work. */
static void check_mine(void)
{
	struct csf_snap a, b;
	struct t_diff_ d;

	t_snap(&a);
	t_sleep_ns(100 * T_MS); /* getting there takes some time where the CPU is emulated */
	t_spin_ns(5 * T_MS);
	t_snap(&b);
	d = t_diff(&a, &b);
	CHECK(d.sleep > 85 && d.oncpu > 4, "sleep %.3f ms, cpu %.3f", d.sleep, d.oncpu);
	CHECK(!strcmp(csf_writer(), "bpf"), "the writer is %s", csf_writer());
}

/* Nothing but the page */

static void powerless(void *arg)
{
	char status[4096];

	(void)arg;
	become(ALICE);
	t_read("/proc/self/status", status, sizeof(status));
	CHECK(strstr(status, "\nCapEff:\t0000000000000000\n"), "there are capabilities left");
	check_mine();
}

static void powerless_later(void *arg)
{
	struct csf_snap s;

	t_snap(&s);
	become(ALICE);
	check_mine();
	t_join(t_go((void *(*)(void *))(uintptr_t)check_mine, arg));
}

static int page_mappings(void)
{
	static char maps[1 << 20];
	int n = 0;

	t_read("/proc/self/maps", maps, sizeof(maps));
	for (char *at = maps, *end; (end = strchr(at, '\n')); at = end + 1) {
		unsigned long from, to;

		*end = 0;
		if (!strstr(at, "bpf-map"))
			continue;
		n++;
		CHECK(sscanf(at, "%lx-%lx r--s", &from, &to) == 2 && to - from == PAGE,
		      "mapped: %s", at);
	}
	return n;
}

static void one_page(void *arg)
{
	struct csf_snap s;

	(void)arg;
	become(ALICE);
	t_snap(&s);
	CHECK(page_mappings() == 1, "%d mappings of pages", page_mappings());
}

/* Not writable */

static int map_op(int cmd, int fd, void *value)
{
	static __u32 key, count = 1;
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	if (cmd == BPF_MAP_UPDATE_BATCH || cmd == BPF_MAP_LOOKUP_AND_DELETE_BATCH) {
		attr.batch.map_fd = (__u32)fd;
		attr.batch.keys = (__u64)(uintptr_t)&key;
		attr.batch.values = (__u64)(uintptr_t)value;
		attr.batch.count = count;
	} else {
		attr.map_fd = (__u32)fd;
		attr.key = (__u64)(uintptr_t)&key;
		attr.value = (__u64)(uintptr_t)value;
	}
	return sys_bpf(cmd, &attr);
}

static void no_write_by_syscalls(int chunk, char *page)
{
	static const int cmds[] = { BPF_MAP_UPDATE_ELEM,  BPF_MAP_DELETE_ELEM,
				    BPF_MAP_FREEZE,	  BPF_MAP_LOOKUP_AND_DELETE_ELEM,
				    BPF_MAP_UPDATE_BATCH, BPF_MAP_LOOKUP_AND_DELETE_BATCH };
	static char value[PAGE];
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, chunk, 0);

	CHECK(p == MAP_FAILED, "the chunk can be mapped for writing");
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, chunk, 0);
	CHECK(p != MAP_FAILED && mprotect(p, PAGE, PROT_READ | PROT_WRITE),
	      "mprotect() of the chunk");
	CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE), "mprotect() of the page");
	for (size_t i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++)
		CHECK(map_op(cmds[i], chunk, value) < 0, "bpf(%d) on the chunk", cmds[i]);
	CHECK(pwrite(chunk, value, 64, 0) < 0, "write() to the chunk");
	CHECK(ftruncate(chunk, 0), "ftruncate() of the chunk");
}

static void no_write_by_memory(char *page)
{
	int mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	char junk[64];
	struct iovec from = { junk, sizeof(junk) }, to = { page, sizeof(junk) };

	memset(junk, 0xff, sizeof(junk));
	CHECK(mem >= 0, "/proc/self/mem: %s", strerror(errno));
	CHECK(pwrite(mem, junk, sizeof(junk), (off_t)(uintptr_t)page) < 0,
	      "written by /proc/self/mem");
	CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) < 0, "process_vm_writev()");
	CHECK(madvise(page, PAGE, MADV_REMOVE), "MADV_REMOVE");
	close(mem);
}

/* A child has its parent traced. */
static void no_write_by_tracer(char *page)
{
	pid_t parent = getpid(), pid;
	int status;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	pid = fork();
	if (!pid) {
		if (ptrace(PTRACE_ATTACH, parent, 0, 0))
			_exit(2);
		waitpid(parent, &status, __WALL);
		errno = 0;
		_exit(!ptrace(PTRACE_POKEDATA, parent, page, -1L));
	}
	while (waitpid(pid, &status, 0) < 0)
		;
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 1, "written by PTRACE_POKEDATA");
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "PTRACE_ATTACH failed");
}

static void not_writable(void *arg)
{
	struct csf_snap a, b;
	struct given g;
	char *page;

	(void)arg;
	become(ALICE);
	t_snap(&a);
	page = (char *)(uintptr_t)csf_tls_.page;
	g = ask();
	no_write_by_syscalls(g.chunk, page);
	no_write_by_memory(page);
	no_write_by_tracer(page);
	t_snap(&b);
	t_diff(&a, &b);
	give_back(&g);
}

/* Somebody else's */

struct crowd {
	int ready, stop;
	pid_t tids[30];
};

static void *in_crowd(void *arg)
{
	struct crowd *c = arg;
	struct csf_snap s;

	t_snap(&s);
	c->tids[__atomic_fetch_add(&c->ready, 1, __ATOMIC_ACQ_REL)] = t_gettid();
	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
	return NULL;
}

static void crowd_start(struct crowd *c, pthread_t *threads)
{
	for (int i = 0; i < 30; i++)
		threads[i] = t_go(in_crowd, c);
	while (__atomic_load_n(&c->ready, __ATOMIC_ACQUIRE) < 30)
		t_sleep_ns(T_MS);
}

/* Every page of a chunk is unused, or one of ours. */
static int count_pages(int fd, uint32_t size)
{
	const struct csf_slot_ *slots = map_chunk(fd, size / PAGE);
	int n = 0;

	CHECK(map_info(fd).max_entries == size / PAGE, "%u pages of %u bytes",
	      map_info(fd).max_entries, size);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, size) == MAP_FAILED,
	      "a page behind the end");
	for (uint32_t i = 0; i < size / PAGE; i++) {
		if (!slots[i].page.tid)
			continue;
		CHECK(in_my_process(slots[i].page.tid), "a page of thread %u", slots[i].page.tid);
		n++;
	}
	munmap((void *)(uintptr_t)slots, size);
	return n;
}

/*
 * Asks for each number that there can be; where the CPU is emulated, for each that is given out
 * first. One of @others only has chunks.
 */
static void own_chunks_only(void *others)
{
	static struct crowd c;
	pthread_t threads[30];
	int sock, pages = 0, chunks = 0, step = t_in_guest() ? 13 : 1;
	struct csf_reply r;

	become(ALICE);
	crowd_start(&c, threads);
	if (others) {
		__atomic_store_n((int *)others, 1, __ATOMIC_RELEASE);
		pause();
	}
	sock = csf_service_connect_(csf_service_until_());
	for (uint32_t i = 0; i < 16384 + 3; i += i < 1024 ? 1 : step) {
		int fds[2], n = ask_service(sock, CSF_REQ_CHUNK, i, &r, fds);

		CHECK(n >= 0 || errno == EACCES, "chunk %u: %s", i, strerror(errno));
		if (n != 1)
			continue;
		chunks++;
		pages += count_pages(fds[0], r.size);
		csf_close_(fds, 1);
	}
	t_note("%d chunks, %d pages", chunks, pages);
	CHECK(chunks >= 3 && pages >= 30, "only %d of my chunks, %d pages", chunks, pages);
	__atomic_store_n(&c.stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 30; i++)
		t_join(threads[i]);
}

/* While another process of the same user has as many. */
static void test_own_chunks_only(void)
{
	int *ready = t_shared(sizeof(*ready));
	pid_t other;

	t_limit(600); /* some milliseconds each where the CPU is emulated */
	other = t_fork(own_chunks_only, ready);
	while (!__atomic_load_n(ready, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
	t_in_child(own_chunks_only, NULL);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

/* The iterator of another process: of one that never asked, and of one that did. */
static void stranger_reads(void *arg)
{
	struct given *g = arg;
	struct csf_ticket t;
	int err;

	become(BOB);
	err = redeem(g->iter, &t);
	CHECK(err == EACCES, "registered with another's iterator: %s", strerror(err));
}

static void client_reads(void *arg)
{
	struct given *g = arg, own;
	struct csf_ticket t;
	int err;

	become(BOB);
	own = ask();
	err = redeem(g->iter, &t);
	CHECK(!err && t.chunk == own.r.chunk && t.chunk != g->r.chunk,
	      "with another's iterator: %s, chunk %u, own %u", strerror(err), t.chunk, own.r.chunk);
	CHECK(map_chunk(own.chunk, 1)[t.slot].page.tid == (unsigned int)t_gettid(), "not my page");
}

static void test_iterator_of_others(void)
{
	struct given g = ask(), g2 = ask();

	t_in_child(stranger_reads, &g);
	t_in_child(client_reads, &g2);
	CHECK(map_chunk(g.chunk, 1)[0].page.tid == 0 ||
		      in_my_process(map_chunk(g.chunk, 1)[0].page.tid),
	      "a stranger is on my page");
	give_back(&g);
	give_back(&g2);
}

/* A thread that reads another's iterator registers itself. */
static void *reads(void *arg)
{
	struct given *g = arg;
	struct csf_ticket t;
	int err = redeem(g->iter, &t);

	if (!err && t.chunk == g->r.chunk)
		CHECK(map_chunk(g->chunk, g->r.size / PAGE)[t.slot].page.tid ==
			      (unsigned int)t_gettid(),
		      "another's page");
	CHECK(!err || err == EAGAIN, "%s", strerror(err));
	return NULL;
}

static void test_own_thread_only(void)
{
	struct given g = ask();

	t_join(t_go(reads, &g));
	give_back(&g);
}

/* io_uring: what reads is a worker of the kernel, with our credentials and memory. */
static int ring_read(int fd, void *buf, unsigned int len)
{
	struct io_uring_params p = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	char *sq, *cq;

	if (ring < 0)
		return -ENOSYS;
	sq = mmap(NULL, p.sq_off.array + 64, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		  IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + 8 * sizeof(*cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		  IORING_OFF_CQ_RING);
	sqe = mmap(NULL, 4 * sizeof(*sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		   IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)sqe == MAP_FAILED)
		t_die("mmap of the ring: %s", strerror(errno));
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_READ;
	sqe->flags = IOSQE_ASYNC;
	sqe->fd = fd;
	sqe->addr = (__u64)(uintptr_t)buf;
	sqe->len = len;
	*(unsigned int *)(sq + p.sq_off.array) = 0;
	__atomic_store_n((unsigned int *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		t_die("io_uring_enter: %s", strerror(errno));
	cqe = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
	close(ring);
	return cqe->res;
}

static void test_io_uring(void)
{
	struct given g = ask();
	struct csf_ticket t = { 0 };
	int n = ring_read(g.iter, &t, sizeof(t));

	if (n == -ENOSYS)
		t_skip("no io_uring");
	else
		CHECK(n < 0 || (n == sizeof(t) && t.err == EPERM), "a worker's read: %d, %s", n,
		      strerror(t.err));
	give_back(&g);
}

/* Pages that are used again, and never by another process */

struct tried {
	struct csf_ticket t;
	struct csf_thread_page page;
	uint64_t took; /* ns, from before it was given out until it was read */
};

static void *try_once(void *arg)
{
	struct tried *r = arg;
	struct given g = ask();
	uint64_t begin = t_mono_ns();
	int err = redeem(g.iter, &r->t);

	CHECK(!err && r->t.chunk == g.r.chunk, "%s", strerror(err));
	r->page = map_chunk(g.chunk, g.r.size / PAGE)[r->t.slot].page;
	r->took = t_mono_ns() - begin;
	t_sleep_ns(2 * T_MS);
	t_spin_ns(2 * T_MS);
	give_back(&g);
	return NULL;
}

static void pages_again(void *arg)
{
	struct tried first, second;

	(void)arg;
	become(ALICE);
	t_join(t_go(try_once, &first));
	while (in_my_process(first.page.tid)) /* its page is free shortly before */
		t_sleep_ns(T_MS);
	t_join(t_go(try_once, &second));
	CHECK(first.t.chunk == second.t.chunk && first.t.slot == second.t.slot,
	      "page %u of chunk %u, then %u of %u", first.t.slot, first.t.chunk, second.t.slot,
	      second.t.chunk);
	CHECK(second.page.epoch > first.page.epoch && second.page.tid != first.page.tid,
	      "epoch %llu after %llu", (unsigned long long)second.page.epoch,
	      (unsigned long long)first.page.epoch);
	CHECK(t_sum(&second.page) <= second.took && !second.page.nr_block &&
		      second.page.life == CSF_LIVE && second.page.seq >= first.page.seq,
	      "%llu ns on a page of %llu", (unsigned long long)t_sum(&second.page),
	      (unsigned long long)second.took);
}

static void leave_chunk(void *arg)
{
	struct csf_ticket t;
	struct given g;

	become(ALICE);
	g = ask();
	CHECK(!redeem(g.iter, &t) && t.chunk == g.r.chunk && !t.slot, "no page");
	send_fd(*(int *)arg, g.chunk);
}

static void one_more_process(void *arg)
{
	struct given g;
	struct csf_snap s;

	become(ALICE);
	t_snap(&s);
	g = ask();
	CHECK(map_info(g.chunk).id != *(__u32 *)arg, "the map of a process that is gone");
}

static void test_never_another_process(void)
{
	int pair[2], fd;
	__u32 id;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		t_die("socketpair: %s", strerror(errno));
	t_in_child(leave_chunk, &pair[1]);
	fd = receive_fd(pair[0]);
	id = map_info(fd).id;
	struct csf_thread_page before = map_chunk(fd, 1)->page;

	CHECK(before.life == CSF_DEAD, "life %d after the end", before.life);
	for (int i = 0; i < 100; i++)
		t_in_child(one_more_process, &id);
	CHECK(!memcmp(&before, &map_chunk(fd, 1)->page, sizeof(before)), "the page has changed");
	close(fd);
	close(pair[0]);
	close(pair[1]);
}

/* Another program in the same process: what the old one was given shows nothing of it. */
static void new_program(int iter, int chunk)
{
	struct csf_ticket t;
	struct csf_snap s;
	int err = redeem(iter, &t);

	CHECK(err == EACCES, "the old program's iterator: %s", strerror(err));
	check_mine();
	t_snap(&s);
	CHECK(map_chunk(chunk, 1)->page.life == CSF_DEAD, "the old program's page is alive");
	CHECK(map_chunk(chunk, 1)->page.epoch != s.p.epoch, "the old program's page");
	if (t_.now->failed)
		t_note("%s", t_.now->why);
	_exit(t_.now->failed);
}

static void old_program(void *arg)
{
	struct given g, again;
	struct csf_ticket t;
	char iter[16], chunk[16];

	(void)arg;
	become(ALICE);
	g = ask();
	again = ask();
	CHECK(!redeem(g.iter, &t) && !t.slot, "no page");
	fcntl(again.iter, F_SETFD, 0);
	fcntl(g.chunk, F_SETFD, 0);
	snprintf(iter, sizeof(iter), "%d", again.iter);
	snprintf(chunk, sizeof(chunk), "%d", g.chunk);
	execl(self, self, "new-program", iter, chunk, (char *)NULL);
	t_die("%s: %s", self, strerror(errno));
}

/* A set-user-ID program asks the system's service, whatever its caller says. */
static int say_path(void)
{
	puts(csf_service_path_());
	return fflush(stdout);
}

static void path_of(const char *program, char *path, size_t size)
{
	int fds[2];
	pid_t pid;
	ssize_t n;

	if (pipe(fds))
		t_die("pipe: %s", strerror(errno));
	pid = fork();
	if (!pid) {
		become(ALICE);
		dup2(fds[1], 1);
		execl(program, program, "say-path", (char *)NULL);
		_exit(99);
	}
	close(fds[1]);
	n = read(fds[0], path, size - 1);
	path[n > 0 ? n - 1 : 0] = 0;
	close(fds[0]);
	t_wait(pid);
}

static void test_set_user_id(void)
{
	char copy[64], line[PATH_MAX + 80], path[128];

	snprintf(copy, sizeof(copy), "%s/copy", service.dir);
	snprintf(line, sizeof(line), "cp '%s' %s && chmod 755 %s", self, copy, copy);
	CHECK(!system(line), "cp");
	path_of(copy, path, sizeof(path));
	CHECK(!strcmp(path, service.path), "an ordinary program asks %s", path);
	if (chown(copy, BOB, BOB) || chmod(copy, 04755))
		t_die("%s: %s", copy, strerror(errno));
	path_of(copy, path, sizeof(path));
	unlink(copy);
	CHECK(!strcmp(path, CSF_SOCKET), "a set-user-ID program asks %s", path);
}

/* Namespaces */

static void other_root(void *arg)
{
	char status[4096], *ns;
	struct csf_snap s;

	(void)arg;
	become(ALICE);
	CHECK(getpid() == 1, "pid %d in a new namespace", getpid());
	check_mine();
	t_snap(&s);
	t_read("/proc/thread-self/status", status,
	       sizeof(status)); /* that of the namespace outside */
	ns = strstr(status, "\nNSpid:");
	CHECK(!ns || strtoul(ns + 7, NULL, 10) == s.p.tid || !*status, "tid %u", s.p.tid);
}

/* The socket is bound to another place before the old one is hidden. */
static void new_pid_namespace(void *arg)
{
	char path[] = "/mnt/csf-socket";
	int fd;

	(void)arg;
	if (unshare(CLONE_NEWPID | CLONE_NEWNS) ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/mnt", "tmpfs", 0, NULL)) {
		t_skip("no namespaces: %s", strerror(errno));
		return;
	}
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
	if (fd < 0 || mount(service.path, path, NULL, MS_BIND, NULL) ||
	    mount("none", "/tmp", "tmpfs", 0, NULL))
		t_die("%s: %s", path, strerror(errno));
	close(fd);
	setenv(CSF_SOCKET_ENV, path, 1);
	t_in_child(other_root, NULL);
}

static void other_clock(void *arg)
{
	int64_t offset = *(int64_t *)arg * (int64_t)T_SEC;
	struct csf_cpu_snap c;
	struct csf_snap a, b;
	uint64_t before, after;

	become(ALICE);
	CHECK(!csf_cpu_snap(&c, CSF_CPU_ALL), "cpu page: %s", strerror(errno));
	after = t_mono_ns() - (uint64_t)offset;
	CHECK(c.update_mono_ns <= after && after - c.update_mono_ns < T_SEC,
	      "the cpu page is %lld ns old", (long long)(after - c.update_mono_ns));
	t_snap(&a);
	before = t_mono_ns() - (uint64_t)offset;
	t_snap(&b);
	after = t_mono_ns() - (uint64_t)offset;
	CHECK(b.tsc >= before && b.tsc <= after, "%llu is not between %llu and %llu",
	      (unsigned long long)b.tsc, (unsigned long long)before, (unsigned long long)after);
	t_diff(&a, &b);
	check_mine();
}

/* Only CLOCK_MONOTONIC of children is another. */
static void new_time_namespace(void *arg)
{
	char text[64];

	snprintf(text, sizeof(text), "monotonic %lld 0\n", (long long)*(int64_t *)arg);
	if (unshare(0x80) || t_write("/proc/self/timens_offsets", text)) { /* CLONE_NEWTIME */
		t_skip("no time namespaces: %s", strerror(errno));
		return;
	}
	t_in_child(other_clock, arg);
}

static void test_time_namespace(void)
{
	int64_t ahead = 86400, back = -(int64_t)(t_mono_ns() / T_SEC / 2);

	t_in_child(new_time_namespace, &ahead);
	t_in_child(new_time_namespace, &back);
}

static void user_namespace(void *arg)
{
	(void)arg;
	become(ALICE);
	if (unshare(CLONE_NEWUSER)) {
		t_skip("no user namespaces: %s", strerror(errno));
		return;
	}
	check_mine();
}

int main(int argc, char **argv)
{
	static char path[PATH_MAX];

	self = realpath(argv[0], path);
	if (argc == 2 && !strcmp(argv[1], "say-path"))
		return say_path();
	if (argc == 4 && !strcmp(argv[1], "new-program"))
		TEST("new program")
			new_program(atoi(argv[2]), atoi(argv[3]));
	if (!service_possible()) {
		printf("skip service: it takes root and BPF, and no module\n");
		return 77;
	}
	atexit(service_cleanup);
	TEST("start")
		find_command(argv[0]), service_start(NULL, NULL);
	TEST("no privileges")
		t_in_child(powerless, NULL);
	TEST("privileges dropped")
		t_in_child(powerless_later, NULL);
	TEST("one page mapped")
		t_in_child(one_page, NULL);
	TEST("not writable")
		t_in_child(not_writable, NULL);
	TEST("own chunks only")
		test_own_chunks_only();
	TEST("iterator of others")
		test_iterator_of_others();
	TEST("own thread only")
		test_own_thread_only();
	TEST("io_uring")
		test_io_uring();
	TEST("pages used again")
		t_in_child(pages_again, NULL);
	TEST("never another process's")
		test_never_another_process();
	TEST("another program")
		t_in_child(old_program, NULL);
	TEST("set-user-ID")
		test_set_user_id();
	TEST("pid namespace")
		t_in_child(new_pid_namespace, NULL);
	TEST("time namespace")
		test_time_namespace();
	TEST("user namespace")
		t_in_child(user_namespace, NULL);
	TEST("stop")
		service_stop();
	return t_done("t_serve");
}
