// SPDX-License-Identifier: GPL-2.0
/*
 * Lives at random. Threads and processes open, duplicate, pass on, map, unmap and close thread
 * pages, their own and others', fork, execute and end, in whatever order comes; afterwards the
 * module's reference count must be what it was, and nothing may have gone wrong on the way.
 *
 * A page can be let go in a few orders in principle: each of those is counted, and must have come
 * up often enough.
 *
 * CSF_SEED is the seed; each process draws its own sequence from it. CSF_LIVES is how many threads
 * and processes must have lived.
 */
#include "t_fd.h"

#include <poll.h>

enum { WORKERS = 3, THREADS = 4, SLOTS = 16, COUNTERS_FD = 200, SOCKET_FD = 201 };

/* In the order that the owner of a page, or another, lets go of what is left of it. */
enum {
	CLOSE_UNMAP, /* the owner closes, then unmaps */
	UNMAP_CLOSE, /* the owner unmaps, then closes */
	END_WITH_BOTH, /* the owner ends; its process goes on and still has both */
	FOREIGN_CLOSE, /* another thread closes last, while the owner lives */
	FOREIGN_UNMAP, /* another thread unmaps last, while the owner lives */
	CLOSED_AFTER, /* closed after the owner's death */
	PASSED_CLOSE, /* another process closes last */
	RELEASE_ORDERS,
};

static const char *const order_names[RELEASE_ORDERS] = {
	"owner closes, unmaps",	  "owner unmaps, closes",  "owner ends with both",
	"another thread closes",  "another thread unmaps", "closed after the owner's end",
	"another process closes",
};

/* Shared by all processes, across execve() too. */
struct counters {
	unsigned long lives, wanted;
	unsigned long orders[RELEASE_ORDERS];
	unsigned long opens, maps, dups, sent, received, forks, execs, kills, checks;
	int stop, bad;
	char why[200];
};

static struct counters *counters;
static const char *self;

/* What the threads of a process share, each slot taken and put back atomically. */
struct slot {
	int fd; /* 1 + the descriptor, 0 if there is none */
	const struct csf_thread_page *page; /* or NULL */
};

static struct slot slots[SLOTS];

static void count(unsigned long *what)
{
	__atomic_fetch_add(what, 1, __ATOMIC_RELAXED);
}

__attribute__((format(printf, 1, 2))) static void bad(const char *fmt, ...)
{
	va_list ap;

	if (__atomic_exchange_n(&counters->bad, 1, __ATOMIC_ACQ_REL))
		return;
	va_start(ap, fmt);
	vsnprintf(counters->why, sizeof(counters->why), fmt, ap);
	va_end(ap);
}

static void count_order(int order)
{
	count(&counters->orders[order]);
}

/* A page is never nonsense, whosever it is and whatever happens to it. */
static void check_page(const struct csf_thread_page *page)
{
	struct csf_snap s;

	count(&counters->checks);
	if (csf_page_snap(page, &s)) {
		if (errno != EAGAIN)
			bad("csf_page_snap: %s", strerror(errno));
		return;
	}
	if (s.p.life < CSF_LIVE || s.p.life > CSF_DEAD || s.p.state >= CSF_NR_BUCKETS)
		bad("life %d, state %d", s.p.life, s.p.state);
	if (!s.p.epoch || !s.p.tid || s.p.nr_preempt + s.p.nr_block < s.p.nr_switch_in)
		bad("epoch %llu, tid %u, in %llu, out %llu", (unsigned long long)s.p.epoch, s.p.tid,
		    (unsigned long long)s.p.nr_switch_in,
		    (unsigned long long)(s.p.nr_preempt + s.p.nr_block));
}

/* The own page, just mapped, is alive and the own one. */
static void check_own(const struct csf_thread_page *page)
{
	struct csf_snap s;

	check_page(page);
	if (csf_page_snap(page, &s))
		return;
	if (s.p.tid != (unsigned int)t_gettid() || s.p.life != CSF_LIVE || s.p.state != CSF_ONCPU)
		bad("thread %d has the page of %u, life %d, state %d", t_gettid(), s.p.tid,
		    s.p.life, s.p.state);
}

