// SPDX-License-Identifier: GPL-2.0
/* csf cswitch: its counts are the kernel's, of tasks that stay and of those that come and go. */
#include "t_count.h"

static void *sleeps(void *arg)
{
	for (;;)
		t_sleep_ns((uint64_t)(uintptr_t)arg * T_MS / 4);
	return NULL;
}

static void *spins(void *arg)
{
	t_pin((int)(uintptr_t)arg);
	for (;;)
		t_work();
	return NULL;
}

static void *yields(void *arg)
{
	for (;;)
		sched_yield();
	return arg;
}

/* Of every sort: they sleep, are preempted, give way. */
static void busy_process(void *arg)
{
	uintptr_t i;

	(void)arg;
	for (i = 1; i <= 8; i++)
		t_go(sleeps, (void *)i);
	for (i = 0; i < 3; i++)
		t_go(spins, (void *)(uintptr_t)0);
	t_go(yields, NULL);
	sleeps((void *)(uintptr_t)20);
}

struct counts {
	pid_t tid;
	unsigned long long voluntary, involuntary;
};

static int read_counts(pid_t pid, struct counts *counts)
{
	pid_t tids[T_MAX_THREADS];
	int n = t_threads(pid, tids), i;
	char text[8192];

	for (i = 0; i < n; i++) {
		t_thread_file(pid, tids[i], "status", text, sizeof(text));
		counts[i].tid = tids[i];
		counts[i].voluntary = t_number(text, "\nvoluntary_ctxt_switches:");
		counts[i].involuntary = t_number(text, "\nnonvoluntary_ctxt_switches:");
	}
	return n;
}

static void same(const struct t_csf *c, const struct counts *a, const struct counts *b)
{
	unsigned long long voluntary = t_csf_row(c, "tid", a->tid, "voluntary");
	unsigned long long involuntary = t_csf_row(c, "tid", a->tid, "involuntary");

	CHECK(b->voluntary - a->voluntary == voluntary,
	      "thread %d: %llu voluntary switches, /proc has %llu", a->tid, voluntary,
	      b->voluntary - a->voluntary);
	CHECK(b->involuntary - a->involuntary == involuntary,
	      "thread %d: %llu involuntary switches, /proc has %llu", a->tid, involuntary,
	      b->involuntary - a->involuntary);
}

/* Frozen at both edges, so that nothing moves while either looks. */
static void frozen(const char *options, unsigned int seconds)
{
	struct counts before[T_MAX_THREADS], after[T_MAX_THREADS];
	unsigned long long sum = 0;
	struct t_cgroup g;
	struct t_csf c;
	uint64_t began;
	char command[128];
	pid_t pid;
	int i, n;

	t_cgroup_make(&g);
	pid = t_child_in(&g, busy_process, NULL);
	t_wait_threads(pid, 13);
	t_cgroup_freeze(&g, 1);
	n = read_counts(pid, before);
	snprintf(command, sizeof(command), "cswitch %u -T --json%s", seconds, options);
	t_csf_start(&c, command);
	began = t_mono_ns(); /* a little later than the window */
	t_cgroup_freeze(&g, 0);
	t_sleep_ns((seconds - 3) * T_SEC);
	t_cgroup_freeze(&g, 1);
	CHECK(t_mono_ns() - began < (seconds - 1) * T_SEC, "freezing took until after the window");
	t_csf_finish(&c);
	CHECK(read_counts(pid, after) == n, "threads came or went");
	for (i = 0; i < n; i++) {
		same(&c, &before[i], &after[i]);
		sum += after[i].voluntary + after[i].involuntary - before[i].voluntary -
		       before[i].involuntary;
	}
	CHECK(n == 13 && sum > 1000, "%d threads made %llu switches: too few to tell", n, sum);
	t_note("%d threads, %llu switches, no difference", n, sum);
	t_cgroup_freeze(&g, 0);
	t_kill(pid);
	t_cgroup_remove(&g);
	t_csf_free(&c);
}

/* Sleeps and works, then ends. */
static void short_life(void *arg)
{
	uintptr_t n = (uintptr_t)arg, i;

	for (i = 0; i < n % 13; i++)
		t_sleep_ns(T_MS / 10);
	t_spin_ns((n % 5) * T_MS);
}

#define CHILDREN 100

