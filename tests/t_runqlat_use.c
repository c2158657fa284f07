// SPDX-License-Identifier: GPL-2.0
/*
 * csf runqlat as its users call it: what it prints, how it ends, and what it leaves behind:
 * nothing.
 */
#include "t_csf.h"

#include <linux/bpf.h>
#include <sys/mount.h>

static struct t_csf csf;

/* What does its best with or without BTF. */
static const char *best(void)
{
	return access("/sys/kernel/btf/vmlinux", R_OK) ? "--ns" : "--stats";
}

static const char *last_line(const char *text)
{
	size_t len = strlen(text);

	if (len < 2 || text[len - 1] != '\n')
		return "";
	for (len -= 2; len && text[len] != '\n'; len--)
		;
	return text + len + (text[len] == '\n');
}

/* "      16 -> 31       : 63       |********": slot i is [2^i, 2^(i+1)), slot 0 [0, 2). */
static unsigned long long sum_of_rows(const char *text)
{
	unsigned long long lo, hi, count, sum = 0;
	char bar;

	for (; text; text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL) {
		if (sscanf(text, "%llu -> %llu : %llu %c", &lo, &hi, &count, &bar) != 4)
			continue;
		CHECK(bar == '|', "no bar: %.60s", text);
		CHECK(hi == (lo ? 2 * lo - 1 : 1) && !(lo & (lo - 1)), "a slot of %llu to %llu", lo,
		      hi);
		sum += count;
	}
	return sum;
}

static void shape(void)
{
	unsigned long long samples;
	double total, average;
	char rest[8] = "";

	CHECK(!t_csf(&csf, "runqlat", "1"), "exit status %d: %s", csf.status, csf.said);
	CHECK(!strncmp(csf.text, "usecs                count", 26), "it begins: %.60s", csf.text);
	CHECK(sscanf(last_line(csf.text), "samples=%llu total_wait=%lf ms avg=%lf us%7c", &samples,
		     &total, &average, rest) == 4 &&
		      rest[0] == '\n',
	      "it ends: %s", last_line(csf.text));
	CHECK(samples && sum_of_rows(csf.text) == samples, "rows of %llu, samples %llu",
	      sum_of_rows(csf.text), samples);
	CHECK(strstr(csf.text, "\np50=") && strstr(csf.text, " p90=") &&
		      strstr(csf.text, " p99=") && strstr(csf.text, " p99.9=") &&
		      strstr(csf.text, " max="),
	      "no percentiles: %s", csf.text);
	CHECK(!t_csf(&csf, "runqlat", "1", "-m") && !strncmp(csf.text, "msecs", 5), "-m");
	CHECK(!t_csf(&csf, "runqlat", "1", "--ns") && !strncmp(csf.text, "nsecs", 5), "--ns");
}

static void signals(void)
{
	static const int all[] = { SIGINT, SIGTERM, SIGHUP };
	size_t i;

	for (i = 0; i < 3; i++) {
		t_csf_start(&csf, "runqlat");
		t_sleep_ns(300 * T_MS);
		kill(csf.pid, all[i]);
		CHECK(!t_csf_end(&csf), "signal %d: exit status %d: %s", all[i], csf.status,
		      csf.said);
		CHECK(!strncmp(last_line(csf.text), "samples=", 8), "signal %d: it prints %s",
		      all[i], csf.text);
	}
}

static void windows(void)
{
	const char *at;
	int n = 0;

	CHECK(!t_csf(&csf, "runqlat", "--json", "-i", "1", "3"), "exit status %d", csf.status);
	for (at = csf.text; (at = strstr(at, "{\"tool\":\"runqlat\"")); at++)
		n++;
	CHECK(n == 3, "%d windows: %s", n, csf.text);
}

