// SPDX-License-Identifier: GPL-2.0
/*
 * csf runqlat against what must be: arithmetic, and the kernel's own counters.
 *
 * Some virtual machines hide switches from tracers (they run old kernel text in some contexts).
 * Truths that need each switch are told in guests, whose kernels hide none.
 */
#include "t_csf.h"

#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>

static struct t_csf csf;

static int has_btf(void)
{
	return !access("/sys/kernel/btf/vmlinux", R_OK);
}

static char *text_of(char *buf, size_t size, long n)
{
	snprintf(buf, size, "%ld", n);
	return buf;
}

/* A way to watch, that sees the waits of a thread. */
enum kind { QUEUE = 1, STORAGE = 2, HASH = 4, NO_BTF = 8 };

static const struct way {
	const char *name;
	const char *from;
	const char *option;
	enum kind kind;
} ways[] = {
	{ "wakeup", "wakeup", NULL, STORAGE },
	{ "waking", "waking", NULL, STORAGE },
	{ "queue", "queue", NULL, QUEUE },
	{ "wakeup, hash", "wakeup", "--force-hash", HASH },
	{ "waking, hash", "waking", "--force-hash", HASH },
	{ "wakeup, no BTF", "wakeup", "--no-btf", NO_BTF },
	{ "waking, no BTF", "waking", "--no-btf", NO_BTF },
};

#define NR_WAYS (sizeof(ways) / sizeof(*ways))

static void start(const struct way *w, pid_t tid, const char *more)
{
	char number[16];
	const char *argv[] = { "csf",
			       "runqlat",
			       "--json",
			       "--from",
			       w->from,
			       "-t",
			       text_of(number, sizeof(number), tid),
			       w->option ? w->option : more,
			       w->option ? more : NULL,
			       NULL };

	t_csf_start_argv(&csf, 1, argv);
}

static void print_name(char *name, size_t size, const char *what, const struct way *w)
{
	snprintf(name, size, "%s: %s", what, w->name);
}

/* Without BTF nobody knows of a wait that is under way when the window begins. */
static double lost_at_first(const struct way *w)
{
	return w->kind == NO_BTF ? 0.2 : 0;
}

/* The first wait counts whole, also what of it was before the window of 2 s. */
static double before_window(void)
{
	return (double)t_json(&csf, "max_ns") / 2e9;
}

/* A wait may be lost because its end was. */
static int hidden(void)
{
	return !t_in_guest() &&
	       t_json(&csf, "unseen_start") + t_json(&csf, "unseen_end") + t_json(&csf, "stale");
}

/*
 * What part of its time a thread that spins waits. What it does not run, by the kernel's account, it
 * waits for: nothing else can become of its time.
 */
static double part_waited(const struct way *w, pid_t pid)
{
	struct t_schedstat before, after;
	uint64_t wall, waited;
	double part;

	start(w, pid, NULL);
	before = t_schedstat(pid);
	wall = t_mono_ns();
	t_sleep_ns(2 * T_SEC);
	after = t_schedstat(pid);
	wall = t_mono_ns() - wall;
	CHECK(!t_csf_stop(&csf), "exit status %d: %s", csf.status, csf.said);
	waited = t_json(&csf, "total_wait_ns") + t_json(&csf, "wait_ns");
	t_note("waited %.3f s, ran %.3f s of %.3f s", (double)waited / 1e9,
	       (double)(after.ran - before.ran) / 1e9, (double)wall / 1e9);
	part = (double)(waited + after.ran - before.ran) / (double)wall;
	CHECK((part > 0.9 - lost_at_first(w) || hidden()) && part < 1.1 + before_window(),
	      "waiting and running are %.3f of the time", part);
	return (double)waited / (double)wall;
}

static void spinners(const struct way *w)
{
	pid_t a = t_fork(t_spin, NULL), b = t_fork(t_spin, NULL);
	double part;

	t_sleep_ns(50 * T_MS);
	part = part_waited(w, a);
	t_kill(a);
	t_kill(b);
	CHECK(!t_in_guest() || (part > 0.3 && part < 0.7), "two on a CPU: each waits %.3f", part);
	CHECK(!t_json(&csf, "negative") && !t_json(&csf, "stale"), "discarded: %s", csf.text);
}

/* The longest time for which the rival had the CPU without leaving it. */
static uint64_t *stretch;

static long switched(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_nvcsw + ru.ru_nivcsw;
}