static void same_as_wait4(const struct t_csf *c, pid_t pid, const struct rusage *ru)
{
	unsigned long long voluntary = t_csf_row(c, "pid", pid, "voluntary");
	unsigned long long involuntary = t_csf_row(c, "pid", pid, "involuntary");

	CHECK(voluntary == (unsigned long long)ru->ru_nvcsw &&
		      involuntary == (unsigned long long)ru->ru_nivcsw,
	      "child %d: %llu/%llu switches, wait4() says %ld/%ld", (int)pid, voluntary,
	      involuntary, ru->ru_nvcsw, ru->ru_nivcsw);
}

static void children(const char *options)
{
	unsigned long long unfinished, absent = 0;
	struct rusage ru[CHILDREN];
	pid_t pids[CHILDREN];
	struct t_awake awake;
	struct t_csf c;
	char command[64];
	int i, status;

	t_awake_start(&awake);
	snprintf(command, sizeof(command), "cswitch --json%s", options);
	t_csf_start(&c, command);
	for (i = 0; i < CHILDREN; i++)
		pids[i] = t_fork(short_life, (void *)(uintptr_t)i);
	for (i = 0; i < CHILDREN; i++) {
		t_let_end(pids[i]);
		if (wait4(pids[i], &status, 0, &ru[i]) != pids[i])
			t_die("wait4: %s", strerror(errno));
	}
	t_csf_stop(&c);
	unfinished = t_csf_complete(&c);
	for (i = 0; i < CHILDREN; i++) {
		if (t_csf_has_row(&c, "pid", pids[i]))
			same_as_wait4(&c, pids[i], &ru[i]);
		else
			absent++;
	}
	CHECK(absent <= unfinished, "%llu children are missing, %llu are said to be", absent,
	      unfinished);
	t_awake_stop(&awake);
	t_csf_free(&c);
}

struct becoming {
	int fd; /* to be read before; -1: at once */
	const char *naps; /* after it */
};

/* A thread takes the leader's place, TID and start time; the leader's switches are still the process's. */
static void *becomes_another(void *arg)
{
	const struct becoming *b = arg;
	char byte;
	int i;

	for (i = 0; i < 50; i++)
		t_sleep_ns(T_MS / 2);
	if (b->fd >= 0 && read(b->fd, &byte, 1) < 0)
		t_die("read: %s", strerror(errno));
	execl("/proc/self/exe", "t_cswitch", "--sleep", b->naps, (char *)NULL);
	t_die("execl: %s", strerror(errno));
	return arg;
}

static void exec_by_thread(void *arg)
{
	t_go(becomes_another, arg);
	t_go(sleeps, (void *)(uintptr_t)1);
	sleeps((void *)(uintptr_t)1);
}

static void exec_process(void)
{
	struct becoming at_once = { -1, "30" };
	unsigned long long total, least;
	struct t_awake awake;
	struct rusage ru;
	struct t_csf c;
	int status;
	pid_t pid;

	t_awake_start(&awake);
	t_csf_start(&c, "cswitch --json");
	pid = t_fork(exec_by_thread, &at_once);
	t_let_end(pid);
	wait4(pid, &status, 0, &ru);
	t_csf_stop(&c);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the child ended with %#x", status);
	total = t_csf_row(&c, "pid", pid, "voluntary") + t_csf_row(&c, "pid", pid, "involuntary");
	/* wait4() leaves out the last switch of the two that were no leaders in the end */
	least = (unsigned long long)ru.ru_nvcsw + (unsigned long long)ru.ru_nivcsw;
	CHECK(t_csf_complete(&c) || (total >= least && total <= least + 6),
	      "%llu switches, wait4() says %llu", total, least);
	t_awake_stop(&awake);
	t_csf_free(&c);
}

/* Whoever has the leader's TID now has not come into a cgroup: none is asked for. */
static void exec_alone(void)
{
	struct becoming later = { -1, "20000" };
	char text[64], name[32];
	struct t_csf c;
	int fds[2];
	pid_t pid;

	if (pipe(fds))
		t_die("pipe: %s", strerror(errno));
	later.fd = fds[0];
	pid = t_fork(exec_by_thread, &later);
	snprintf(text, sizeof(text), "cswitch --json -T -t %d", pid);
	t_csf_start(&c, text);
	if (write(fds[1], "", 1) != 1)
		t_die("write: %s", strerror(errno));
	snprintf(text, sizeof(text), "/proc/%d/comm", pid);
	do {
		t_sleep_ns(T_MS);
		t_read(text, name, sizeof(name));
	} while (strncmp(name, "exe", 3));
	kill(c.pid, SIGINT);
	t_sleep_ns(T_SEC);
	/* does not wait for the end of the first leader, which has another TID by now */
	t_csf_stop(&c);
	CHECK(strstr(c.text, "\"appeared\":1") && strstr(c.text, "\"moved\":0"), "%s", c.text);
	t_kill(pid);
	close(fds[0]);
	close(fds[1]);
	t_csf_free(&c);
}

