// SPDX-License-Identifier: GPL-2.0
/*
 * The service's life and its clients' lives: stopped, killed, started again while clients live;
 * clients that end in every way; and what is left when all are gone.
 */
#include "t_serve.h"

#include <sys/resource.h>
#include <sys/time.h>

enum { ALICE = 61001 };

static const char *self; /* this program, to be executed again */

/* A client that goes on through the service's deaths and says what it sees. */
enum { NUMBERS = 1, REFUSED };

struct witness {
	int sleeps, stop, state, err;
	uint64_t state_ns; /* when state became what it is */
	uint64_t epoch;
	int wrong; /* a difference across services was a number */
};

static void witness_state(struct witness *w, int state, int err)
{
	if (w->state == state)
		return;
	w->err = err;
	w->state_ns = t_mono_ns();
	__atomic_store_n(&w->state, state, __ATOMIC_RELEASE);
}

static void witness(void *arg)
{
	struct witness *w = arg;
	struct csf_snap now, last;
	char buf[CSF_DIFF_BUFSZ];

	become(ALICE);
	memset(&last, 0, sizeof(last));
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		if (csf_thread_snap(&now)) {
			witness_state(w, REFUSED, errno);
			t_sleep_ns(10 * T_MS);
			continue;
		}
		errno = 0;
		if (last.tsc && last.p.epoch != now.p.epoch &&
		    (csf_format_diff(buf, sizeof(buf), &last, &now) != -1 || errno != ESTALE))
			w->wrong = 1;
		if (last.tsc && last.p.epoch == now.p.epoch)
			t_diff(&last, &now);
		last = now;
		w->epoch = now.p.epoch;
		witness_state(w, NUMBERS, 0);
		if (w->sleeps)
			t_sleep_ns(5 * T_MS);
	}
}

/* How long until the witness is in the state, in ms since then; -1 after ten seconds. */
static double witness_turns(struct witness *w, int state, uint64_t since)
{
	for (int i = 0; i < 1000; i++) {
		if (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) == state)
			return (double)(int64_t)(w->state_ns - since) / 1e6;
		t_sleep_ns(10 * T_MS);
	}
	return -1;
}

static void all_turn(struct witness *w, int state, uint64_t since, double at_most_ms)
{
	for (int i = 0; i < 2; i++) {
		double ms = witness_turns(&w[i], state, since);

		t_note("the one that %s: %s after %.1f ms%s%s", w[i].sleeps ? "sleeps" : "spins",
		       state == REFUSED ? "error" : "numbers", ms, w[i].err ? ", " : "",
		       w[i].err ? strerror(w[i].err) : "");
		CHECK(ms >= 0 || w[i].state == state, "no change in ten seconds");
		CHECK(ms < at_most_ms, "%.1f ms until state %d", ms, state);
		/* EAGAIN: it was asked, and ended before it answered */
		CHECK(state != REFUSED || w[i].err == ESTALE || w[i].err == ENOENT ||
			      w[i].err == EAGAIN,
		      "%s", strerror(w[i].err));
	}
}

/* Ended by the signal and started again, with one client that spins and one that mostly sleeps. */
static void test_restart(int sig, const char *option)
{
	struct witness *w = t_shared(2 * sizeof(*w));
	uint64_t since = t_mono_ns(), epochs[2];
	pid_t pids[2];

	w[1].sleeps = 1;
	for (int i = 0; i < 2; i++)
		pids[i] = t_fork(witness, &w[i]);
	all_turn(w, NUMBERS, since, 5000);
	t_sleep_ns(300 * T_MS);
	for (int i = 0; i < 2; i++)
		epochs[i] = w[i].epoch;
	service_end(sig);
	since = t_mono_ns();
	/* a second, and what a busy machine adds to it */
	all_turn(w, REFUSED, since, t_cpus() > 1 ? 1500 : 3000);
	service_start(option, NULL);
	since = t_mono_ns();
	all_turn(w, NUMBERS, since, 1000);
	for (int i = 0; i < 2; i++) {
		CHECK(w[i].epoch != epochs[i], "the same epoch before and after");
		__atomic_store_n(&w[i].stop, 1, __ATOMIC_RELEASE);
		t_wait(pids[i]);
		CHECK(!w[i].wrong, "a difference across services was a number");
	}
}

