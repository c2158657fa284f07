// SPDX-License-Identifier: GPL-2.0
/* csf migrate: its counts are the kernel's, and the pairs of CPUs add up to them. */
#include "t_count.h"

#include <sys/utsname.h>

/* From CPU to CPU, by force; the scheduler may add moves of its own. */
static void *wanders(void *arg)
{
	int cpu, cpus = t_cpus();

	for (cpu = (int)(uintptr_t)arg;; cpu++) {
		t_pin(cpu % cpus);
		t_sleep_ns(T_MS);
	}
	return NULL;
}

static void *works(void *arg)
{
	for (;;) {
		t_spin_ns(2 * T_MS);
		t_sleep_ns((uint64_t)(uintptr_t)arg * T_MS);
	}
	return NULL;
}

static void busy_process(void *arg)
{
	uintptr_t i;

	(void)arg;
	for (i = 0; i < 4; i++)
		t_go(wanders, (void *)i);
	for (i = 1; i < 6; i++)
		t_go(works, (void *)i);
	works((void *)(uintptr_t)1);
}

/* They have no wish of their own. */
static void light_process(void *arg)
{
	uintptr_t i;

	(void)arg;
	for (i = 1; i < 8; i++)
		t_go(works, (void *)i);
	works((void *)(uintptr_t)1);
}

struct counts {
	pid_t tid;
	unsigned long long migrations;
};

static int read_counts(pid_t pid, struct counts *counts)
{
	pid_t tids[T_MAX_THREADS];
	int n = t_threads(pid, tids), i;
	char text[8192], *at;

	for (i = 0; i < n; i++) {
		t_thread_file(pid, tids[i], "sched", text, sizeof(text));
		at = strstr(text, "\nse.nr_migrations");
		at = at ? strchr(at, ':') : NULL;
		if (!at)
			t_die("no se.nr_migrations in %.60s", text);
		counts[i].tid = tids[i];
		counts[i].migrations = strtoull(at + 1, NULL, 10);
	}
	return n;
}

static unsigned long long sum_of_pairs(const struct t_csf *c)
{
	const char *at = strstr(c->text, "\"pairs\":[");
	unsigned long long sum = 0;

	while (at && (at = strstr(at, "\"count\":")))
		sum += strtoull(at += strlen("\"count\":"), NULL, 10);
	return sum;
}

/* Where there is a topology to know of, what crosses a cache is not more than all. */
static void topology_makes_sense(const struct t_csf *c, unsigned long long sum)
{
	CHECK(t_csf_number(c, "other_node") <= sum, "more moves across nodes than moves");
	if (!strstr(c->text, "\"other_cache\":null"))
		CHECK(t_csf_number(c, "other_cache") <= sum, "more moves across caches than moves");
}

/* Takes a CPU out and puts it back, again and again: all on it have to move. */
static void unplug(unsigned int seconds)
{
	uint64_t end = t_mono_ns() + seconds / 2 * T_SEC; /* each time takes long in some guests */

	while (t_mono_ns() < end) {
		if (t_write("/sys/devices/system/cpu/cpu1/online", "0"))
			t_die("cannot take out CPU 1: %s", strerror(errno));
		t_sleep_ns(200 * T_MS);
		t_write("/sys/devices/system/cpu/cpu1/online", "1");
		t_sleep_ns(200 * T_MS);
	}
}

static void let_run(unsigned int seconds)
{
	t_sleep_ns((seconds - 3) * T_SEC);
}

/* Read while frozen, before and after each edge. */
struct readings {
	struct counts before[2][T_MAX_THREADS], after[2][T_MAX_THREADS];
};

/*
 * A task that is frozen may still be queued for a while (6.12: delayed dequeue), and be moved. Where the
 * kernel's count stood still at both edges, and that is nearly everywhere, there is one value that is right.
 */
static void same(const struct t_csf *c, const struct readings *r, int i)
{
	unsigned long long ours = t_csf_row(c, "tid", r->after[0][i].tid, "migrations");
	unsigned long long least = r->after[0][i].migrations - r->before[1][i].migrations;
	unsigned long long most = r->after[1][i].migrations - r->before[0][i].migrations;

	CHECK(least <= ours && ours <= most, "thread %d: %llu migrations, /proc has %llu to %llu",
	      r->after[0][i].tid, ours, least, most);
}

static int moved_while_frozen(const struct readings *r, int i)
{
	return r->before[0][i].migrations != r->before[1][i].migrations ||
	       r->after[0][i].migrations != r->after[1][i].migrations;
}

