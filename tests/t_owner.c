// SPDX-License-Identifier: GPL-2.0
/*
 * Whose page it is, and for how long, while descriptors and mappings come and go: one object a
 * thread, paused when a stranger closes it last, armed anew when its owner opens it again, dead
 * with its owner. The module's reference count tells when an object is gone.
 */
#include "t_fd.h"

#include <fcntl.h>
#include <sys/mount.h>

static const char *self; /* this program, to be executed again */

static void check_refs(int base)
{
	int now = t_module_refs_settle(base);

	CHECK(now == base, "the module has %d references, had %d", now, base);
}

static void check_held(int base)
{
	t_sleep_ns(100 * T_MS);
	CHECK(t_module_refs() > base, "the module has %d references, had %d with no object",
	      t_module_refs(), base);
}

/* All descriptors of a thread show one page, and nothing is counted twice. */
static void test_one_object(void)
{
	int base = t_module_refs(), fds[3];
	const struct csf_thread_page *pages[3];
	struct csf_snap a, b;

	for (int i = 0; i < 3; i++) {
		fds[i] = t_open_self();
		pages[i] = t_map(fds[i]);
		CHECK(pages[i]->epoch == pages[0]->epoch, "epoch %llu, then %llu",
		      (unsigned long long)pages[0]->epoch, (unsigned long long)pages[i]->epoch);
	}
	a = t_page_snap(pages[0]);
	for (int i = 0; i < 10; i++)
		t_sleep_ns(10000);
	b = t_page_snap(pages[2]);
	CHECK(b.p.nr_block - a.p.nr_block <= b.p.nvcsw - a.p.nvcsw + 1 &&
		      b.p.nr_switch_in - a.p.nr_switch_in < 20 + b.p.nivcsw - a.p.nivcsw,
	      "10 naps, %llu blocks", (unsigned long long)(b.p.nr_block - a.p.nr_block));
	for (int i = 0; i < 2; i++) {
		t_unmap(pages[i]);
		t_close(fds[i]);
	}
	t_sleep_ns(T_MS);
	b = t_page_snap(pages[2]);
	CHECK(b.p.life == CSF_LIVE && b.p.epoch == a.p.epoch, "life %d after closing two of three",
	      b.p.life);
	t_close(fds[2]);
	t_sleep_ns(T_MS);
	CHECK(t_page_snap(pages[2]).p.nr_block > b.p.nr_block,
	      "a mapping does not keep it counting");
	t_unmap(pages[2]);
	check_refs(base);
}

/* The owner closes: nothing is left. It opens again: from zero. */
static void test_owner_closes(void)
{
	int base = t_module_refs();
	uint64_t epoch = 0;

	for (int i = 0; i < 4; i++) {
		int fd = t_open_self();
		const struct csf_thread_page *page = t_map(fd);
		struct csf_snap s = t_page_snap(page);

		CHECK(s.p.epoch > epoch, "epoch %llu after %llu", (unsigned long long)s.p.epoch,
		      (unsigned long long)epoch);
		CHECK(csf_cyc_to_ns(&s.p.hdr, t_sum(&s.p)) < 20 * T_MS, "not from zero");
		epoch = s.p.epoch;
		t_sleep_ns(25 * T_MS);
		if (i & 1)
			t_unmap(page);
		t_close(fd);
		if (!(i & 1))
			t_unmap(page);
		check_refs(base);
	}
}

/*
 * A stranger lets go last, of the descriptor or of the mapping: the object pauses and waits for
 * its owner, which finds it reset.
 */
static void pause_and_rearm(int mapping_last)
{
	int base = t_module_refs();
	struct t_worker w;
	struct csf_snap s;

	t_worker_start(&w);
	t_tell(&w, t_task_map);
	t_tell(&w, t_task_sleep);
	s = t_page_snap(w.page);
	CHECK(s.p.tid == (unsigned int)w.tid && s.p.life == CSF_LIVE, "life %d", s.p.life);
	if (!mapping_last)
		t_unmap(w.page);
	t_close(w.fd);
	if (mapping_last)
		t_unmap(w.page);
	check_held(base); /* the registration holds it */
	t_tell(&w, t_task_sleep);
	check_held(base);
	t_tell(&w, t_task_map);
	w.snap = t_page_snap(w.page);
	CHECK(w.snap.p.epoch > s.p.epoch && w.snap.p.life == CSF_LIVE, "epoch %llu, life %d",
	      (unsigned long long)w.snap.p.epoch, w.snap.p.life);
	CHECK(csf_cyc_to_ns(&w.snap.p.hdr, t_sum(&w.snap.p)) < 90 * T_MS, "not from zero");
	CHECK(w.snap.p.seq >= s.p.seq, "the sequence count went from %u to %u", s.p.seq,
	      w.snap.p.seq);
	t_tell(&w, t_task_sleep);
	CHECK(t_page_snap(w.page).p.nr_block > w.snap.p.nr_block, "it does not count again");
	t_tell(&w, t_task_unmap);
	t_tell(&w, t_task_close);
	check_refs(base);
	t_worker_end(&w);
}

