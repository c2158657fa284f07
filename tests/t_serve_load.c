// SPDX-License-Identifier: GPL-2.0
/*
 * The service under load and under attack: quotas, floods, garbage, ten thousand threads; what
 * others notice of it, what it takes, and what stays.
 */
#include "t_serve.h"

#include <netinet/in.h>
#include <sys/resource.h>

enum { ALICE = 61001, BOB = 61002 };

static __u32 first_map; /* maps above this one are of this test's services */

/* Threads that keep a page until told to stop. */
struct keepers {
	int want, done, failed, err, stop;
	uint64_t *took_ns; /* by thread, if not NULL */
	pthread_t *threads;
};

static void *keeps_page(void *arg)
{
	struct keepers *g = arg;
	struct csf_snap s;
	uint64_t start = t_mono_ns();
	int ret = csf_thread_snap(&s), err = errno;

	if (ret) {
		__atomic_store_n(&g->err, err, __ATOMIC_RELAXED);
		__atomic_fetch_add(&g->failed, 1, __ATOMIC_RELAXED);
	} else if (g->took_ns) {
		g->took_ns[g->done] = t_mono_ns() - start;
	}
	__atomic_fetch_add(&g->done, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&g->stop, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &g->stop, 0 /* FUTEX_WAIT */, 0, NULL, NULL, 0);
	return NULL;
}

/* One after another, so that each time is that of one registration. */
static void keepers_start(struct keepers *g, int want, uint64_t *took_ns)
{
	memset(g, 0, sizeof(*g));
	g->want = want;
	g->took_ns = took_ns;
	g->threads = calloc((size_t)want, sizeof(*g->threads));
	for (int i = 0; i < want; i++) {
		g->threads[i] = t_go(keeps_page, g);
		while (__atomic_load_n(&g->done, __ATOMIC_ACQUIRE) <= i)
			sched_yield();
	}
}

