// SPDX-License-Identifier: GPL-2.0
/*
 * The cpu page: its rows against each other, against /proc/stat, and how often they are renewed.
 * Knows lib/ only.
 */
#include "t.h"

enum { MAX_CPUS = 256, FIELDS = 10 };

/* All rows, of one update: rows[0] is the sum, rows[1 + cpu] a CPU. */
struct rows {
	int n;
	struct csf_cpu_snap row[MAX_CPUS + 1];
};

/* The list "0-3,5" in a file under /sys/devices/system/cpu: 1 + the last CPU, and how many. */
static int cpu_list(const char *name, int *last)
{
	char path[64], buf[256], *at = buf;
	int n = 0;

	*last = 0;
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/%s", name);
	if (t_read(path, buf, sizeof(buf)) <= 0)
		t_die("%s: %s", path, strerror(errno));
	while (*at >= '0' && *at <= '9') {
		int from = (int)strtol(at, &at, 10), to = from;

		if (*at == '-')
			to = (int)strtol(at + 1, &at, 10);
		n += to - from + 1;
		*last = to + 1;
		if (*at == ',')
			at++;
	}
	return n;
}

/* The CPU that writes the page may be a virtual one that does not run: then try again later. */
static void cpu_snap(struct csf_cpu_snap *c, unsigned int cpu)
{
	int ret, tries = 0;

	while ((ret = csf_cpu_snap(c, cpu)) && errno == EAGAIN && tries++ < 100)
		t_sleep_ns(5 * T_MS);
	if (ret)
		t_die("csf_cpu_snap %d: %s", (int)cpu, strerror(errno));
}

/* Waits for an update that began after this moment. */
static void fresh_update(void)
{
	uint64_t now = t_mono_ns(), end = now + 10 * T_SEC;
	struct csf_cpu_snap c;

	do {
		cpu_snap(&c, CSF_CPU_ALL);
		if (c.update_mono_ns > now)
			return;
		t_sleep_ns(T_MS);
	} while (t_mono_ns() < end);
	t_die("no update in 10 s; the last is of %llu ns", (unsigned long long)c.update_mono_ns);
}

static void snap_rows(struct rows *r)
{
	int last, i, tries = 0;

	cpu_list("possible", &last);
	if (last < 1 || last > MAX_CPUS)
		t_die("%d CPUs", last);
	r->n = last + 1;
	do {
		for (i = 0; i < r->n; i++)
			cpu_snap(&r->row[i], (unsigned int)(i - 1));
		/* all of one update: the first has not changed since */
	} while (r->row[0].update_tsc != r->row[r->n - 1].update_tsc && tries++ < 1000);
	CHECK(tries < 1000, "an update came between in 1000 tries");
}

static uint64_t field(const struct csf_cpu_row *row, int i)
{
	const uint64_t fields[FIELDS] = {
		row->user_ns, row->nice_ns,    row->system_ns, row->idle_ns,  row->iowait_ns,
		row->irq_ns,  row->softirq_ns, row->steal_ns,  row->guest_ns, row->guest_nice_ns,
	};

	return fields[i];
}

static const char *const names[FIELDS] = { "user", "nice",    "system", "idle",	 "iowait",
					   "irq",  "softirq", "steal",	"guest", "guest_nice" };

static void test_layout(void)
{
	struct csf_cpu_snap c;
	struct rows r;
	int last, n = cpu_list("possible", &last);

	snap_rows(&r);
	CHECK(r.row[0].row.cpu == CSF_CPU_ALL, "row 0 is of CPU %u", r.row[0].row.cpu);
	for (int i = 1; i < r.n; i++)
		CHECK(r.row[i].row.cpu == (unsigned int)i - 1, "CPU %d's row is of CPU %u", i - 1,
		      r.row[i].row.cpu);
	t_note("%d possible CPUs, up to number %d", n, last - 1);
	errno = 0;
	CHECK(csf_cpu_snap(&c, (unsigned int)last + 1000) == -1 && errno == EINVAL,
	      "a CPU that cannot be: errno %d", errno);
	CHECK(!c.row.user_ns && !c.update_tsc, "a failed snapshot is not zeroed");
}

static void test_sums(void)
{
	struct rows r;

	for (int round = 0; round < 50; round++) {
		uint64_t sum[FIELDS] = { 0 }, irqs = 0, softirqs = 0;

		fresh_update();
		snap_rows(&r);
		for (int i = 1; i < r.n; i++) {
			for (int f = 0; f < FIELDS; f++)
				sum[f] += field(&r.row[i].row, f);
			irqs += r.row[i].row.irqs;
			softirqs += r.row[i].row.softirqs;
		}
		for (int f = 0; f < FIELDS; f++)
			CHECK(sum[f] == field(&r.row[0].row, f),
			      "%s: rows have %llu, their sum %llu", names[f],
			      (unsigned long long)sum[f],
			      (unsigned long long)field(&r.row[0].row, f));
		CHECK(irqs == r.row[0].row.irqs && softirqs == r.row[0].row.softirqs,
		      "irqs %llu, softirqs %llu in the rows", (unsigned long long)irqs,
		      (unsigned long long)softirqs);
	}
}