/* Paused, and then its owner ends without ever having opened it again. */
static void test_paused_to_the_end(void)
{
	int base = t_module_refs();
	struct t_worker w;

	t_worker_start(&w);
	t_tell(&w, t_task_open);
	t_close(w.fd);
	t_tell(&w, t_task_sleep);
	check_held(base);
	t_worker_end(&w);
	check_refs(base);
}

static void check_stays_loaded(const char *when)
{
	long ret = syscall(SYS_delete_module, "coarse_stat_fs", O_NONBLOCK);

	CHECK(ret == -1 && (errno == EWOULDBLOCK || errno == EBUSY), "rmmod %s: %s", when,
	      ret ? strerror(errno) : "accepted");
	CHECK(t_module_refs() > 0, "the module is gone, %s", when);
}

/* A paused object keeps the module even where nothing is mounted or open. */
static void test_rmmod(void)
{
	int base = t_module_refs();
	struct t_worker w;

	t_worker_start(&w);
	t_tell(&w, t_task_open);
	check_stays_loaded("while open");
	t_close(w.fd);
	t_tell(&w, t_task_sleep);
	if (umount2(CSF_MOUNT_POINT, 0)) {
		t_skip("umount: %s", strerror(errno));
		t_worker_end(&w);
		return;
	}
	check_stays_loaded("while paused and unmounted");
	if (mount("none", CSF_MOUNT_POINT, CSF_FS_NAME, 0, NULL))
		t_die("mount: %s", strerror(errno));
	t_worker_end(&w);
	check_refs(base);
}

/* The page of a thread that has ended says so, and stays as it was then. */
static void test_dead(void)
{
	int base = t_module_refs();
	struct csf_snap live, dead, later;
	struct t_worker w;

	t_worker_start(&w);
	t_tell(&w, t_task_map);
	live = t_page_snap(w.page);
	t_worker_end(&w);
	for (int i = 0; i < 1000 && t_page_snap(w.page).p.life != CSF_DEAD; i++)
		t_sleep_ns(T_MS);
	dead = t_page_snap(w.page);
	t_sleep_ns(20 * T_MS);
	later = t_page_snap(w.page);
	CHECK(dead.p.life == CSF_DEAD && !dead.extrapolated, "life %d", dead.p.life);
	CHECK(!memcmp(&dead.p, &later.p, sizeof(dead.p)), "a dead page changes");
	CHECK(dead.p.epoch == live.p.epoch && dead.p.tid == live.p.tid, "not the same page");
	CHECK(t_sum(&dead.p) - dead.p.last_switch_tsc ==
		      t_sum(&live.p) - (live.extrapolated ? live.tsc : live.p.last_switch_tsc),
	      "the buckets do not add up to the thread's life");
	t_unmap(w.page);
	check_held(base);
	t_close(w.fd);
	check_refs(base);
}

/* Task structures are used again: closing a dead thread's page must not touch its successor's. */
enum { STRANGERS = 24 };

static void test_strangers(void)
{
	int base = t_module_refs();
	struct t_worker dead[STRANGERS], heirs[STRANGERS];

	for (int i = 0; i < STRANGERS; i++) {
		t_worker_start(&dead[i]);
		t_tell(&dead[i], t_task_open);
	}
	for (int i = 0; i < STRANGERS; i++)
		t_worker_end(&dead[i]);
	t_sleep_ns(200 * T_MS); /* grace periods, until the structures are free */
	for (int i = 0; i < STRANGERS; i++) {
		t_worker_start(&heirs[i]);
		t_tell(&heirs[i], t_task_map);
	}
	for (int i = 0; i < STRANGERS; i++)
		t_close(dead[i].fd);
	for (int i = 0; i < STRANGERS; i++) {
		struct csf_snap s = t_page_snap(heirs[i].page);

		t_tell(&heirs[i], t_task_sleep);
		CHECK(t_page_snap(heirs[i].page).p.nr_block > s.p.nr_block,
		      "a living thread's page stands still");
		t_worker_end(&heirs[i]);
		t_unmap(heirs[i].page);
		t_close(heirs[i].fd);
	}
	check_refs(base);
}

