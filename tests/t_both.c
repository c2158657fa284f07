// SPDX-License-Identifier: GPL-2.0
/*
 * One thread on both writers at once: what each of them says of the same time must be the same. The
 * module must be loaded and mounted; the service is started here.
 */
#include "t_serve.h"

/*
 * Apart by so much at most, of the larger of the two or in ms. The module's end of a wait comes
 * after the switch, BPF's before it, which is far less than a microsecond, but not where a
 * busy machine emulates the CPU: so much more for each switch there.
 */
static const double part = 0.02, room = 0.2, emulated_switch = 0.1;

struct pages {
	const struct csf_thread_page *module, *bpf;
};

struct moment {
	struct csf_snap module, bpf;
	uint64_t gap_ns; /* between the two */
};

static void map_both(struct pages *p)
{
	void *at = NULL;

	p->module = csf_map_file_(CSF_THREAD_PATH, CSF_KIND_THREAD, sizeof(*p->module));
	if (!p->module)
		t_die(CSF_THREAD_PATH ": %s", strerror(errno));
	p->bpf = csf_service_thread_page_(&at);
	if (!p->bpf)
		t_die("no page of the service: %s", strerror(errno));
	CHECK(p->module->hdr.clock != p->bpf->hdr.clock, "both pages have clock %u",
	      p->bpf->hdr.clock);
}

static void unmap_both(struct pages *p)
{
	munmap((void *)(uintptr_t)p->module, csf_map_len_(p->module->hdr.size));
	munmap((void *)(uintptr_t)p->bpf, PAGE);
}

/*
 * A page of our own, for which the clock need not be the same on all CPUs as it does for another's.
 */
static void snap(const struct csf_thread_page *page, struct csf_snap *s)
{
	if (csf_page_snap(page, s))
		t_die("csf_page_snap: %s", strerror(errno));
	CHECK(s->p.life == CSF_LIVE && s->p.state == CSF_ONCPU, "life %u, state %u", s->p.life,
	      s->p.state);
	if (!s->extrapolated)
		csf_extrapolate_(s, s->tsc);
}

/* Both at nearly one time: without a switch or an interrupt in between, if that can be had. */
static void look(const struct pages *p, struct moment *best)
{
	struct moment m;

	best->gap_ns = ~0ull;
	for (int i = 0; i < 20; i++) {
		uint64_t start = t_mono_ns();

		snap(p->module, &m.module);
		snap(p->bpf, &m.bpf);
		m.gap_ns = t_mono_ns() - start;
		if (m.gap_ns < best->gap_ns)
			*best = m;
	}
}

enum { WALL, ONCPU, RUNQ, SLEEP, DSLEEP, IOWAIT, TIMES };

static const char *const times[TIMES] = { "wall", "cpu", "runq", "sleep", "dsleep", "iowait" };

static void as_array(double ms[TIMES], const struct moment *a, const struct moment *b, int bpf)
{
	struct t_diff_ d = bpf ? t_diff(&a->bpf, &b->bpf) : t_diff(&a->module, &b->module);

	ms[WALL] = d.wall;
	ms[ONCPU] = d.oncpu;
	ms[RUNQ] = d.runq;
	ms[SLEEP] = d.sleep;
	ms[DSLEEP] = d.dsleep;
	ms[IOWAIT] = d.iowait;
}

struct round {
	double module[TIMES], bpf[TIMES];
	unsigned long long switches;
};

/* By how much the two are too far apart, in ms; not above 0: they agree. */
static double too_far(const struct round *r, int t)
{
	double more = r->module[t] > r->bpf[t] ? r->module[t] : r->bpf[t];
	double less = r->module[t] > r->bpf[t] ? r->bpf[t] : r->module[t];
	double most = more * part > room ? more * part : room;

	if (t_accel_is("tcg"))
		most += emulated_switch * (double)r->switches;
	return more - less - most;
}

#define SAME(field)                                                                     \
	CHECK(b->module.p.field - a->module.p.field == b->bpf.p.field - a->bpf.p.field, \
	      #field " grew by %llu by the module, %llu by BPF",                        \
	      (unsigned long long)(b->module.p.field - a->module.p.field),              \
	      (unsigned long long)(b->bpf.p.field - a->bpf.p.field))

static void same_counts(const struct moment *a, const struct moment *b)
{
	SAME(nr_switch_in);
	SAME(nr_preempt);
	SAME(nr_block);
	SAME(nr_migrate);
	SAME(nvcsw);
	SAME(nivcsw);
	SAME(pcount);
	SAME(sum_exec_ns);
	SAME(run_delay_ns);
	SAME(min_flt);
	SAME(maj_flt);
	SAME(rchar);
	SAME(read_bytes);
}

/* What the thread does meanwhile. Few switches: see emulated_switch. */