static void usage(void)
{
	CHECK(t_csf(&csf, "runqlat", "x") == 2, "SECONDS: %d", csf.status);
	CHECK(t_csf(&csf, "runqlat", "0") == 2, "SECONDS of 0: %d", csf.status);
	CHECK(t_csf(&csf, "runqlat", "1", "1", "1") == 2, "an argument too many: %d", csf.status);
	CHECK(t_csf(&csf, "runqlat", "--from", "here", "1") == 2, "--from: %d", csf.status);
	CHECK(t_csf(&csf, "runqlat", "--over", "-1", "1") == 2, "--over: %d", csf.status);
	CHECK(t_csf(&csf, "runqlat", "-P", "-L", "1") == 2, "-P -L: %d", csf.status);
	CHECK(t_csf(&csf, "runqlat", "-P", "--verify", "1") == 2, "-P --verify: %d", csf.status);
	CHECK(!csf.text[0] && csf.said[0], "on stdout: %s", csf.text);
	CHECK(t_csf(&csf, "runqlat", "--comm", "", "1") == 2 && strstr(csf.said, "empty"),
	      "no name: %d: %s", csf.status, csf.said);
	CHECK(t_csf(&csf, "runqlat", "--comm", "0123456789abcdef", "1") == 2 &&
		      strstr(csf.said, "16 bytes") && !csf.text[0],
	      "a long name: %d: %s", csf.status, csf.said);
	if (strcmp(best(), "--ns"))
		CHECK(!t_csf(&csf, "runqlat", "--comm", "0123456789abcde", "1"), "15: %s",
		      csf.said);
}

static void vanished(void)
{
	pid_t pid = t_fork(t_spin, NULL);
	char number[16];

	snprintf(number, sizeof(number), "%d", pid);
	if (strcmp(best(), "--ns")) {
		t_csf_start(&csf, "runqlat", "-p", number);
		t_kill(pid);
		CHECK(!t_csf_end(&csf), "exit status %d", csf.status);
		CHECK(strstr(csf.said, "has ended"), "it says: %s", csf.said);
		CHECK(!strncmp(last_line(csf.text), "samples=", 8), "it prints %s", csf.text);
	} else {
		t_kill(pid);
	}
	CHECK(t_csf(&csf, "runqlat", "-t", number, "1") == 1, "exit status %d", csf.status);
	CHECK(strstr(csf.said, "there is no thread"), "it says: %s", csf.said);
}

struct process {
	pid_t pid;
	FILE *err;
};

static struct process start_with_stdout(int fd, const char *over)
{
	struct process p = { 0, tmpfile() };

	if (!p.err)
		t_die("%s", strerror(errno));
	fflush(stdout);
	p.pid = fork();
	if (!p.pid) {
		signal(SIGPIPE, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fd, STDOUT_FILENO);
		dup2(fileno(p.err), STDERR_FILENO);
		execl(t_csf_path(), "csf", "runqlat", "1", over, NULL);
		_exit(127);
	}
	close(fd);
	return p;
}

static int end_with_stdout(struct process p)
{
	int status;

	waitpid(p.pid, &status, 0);
	rewind(p.err);
	csf.said[fread(csf.said, 1, sizeof(csf.said) - 1, p.err)] = 0;
	fclose(p.err);
	return status;
}

static int run_with_stdout(int fd)
{
	return end_with_stdout(start_with_stdout(fd, NULL));
}

/* A reader that does not read, as a pager that waits for a key, is no reason not to end. */
static void stuck_output(void)
{
	char some[4096] = { 0 };
	siginfo_t ended;
	struct process p;
	int fds[2], status;

	if (pipe2(fds, O_NONBLOCK))
		t_die("pipe");
	while (write(fds[1], some, sizeof(some)) > 0)
		;
	fcntl(fds[1], F_SETFL, 0);
	p = start_with_stdout(fds[1], NULL);
	t_sleep_ns(2500 * T_MS);
	CHECK(!waitpid(p.pid, &status, WNOHANG), "it did not wait for its reader");
	do {
		kill(p.pid, SIGTERM); /* the first one may find it watching, and end that */
		t_sleep_ns(500 * T_MS);
		ended.si_pid = 0;
		waitid(P_PID, (id_t)p.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
	} while (!ended.si_pid);
	status = end_with_stdout(p);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %#x", status);
	CHECK(strstr(csf.said, "samples="), "the report is lost: %s", csf.said);
	close(fds[0]);
}

static void lost_output(void)
{
	int fds[2], status = run_with_stdout(open("/dev/full", O_WRONLY));

	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1, "full disk: status %#x", status);
	CHECK(strstr(csf.said, "samples="), "the report is lost: %s", csf.said);
	if (pipe(fds))
		t_die("pipe");
	close(fds[0]);
	run_with_stdout(fds[1]);
	CHECK(!csf.said[0], "a closed pipe: it says %s", csf.said);
}