static void fifo_rival(void *arg)
{
	struct sched_param param = { .sched_priority = 1 };
	uint64_t begin, since, now;
	long switches;

	(void)arg;
	t_pin(0);
	if (sched_setscheduler(0, SCHED_FIFO, &param))
		_exit(77);
	begin = since = t_mono_ns();
	switches = switched();
	do {
		now = t_mono_ns();
		if (switched() != switches) {
			switches = switched();
			since = t_mono_ns();
		} else if (now - since > *stretch) {
			*stretch = now - since;
		}
	} while (now < begin + 400 * T_MS);
}

/* A rival of higher rank has the CPU in one piece: that piece is a wait. */
static void outranked(const struct way *w)
{
	pid_t spinner = t_fork(t_spin, NULL), rival;
	unsigned long long longest;
	int status;

	stretch = t_shared(sizeof(*stretch));
	t_sleep_ns(50 * T_MS);
	start(w, spinner, NULL);
	rival = t_fork(fifo_rival, NULL);
	waitpid(rival, &status, 0);
	t_sleep_ns(100 * T_MS);
	CHECK(!t_csf_stop(&csf), "exit status %d: %s", csf.status, csf.said);
	t_kill(spinner);
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		t_skip("no SCHED_FIFO here");
		return;
	}
	longest = t_json(&csf, "max_ns");
	if (longest < t_json(&csf, "wait_ns"))
		longest = t_json(&csf, "wait_ns"); /* others had the CPU after the rival */
	t_note("the longest wait is %.3f ms, for a stretch of %.3f", (double)longest / 1e6,
	       (double)*stretch / 1e6);
	CHECK(hidden() || longest + T_MS >= *stretch,
	      "the longest wait is %llu ns, but a rival had the CPU for %llu", longest,
	      (unsigned long long)*stretch);
}

/* Of nice 19 the weight is 15 of 1024 + 15. */
static void nice_spin(void *arg)
{
	if (nice(19) != 19)
		_exit(1);
	t_spin(arg);
}

static void outweighed(const struct way *w)
{
	pid_t light, heavy;
	double part;

	light = t_fork(nice_spin, NULL);
	heavy = t_fork(t_spin, NULL);
	t_sleep_ns(50 * T_MS);
	part = part_waited(w, light);
	t_kill(light);
	t_kill(heavy);
	CHECK(part > 0.5 || hidden(), "nice 19 waits %.3f of the time", part);
}

static char cgroup_root[32];

static const char *in_cgroup(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", cgroup_root, name);
	return path;
}

static int make_group(pid_t pid)
{
	char number[16];

	snprintf(cgroup_root, sizeof(cgroup_root), "/tmp/csf-t-XXXXXX");
	if (!mkdtemp(cgroup_root) || mount("cgroup2", cgroup_root, "cgroup2", 0, NULL) ||
	    t_write(in_cgroup("cgroup.subtree_control"), "+cpu") ||
	    (mkdir(in_cgroup("t_runqlat"), 0700) && errno != EEXIST) ||
	    t_write(in_cgroup("t_runqlat/cpu.max"), "20000 100000"))
		return -1;
	snprintf(number, sizeof(number), "%d", pid);
	return t_write(in_cgroup("t_runqlat/cgroup.procs"), number);
}

/* A quota of 20 ms in 100: the other 80 are waiting. */
static void throttled(const struct way *w)
{
	pid_t pid = t_fork(t_spin, NULL);
	double part = 0;
	int made = make_group(pid);

	if (!made)
		part = part_waited(w, pid);
	else
		t_skip("there is no cgroup of version 2 with quotas of CPU");
	t_kill(pid);
	rmdir(in_cgroup("t_runqlat"));
	umount(cgroup_root);
	rmdir(cgroup_root);
	if (made)
		return;
	t_note("a quota of 0.2 waits %.3f of the time", part);
	CHECK(part > 0.7 && part < 0.9, "a quota of 0.2 waits %.3f of the time: %s", part,
	      csf.text);
}

/* Sleeps, is preempted, wakes others, gets signals and moves: whatever a thread can go through. */

static void on_signal(int sig)
{
	(void)sig;
}