static struct slot *any_slot(uint64_t *random)
{
	return &slots[t_random(random) % SLOTS];
}

static int take_fd(struct slot *s)
{
	return __atomic_exchange_n(&s->fd, 0, __ATOMIC_ACQ_REL) - 1;
}

static const struct csf_thread_page *take_page(struct slot *s)
{
	return __atomic_exchange_n(&s->page, NULL, __ATOMIC_ACQ_REL);
}

static void put_fd(struct slot *s, int fd)
{
	int old = __atomic_exchange_n(&s->fd, fd + 1, __ATOMIC_ACQ_REL) - 1;

	if (old >= 0)
		close(old);
}

static void put_page(struct slot *s, const struct csf_thread_page *page)
{
	const struct csf_thread_page *old = __atomic_exchange_n(&s->page, page, __ATOMIC_ACQ_REL);

	if (old)
		t_unmap(old);
}

static int fuzz_open(uint64_t *random)
{
	int fd = open(CSF_THREAD_PATH, O_RDONLY | (t_random(random) & 1 ? O_CLOEXEC : 0));

	if (fd < 0)
		bad("open: %s", strerror(errno));
	count(&counters->opens);
	return fd;
}

static const struct csf_thread_page *fuzz_map(int fd)
{
	void *p = mmap(NULL, T_PAGE, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		bad("mmap: %s", strerror(errno));
	count(&counters->maps);
	return p == MAP_FAILED ? NULL : p;
}

/* The seven release orders. */
static void close_own(uint64_t *random)
{
	int fd = fuzz_open(random), closes_first = (int)(t_random(random) & 1);
	const struct csf_thread_page *page = fuzz_map(fd);

	if (!page)
		return;
	check_own(page);
	if (closes_first)
		close(fd);
	t_unmap(page);
	if (!closes_first)
		close(fd);
	count_order(closes_first ? CLOSE_UNMAP : UNMAP_CLOSE);
}

struct victim {
	int fd;
	const struct csf_thread_page *page;
	int mapped, done;
	uint64_t random;
};

static void *victim_thread(void *arg)
{
	struct victim *v = arg;

	count(&counters->lives);
	v->fd = fuzz_open(&v->random);
	v->page = fuzz_map(v->fd);
	__atomic_store_n(&v->mapped, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&v->done, __ATOMIC_ACQUIRE))
		t_sleep_ns(20000);
	if (v->random & 1) /* armed anew, if it was paused */
		close_own(&v->random);
	return NULL;
}

static void close_foreign(uint64_t *random)
{
	struct victim v = { .random = t_random(random) };
	pthread_t thread = t_go(victim_thread, &v);
	int order = (int)(t_random(random) % 4);

	while (!__atomic_load_n(&v.mapped, __ATOMIC_ACQUIRE))
		sched_yield();
	check_page(v.page);
	if (order == 0)
		t_unmap(v.page);
	if (order <= 1)
		close(v.fd);
	if (order == 1)
		t_unmap(v.page);
	__atomic_store_n(&v.done, 1, __ATOMIC_RELEASE);
	t_join(thread);
	if (order <= 1) {
		count_order(order ? FOREIGN_UNMAP : FOREIGN_CLOSE);
		return;
	}
	check_page(v.page);
	t_unmap(v.page);
	close(v.fd);
	count_order(order == 2 ? END_WITH_BOTH : CLOSED_AFTER);
}

/* What was received, from whichever process, is closed here. */
static void receive(uint64_t *random)
{
	struct pollfd p = { SOCKET_FD + 1, POLLIN, 0 };
	const struct csf_thread_page *page;
	int fd;

	if (poll(&p, 1, 0) != 1)
		return;
	fd = t_receive_fd(SOCKET_FD + 1);
	if (fd < 0)
		return;
	count(&counters->received);
	if (t_random(random) & 1 && (page = fuzz_map(fd))) {
		check_page(page);
		t_unmap(page);
	}
	if (t_random(random) & 3) {
		close(fd);
		count_order(PASSED_CLOSE);
	} else {
		put_fd(any_slot(random), fd);
	}
}