/* Ids of all BPF programs that are loaded. */
static int count_programs(void)
{
	union bpf_attr attr;
	int n = 0;

	memset(&attr, 0, sizeof(attr));
	while (!syscall(SYS_bpf, BPF_PROG_GET_NEXT_ID, &attr, sizeof(attr))) {
		attr.start_id = attr.next_id;
		n++;
	}
	return n;
}

static void nothing_left(void)
{
	int before = count_programs(), during, i;

	if (!t_in_guest()) {
		t_skip("others may load programs here");
		return;
	}
	t_csf_start(&csf, "runqlat");
	during = count_programs();
	t_csf_stop(&csf);
	for (i = 0; i < 100 && count_programs() > before; i++)
		t_sleep_ns(20 * T_MS);
	CHECK(during > before, "%d programs, %d while it watches", before, during);
	CHECK(count_programs() <= before, "%d programs, %d after", before, count_programs());
}

static int occurs(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)); text += strlen(what))
		n++;
	return n;
}

/* Who waits long because of whom, and when; never because of itself. */
static void over(void)
{
	pid_t a = t_fork(t_spin, NULL), b = t_fork(t_spin, NULL);
	unsigned long long from, to;
	char number[32];

	snprintf(number, sizeof(number), "%d", a);
	CHECK(!t_csf(&csf, "runqlat", "--json", "-t", number, "--over", "500", "1", best()),
	      "exit status %d: %s", csf.status, csf.said);
	t_kill(a);
	t_kill(b);
	CHECK(strstr(csf.text, "\"event\":\"wait\""), "no wait: %.300s", csf.text);
	from = t_json(&csf, "from_ns");
	to = t_json(&csf, "to_ns");
	CHECK(to > from + 500000 && to - from < T_SEC, "%llu to %llu", from, to);
	CHECK(t_json(&csf, "tid") == (unsigned long long)a, "of TID %llu, not %d",
	      t_json(&csf, "tid"), a);
	CHECK(to < t_mono_ns() && to > t_mono_ns() - 10 * T_SEC, "at %llu", to);
	snprintf(number, sizeof(number), "\"tid\":%d,", a);
	CHECK(occurs(csf.text, number) == occurs(csf.text, "\"event\":\"wait\""),
	      "it ran while it waited: %.300s", csf.text);
	snprintf(number, sizeof(number), "%d", b);
	CHECK(!t_in_guest() || strstr(csf.text, number), "%s did not run: %.300s", number,
	      csf.text);
}

/* Two tasks that wake each other as fast as they can. */
static void ping_pong(void *arg)
{
	int there[2], back[2];
	char byte = 0;
	pid_t pid;

	(void)arg;
	if (pipe(there) || pipe(back))
		t_die("pipe");
	pid = fork();
	close(pid ? there[0] : there[1]);
	close(pid ? back[1] : back[0]);
	for (;;)
		if (pid ? write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1 :
			  read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
			_exit(0);
}

/* More waits to show than can be printed: it ends all the same, and says what is missing. */
static void over_flood(void)
{
	pid_t a = t_fork(ping_pong, NULL), b = t_fork(ping_pong, NULL);
	uint64_t begin = t_mono_ns();
	int status;

	t_limit(60);
	status = end_with_stdout(start_with_stdout(open("/dev/null", O_WRONLY), "--over=1"));
	CHECK(!status, "status %#x: %s", status, csf.said);
	CHECK(t_mono_ns() - begin < 30 * T_SEC, "a window of 1 s took %llu ms",
	      (unsigned long long)(t_mono_ns() - begin) / T_MS);
	t_kill(a);
	t_kill(b);
}

static void odd_name(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "a\x1b[1m\n\xff\xc3");
	for (;;)
		t_sleep_ns(T_MS);
}