/* All of them, but where a host's kernel hides some events from tracers, as some virtual machines do. */
static int pairs_make(const struct t_csf *c, unsigned long long sum)
{
	unsigned long long pairs = sum_of_pairs(c), hidden = t_in_guest() ? 0 : sum / 100;

	return pairs <= sum && pairs + hidden >= sum && t_csf_number(c, "moves") == pairs;
}

static void compare(const struct t_csf *c, const struct readings *r, int n)
{
	unsigned long long sum = 0;
	int i, moved = 0;

	for (i = 0; i < n; i++) {
		same(c, r, i);
		moved += moved_while_frozen(r, i);
		sum += r->after[0][i].migrations - r->before[0][i].migrations;
	}
	CHECK(sum > 10 || t_cpus() == 1, "%d threads, %llu migrations: too few to tell", n, sum);
	CHECK(moved || pairs_make(c, sum), "from CPU to CPU: %llu, but %llu migrations",
	      sum_of_pairs(c), sum);
	CHECK(moved <= 2, "%d of %d threads moved while they were frozen", moved, n);
	topology_makes_sense(c, sum);
	t_note("%d threads, %llu migrations, no difference; %d moved while frozen", n, sum, moved);
}

static void frozen(const char *options, unsigned int seconds, void (*process)(void *), int threads,
		   void (*meanwhile)(unsigned int seconds))
{
	static struct readings r;
	struct t_cgroup g;
	struct t_csf c;
	uint64_t began;
	char command[256];
	pid_t pid;

	t_cgroup_make(&g);
	pid = t_child_in(&g, process, NULL);
	t_wait_threads(pid, threads);
	t_cgroup_freeze(&g, 1);
	read_counts(pid, r.before[0]);
	snprintf(command, sizeof(command), "migrate %u -T --json -c %s%s", seconds, g.path,
		 options);
	t_csf_start(&c, command);
	began = t_mono_ns(); /* a little later than the window */
	read_counts(pid, r.before[1]);
	t_cgroup_freeze(&g, 0);
	meanwhile(seconds);
	t_cgroup_freeze(&g, 1);
	read_counts(pid, r.after[0]);
	CHECK(t_mono_ns() - began < (seconds - 1) * T_SEC, "freezing took until after the window");
	t_csf_finish(&c);
	t_csf_complete(&c);
	CHECK(read_counts(pid, r.after[1]) == threads, "threads came or went");
	compare(&c, &r, threads);
	t_cgroup_freeze(&g, 0);
	t_kill(pid);
	t_cgroup_remove(&g);
	t_csf_free(&c);
}

struct pair {
	int to[2], back[2];
	unsigned long long n;
};

static void wait_until_asleep(pid_t pid)
{
	while (t_state_letter(pid) != 'S')
		t_sleep_ns(T_MS / 10);
}

/* A child that sleeps is woken by each byte exactly once; with PREEMPT_RT also by those who held a lock. */
static void reader(void *arg)
{
	struct pair *p = (struct pair *)arg;
	char byte;

	t_pin(0);
	for (unsigned long long i = 0; i < p->n; i++)
		if (read(p->to[0], &byte, 1) != 1)
			t_die("read: %s", strerror(errno));
}

static pid_t start_reader(struct pair *p, unsigned long long n)
{
	if (pipe(p->to))
		t_die("pipe: %s", strerror(errno));
	p->n = n + 1; /* the last one is after the window */
	return t_fork(reader, p);
}

static unsigned long long voluntary(pid_t pid)
{
	char path[64], text[4096];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	t_read(path, text, sizeof(text));
	return t_number(text, "\nvoluntary_ctxt_switches:");
}

static void wakeups(const char *options)
{
	struct pair p;
	struct t_csf c;
	char byte = 0, command[128];
	const unsigned long long n = 1000;
	unsigned long long i, counted, blocks;
	struct utsname kernel;
	pid_t pid;

	uname(&kernel);
	t_pin(0);
	pid = start_reader(&p, n);
	wait_until_asleep(pid);
	blocks = voluntary(pid);
	snprintf(command, sizeof(command), "migrate --json -t %d%s", (int)pid, options);
	t_csf_start(&c, command);
	for (i = 0; i < n; i++) {
		wait_until_asleep(pid);
		if (write(p.to[1], &byte, 1) != 1)
			t_die("write: %s", strerror(errno));
	}
	wait_until_asleep(pid);
	t_csf_stop(&c);
	t_csf_complete(&c);
	blocks = voluntary(pid) - blocks;
	counted = t_csf_row(&c, "pid", pid, "wakeups");
	if (strstr(kernel.version, "PREEMPT_RT"))
		CHECK(counted >= blocks && counted <= blocks + n / 100,
		      "%llu wakeups of %llu blocks", counted, blocks);
	else
		CHECK(counted == n, "%llu wakeups, not %llu", counted, n);
	if (write(p.to[1], &byte, 1) != 1)
		t_die("write: %s", strerror(errno));
	t_wait(pid);
	t_unpin();
	t_csf_free(&c);
}