static void send_one(uint64_t *random)
{
	int fd = t_random(random) & 1 ? take_fd(any_slot(random)) : fuzz_open(random);

	if (fd < 0)
		return;
	if (!t_send_fd(SOCKET_FD, fd))
		count(&counters->sent);
	close(fd);
}

static void duplicate(uint64_t *random)
{
	struct slot *from = any_slot(random);
	int fd = take_fd(from), copy;

	if (fd < 0)
		return;
	copy = dup(fd);
	put_fd(from, fd);
	if (copy >= 0)
		put_fd(any_slot(random), copy);
	count(&counters->dups);
}

static void map_slot(uint64_t *random)
{
	struct slot *from = any_slot(random);
	const struct csf_thread_page *page;
	int fd = take_fd(from);

	if (fd < 0)
		return;
	page = fuzz_map(fd);
	put_fd(from, fd);
	if (page) {
		check_page(page);
		put_page(any_slot(random), page);
	}
}

static void unmap_slot(uint64_t *random)
{
	const struct csf_thread_page *page = take_page(any_slot(random));

	if (!page)
		return;
	check_page(page);
	t_unmap(page);
}

static void close_slot(uint64_t *random)
{
	int fd = take_fd(any_slot(random));

	if (fd >= 0)
		close(fd);
}

static void open_slot(uint64_t *random)
{
	put_fd(any_slot(random), fuzz_open(random));
}

static void open_twice(uint64_t *random)
{
	int a = fuzz_open(random), b = fuzz_open(random);
	const struct csf_thread_page *page = fuzz_map(b);

	close(a);
	if (page)
		check_own(page);
	put_fd(any_slot(random), b);
	if (page)
		put_page(any_slot(random), page);
}

/* A child sees descriptors, not mappings: its threads' pages are its parent's. */
static void child_life(uint64_t *random)
{
	memset(slots, 0, sizeof(slots));
	count(&counters->lives);
	close_own(random);
	send_one(random);
	receive(random);
	if (t_random(random) & 1)
		fuzz_open(random); /* goes with the process */
}

static void fork_one(uint64_t *random)
{
	int kill_it = t_random(random) % 4 == 0, status;
	uint64_t its = t_random(random);
	pid_t pid = fork();

	if (!pid) {
		child_life(&its);
		if (kill_it)
			raise(SIGKILL);
		_exit(0);
	}
	count(&counters->forks);
	if (kill_it)
		count(&counters->kills);
	if (pid > 0 && waitpid(pid, &status, 0) == pid && status && !kill_it)
		bad("a child ended with status %#x", status);
}

/* In place: all other threads end. The new program goes on as a worker. */
static void execute(uint64_t *random)
{
	char seed[32];

	count(&counters->execs);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)t_random(random));
	execl(self, self, "worker", seed, (char *)NULL);
	bad("%s: %s", self, strerror(errno));
}

static void rest(uint64_t *random)
{
	if (t_random(random) & 1)
		t_sleep_ns(t_random(random) % 100000);
	else
		sched_yield();
}

static const struct {
	void (*act)(uint64_t *random);
	unsigned int weight;
} acts[] = {
	{ close_own, 10 }, { close_foreign, 14 }, { receive, 16 },   { send_one, 14 },
	{ duplicate, 4 },  { map_slot, 6 },	  { unmap_slot, 4 }, { close_slot, 4 },
	{ open_slot, 6 },  { open_twice, 4 },	  { rest, 6 },	     { fork_one, 3 },
};

enum { ACTS = sizeof(acts) / sizeof(*acts) };

static void act(uint64_t *random)
{
	unsigned int total = 0, draw;
	int i;

	for (i = 0; i < ACTS; i++)
		total += acts[i].weight;
	draw = (unsigned int)(t_random(random) % total);
	for (i = 0; draw >= acts[i].weight; i++)
		draw -= acts[i].weight;
	acts[i].act(random);
}

static int stopping(void)
{
	return __atomic_load_n(&counters->stop, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&counters->bad, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&counters->lives, __ATOMIC_ACQUIRE) >= counters->wanted;
}