/* Anybody may choose a name: it shall not steer a terminal, or make JSON that cannot be read. */
static void names(void)
{
	pid_t pid = t_fork(odd_name, NULL);

	t_csf(&csf, "runqlat", "--json", "-L", "1");
	CHECK(strstr(csf.text, "\"comm\":\"a?[1m???\""), "it prints %s", csf.text);
	t_csf(&csf, "runqlat", "-L", "1");
	CHECK(strstr(csf.text, " a?[1m???\n"), "it prints %s", csf.text);
	t_kill(pid);
}

/* As make's children, which are called make until they execute a compiler; the last name counts, on any CPU. */
static void new_name(void *arg)
{
	int i;

	(void)arg;
	prctl(PR_SET_NAME, "name_before");
	for (i = 0; i < 20; i++) {
		t_pin(i < 10 ? 0 : t_cpus() - 1);
		t_sleep_ns(T_MS);
	}
	prctl(PR_SET_NAME, "name_after");
	t_pin(0);
	for (;;)
		t_sleep_ns(T_MS);
}

static void renamed(void)
{
	pid_t pid;

	t_csf_start(&csf, "runqlat", "--json", "-L");
	pid = t_fork(new_name, NULL);
	t_sleep_ns(500 * T_MS);
	t_csf_stop(&csf);
	t_kill(pid);
	CHECK(strstr(csf.text, "\"comm\":\"name_after\"") && !strstr(csf.text, "name_before"),
	      "it prints %s", csf.text);
}

static void breakdowns(void)
{
	static const char *const by[][2] = { { "-L", "threads" },
					     { "-P", "processes" },
					     { "--per-cpu", "cpus" },
					     { "--per-cgroup", "cgroups" } };
	char key[32];
	size_t i;

	for (i = 0; i < 4; i++) {
		if (!strcmp(best(), "--ns") && (i == 1 || i == 3))
			continue;
		snprintf(key, sizeof(key), "\"%s\":[{", by[i][1]);
		CHECK(!t_csf(&csf, "runqlat", "--json", by[i][0], "1"), "%s: exit status %d",
		      by[i][0], csf.status);
		CHECK(strstr(csf.text, key), "%s: %.300s", by[i][0], csf.text);
		CHECK(!t_json(&csf, "rows_full"), "%s: rows are full", by[i][0]);
	}
}

static void short_lives(void *arg)
{
	long n = (long)arg;

	while (n--) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		if (pid < 0 || waitpid(pid, NULL, 0) != pid)
			_exit(1);
	}
}

/*
 * Where each task has its entry in a hash, it goes with the task. A hash that is too small says so.
 */
static void crowd(const char *way, long n, const char *room)
{
	t_csf_start(&csf, "runqlat", "--json", way, "--max-tasks", room);
	t_limit(600);
	t_in_child(short_lives, (void *)n);
	CHECK(!t_csf_stop(&csf), "exit status %d: %s", csf.status, csf.said);
	CHECK(!t_json(&csf, "no_room"), "no room for %llu", t_json(&csf, "no_room"));
	CHECK(t_json(&csf, "samples") > (unsigned long long)n, "%llu samples",
	      t_json(&csf, "samples"));
	CHECK(!t_json(&csf, "negative"), "%llu negative", t_json(&csf, "negative"));
	t_csf_start(&csf, "runqlat", "--json", way, "--max-tasks", "2");
	t_in_child(short_lives, (void *)100);
	CHECK(!t_csf_stop(&csf), "exit status %d: %s", csf.status, csf.said);
	CHECK(t_json(&csf, "no_room"), "room for all in two entries: %s", csf.text);
}

/* A PID that comes again is another task: its waits do not begin in the life of the one before. */
static void wrapped(const char *way)
{
	char old[32];

	if (!t_in_guest()) {
		t_skip("pid_max is of the whole machine");
		return;
	}
	t_read("/proc/sys/kernel/pid_max", old, sizeof(old));
	CHECK(!t_write("/proc/sys/kernel/pid_max", "500"), "pid_max: %s", strerror(errno));
	t_csf_start(&csf, "runqlat", "--json", way);
	t_limit(600);
	t_in_child(short_lives, (void *)1000);
	t_csf_stop(&csf);
	t_write("/proc/sys/kernel/pid_max", old);
	CHECK(t_json(&csf, "samples") > 1000, "%llu samples", t_json(&csf, "samples"));
	CHECK(t_json(&csf, "max_ns") < 2 * T_SEC, "a wait of %llu ns", t_json(&csf, "max_ns"));
	CHECK(!t_json(&csf, "stale") && !t_json(&csf, "negative"), "discarded: %s", csf.text);
}