static void storm(void *arg)
{
	uint64_t random = (uint64_t)(uintptr_t)arg;
	int cpus = t_cpus(), fds[2];
	char byte = 0;

	signal(SIGUSR1, on_signal);
	if (pipe2(fds, O_NONBLOCK))
		_exit(1);
	for (;;) {
		switch (t_random(&random) % 8) {
		case 0:
			t_sleep_ns(t_random(&random) % 2000000);
			break;
		case 1:
			sched_yield();
			break;
		case 2:
			t_pin((int)(t_random(&random) % (unsigned int)cpus));
			break;
		case 3:
			raise(SIGUSR1);
			break;
		case 4:
			if (write(fds[1], &byte, 1) != 1 || read(fds[0], &byte, 1) != 1)
				_exit(1);
			break;
		default:
			t_spin_wall_ns(t_random(&random) % 1000000);
		}
	}
}

/* Signals that come while it goes to sleep, and a change of its CPUs while it waits. */
static void pester(pid_t pid, uint64_t ns)
{
	uint64_t end_ns = t_mono_ns() + ns, random = 1;
	cpu_set_t set;

	while (t_mono_ns() < end_ns) {
		kill(pid, SIGUSR1);
		CPU_ZERO(&set);
		CPU_SET((int)(t_random(&random) % (unsigned int)t_cpus()), &set);
		sched_setaffinity(pid, sizeof(set), &set);
		t_sleep_ns(t_random(&random) % 1000000);
	}
}

struct rivals {
	pid_t pid[4];
	int n;
};

static void rivals_start(struct rivals *r)
{
	for (r->n = 0; r->n < 4; r->n++)
		r->pid[r->n] = t_fork(storm, (void *)(uintptr_t)(100 + r->n));
}

static void rivals_end(struct rivals *r)
{
	while (r->n)
		t_kill(r->pid[--r->n]);
}

/* Frozen at both edges, so that the kernel's counters are those of the window. */
static void stormy(const struct way *w, struct t_schedstat *grown, unsigned long long *switches)
{
	pid_t pid = t_fork(storm, (void *)7);
	struct t_schedstat before, after;
	struct rivals rivals;

	rivals_start(&rivals);
	t_sleep_ns(50 * T_MS);
	t_freeze(pid);
	start(w, pid, NULL);
	before = t_schedstat(pid);
	*switches = t_switches(pid);
	kill(pid, SIGCONT);
	pester(pid, 3 * T_SEC);
	t_freeze(pid);
	CHECK(!t_csf_stop(&csf), "exit status %d: %s", csf.status, csf.said);
	after = t_schedstat(pid);
	*switches = t_switches(pid) - *switches;
	grown->waited = after.waited - before.waited;
	grown->times = after.times - before.times;
	kill(pid, SIGCONT);
	t_kill(pid);
	rivals_end(&rivals);
	t_note("%llu samples, %llu switches, pcount +%llu; %.3f ms waited, run_delay +%.3f ms",
	       t_json(&csf, "samples"), *switches, grown->times,
	       (double)t_json(&csf, "total_wait_ns") / 1e6, (double)grown->waited / 1e6);
}

static void storm_by_queue(const struct way *w)
{
	struct t_schedstat grown;
	unsigned long long switches, ended, moved;
	double off;

	stormy(w, &grown, &switches);
	ended = t_json(&csf, "total_wait_ns");
	moved = t_json(&csf, "ended_by_migration_ns");
	t_note("%.3f ms ended by migration", (double)moved / 1e6);
	off = (double)(ended + moved) - (double)grown.waited;
	CHECK(off <= (double)grown.waited / 1000 && -off <= (double)grown.waited / 1000,
	      "%llu and %llu are not %llu", ended, moved, grown.waited);
	CHECK(ended <= grown.waited, "%llu is more than the kernel's %llu", ended, grown.waited);
	CHECK(!t_in_guest() || !t_json(&csf, "not_shown"), "%llu switches were not shown",
	      t_json(&csf, "not_shown"));
}

/*
 * A thread that leaves a CPU comes back by one wait: as many samples as switches, to the last one. The
 * records of some kernels say that it sleeps when a signal has just kept it from that.
 */
static void storm_by_wakeup(const struct way *w)
{
	struct t_schedstat grown;
	unsigned long long switches, samples, unseen, discarded;

	stormy(w, &grown, &switches);
	samples = t_json(&csf, "samples");
	unseen = t_json(&csf, "unseen_start");
	discarded = t_json(&csf, "negative") + unseen;
	CHECK(!t_json(&csf, "stale") || !t_in_guest(), "stale: %s", csf.text);
	CHECK(!t_in_guest() || samples + discarded == switches,
	      "%llu samples, but it left a CPU %llu times: %.300s", samples, switches,
	      t_discarded(&csf));
	CHECK(!t_in_guest() || unseen <= (w->kind == NO_BTF ? switches / 100 : 0),
	      "%llu waits not seen to begin", unseen);
	CHECK(samples <= switches + 1, "%llu samples, but it left a CPU %llu times", samples,
	      switches);
	/* clocks of CPUs between which it moved differ, and a guest's CPU stops where it likes */
	CHECK(!t_in_guest() || t_json(&csf, "total_wait_ns") >= grown.waited / 10 * 9,
	      "%llu ns waited, less than run_delay's %llu", t_json(&csf, "total_wait_ns"),
	      grown.waited);
}