/* Restarted so fast that the client never sees an error: then it sees another epoch. */
static void fast_restart(void *arg)
{
	uint64_t end = t_mono_ns() + 60 * T_SEC;
	struct csf_snap a, b;

	(void)arg;
	t_snap(&a);
	t_sleep_ns(1500 * T_MS);
	if (csf_thread_snap(&b))
		CHECK(errno == ESTALE || errno == ENOENT, "%s", strerror(errno));
	else
		CHECK(a.p.epoch != b.p.epoch, "the dead writer's page: %lld ns on the CPU",
		      (long long)(b.p.oncpu_cyc - a.p.oncpu_cyc));
	do /* starting takes longer where the CPU is emulated */
		t_sleep_ns(200 * T_MS); /* an error is remembered for half as long */
	while (csf_thread_snap(&b) && t_mono_ns() < end);
	t_snap(&b);
	CHECK(a.p.epoch != b.p.epoch, "the dead writer's page");
}

static void test_fast_restart(void)
{
	pid_t pid = t_fork(fast_restart, NULL);

	t_sleep_ns(300 * T_MS);
	service_end(SIGKILL);
	service_start(NULL, NULL);
	t_wait(pid);
}

/* The socket's file */

static void must_not_start(const char *because)
{
	char err[64], said[512];
	int status;

	snprintf(err, sizeof(err), "%s/err", service.dir);
	waitpid(service_spawn(NULL, NULL, err), &status, 0);
	t_read(err, said, sizeof(said));
	unlink(err);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %#x", status);
	CHECK(strstr(said, service.path) && strstr(said, because), "it says: %s", said);
}

static void test_socket_file(void)
{
	must_not_start("in use");
	CHECK(can_connect(), "the first service is gone");
	service_stop();
	CHECK(access(service.path, F_OK), "the socket is left after SIGTERM");
	service_start(NULL, NULL);
	service_end(SIGKILL);
	CHECK(!access(service.path, F_OK) && !can_connect(), "no socket is left after SIGKILL");
	service_start(NULL, NULL); /* takes it over */
}

/* What is no socket is not ours to remove. */
static void test_other_file(void)
{
	char path[sizeof(service.path)];
	FILE *f;

	service_stop();
	f = fopen(service.path, "w");
	if (!f || fclose(f))
		t_die("%s: %s", service.path, strerror(errno));
	must_not_start("File exists");
	CHECK(!unlink(service.path), "the file is gone");
	memcpy(path, service.path, sizeof(path));
	*service.path = 0;
	must_not_start("without a path");
	memcpy(service.path, path, sizeof(path));
	service_start(NULL, NULL);
}

/* A service that does not answer */

static void on_profile(int sig)
{
	(void)sig;
}