static void naps(void)
{
	for (int i = 0; i < 20; i++)
		t_sleep_ns(5 * T_MS);
}

static void spin(void)
{
	t_spin_wall_ns(200 * T_MS);
}

static void yields(void)
{
	for (int i = 0; i < 20; i++)
		sched_yield();
}

static void vforks(void)
{
	static const char *const args[] = { "true", NULL };

	for (int i = 0; i < 10; i++) {
		pid_t pid = vfork();

		if (!pid) {
			usleep(2000);
			execv("/no/such/file", (char *const *)(uintptr_t)args);
			_exit(0);
		}
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
}

static void migrations(void)
{
	for (int i = 0; i < 200; i++) {
		t_pin(i % t_cpus());
		t_sleep_ns(200000);
	}
	t_unpin();
}

/* Synchronous writes, if there is a disk. */
static void disk(void)
{
	const char *dir = getenv("CSF_DISK_DIR");
	char path[128], block[4096] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/t_both", dir ? dir : "/tmp");
	fd = open(path, O_CREAT | O_RDWR | O_TRUNC | O_SYNC | O_CLOEXEC, 0600);
	if (fd < 0)
		t_die("%s: %s", path, strerror(errno));
	for (int i = 0; i < 10; i++)
		if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
			t_die("%s: %s", path, strerror(errno));
	close(fd);
	unlink(path);
}

enum { ROUNDS = 5 };

static void one_round(struct round *r, void (*work)(void))
{
	struct pages p;
	struct moment a, b;

	map_both(&p);
	t_leave(); /* what is copied when a page begins is copied by both from here on */
	look(&p, &a);
	work();
	t_leave();
	look(&p, &b);
	as_array(r->module, &a, &b, 0);
	as_array(r->bpf, &a, &b, 1);
	r->switches = b.bpf.p.nr_switch_in - a.bpf.p.nr_switch_in;
	same_counts(&a, &b);
	unmap_both(&p);
}

/*
 * The two write some instructions apart, and a machine that emulates another may take its CPU away
 * just then, for longer than the bar. That hits one round and one bucket or another, while what is
 * wrong is wrong in all of them: the round in which a bucket is nearest counts.
 */
static void compare(const char *what, void (*work)(void))
{
	int rounds = t_icount() ? 1 : ROUNDS;
	struct round r[ROUNDS], *best;

	for (int i = 0; i < rounds; i++)
		one_round(&r[i], work);
	for (int t = 0; t < TIMES; t++) {
		best = &r[0];
		for (int i = 1; i < rounds; i++)
			if (too_far(&r[i], t) < too_far(best, t))
				best = &r[i];
		if (best->module[t] > 0 || best->bpf[t] > 0)
			t_note("%s, %s: %.3f ms by the module, %.3f by BPF", what, times[t],
			       best->module[t], best->bpf[t]);
		CHECK(too_far(best, t) <= 0, "%s, %s: %.3f ms by the module, %.3f by BPF", what,
		      times[t], best->module[t], best->bpf[t]);
	}
}

static void alone(void)
{
	compare("naps", naps);
	compare("spin", spin);
	compare("yields", yields);
	compare("vfork", vforks);
	if (!t_icount())
		compare("disk", disk);
}

static void against_rivals(void)
{
	struct t_rival *rivals = (struct t_rival *)calloc((size_t)t_cpus(), sizeof(*rivals));
	int i;

	for (i = 0; i < t_cpus(); i++)
		t_rival_start(&rivals[i], i, 0);
	compare("naps", naps);
	compare("spin", spin);
	for (i = 0; i < t_cpus(); i++)
		t_rival_stop(&rivals[i]);
	free(rivals);
}

/*
 * Between the two writers of a switch to another address space is the switch itself, some thousand
 * instructions of an emulated CPU that has to forget its translations: counts only.
 */
static void moving(void)
{
	struct round r;

	one_round(&r, migrations);
	t_note("runq %.3f ms by the module, %.3f by BPF", r.module[RUNQ], r.bpf[RUNQ]);
	if (t_accel_is("kvm"))
		CHECK(too_far(&r, RUNQ) <= 0, "waited %.3f ms by the module, %.3f by BPF",
		      r.module[RUNQ], r.bpf[RUNQ]);
}

int main(int argc, char **argv)
{
	(void)argc;
	if (access(CSF_THREAD_PATH, R_OK)) {
		printf("the module is not here\n");
		return 77;
	}
	if (!command_there(argv[0])) {
		printf("the csf command is not here\n");
		return 77;
	}
	atexit(service_cleanup);
	TEST("start")
		service_start(NULL, NULL);
	TEST("the same times, alone")
		alone();
	TEST("the same times, against rivals")
		against_rivals();
	TEST("the same counts, moving")
		moving();
	TEST("stop")
		service_stop();
	return t_done("t_both");
}