static void unplugged(const char *way)
{
	const char *online = "/sys/devices/system/cpu/cpu1/online";
	pid_t spinners[3];
	int i;

	if (!t_in_guest() || access(online, W_OK)) {
		t_skip("no CPU to unplug");
		return;
	}
	t_csf_start(&csf, "runqlat", "--json", way);
	t_limit(600);
	for (i = 0; i < 3; i++)
		spinners[i] = t_fork(short_lives, (void *)300);
	for (i = 0; i < 3; i++) {
		CHECK(!t_write(online, "0"), "offline: %s", strerror(errno));
		t_sleep_ns(200 * T_MS);
		CHECK(!t_write(online, "1"), "online: %s", strerror(errno));
	}
	for (i = 0; i < 3; i++)
		t_wait(spinners[i]);
	CHECK(!t_csf_stop(&csf), "exit status %d: %s", csf.status, csf.said);
	CHECK(t_json(&csf, "samples") > 900 && !t_json(&csf, "negative"), "%s", csf.text);
}

/* The kernel's PIDs are not those of a name space: better none than another task's numbers. */
static void init_of_namespace(void *arg)
{
	(void)arg;
	t_csf(&csf, "runqlat", "-t", "1", "1");
	CHECK(csf.status == 1 && strstr(csf.said, "namespace"), "exit status %d: %s", csf.status,
	      csf.said);
	t_csf(&csf, "runqlat", "1");
	CHECK(!csf.status && !strncmp(last_line(csf.text), "samples=", 8), "exit status %d: %s",
	      csf.status, csf.said);
	if (strcmp(best(), "--ns")) /* without BTF nobody visits tasks */
		CHECK(!strstr(csf.text, "open:"), "of tasks that it cannot see: %s", csf.text);
}

static void in_namespace(void *arg)
{
	(void)arg;
	CHECK(!unshare(CLONE_NEWPID), "unshare: %s", strerror(errno));
	t_in_child(init_of_namespace, NULL);
}

static void pid_namespace(void)
{
	t_in_child(in_namespace, NULL);
}

static void each_way(const char *name, void (*fn)(const char *))
{
	static const char *const ways[] = { "--from=wakeup", "--from=queue", "--force-hash",
					    "--no-btf" };
	char full[128];
	size_t i;

	for (i = 0; i < 4; i++) {
		snprintf(full, sizeof(full), "%s: %s", name, ways[i]);
		TEST(full) {
			if (i < 3 && !strcmp(best(), "--ns"))
				t_skip("this kernel has no BTF");
			else
				fn(ways[i]);
		}
	}
}

static void crowds(void)
{
	static const char *const ways[] = { "--force-hash", "--no-btf" };
	char name[64];
	size_t i;

	for (i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "many short lives: %s", ways[i]);
		TEST(name) {
			if (!i && !strcmp(best(), "--ns"))
				t_skip("this kernel has no BTF");
			else
				crowd(ways[i], t_in_guest() ? 900 : 6000,
				      t_in_guest() ? "500" :
						     "4000"); /* a host has tasks of its own */
		}
	}
}

#define SIMPLE(fn)    \
	TEST(#fn) {   \
		fn(); \
	}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	SIMPLE(shape)
	SIMPLE(signals)
	SIMPLE(windows)
	SIMPLE(usage)
	SIMPLE(vanished)
	SIMPLE(lost_output)
	SIMPLE(stuck_output)
	SIMPLE(nothing_left)
	SIMPLE(over)
	SIMPLE(over_flood)
	SIMPLE(names)
	SIMPLE(renamed)
	SIMPLE(breakdowns)
	SIMPLE(pid_namespace)
	crowds();
	each_way("PIDs come again", wrapped);
	each_way("a CPU is unplugged", unplugged);
	return t_done("t_runqlat_use");
}