/* It compares itself with the kernel: to the nanosecond, if all switches are shown. */
static void verified(const struct way *w)
{
	pid_t a = t_fork(t_spin, NULL), b = t_fork(t_spin, NULL);
	unsigned long long outside, not_shown;

	start(w, a, "--verify");
	t_sleep_ns(T_SEC);
	t_csf_stop(&csf);
	t_kill(a);
	t_kill(b);
	outside = t_json(&csf, "outside");
	not_shown = t_json(&csf, "not_shown");
	CHECK(csf.status == (outside ? 1 : 0), "exit status %d, %llu outside", csf.status, outside);
	CHECK(!outside || (not_shown && !t_in_guest()), "outside: %s", csf.text);
	CHECK(t_json(&csf, "run_delay_ns") > 100 * T_MS, "nobody was compared: %s", csf.text);
}

#define SLEEPERS 1500
#define LEAVERS 400

static struct crowd {
	pthread_barrier_t ready;
	atomic_int leave;
} * crowd;

/* The later it is born, the more often it has waited. */
static void *sleeper(void *arg)
{
	long number = (long)arg, i;

	for (i = 0; i < number / LEAVERS * 30; i++)
		t_sleep_ns(T_MS);
	pthread_barrier_wait(&crowd->ready);
	while (number >= LEAVERS || !crowd->leave)
		t_sleep_ns(number < LEAVERS ? 10 * T_MS : T_SEC * 1000);
	return NULL;
}

static void sleepers(void *arg)
{
	long i;

	(void)arg;
	for (i = 0; i < SLEEPERS; i++)
		t_go(sleeper, (void *)i);
	pthread_barrier_wait(&crowd->ready);
	pause();
}

/*
 * More tasks than a walk prints at a time: all but some sleep, and have the counts they had. Those
 * leave, so that the walk comes to the others earlier.
 */
static void many(const struct way *w)
{
	pthread_barrierattr_t shared;
	long long not_shown;
	char number[16];
	pid_t pid;

	(void)w;
	crowd = t_shared(sizeof(*crowd));
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&crowd->ready, &shared, SLEEPERS + 2);
	pid = t_fork(sleepers, NULL);
	pthread_barrier_wait(&crowd->ready);
	t_sleep_ns(500 * T_MS);
	t_csf_start(&csf, "runqlat", "--json", "--from", "queue", "--verify", "-p",
		    text_of(number, sizeof(number), pid));
	crowd->leave = 1;
	t_sleep_ns(500 * T_MS);
	t_csf_stop(&csf);
	t_kill(pid);
	not_shown = (long long)t_json(&csf, "not_shown");
	CHECK(not_shown > -30 && not_shown < 30, "%lld switches were not shown", not_shown);
}

static void each_way(const char *what, void (*fn)(const struct way *), unsigned int kinds)
{
	char name[128];
	size_t i;

	for (i = 0; i < NR_WAYS; i++) {
		if (!(ways[i].kind & kinds))
			continue;
		print_name(name, sizeof(name), what, &ways[i]);
		TEST(name) {
			if (ways[i].kind != NO_BTF && !has_btf()) {
				t_skip("this kernel has no BTF");
				continue;
			}
			fn(&ways[i]);
		}
	}
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	each_way("spinners", spinners, QUEUE | STORAGE | HASH | NO_BTF);
	/* where a wait is kept makes no difference to these */
	each_way("outranked", outranked, QUEUE | STORAGE | NO_BTF);
	each_way("throttled", throttled, QUEUE | STORAGE | NO_BTF);
	/* the wait may last as long as the window, and be under way when that begins */
	each_way("outweighed", outweighed, QUEUE | STORAGE);
	each_way("verified", verified, QUEUE);
	each_way("many threads", many, QUEUE);
	each_way("storm", storm_by_queue, QUEUE);
	each_way("storm", storm_by_wakeup, STORAGE | HASH | NO_BTF);
	return t_done("t_runqlat");
}