static void *life(void *arg)
{
	uint64_t random = *(uint64_t *)arg;
	int acts_left = (int)(t_random(&random) % 12);

	count(&counters->lives);
	if (t_random(&random) % 300 == 0)
		execute(&random);
	while (acts_left-- && !stopping())
		act(&random);
	if (t_random(&random) % 8 == 0)
		syscall(SYS_exit, 0); /* not even the thread library knows */
	return NULL;
}

/* A process: a few threads at a time, each with its own life, until it has had enough. */
static void worker(uint64_t random)
{
	int generations = (int)(t_random(&random) % 40);

	while (generations-- && !stopping()) {
		pthread_t threads[THREADS];
		uint64_t seeds[THREADS];

		for (int i = 0; i < THREADS; i++) {
			seeds[i] = t_random(&random);
			threads[i] = t_go(life, &seeds[i]);
		}
		for (int i = 0; i < THREADS; i++)
			t_join(threads[i]);
	}
	_exit(0);
}

static void worker_child(void *arg)
{
	count(&counters->lives);
	worker(*(uint64_t *)arg);
}

static void map_counters(void)
{
	counters =
		mmap(NULL, sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED, COUNTERS_FD, 0);
	if (counters == MAP_FAILED)
		exit(2);
}

/* Descriptors that execve() must keep, at places that the new program knows. */
static void setup(void)
{
	int fd = (int)syscall(SYS_memfd_create, "counters", 0), sockets[2];

	if (fd < 0 || ftruncate(fd, sizeof(*counters)) || dup2(fd, COUNTERS_FD) < 0 ||
	    socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, sockets) ||
	    dup2(sockets[0], SOCKET_FD) < 0 || dup2(sockets[1], SOCKET_FD + 1) < 0)
		t_die("setup: %s", strerror(errno));
	close(fd);
	close(sockets[0]);
	close(sockets[1]);
	map_counters();
}

static void run(uint64_t seed)
{
	int workers = 0, status;
	pid_t pid;

	for (;;) {
		for (; workers < WORKERS && !stopping(); workers++) {
			uint64_t mine = t_random(&seed);

			t_fork(worker_child, &mine);
		}
		if (!workers)
			return;
		pid = waitpid(-1, &status, 0);
		if (pid > 0 && status)
			bad("a worker ended with status %#x", status);
		workers -= pid > 0;
	}
}

static void report(void)
{
	const struct counters *c = counters;

	t_note("%lu lives: %lu opens, %lu maps, %lu dups, %lu sent, %lu received", c->lives,
	       c->opens, c->maps, c->dups, c->sent, c->received);
	t_note("%lu forks, %lu killed, %lu execs, %lu pages looked at", c->forks, c->kills,
	       c->execs, c->checks);
	for (int i = 0; i < RELEASE_ORDERS; i++) {
		t_note("%6lu %s", c->orders[i], order_names[i]);
		CHECK(c->wanted < 10000 || c->orders[i] >= 500, "%s: %lu times only",
		      order_names[i], c->orders[i]);
	}
	CHECK(c->execs && c->forks && c->kills && c->dups, "not everything happened");
}

static void test_lives(void)
{
	const char *seed = getenv("CSF_SEED"), *lives = getenv("CSF_LIVES");
	uint64_t random = seed ? strtoull(seed, NULL, 0) : t_mono_ns();
	int base = t_module_refs();

	t_limit(550);
	setup();
	counters->wanted = lives ? strtoul(lives, NULL, 0) : 10000;
	t_note("CSF_SEED=%llu", (unsigned long long)random);
	run(random);
	close(SOCKET_FD);
	close(SOCKET_FD + 1); /* with what is still on its way */
	CHECK(!counters->bad, "%s", counters->why);
	report();
	CHECK(t_module_refs_settle(base) == base, "the module has %d references, had %d",
	      t_module_refs(), base);
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 3 && !strcmp(argv[1], "worker")) {
		map_counters();
		count(&counters->lives);
		worker(strtoull(argv[2], NULL, 10));
	}
	TEST("lives at random")
		test_lives();
	return t_done("t_fuzz");
}