static void asks_stopped(void *arg)
{
	struct itimerval every = { { 0, 5000 }, { 0, 5000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction a = { .sa_handler = on_profile, .sa_flags = SA_RESTART };
	uint64_t start = t_mono_ns();
	struct csf_snap s;
	int ret, err;

	(void)arg;
	sigaction(SIGALRM, &a, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	ret = csf_thread_snap(&s);
	err = errno;
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(ret && err == EAGAIN, "%d, %s", ret, strerror(err));
	CHECK(t_mono_ns() - start < 2 * T_SEC, "it took %.1f s",
	      (double)(t_mono_ns() - start) / 1e9);
	for (start = t_mono_ns(); t_mono_ns() - start < T_SEC / 2;)
		csf_thread_snap(&s);
	CHECK(t_mono_ns() - start < T_SEC, "it waits as long again");
}

static void test_service_stopped(void)
{
	kill(service.pid, SIGSTOP);
	t_in_child(asks_stopped, NULL);
	kill(service.pid, SIGCONT);
}

/* No descriptors left: in the client, and in the service. */

static void no_descriptors(void *arg)
{
	struct rlimit r;
	struct csf_snap s;
	int fd = dup(0);

	(void)arg;
	close(fd);
	getrlimit(RLIMIT_NOFILE, &r);
	for (int room = 0; room < 3; room++) {
		r.rlim_cur = (rlim_t)fd + (rlim_t)room;
		setrlimit(RLIMIT_NOFILE, &r);
		CHECK(csf_thread_snap(&s) && errno == EMFILE, "room for %d: %s", room,
		      strerror(errno));
		CHECK(dup(0) == (room ? fd : -1), "descriptors are left open");
		close(fd);
		t_sleep_ns(200 * T_MS); /* the error is remembered for half as long */
	}
	r.rlim_cur = (rlim_t)fd + 3;
	setrlimit(RLIMIT_NOFILE, &r);
	CHECK(!csf_thread_snap(&s), "room for three: %s", strerror(errno));
}

static unsigned long service_ticks(void)
{
	unsigned long user = 0, system = 0;
	char path[64], buf[1024];

	snprintf(path, sizeof(path), "/proc/%d/stat", service.pid);
	t_read(path, buf, sizeof(buf));
	sscanf(strrchr(buf, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
	       &system);
	return user + system;
}

static void full_service(void *arg)
{
	struct rlimit old, less;
	struct csf_snap s;
	unsigned long ticks;
	int fd;

	(void)arg;
	t_sleep_ns(T_SEC);
	prlimit(service.pid, RLIMIT_NOFILE, NULL, &old);
	less = old;
	less.rlim_cur = 1;
	prlimit(service.pid, RLIMIT_NOFILE, &less, NULL);
	fd = csf_service_connect_(csf_service_until_());
	ticks = service_ticks();
	t_sleep_ns(T_SEC);
	ticks = service_ticks() - ticks;
	CHECK(ticks < 30, "%lu ticks in a second", ticks);
	prlimit(service.pid, RLIMIT_NOFILE, &old, NULL);
	close(fd);
	t_sleep_ns(200 * T_MS);
	CHECK(!csf_thread_snap(&s), "with descriptors again: %s", strerror(errno));
}

/* Clients that end */

static void two_threads(void)
{
	struct csf_snap s;

	t_snap(&s);
	t_join(t_go((void *(*)(void *))(uintptr_t)csf_thread_snap, &s));
}

static void killed(void *arg)
{
	(void)arg;
	two_threads();
	raise(SIGKILL);
}

static void orphan(void *arg)
{
	two_threads();
	kill(*(pid_t *)arg, SIGKILL);
	while (getppid() == *(pid_t *)arg)
		t_sleep_ns(T_MS);
	two_threads();
	_exit(0);
}

/* Its child has what it inherited, and goes on. */
static void killed_parent(void *arg)
{
	pid_t me = getpid();

	(void)arg;
	two_threads();
	t_fork(orphan, &me);
	for (;;)
		pause();
}

static void executes(void *arg)
{
	(void)arg;
	two_threads();
	execl(self, self, "snap", (char *)NULL);
	_exit(1);
}

static void storm(void *arg)
{
	struct csf_snap s;

	(void)arg;
	for (int i = 0; i < 500; i++)
		t_join(t_go((void *(*)(void *))(uintptr_t)csf_thread_snap, &s));
}

static void must_die(void (*fn)(void *))
{
	int status;

	waitpid(t_fork(fn, NULL), &status, 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %#x", status);
}

static void test_clients_end(__u32 first_map)
{
	struct maps before, after;
	int fds;

	t_sleep_ns(T_SEC);
	fds = service_fds();
	before = page_maps(first_map);
	for (int i = 0; i < 20; i++) {
		must_die(killed);
		must_die(killed_parent);
		t_in_child(executes, NULL);
	}
	t_in_child(storm, NULL);
	for (int i = 0; i < 100; i++) {
		after = page_maps(first_map);
		if (after.nr <= before.nr && service_fds() <= fds)
			break;
		t_sleep_ns(100 * T_MS);
	}
	CHECK(after.nr <= before.nr, "%u maps of pages, before %u", after.nr, before.nr);
	CHECK(service_fds() <= fds, "%d descriptors, before %d", service_fds(), fds);
}

/*
 * A child that inherited its parent's connection, with a request of the parent's that is answered
 * when the parent has executed another program. Neither that nor its own requests get anything.
 */
static void must_refuse(int sock, uint32_t type, uint32_t arg, int again)
{
	struct csf_reply r;
	int fds[2], n = ask_service(sock, type, arg, &r, fds);

	CHECK(n < 0 && errno == (again ? EAGAIN : EPERM), "request %u: %d, %s", type, n,
	      strerror(errno));
}

static void spies(int sock, int up)
{
	struct csf_reply r;
	int fds[2], n = csf_service_answer_(sock, csf_service_until_() + 10 * T_SEC, &r, fds);
	char byte;

	CHECK(n < 0 && errno == EAGAIN && r.nonce && r.nonce != csf_nonce_,
	      "the old program's request: %d, %s", n, strerror(errno));
	csf_nonce_ = r.nonce; /* the new program's */
	CHECK(read(up, &byte, 1) == 1, "the new program did not start");
	must_refuse(sock, CSF_REQ_THREAD, 0, 0);
	must_refuse(sock, CSF_REQ_THREAD, 0, 1); /* closed */
	_exit(t_.now->failed);
}

static void spied_program(pid_t pid, int up)
{
	struct csf_snap s;
	int status;

	kill(pid, SIGCONT);
	CHECK(!csf_thread_snap(&s), "no page: %s", strerror(errno));
	CHECK(write(up, "", 1) == 1, "%s", strerror(errno));
	CHECK(wait(&status) > 0 && !status, "the spy's status is %#x", status);
	_exit(t_.now->failed);
}

static void spied(void *arg)
{
	int sock = csf_service_connect_(csf_service_until_()), fds[2], up[2];
	char pid[16], fd[16];
	struct csf_reply r;

	(void)arg;
	CHECK(ask_service(sock, CSF_REQ_THREAD, 0, &r, fds) == 2, "%s", strerror(errno));
	if (pipe(up))
		t_die("pipe: %s", strerror(errno));
	kill(service.pid, SIGSTOP);
	csf_service_send_(sock, CSF_REQ_THREAD, 0);
	if (!fork())
		spies(sock, up[0]);
	snprintf(pid, sizeof(pid), "%d", service.pid);
	snprintf(fd, sizeof(fd), "%d", up[1]);
	execl(self, self, "spied", pid, fd, (char *)NULL);
	t_die("%s: %s", self, strerror(errno));
}

/* A child that asks for the chunks of its parent, which goes on. */
static void test_child_asks(void)
{
	int sock = csf_service_connect_(csf_service_until_()), fds[2] = { -1, -1 }, status;
	struct csf_reply r = { 0 };
	pid_t pid;

	CHECK(ask_service(sock, CSF_REQ_THREAD, 0, &r, fds) == 2, "%s", strerror(errno));
	csf_close_(fds, 2);
	pid = fork();
	if (!pid) {
		must_refuse(sock, CSF_REQ_CHUNK, r.chunk, 0);
		_exit(t_.now->failed);
	}
	close(sock);
	CHECK(waitpid(pid, &status, 0) == pid && !status, "the child's status is %#x", status);
}

/* The cpu page */

static void uses_cpu_page(void *arg)
{
	int *fds = arg;
	struct csf_cpu_snap c;
	struct csf_reply r;
	int sock, got[2] = { -1, -1 };

	become(ALICE);
	CHECK(!csf_cpu_snap(&c, CSF_CPU_ALL), "%s", strerror(errno));
	sock = csf_service_connect_(csf_service_until_());
	CHECK(ask_service(sock, CSF_REQ_CPU, 0, &r, got) == 1, "%s", strerror(errno));
	send_fd(fds[1], got[0]);
	t_sleep_ns(300 * T_MS);
}

static uint64_t updated(const struct csf_cpu_page *page)
{
	return __atomic_load_n(&page->update_mono_ns, __ATOMIC_ACQUIRE);
}

/* Times between updates that it sees in 200 ms, in us; the shortest and the longest. */
static void watch_updates(const struct csf_cpu_page *page, double *least, double *most)
{
	uint64_t end = t_mono_ns() + 200 * T_MS, last = 0, now;

	*least = 1e9;
	*most = 0;
	while (t_mono_ns() < end) {
		now = updated(page);
		if (last && now != last) {
			double us = (double)(now - last) / 1e3;

			*least = us < *least ? us : *least;
			*most = us > *most ? us : *most;
		}
		last = now;
		t_sleep_ns(200000);
	}
}

static void test_cpu_period(unsigned int period_us)
{
	const struct csf_cpu_page *page;
	double least, most;
	int pair[2], fd;
	uint64_t last;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		t_die("socketpair: %s", strerror(errno));
	pid = t_fork(uses_cpu_page, pair);
	close(pair[1]);
	fd = receive_fd(pair[0]);
	page = map_cpu_page(fd);
	CHECK(page->period_us == period_us && page->resolution_ns, "period %u, resolution %u",
	      page->period_us, page->resolution_ns);
	watch_updates(page, &least, &most);
	t_note("updates every %.0f to %.0f us, of %u", least, most, period_us);
	CHECK(least < 1.5 * period_us && most > 0.5 * period_us, "every %.0f to %.0f us", least,
	      most);
	t_wait(pid);
	t_sleep_ns(100 * T_MS);
	last = updated(page);
	t_sleep_ns(200 * T_MS);
	CHECK(updated(page) == last, "updated while nobody has asked for it");
	close(fd), close(pair[0]);
}

static void cpu_page_read_only(void *arg)
{
	int flags[] = { O_RDWR, O_WRONLY, O_RDWR | O_TRUNC }, sock, fds[2] = { -1, -1 }, fd;
	struct csf_reply r;
	char path[64];

	if (*(uid_t *)arg)
		become(*(uid_t *)arg);
	sock = csf_service_connect_(csf_service_until_());
	CHECK(ask_service(sock, CSF_REQ_CPU, 0, &r, fds) == 1, "%s", strerror(errno));
	CHECK(write(fds[0], path, 1) < 0 && ftruncate(fds[0], 0) < 0, "written");
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) == MAP_FAILED,
	      "mapped");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[0]);
	for (int i = 0; i < 3; i++) {
		fd = open(path, flags[i] | O_CLOEXEC);
		CHECK(fd < 0 || !*(uid_t *)arg, "opened for writing as an ordinary user");
		if (fd < 0)
			continue;
		CHECK(pwrite(fd, path, 1, 0) < 0, "written");
		CHECK(ftruncate(fd, 1) < 0, "cut");
		CHECK(fallocate(fd, 0x3, 0, PAGE) < 0, "a hole"); /* punch, keep size */
		CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED,
		      "mapped");
		CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0, "sealed");
		close(fd);
	}
	CHECK(map_cpu_page(fds[0])->hdr.magic == CSF_MAGIC, "no page");
}