/* A forked child shares the parent's descriptor: it sees the parent, and can close last. */
static void sharing_child(void *arg)
{
	int fd = *(int *)arg;
	const struct csf_thread_page *page = t_map(fd);
	struct csf_snap a = t_page_snap(page), b;

	CHECK(a.p.tid == (unsigned int)getppid(), "the page of %u, the parent is %d", a.p.tid,
	      getppid());
	t_sleep_ns(50 * T_MS); /* the parent closes it meanwhile */
	b = t_page_snap(page);
	CHECK(b.p.life == CSF_LIVE && b.p.nr_block > a.p.nr_block, "life %d", b.p.life);
	t_unmap(page);
	t_close(fd);
}

static void test_fork_shares(void)
{
	int base = t_module_refs(), fd = t_open_self();
	const struct csf_thread_page *page = t_map(fd);
	uint64_t epoch = page->epoch;
	pid_t pid = t_fork(sharing_child, &fd);

	t_unmap(page);
	t_close(fd);
	for (int i = 0; i < 20; i++)
		t_sleep_ns(T_MS);
	t_wait(pid);
	check_held(base); /* closed last by the child: paused */
	fd = t_open_self();
	page = t_map(fd);
	CHECK(page->epoch > epoch && page->life == CSF_LIVE, "not armed anew");
	t_unmap(page);
	t_close(fd);
	check_refs(base);
}

struct passing {
	int sockets[2];
	struct t_worker *w;
};

/* Gets the page of a thread in another process, and watches it to its end. */
static void receiver(void *arg)
{
	struct passing *p = arg;
	const struct csf_thread_page *page;
	int fd = t_receive_fd(p->sockets[1]);
	struct csf_snap a, b;

	if (!CHECK(fd >= 0, "no descriptor: %s", strerror(errno)))
		return;
	page = t_map(fd);
	a = t_page_snap(page);
	CHECK(a.p.tid == (unsigned int)p->w->tid, "the page of %u, not %d", a.p.tid, p->w->tid);
	t_sleep_ns(50 * T_MS);
	b = t_page_snap(page);
	CHECK(b.p.life == CSF_LIVE && b.p.nr_block > a.p.nr_block, "life %d", b.p.life);
	if (write(p->sockets[1], "x", 1) != 1)
		t_die("write: %s", strerror(errno));
	for (int i = 0; i < 2000 && t_page_snap(page).p.life != CSF_DEAD; i++)
		t_sleep_ns(T_MS);
	CHECK(t_page_snap(page).p.life == CSF_DEAD, "its owner has ended, the page has not");
}

static void test_passed(void)
{
	int base = t_module_refs();
	struct passing p;
	struct t_worker w;
	char byte;
	pid_t pid;

	t_worker_start(&w);
	t_tell(&w, t_task_open);
	p.w = &w;
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, p.sockets))
		t_die("socketpair: %s", strerror(errno));
	/* the child must not inherit it, only receive it */
	if (t_send_fd(p.sockets[0], w.fd))
		t_die("sendmsg: %s", strerror(errno));
	t_close(w.fd);
	pid = t_fork(receiver, &p);
	CHECK(read(p.sockets[0], &byte, 1) == 1, "the receiver says nothing");
	t_worker_end(&w);
	t_wait(pid);
	close(p.sockets[0]);
	close(p.sockets[1]);
	check_refs(base);
}

/* On its way when both ends are closed: nobody ever receives it. */
static void test_lost_in_flight(void)
{
	int base = t_module_refs(), sockets[2], fd = t_open_self();

	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) || t_send_fd(sockets[0], fd))
		t_die("socketpair: %s", strerror(errno));
	t_close(fd);
	check_held(base);
	close(sockets[0]);
	close(sockets[1]);
	check_refs(base);
}