/* A line of /proc/stat as far as it is in the page; in ns. */
struct stat_line {
	int present;
	uint64_t ns[FIELDS];
};

struct proc_stat {
	struct stat_line line[MAX_CPUS + 1]; /* as struct rows has them */
	unsigned long long intr, softirq;
};

static void read_stat(struct proc_stat *s)
{
	static char buf[1 << 16];
	uint64_t tick = T_SEC / (uint64_t)sysconf(_SC_CLK_TCK);

	memset(s, 0, sizeof(*s));
	if (t_read("/proc/stat", buf, sizeof(buf)) < 0)
		t_die("/proc/stat: %s", strerror(errno));
	for (char *at = buf; !strncmp(at, "cpu", 3); at = strchr(at, '\n') + 1) {
		char *rest = at + 3;
		int cpu = *rest == ' ' ? -1 : (int)strtol(rest, &rest, 10);

		if (cpu >= MAX_CPUS)
			t_die("CPU %d", cpu);
		s->line[cpu + 1].present = 1;
		for (int f = 0; f < FIELDS; f++)
			s->line[cpu + 1].ns[f] = strtoull(rest, &rest, 10) * tick;
	}
	s->intr = t_number(buf, "\nintr");
	s->softirq = t_number(buf, "\nsoftirq");
}

/* Interrupts as /proc/interrupts has them, of devices that are still there. */
static unsigned long long device_interrupts(void)
{
	static char buf[1 << 16];
	unsigned long long sum = 0;
	int cpus = 0;

	t_read("/proc/interrupts", buf, sizeof(buf));
	for (char *at = strstr(buf, "CPU"); at && at < strchr(buf, '\n');
	     at = strstr(at + 3, "CPU"))
		cpus++;
	for (char *at = strchr(buf, '\n'); at && at[1]; at = strchr(at + 1, '\n')) {
		char *rest;
		long number = strtol(at + 1, &rest, 10);

		if (*rest != ':' || number < 0)
			continue; /* NMI and so on */
		rest++;
		for (int i = 0; i < cpus; i++)
			sum += strtoull(rest, &rest, 10);
	}
	return sum;
}

/*
 * The idle fields may step back by a little; everything else only grows, between the readings. The
 * sum may be one of CPUs' values that were rounded each.
 */
static void check_row(const struct csf_cpu_row *row, const struct stat_line *lo,
		      const struct stat_line *hi, int i)
{
	uint64_t tick = T_SEC / (uint64_t)sysconf(_SC_CLK_TCK);

	if (!lo->present || !hi->present)
		return;
	for (int f = 0; f < FIELDS; f++) {
		uint64_t slack = f == 3 || f == 4 ? 2 * tick : 0, now = field(row, f);

		if (row->cpu == CSF_CPU_ALL)
			slack += row->online * tick;
		CHECK(now + slack >= lo->ns[f] && now < hi->ns[f] + tick + slack,
		      "CPU %d %s: /proc/stat %llu, page %llu, /proc/stat %llu ns", i - 1, names[f],
		      (unsigned long long)lo->ns[f], (unsigned long long)now,
		      (unsigned long long)hi->ns[f]);
	}
}

/* Each value is between a reading of /proc/stat before the update and one after it. */
static void test_proc_stat(void)
{
	static struct proc_stat lo, hi;
	unsigned long long devices;
	struct csf_cpu_row *all;
	struct rows r;

	for (int round = 0; round < 30; round++) {
		t_spin_ns(3 * T_MS);
		devices = device_interrupts();
		read_stat(&lo);
		fresh_update();
		snap_rows(&r);
		read_stat(&hi);
		for (int i = 0; i < r.n; i++)
			check_row(&r.row[i].row, &lo.line[i], &hi.line[i], i);
		all = &r.row[0].row;
		CHECK(all->softirqs >= lo.softirq && all->softirqs <= hi.softirq,
		      "softirqs: %llu, page %llu, %llu", lo.softirq,
		      (unsigned long long)all->softirqs, hi.softirq);
		CHECK(all->irqs >= devices && all->irqs <= hi.intr,
		      "interrupts: of devices %llu, page %llu, with the architecture's %llu",
		      devices, (unsigned long long)all->irqs, hi.intr);
	}
}

/* A busy CPU's user time is that of who was busy there. */
static void test_busy(void)
{
	int cpu = t_cpus() - 1;
	struct csf_cpu_snap a, b;
	double user, cputime;

	t_pin(cpu);
	fresh_update();
	cpu_snap(&a, (unsigned int)cpu);
	cputime = (double)t_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	for (int i = 0; i < 200000 && t_clock_ns(CLOCK_THREAD_CPUTIME_ID) < cputime + 0.5e9; i++)
		for (int j = 0; j < 50; j++)
			t_work();
	cputime = ((double)t_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cputime) / 1e6;
	fresh_update();
	cpu_snap(&b, (unsigned int)cpu);
	t_unpin();
	user = (double)(b.row.user_ns - a.row.user_ns) / 1e6;
	t_note("%.1f ms of user time by %.1f ms of work", user, cputime);
	CHECK(user > cputime * (t_icount() ? 0.95 : 0.2), "user time %.1f ms of %.1f", user,
	      cputime);
	CHECK(user < (double)(b.update_mono_ns - a.update_mono_ns) / 1e6 + 10, "user time %.1f ms",
	      user);
}