static void *no_life(void *arg)
{
	return arg;
}

static void empty_process(void)
{
	pid_t pid = vfork();

	if (!pid)
		_exit(0);
	if (pid < 0)
		t_die("fork: %s", strerror(errno));
	waitpid(pid, NULL, 0);
}

struct herd {
	int processes, threads;
};

static void herd(void *arg)
{
	const struct herd *h = (const struct herd *)arg;
	int i;

	for (i = 0; i < h->threads; i++)
		t_join(t_go(no_life, NULL));
	for (i = 0; i < h->processes; i++)
		empty_process();
}

/* Each has at least the switch at its end. */
static void short_lived(const struct herd *h)
{
	unsigned long long tasks;
	struct t_awake awake;
	struct t_cgroup g;
	struct t_csf c;
	char command[256];

	t_limit(600);
	t_awake_start(&awake);
	t_cgroup_make(&g);
	snprintf(command, sizeof(command), "cswitch --json -T -n 1 -c %s", g.path);
	t_csf_start(&c, command);
	CHECK(!t_wait(t_child_in(&g, herd, (void *)h)), "the herd did not make it");
	t_csf_stop(&c);
	tasks = t_csf_number(&c, "nr_tasks") + t_csf_complete(&c);
	/* the mother came into the cgroup inside of the window and ended in it */
	CHECK(tasks == (unsigned long long)(h->processes + h->threads), "%llu tasks, not %d", tasks,
	      h->processes + h->threads);
	t_cgroup_remove(&g);
	t_awake_stop(&awake);
	t_csf_free(&c);
}

/* TIDs come round: several tasks have had each. */
static void wrap(void)
{
	const struct herd few = { 3000, 0 };
	char old[32];

	t_read("/proc/sys/kernel/pid_max", old, sizeof(old));
	if (t_write("/proc/sys/kernel/pid_max", "1200"))
		t_die("pid_max: %s", strerror(errno));
	short_lived(&few);
	t_write("/proc/sys/kernel/pid_max", old);
}

static void naps(void *arg)
{
	(void)arg;
	for (;;)
		t_sleep_ns(T_MS);
}

/* A task that goes to another cgroup lives on: nobody shall wait for its end, or speak of it. */
static void leaves_cgroup(void)
{
	uint64_t begin;
	struct t_cgroup g;
	struct t_csf c;
	char text[256];
	pid_t pid;

	t_cgroup_make(&g);
	pid = t_child_in(&g, naps, NULL);
	snprintf(text, sizeof(text), "cswitch --json -i 1 -c %s 3", g.path);
	t_csf_start(&c, text);
	begin = t_mono_ns();
	snprintf(text, sizeof(text), "%d", pid);
	t_cgroup_set(&g, "../cgroup.procs", text);
	t_csf_finish(&c);
	CHECK(t_mono_ns() - begin < 8 * T_SEC, "3 s took %llu ms",
	      (unsigned long long)(t_mono_ns() - begin) / T_MS);
	CHECK(strstr(c.text, "\"moved\":1") && !strstr(c.text, "\"unfinished\":1"), "%s", c.text);
	t_kill(pid);
	t_cgroup_remove(&g);
	t_csf_free(&c);
}