/*
 * What this program is when executed: "executed" HOW FD EPOCH. The page of the program before,
 * which others may look at, has ended: this one may have privileges that they lack. Its own starts
 * from zero.
 */
static void executed(const char *how, int fd, uint64_t epoch)
{
	int inherited = fcntl(fd, F_GETFD) != -1;
	const struct csf_thread_page *old = inherited ? t_map(fd) : NULL, *page;
	unsigned long long blocks;
	struct csf_snap a, b;

	CHECK(inherited == !strcmp(how, "inherited"), "inherited: %d", inherited);
	t_sleep_ns(2 * T_MS);
	a = t_page_snap(page = t_map(t_open_self()));
	CHECK(a.p.epoch > epoch, "epoch %llu again", (unsigned long long)a.p.epoch);
	CHECK(a.p.nr_block < 10, "not from zero: %llu blocks", (unsigned long long)a.p.nr_block);
	t_sleep_ns(2 * T_MS);
	b = t_page_snap(page);
	CHECK(b.p.life == CSF_LIVE && b.p.nr_block > a.p.nr_block, "life %d", b.p.life);
	CHECK(b.p.tid == (unsigned int)getpid(), "tid %u of process %d", b.p.tid, getpid());
	if (!old)
		return;
	b = t_page_snap(old);
	CHECK(b.p.life == CSF_DEAD && b.p.epoch == epoch, "the old page: life %d, epoch %llu",
	      b.p.life, (unsigned long long)b.p.epoch);
	/*
	 * execve() itself waits, for the file and for other threads to end; then nothing is added
	 */
	blocks = b.p.nr_block;
	t_sleep_ns(2 * T_MS);
	b = t_page_snap(old);
	CHECK(blocks >= 30 && b.p.nr_block == blocks, "the old page has %llu blocks, then %llu",
	      blocks, (unsigned long long)b.p.nr_block);
}

static int executed_main(char **argv)
{
	TEST(argv[2]) {
		executed(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 10));
		if (t_.now->failed)
			t_note("executed: %s", t_.now->why);
		_exit(t_.now->failed);
	}
	return 1;
}

static void execute(const char *how, int cloexec)
{
	int fd = open(CSF_THREAD_PATH, O_RDONLY | (cloexec ? O_CLOEXEC : 0));
	const struct csf_thread_page *page = t_map(fd);
	char fd_text[16], epoch[32];

	while (t_page_snap(page).p.nr_block < 30)
		t_sleep_ns(10000);
	snprintf(fd_text, sizeof(fd_text), "%d", fd);
	snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)page->epoch);
	execl(self, self, "executed", how, fd_text, epoch, (char *)NULL);
	t_die("%s: %s", self, strerror(errno));
}

static void exec_cloexec(void *arg)
{
	(void)arg;
	execute("cloexec", 1);
}

static void exec_inherit(void *arg)
{
	(void)arg;
	execute("inherited", 0);
}

static void *exec_thread(void *arg)
{
	(void)arg;
	CHECK(t_gettid() != getpid(), "this is the leader");
	execute("inherited", 0);
	return NULL;
}

/* The leader, with a page of its own, ends; the thread takes its place and tid. */
static void exec_in_thread(void *arg)
{
	(void)arg;
	t_map(t_open_self());
	t_join(t_go(exec_thread, NULL));
}

static void test_exec(void (*child)(void *))
{
	int base = t_module_refs();

	t_in_child(child, NULL);
	check_refs(base);
}

/* A page that its owner's switches rewrite all the time, as others read it: never a mix of two. */
struct hammer {
	int stop;
	const struct csf_thread_page *page;
};

static void *hammered(void *arg)
{
	struct hammer *h = arg;
	int fd = t_open_self(), cpus = t_cpus();

	__atomic_store_n(&h->page, t_map(fd), __ATOMIC_RELEASE);
	for (int i = 0; !__atomic_load_n(&h->stop, __ATOMIC_ACQUIRE); i++) {
		if (i % 16 == 0)
			t_pin(i / 16 % cpus);
		t_sleep_ns(1);
	}
	t_close(fd);
	return NULL;
}