static void test_cpu_read_only(void)
{
	uid_t alice = ALICE, root = 0;

	t_in_child(cpu_page_read_only, &alice);
	t_in_child(cpu_page_read_only, &root); /* seals are for root too */
}

/* What is left */

struct left {
	__u32 maps, progs, links;
};

static struct left newest(void)
{
	struct left l = { 0, 0, 0 };

	while (next_id(BPF_MAP_GET_NEXT_ID, &l.maps))
		;
	while (next_id(BPF_PROG_GET_NEXT_ID, &l.progs))
		;
	while (next_id(BPF_LINK_GET_NEXT_ID, &l.links))
		;
	return l;
}

static int is_ours(int fd, int is_map)
{
	union {
		struct bpf_map_info map;
		struct bpf_prog_info prog;
	} info;
	union bpf_attr attr;
	int ours;

	memset(&info, 0, sizeof(info));
	memset(&attr, 0, sizeof(attr));
	attr.info.bpf_fd = (__u32)fd;
	attr.info.info_len = is_map ? sizeof(info.map) : sizeof(info.prog);
	attr.info.info = (__u64)(uintptr_t)&info;
	ours = !sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) &&
	       !strncmp(is_map ? info.map.name : info.prog.name, "csf_", 4);
	close(fd);
	return ours;
}