/* How old the rows get. The default period is 10 ms. */
static void test_period(void)
{
	uint64_t start, last, age, worst = 0;
	struct csf_cpu_snap c;
	double period;
	int updates = 0;

	fresh_update();
	cpu_snap(&c, CSF_CPU_ALL);
	start = last = c.update_mono_ns;
	while (updates < 100) {
		t_sleep_ns(T_MS / 2);
		cpu_snap(&c, CSF_CPU_ALL);
		age = t_mono_ns() - c.update_mono_ns;
		worst = age > worst ? age : worst;
		updates += c.update_mono_ns != last;
		CHECK(c.update_mono_ns >= last, "an update %lld ns before the last",
		      (long long)(last - c.update_mono_ns));
		last = c.update_mono_ns;
	}
	period = (double)(last - start) / 1e6 / updates;
	t_note("an update every %.3f ms, at most %.3f ms old", period, (double)worst / 1e6);
	CHECK(period > (t_icount() ? 9.9 : 5) && period < (t_icount() ? 10.5 : 40),
	      "an update every %.3f ms", period);
	CHECK(worst < (t_icount() ? 12 : 500) * T_MS, "rows %.3f ms old", (double)worst / 1e6);
}

/* The two clocks of an update are of the same moment. */
static void test_update_clocks(void)
{
	struct csf_cpu_snap c[2];
	struct csf_snap s;
	double by_tsc, by_mono;

	t_snap(&s);
	for (int i = 0; i < 2; i++) {
		fresh_update();
		cpu_snap(&c[i], CSF_CPU_ALL);
		t_sleep_ns(i ? 0 : 500 * T_MS);
	}
	by_tsc = t_ms(&s, c[1].update_tsc - c[0].update_tsc);
	by_mono = (double)(c[1].update_mono_ns - c[0].update_mono_ns) / 1e6;
	t_note("%.3f ms by update_tsc, %.3f by update_mono_ns", by_tsc, by_mono);
	CHECK(by_tsc > by_mono * 0.98 - 1 && by_tsc < by_mono * 1.02 + 1, "%.3f ms and %.3f ms",
	      by_tsc, by_mono);
}

static int set_online(int cpu, int on)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online", cpu);
	return t_write(path, on ? "1" : "0");
}

/* A CPU that goes away keeps its row, and the sum loses nothing. */
static void test_offline(void)
{
	int cpu = t_cpus() - 1, last;
	struct rows before, without, after;

	snap_rows(&before);
	if (cpu == 0 || set_online(cpu, 0)) {
		t_skip("no CPU can be taken offline");
		return;
	}
	fresh_update();
	snap_rows(&without);
	CHECK(!without.row[cpu + 1].row.online, "CPU %d counts as online", cpu);
	CHECK(without.row[0].row.online == (unsigned int)cpu_list("online", &last),
	      "%u CPUs online", without.row[0].row.online);
	CHECK(!set_online(cpu, 1), "CPU %d does not come back: %s", cpu, strerror(errno));
	fresh_update();
	snap_rows(&after);
	CHECK(after.row[cpu + 1].row.online == 1 &&
		      after.row[0].row.online == before.row[0].row.online,
	      "%u CPUs online again", after.row[0].row.online);
	for (int f = 0; f < FIELDS; f++)
		CHECK(f == 3 || f == 4 ||
			      (field(&without.row[0].row, f) >= field(&before.row[0].row, f) &&
			       field(&after.row[0].row, f) >= field(&without.row[0].row, f)),
		      "%s went back", names[f]);
}

/* The mapping is the process's: threads share it, a child makes its own. */
static void child_snap(void *arg)
{
	struct csf_cpu_snap *before = arg, now;

	fresh_update();
	cpu_snap(&now, CSF_CPU_ALL);
	CHECK(now.update_mono_ns > before->update_mono_ns, "the child's rows stand still");
}

static void *thread_snap(void *arg)
{
	child_snap(arg);
	return NULL;
}

static void test_sharing(void)
{
	struct csf_cpu_snap c;

	cpu_snap(&c, CSF_CPU_ALL);
	t_join(t_go(thread_snap, &c));
	t_in_child(child_snap, &c);
}

int main(void)
{
	TEST("rows")
		test_layout();
	TEST("sums")
		test_sums();
	TEST("/proc/stat")
		test_proc_stat();
	TEST("busy CPU")
		test_busy();
	TEST("period")
		test_period();
	TEST("clocks of an update")
		test_update_clocks();
	TEST("threads and children")
		test_sharing();
	TEST("offline CPU")
		test_offline();
	return t_done("t_cpu");
}