static void keepers_stop(struct keepers *g)
{
	__atomic_store_n(&g->stop, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &g->stop, 1 /* FUTEX_WAKE */, INT_MAX, NULL, NULL, 0);
	for (int i = 0; i < g->want; i++)
		t_join(g->threads[i]);
	free(g->threads);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double quantile_us(uint64_t *ns, int n, double q)
{
	qsort(ns, (size_t)n, sizeof(*ns), by_size);
	return (double)ns[(int)(q * (n - 1))] / 1e3;
}

/* Quotas */

static void one_snap(void *arg)
{
	struct csf_snap s;

	become(*(uid_t *)arg);
	CHECK(!csf_thread_snap(&s), "another user: %s", strerror(errno));
}

static void later_snap(void *arg)
{
	t_sleep_ns(300 * T_MS);
	one_snap(arg);
}

struct quota {
	uid_t uid;
	int least, most; /* threads that get a page of 60 */
};

static void use_up(void *arg)
{
	const struct quota *q = arg;
	uid_t bob = BOB;
	struct keepers g;
	pid_t other = t_fork(later_snap, &bob); /* before this one loses the privilege */

	become(q->uid);
	keepers_start(&g, 60, NULL);
	CHECK(60 - g.failed >= q->least && 60 - g.failed <= q->most, "%d threads, not %d to %d",
	      60 - g.failed, q->least, q->most);
	CHECK(!g.failed || g.err == EDQUOT, "%s", strerror(g.err));
	t_sleep_ns(400 * T_MS);
	keepers_stop(&g);
	t_wait(other);
}

/* Waits until what a user had has been given back. */
static void test_threads_quota(void)
{
	struct quota q = { ALICE, 40, 40 };

	t_in_child(use_up, &q);
	t_sleep_ns(T_SEC);
	t_in_child(use_up, &q);
}

/* Each page is one of the quota's, and so is each map for its own struct. */
static void use_up_memory(void *arg)
{
	struct keepers g;

	(void)arg;
	become(ALICE);
	keepers_start(&g, 300, NULL);
	CHECK(g.failed > 300 - 256 && g.failed < 300 - 200, "%d threads in 256 pages",
	      300 - g.failed);
	CHECK(g.err == EDQUOT, "%s", strerror(g.err));
	keepers_stop(&g);
}

static void keep_chunk(void *arg)
{
	struct csf_snap s;
	struct given g;
	struct keepers threads;

	become(ALICE);
	keepers_start(&threads, 10, NULL);
	t_snap(&s);
	g = ask(); /* of the chunk with 16 pages */
	CHECK(g.r.size == 16 * PAGE, "a chunk of %u bytes", g.r.size);
	send_fd(*(int *)arg, g.chunk);
	keepers_stop(&threads);
}

static void test_kept_chunk(void)
{
	struct quota less = { ALICE, 24, 24 }, all = { ALICE, 40, 40 };
	int pair[2], fd;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		t_die("socketpair: %s", strerror(errno));
	t_sleep_ns(T_SEC);
	t_in_child(keep_chunk, &pair[1]);
	close(pair[1]);
	fd = receive_fd(pair[0]);
	close(pair[0]);
	t_sleep_ns(T_SEC);
	t_in_child(use_up, &less);
	close(fd);
	t_sleep_ns(T_SEC);
	t_in_child(use_up, &all);
}

/* Attacks by one user, while another one measures. */

static void victims(uint64_t *ns, int n)
{
	for (int i = 0; i < n; i++) {
		uint64_t start = t_mono_ns();
		uid_t bob = BOB;

		t_in_child(one_snap, &bob);
		ns[i] = t_mono_ns() - start;
		t_sleep_ns(T_MS);
	}
}

static int raw_connect(void)
{
	int fd = csf_service_connect_(csf_service_until_());

	if (fd < 0 && errno != EAGAIN && errno != ENOENT && errno != EMFILE)
		t_die("connect: %s", strerror(errno));
	return fd;
}

/* Connects and goes, as fast as it can. */
static void flood(void)
{
	int fd = raw_connect();

	if (fd >= 0)
		close(fd);
}

/* As many connections as it may have, and says nothing. */
static void stall(void)
{
	static int fds[1500], n;
	int *fd = &fds[n++ % 1500];

	if (*fd)
		close(*fd);
	*fd = raw_connect();
}

/* Each kind of nonsense in turn; ours is not to be hurt by it. */
static void garbage(void)
{
	static const struct csf_request ill[] = {
		{ CSF_SERVICE_MAGIC + 1, CSF_SERVICE_VERSION, CSF_REQ_THREAD, 0, 0 },
		{ CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION + 1, CSF_REQ_THREAD, 0, 0 },
		{ CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION, 0, 0, 0 },
		{ CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION, 99, 0, 0 },
		{ CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION, CSF_REQ_CHUNK, ~0u, 0 },
	};
	static uint64_t seed = 1;
	static char junk[65536];
	size_t len = t_random(&seed) % sizeof(junk);
	int fd = raw_connect();

	if (fd < 0)
		return;
	for (size_t i = 0; i < 64; i += 8)
		*(uint64_t *)(junk + i) = t_random(&seed);
	if (len % 2)
		send(fd, junk, len % 4 == 1 ? len % 32 : len, MSG_NOSIGNAL | MSG_DONTWAIT);
	else
		send(fd, &ill[len % 5], sizeof(ill[0]), MSG_NOSIGNAL);
	if (len % 3)
		recv(fd, junk + 64, 64, 0);
	close(fd);
}

/* Asks without taking the answers, on one connection, until it is thrown out. */
static void never_reads(void)
{
	static const struct csf_request q = { CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION,
					      CSF_REQ_THREAD, 0, 0 };
	int fd = raw_connect();

	for (int i = 0; fd >= 0 && i < 1000; i++)
		if (send(fd, &q, sizeof(q), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			break;
	if (fd >= 0)
		close(fd);
}

/* With a request that makes sense otherwise. */
static void sends_one(int sock, int fd)
{
	struct csf_request q = { CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION, CSF_REQ_CPU, 0, 0 };

	send_with_fd(sock, &q, sizeof(q), fd);
}

/* Descriptors for the service: /dev/null, or the connection itself, which would be a cycle. */
static void sends_descriptors(void)
{
	static unsigned int n;
	int fd = raw_connect(), null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (fd >= 0) {
		sends_one(fd, n++ % 2 ? null : fd);
		close(fd);
	}
	close(null);
}

struct attack {
	void (*once)(void);
	int stop;
	unsigned long times;
};

static void attacker(void *arg)
{
	struct attack *a = arg;

	become(ALICE);
	while (!__atomic_load_n(&a->stop, __ATOMIC_ACQUIRE)) {
		a->once();
		__atomic_fetch_add(&a->times, 1, __ATOMIC_RELAXED);
	}
}

/* A second of it, by two processes. */
static void test_attack(void (*once)(void))
{
	struct attack *a = t_shared(sizeof(*a));
	unsigned long long rss = service_status("\nVmRSS:"), rss_after;
	int fds = service_fds(), fds_after;
	uint64_t ns[30];
	pid_t pids[2];

	a->once = once;
	for (int i = 0; i < 2; i++)
		pids[i] = t_fork(attacker, a);
	t_sleep_ns(300 * T_MS);
	victims(ns, 30);
	t_sleep_ns(300 * T_MS);
	__atomic_store_n(&a->stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		t_wait(pids[i]);
	fds_after = service_fds_settle(fds + 8); /* the pool may not have been full */
	rss_after = service_status("\nVmRSS:");
	t_note("%lu times; another user's process took %.0f us (median), %.0f (worst)", a->times,
	       quantile_us(ns, 30, 0.5), quantile_us(ns, 30, 1));
	t_note("descriptors %d, then %d; %llu kB, then %llu", fds, fds_after, rss, rss_after);
	CHECK(quantile_us(ns, 30, 0.9) < 1e6, "another user's registration took %.0f us",
	      quantile_us(ns, 30, 0.9));
	CHECK(fds_after <= fds + 8, "%d descriptors, before %d", fds_after, fds);
	CHECK(rss_after <= rss + 4096, "%llu kB, before %llu", rss_after, rss);
}

/*
 * The last reference to a TCP socket that lingers, with data that nobody takes: whoever closes it
 * waits. The service may not take it. 0 if this kernel cannot refuse.
 */
static int lingering_socket(void)
{
	struct linger linger = { 1, 100 };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	static char data[1 << 16];
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (struct sockaddr *)&a, len) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&a, &len) ||
	    connect(fd, (struct sockaddr *)&a, len) ||
	    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		t_die("a TCP socket: %s", strerror(errno));
	while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	return fd;
}

static void send_lingering(void)
{
	int fd = raw_connect(), tcp = lingering_socket();
	pid_t pid = fork(); /* the one that has the last reference but the service's */

	if (!pid) {
		sends_one(fd, tcp);
		syscall(SYS_exit_group, 0);
	}
	close(tcp);
	close(fd);
}

static void test_lingering(void)
{
	uint64_t ns[5];
	int yes;
	socklen_t len = sizeof(yes);
	int fd = raw_connect();

	if (getsockopt(fd, SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &yes, &len))
		t_skip("before Linux 6.16 a service cannot refuse descriptors");
	else
		send_lingering();
	close(fd);
	if (t_.now->skipped)
		return;
	t_sleep_ns(100 * T_MS);
	victims(ns, 5);
	CHECK(quantile_us(ns, 5, 1) < 5e6, "another user's registration took %.0f us",
	      quantile_us(ns, 5, 1));
}

/* Size */

static void many_threads(void *arg)
{
	enum { MANY = 10000 };
	static uint64_t ns[MANY];
	struct maps before = page_maps(first_map), after;
	struct csf_snap s;
	struct keepers g;

	(void)arg;
	t_snap(&s);
	keepers_start(&g, MANY, ns);
	CHECK(!g.failed, "%d of %d threads failed: %s", g.failed, MANY, strerror(g.err));
	after = page_maps(first_map);
	t_note("%u maps, %.1f MiB of kernel memory for them", after.nr - before.nr,
	       (double)(after.bytes - before.bytes) / (1 << 20));
	CHECK(after.bytes - before.bytes <= 48ull << 20, "%llu bytes of kernel memory",
	      after.bytes - before.bytes);
	t_note("registering took %.1f us (median), %.1f (99 of 100), %.1f (worst)",
	       quantile_us(ns, MANY, 0.5), quantile_us(ns, MANY, 0.99), quantile_us(ns, MANY, 1));
	CHECK(quantile_us(ns, MANY, 0.5) < 1000, "registering took %.1f us",
	      quantile_us(ns, MANY, 0.5));
	keepers_stop(&g);
}

static void one_thread_memory(void *arg)
{
	struct csf_snap s;
	struct given g;

	(void)arg;
	g = ask();
	CHECK(map_memory(g.chunk) <= 16384, "%llu bytes of kernel memory", map_memory(g.chunk));
	t_note("%llu bytes of kernel memory for one thread", map_memory(g.chunk));
	t_snap(&s);
}

static void registers_many(void *arg)
{
	struct keepers g;

	(void)arg;
	become(ALICE);
	keepers_start(&g, 1000, NULL);
	CHECK(!g.failed, "%d threads failed: %s", g.failed, strerror(g.err));
	keepers_stop(&g);
}

static void first_of_process(void *arg)
{
	uint64_t start = t_mono_ns();
	struct csf_snap s;

	t_snap(&s);
	*(uint64_t *)arg = t_mono_ns() - start;
}

static void test_first_while_others(void)
{
	uint64_t *took = t_shared(sizeof(*took));
	pid_t other = t_fork(registers_many, NULL);
	uint64_t ns[25];

	for (int i = 0; i < 25; i++) {
		t_in_child(first_of_process, took);
		ns[i] = *took;
	}
	t_wait(other);
	t_note("a process's first registration, others busy: %.1f us (median), %.1f (worst)",
	       quantile_us(ns, 25, 0.5), quantile_us(ns, 25, 1));
	CHECK(quantile_us(ns, 25, 0.5) < 8000, "%.1f us: as long as a grace period",
	      quantile_us(ns, 25, 0.5));
}

/* All of it given back: only what is kept ready is left. */
static void test_given_back(int fds, struct maps before)
{
	struct maps after = page_maps(first_map);

	for (int i = 0; i < 100 && after.nr > before.nr + 8; i++) {
		t_sleep_ns(100 * T_MS);
		after = page_maps(first_map);
	}
	CHECK(after.nr <= before.nr + 8, "%u maps, before %u", after.nr, before.nr);
	CHECK(service_fds_settle(fds + 8) <= fds + 8, "%d descriptors, before %d", service_fds(),
	      fds);
}

static void raise_limits(void)
{
	struct rlimit r = { 20000, 20000 };

	setrlimit(RLIMIT_NOFILE, &r);
}

int main(int argc, char **argv)
{
	struct maps maps;
	int fds;

	(void)argc;
	if (!service_possible()) {
		printf("skip service: it takes root and BPF, and no module\n");
		return 77;
	}
	atexit(service_cleanup);
	find_command(argv[0]);
	service.servant = 1; /* the other tests' services run as root */
	raise_limits();
	first_map = newest_map_id();
	TEST("start with 40 threads a user")
		service_start("--max-threads", "40");
	TEST("quota of threads")
		test_threads_quota();
	TEST("a chunk that is kept counts")
		test_kept_chunk();
	TEST("stop")
		service_stop();
	TEST("start with 1 MiB a user")
		service_start("--max-memory", "1");
	TEST("quota of memory")
		t_in_child(use_up_memory, NULL);
	TEST("stop")
		service_stop();
	TEST("start")
		service_start(NULL, NULL);
	t_sleep_ns(T_SEC);
	maps = page_maps(first_map);
	fds = service_fds();
	TEST("flood")
		test_attack(flood);
	TEST("stalled connections")
		test_attack(stall);
	TEST("garbage")
		test_attack(garbage);
	TEST("answers not taken")
		test_attack(never_reads);
	TEST("descriptors sent")
		test_attack(sends_descriptors);
	TEST("lingering socket sent")
		test_lingering();
	TEST("memory of one thread")
		t_in_child(one_thread_memory, NULL);
	TEST("10,000 threads")
		t_in_child(many_threads, NULL);
	TEST("first while others register")
		test_first_while_others();
	TEST("given back")
		test_given_back(fds, maps);
	TEST("stop")
		service_stop();
	return t_done("t_serve_load");
}