/* Whatever the moment, the buckets add up to the time since the page was armed: @armed. */
static void check_copy(const struct csf_snap *s, uint64_t *armed)
{
	uint64_t as_of = s->extrapolated ? s->tsc : s->p.last_switch_tsc;

	if (!*armed)
		*armed = as_of - t_sum(&s->p);
	CHECK(as_of - t_sum(&s->p) == *armed, "a torn copy: %lld cycles off",
	      (long long)(as_of - t_sum(&s->p) - *armed));
	CHECK(!(s->p.seq & 1) && s->p.state < CSF_NR_BUCKETS && s->p.life == CSF_LIVE,
	      "seq %u state %d life %d", s->p.seq, s->p.state, s->p.life);
}

static void test_foreign_reader(void)
{
	unsigned long reads = 0, busy = 0, extrapolated = 0;
	uint64_t end = t_mono_ns() + 3 * T_SEC, armed = 0;
	struct hammer h = { 0 };
	pthread_t thread = t_go(hammered, &h);
	struct csf_snap s = { 0 };

	while (!__atomic_load_n(&h.page, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
	for (; t_mono_ns() < end || s.p.nr_switch_in < 500; reads++) {
		if (csf_page_snap(h.page, &s)) {
			CHECK(errno == EAGAIN, "csf_page_snap: %s", strerror(errno));
			busy++;
			continue;
		}
		extrapolated += (unsigned long)s.extrapolated;
		check_copy(&s, &armed);
	}
	__atomic_store_n(&h.stop, 1, __ATOMIC_RELEASE);
	t_join(thread);
	t_note("%lu copies over %llu switches, %lu extrapolated, %lu gave up", reads,
	       (unsigned long long)s.p.nr_switch_in, extrapolated, busy);
	t_unmap(h.page);
}

static void long_sleep(struct t_worker *w)
{
	(void)w;
	t_sleep_ns(500 * T_MS);
}

/* Another thread's page is extrapolated as its flags allow; the kind of sleep is in its state. */
static void test_asleep(void)
{
	struct csf_snap a, b;
	struct t_worker w;
	int may, must;

	t_worker_start(&w);
	t_tell(&w, t_task_map);
	w.task = long_sleep;
	__atomic_store_n(&w.busy, 1, __ATOMIC_RELEASE);
	t_sleep_ns(100 * T_MS);
	while (t_state_letter(w.tid) != 'S')
		t_sleep_ns(T_MS);
	t_sleep_ns(50 * T_MS);
	a = t_page_snap(w.page);
	t_sleep_ns(5 * T_MS);
	b = t_page_snap(w.page);
	may = !!(b.p.hdr.flags & CSF_F_TSC_CONSTANT);
	must = may && (b.p.hdr.flags & CSF_F_TSC_SYNCED);
	CHECK(a.p.state == CSF_SLEEP && b.p.seq == a.p.seq, "state %d of a sleeping thread",
	      a.p.state);
	CHECK(b.extrapolated ? may : !must, "extrapolated %d with flags %#x", b.extrapolated,
	      b.p.hdr.flags);
	CHECK(b.p.sleep_cyc - a.p.sleep_cyc == (b.extrapolated ? b.tsc - a.tsc : 0) ||
		      a.extrapolated != b.extrapolated,
	      "slept %lld cycles", (long long)(b.p.sleep_cyc - a.p.sleep_cyc));
	while (__atomic_load_n(&w.busy, __ATOMIC_ACQUIRE))
		t_sleep_ns(T_MS);
	t_tell(&w, t_task_unmap);
	t_tell(&w, t_task_close);
	t_worker_end(&w);
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 5 && !strcmp(argv[1], "executed"))
		return executed_main(argv);
	TEST("one object a thread")
		test_one_object();
	TEST("owner closes")
		test_owner_closes();
	TEST("stranger closes")
		pause_and_rearm(0);
	TEST("stranger unmaps")
		pause_and_rearm(1);
	TEST("paused to the end")
		test_paused_to_the_end();
	TEST("rmmod")
		test_rmmod();
	TEST("dead")
		test_dead();
	TEST("strangers")
		test_strangers();
	TEST("fork shares the descriptor")
		test_fork_shares();
	TEST("passed to another process")
		test_passed();
	TEST("lost in flight")
		test_lost_in_flight();
	TEST("exec with O_CLOEXEC")
		test_exec(exec_cloexec);
	TEST("exec without")
		test_exec(exec_inherit);
	TEST("exec in a thread")
		test_exec(exec_in_thread);
	TEST("another thread's copy")
		test_foreign_reader();
	TEST("asleep")
		test_asleep();
	return t_done("t_owner");
}