static void wanders_and_ends(void *arg)
{
	int cpus = t_cpus(), i;

	for (i = 0; i < (int)(uintptr_t)arg; i++)
		t_pin(i % cpus);
	t_pin(0);
	t_sleep_ns(2 * T_MS);
}

/* What a child did that has ended: as many forced moves as it made. */
static void ended(const char *options)
{
	unsigned long long moves, absent = 0, unfinished;
	struct t_awake awake;
	struct t_csf c;
	char command[64];
	pid_t pids[50];
	int i;

	t_awake_start(&awake);
	snprintf(command, sizeof(command), "migrate --json%s", options);
	t_csf_start(&c, command);
	for (i = 0; i < 50; i++) {
		pids[i] = t_fork(wanders_and_ends, (void *)(uintptr_t)(20 + 2 * i));
		t_wait(pids[i]);
	}
	t_csf_stop(&c);
	unfinished = t_csf_complete(&c);
	for (i = 0; i < 50; i++) {
		moves = t_csf_row(&c, "pid", pids[i], "migrations");
		absent += !t_csf_has_row(&c, "pid", pids[i]);
		/* one may be missing at its start, and more are the scheduler's */
		CHECK(!moves || t_cpus() == 1 || moves >= 18 + 2ull * (unsigned int)i,
		      "child %d: %llu migrations, not %d", i, moves, 20 + 2 * i);
	}
	CHECK(absent <= unfinished, "%llu children are missing, %llu are said to be", absent,
	      unfinished);
	t_awake_stop(&awake);
	t_csf_free(&c);
}

/* Too few counters: that must be said, and what was counted must be right. */
static void too_few_counters(void)
{
	struct t_csf c;

	t_csf_start(&c, "migrate 1 --json --force-hash --max-tasks 1");
	t_csf_finish(&c);
	CHECK(t_csf_number(&c, "uncounted") > 0, "nothing is said of missing counters: %.200s",
	      c.text);
	t_csf_free(&c);
}

static void beside_proc(void)
{
	pid_t pid = t_fork(busy_process, NULL);
	struct t_csf c;

	t_csf_start(&c, "migrate 3 -i 1 --json --verify");
	t_csf_finish(&c);
	CHECK(strstr(c.text, "\"outside\":0"), "%.200s", c.text);
	t_kill(pid);
	t_csf_free(&c);
}

static void leaves_nothing(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGKILL };
	int edges = t_bpf_base("edge_"), programs = t_bpf_base("migrate_");
	struct t_csf c;
	size_t i;

	for (i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		t_csf_start(&c, "migrate");
		CHECK(t_bpf_count("migrate_") == programs + 2, "%d programs, not %d",
		      t_bpf_count("migrate_"), programs + 2);
		kill(c.pid, signals[i]);
		t_csf_wait(&c);
		t_bpf_settles("edge_", edges, strsignal(signals[i]));
		t_bpf_settles("migrate_", programs, strsignal(signals[i]));
		t_csf_free(&c);
	}
}

int main(void)
{
	TEST("frozen at both edges: the same as /proc")
		frozen("", t_in_guest() ? 5 : 10, busy_process, 10, let_run);
	TEST("frozen, without task storage")
		frozen(" --force-hash", 5, busy_process, 10, let_run);
	if (t_in_guest()) /* not on a machine that others use */
		TEST("CPUs that come and go")
			frozen("", 7, light_process, 8, unplug);
	TEST("each wakeup counts once")
		wakeups("");
	TEST("each wakeup counts once, without task storage")
		wakeups(" --force-hash");
	TEST("children that ended")
		ended("");
	TEST("children that ended, without task storage")
		ended(" --force-hash");
	TEST("each wakeup counts once, without BTF")
		wakeups(" --no-btf");
	TEST("children that ended, without BTF")
		ended(" --no-btf");
	TEST("too few counters are told")
		too_few_counters();
	TEST("beside /proc at every edge")
		beside_proc();
	TEST("leaves nothing behind")
		leaves_nothing();
	return t_done("t_migrate");
}