static void ask_in_namespace(void *arg)
{
	char dir[] = "/tmp/t_cswitch.XXXXXX", text[512] = "";
	FILE *f;

	(void)arg;
	if (!mkdtemp(dir) || unshare(CLONE_NEWCGROUP | CLONE_NEWNS) ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", dir, "cgroup2", 0, NULL))
		t_die("a cgroup namespace: %s", strerror(errno));
	snprintf(text, sizeof(text), "%s cswitch -c %s 1 2>&1", t_csf_path(), dir);
	f = popen(text, "r");
	if (!f)
		t_die("%s", strerror(errno));
	text[fread(text, 1, sizeof(text) - 1, f)] = 0;
	CHECK(pclose(f) == 1 << 8 && strstr(text, "a part of the cgroups"), "csf says: %s", text);
	umount(dir);
	rmdir(dir);
}

/* The depth of a cgroup below the root is not known there, so that none would be found in it. */
static void cgroup_namespace(void)
{
	struct t_cgroup g;

	t_cgroup_make(&g);
	CHECK(!t_wait(t_child_in(&g, ask_in_namespace, NULL)), "the child failed");
	t_cgroup_remove(&g);
}

static void ping_pong(void *arg)
{
	int a[2], b[2], i, n = (int)(uintptr_t)arg;
	char byte = 0;
	pid_t pid;

	if (pipe(a) || pipe(b))
		t_die("pipe: %s", strerror(errno));
	t_pin(0);
	pid = fork();
	for (i = 0; i < n; i++)
		if (pid ? write(a[1], &byte, 1) != 1 || read(b[0], &byte, 1) != 1 :
			  read(a[0], &byte, 1) != 1 || write(b[1], &byte, 1) != 1)
			t_die("pipe: %s", strerror(errno));
	if (!pid)
		_exit(0);
	t_wait(pid);
}

/* No program may run at a switch or a wakeup: all that run are few against 40,000 of those. */
static void nothing_runs(void)
{
	unsigned long long before, after;
	union bpf_attr stats = { 0 };
	int base = t_bpf_base("edge_"), fd;
	struct t_csf c;

	stats.enable_stats.type = BPF_STATS_RUN_TIME;
	fd = (int)t_bpf(BPF_ENABLE_STATS, &stats);
	if (fd < 0)
		t_die("the kernel does not count runs of BPF programs: %s", strerror(errno));
	t_csf_start(&c, "cswitch --json");
	CHECK(t_bpf_programs("edge_", &before) == base + 3, "there are %d programs, not 3 more",
	      t_bpf_count("edge_"));
	t_in_child(ping_pong, (void *)20000);
	t_bpf_programs("edge_", &after);
	CHECK(after - before < 4000, "programs ran %llu times", after - before);
	t_csf_stop(&c);
	CHECK(t_csf_number(&c, "voluntary") + t_csf_number(&c, "involuntary") >= 40000,
	      "the switches were not counted");
	t_note("%llu runs, %llu switches", after - before,
	       t_csf_number(&c, "voluntary") + t_csf_number(&c, "involuntary"));
	t_csf_free(&c);
	close(fd);
}

static void ends(int sig, const char *what, int base)
{
	struct t_csf c;

	t_csf_start(&c, sig ? "cswitch" : "cswitch 1");
	if (sig)
		kill(c.pid, sig);
	t_csf_wait(&c);
	if (sig != SIGKILL)
		CHECK(WIFEXITED(c.status) && !WEXITSTATUS(c.status) && strstr(c.text, "tasks="),
		      "%s: status %#x: %.100s", what, (unsigned int)c.status, c.text);
	t_bpf_settles("edge_", base, what);
	t_csf_free(&c);
}

static void leaves_nothing(void)
{
	int base = t_bpf_base("edge_");

	ends(0, "its time is over", base);
	ends(SIGINT, "SIGINT", base);
	ends(SIGTERM, "SIGTERM", base);
	ends(SIGHUP, "SIGHUP", base);
	ends(SIGKILL, "SIGKILL", base);
}

static void beside_proc(void)
{
	struct t_csf c;
	pid_t pid = t_fork(busy_process, NULL);

	t_csf_start(&c, "cswitch 3 -i 1 --json --verify");
	t_csf_finish(&c);
	CHECK(strstr(c.text, "\"outside\":0"), "%.200s", c.text);
	t_kill(pid);
	t_csf_free(&c);
}

/* What this program is when it is run by exec_by_thread(). */
static int sleep_and_end(int n)
{
	for (; n; n--)
		t_sleep_ns(T_MS / 2);
	return 0;
}

int main(int argc, char **argv)
{
	const struct herd many = { 20000, 80000 }, fewer = { 2000, 8000 };

	if (argc == 3 && !strcmp(argv[1], "--sleep"))
		return sleep_and_end(atoi(argv[2]));
	TEST("frozen at both edges: the same as /proc")
		frozen("", t_in_guest() ? 5 : 10);
	TEST("frozen, without BTF")
		frozen(" --no-btf", 5);
	TEST("children that ended: the same as wait4()")
		children("");
	TEST("execve() by a thread")
		exec_process();
	TEST("execve() by a thread, of which one TID is watched")
		exec_alone();
	TEST("beside /proc at every edge")
		beside_proc();
	TEST("out of the cgroup")
		leaves_cgroup();
	TEST("in a cgroup namespace")
		cgroup_namespace();
	TEST("nothing runs at a switch")
		nothing_runs();
	TEST("leaves nothing behind")
		leaves_nothing();
	TEST("many short lives")
		short_lived(t_in_guest() ? &fewer : &many);
	if (t_in_guest()) /* not on a machine that others use */
		TEST("TIDs that are used again")
			wrap();
	return t_done("t_cswitch");
}