/* Maps, programs and links that are newer; other users of BPF have their own names. */
static int count_left(const struct left *before)
{
	__u32 id;
	int n = 0, fd;

	for (id = before->maps; next_id(BPF_MAP_GET_NEXT_ID, &id);)
		if ((fd = open_id(BPF_MAP_GET_FD_BY_ID, id)) >= 0)
			n += is_ours(fd, 1);
	for (id = before->progs; next_id(BPF_PROG_GET_NEXT_ID, &id);)
		if ((fd = open_id(BPF_PROG_GET_FD_BY_ID, id)) >= 0)
			n += is_ours(fd, 0);
	return n;
}

static void test_nothing_left(const struct left *before)
{
	int n = 0;

	CHECK(count_left(before) > 5, "nothing is seen while the service lives");
	service_stop();
	for (int i = 0; i < 100 && (n = count_left(before)); i++)
		t_sleep_ns(100 * T_MS);
	CHECK(!n, "%d maps and programs are left", n);
}

static int snap_once(void)
{
	struct csf_snap s;

	return csf_thread_snap(&s) ? 1 : 0;
}

int main(int argc, char **argv)
{
	static char path[PATH_MAX];
	struct left before;

	self = realpath(argv[0], path);
	if (argc == 2 && !strcmp(argv[1], "snap"))
		return snap_once();
	if (argc == 4 && !strcmp(argv[1], "spied"))
		TEST("spied")
			spied_program(atoi(argv[2]), atoi(argv[3]));
	if (!service_possible()) {
		printf("skip service: it takes root and BPF, and no module\n");
		return 77;
	}
	atexit(service_cleanup);
	find_command(argv[0]);
	before = newest();
	TEST("start")
		service_start(NULL, NULL);
	TEST("replaced by one that finds threads in another way")
		test_restart(SIGTERM, "--force-hash");
	TEST("stopped and started")
		test_restart(SIGTERM, NULL);
	TEST("killed and started")
		test_restart(SIGKILL, NULL);
	TEST("started again at once")
		test_fast_restart();
	TEST("socket file")
		test_socket_file();
	TEST("other file at the path")
		test_other_file();
	TEST("service that does not answer")
		test_service_stopped();
	TEST("client without descriptors")
		t_in_child(no_descriptors, NULL);
	TEST("service without descriptors")
		t_in_child(full_service, NULL);
	TEST("clients end")
		test_clients_end(before.maps);
	TEST("connection inherited")
		t_in_child(spied, NULL);
	TEST("child asks")
		test_child_asks();
	TEST("cpu page: period")
		test_cpu_period(10000);
	TEST("cpu page: read-only")
		test_cpu_read_only();
	TEST("nothing left")
		test_nothing_left(&before);
	TEST("start with a period")
		service_start("--period-us", "50000");
	TEST("cpu page: longer period")
		test_cpu_period(50000);
	TEST("stop")
		service_stop();
	return t_done("t_serve_life");
}
