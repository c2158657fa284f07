// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "runqlat_load.h"
#include "classic.h"
#include "csf.h"
#include "bpf/explain.h"
#include "bpf/probe.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runqlat.skel.h"

_Static_assert(sizeof(struct csf_runqlat_cpu) == 4096, "each CPU has a page of its own");

/* Which programs there are to be, by how they see waits begin. */
static int choose_programs(struct runqlat_bpf *skel, enum csf_from from, bool hash)
{
	bool queue = from == CSF_FROM_QUEUE;
	bool groups = queue && csf_has_field("sched_entity", "cfs_rq");

	if (queue && !groups && !csf_has_symbol("runqueues")) {
		fprintf(stderr, "csf: this kernel does not show its run queues to BPF (it is built "
				"without CONFIG_FAIR_GROUP_SCHED): use --from wakeup\n");
		return CSF_EXIT_FAIL;
	}

	bpf_program__set_autoload(skel->progs.csf_queue_switch, groups);
	bpf_program__set_autoload(skel->progs.csf_plain_switch, queue && !groups);
	bpf_program__set_autoload(skel->progs.csf_wake_switch, !queue);
	bpf_program__set_autoload(skel->progs.csf_wakeup, !queue);
	bpf_program__set_autoload(skel->progs.csf_wakeup_new, !queue);
	bpf_program__set_autoload(skel->progs.csf_waking, from == CSF_FROM_WAKING);
	bpf_program__set_autoload(skel->progs.csf_free, !queue && hash);
	bpf_program__set_autoattach(skel->progs.csf_walk, false);
	return 0;
}

/* What is not used shall not take memory. */
static void size_maps(struct runqlat_bpf *skel, const struct csf_runqlat_options *o, bool hash)
{
	int cpus = libbpf_num_possible_cpus();

	bpf_map__set_max_entries(skel->maps.cpus, cpus);
	if (o->over_ns) {
		bpf_map__set_max_entries(skel->maps.histories, cpus);
		bpf_map__set_max_entries(skel->maps.slow_waits, CSF_SLOW_BYTES);
	}
	if (o->by)
		bpf_map__set_max_entries(skel->maps.rows, o->watch.max_tasks);
	if (hash && o->from != CSF_FROM_QUEUE)
		bpf_map__set_max_entries(skel->maps.hashed_waits, o->watch.max_tasks);
	bpf_map__set_autocreate(skel->maps.waits, !hash && o->from != CSF_FROM_QUEUE);
}

static void set_filter(struct runqlat_bpf *skel, const struct csf_runqlat_options *o)
{
	skel->rodata->only_tgid = o->watch.pid;
	skel->rodata->only_tid = o->watch.tid;
	if (o->comm) {
		skel->rodata->any_comm = false;
		strncpy((char *)skel->rodata->only_comm, o->comm, 15);
	}
	skel->rodata->only_cgroup = o->watch.in.id;
	skel->rodata->only_cgroup_level = o->watch.in.level;
}

static int prepare(struct csf_runqlat *r, const struct csf_runqlat_options *o)
{
	bool hash = o->watch.force_hash || !csf_storage_dependable() || !csf_storage_in_scheduler();
	struct runqlat_bpf *skel = r->skel;

	r->object = skel->obj;
	skel->rodata->from = o->from;
	skel->rodata->use_hash = hash;
	skel->rodata->unit_ns = o->unit_ns;
	skel->rodata->over_ns = o->over_ns;
	skel->rodata->rows_by = o->by;
	skel->rodata->list_tasks = o->watch.verify;
	size_maps(skel, o, hash);
	set_filter(skel, o);
	return choose_programs(skel, o->from, hash);
}

int csf_runqlat_map(struct csf_runqlat *r, int cpus_fd)
{
	void *at;

	r->nr_cpus = libbpf_num_possible_cpus();
	at = mmap(NULL, r->nr_cpus * sizeof(*r->cpus), PROT_READ | PROT_WRITE, MAP_SHARED, cpus_fd,
		  0);
	if (at == MAP_FAILED)
		return -errno;
	r->cpus = at;
	return 0;
}

static int load(struct csf_runqlat *r)
{
	int err = runqlat_bpf__load(r->skel);

	if (!err)
		err = csf_runqlat_map(r, bpf_map__fd(r->skel->maps.cpus));
	if (!err)
		err = runqlat_bpf__attach(r->skel);
	if (err)
		return err;
	r->walk_link = bpf_program__attach_iter(r->skel->progs.csf_walk, NULL);
	return r->walk_link ? 0 : -errno;
}

static int load_for_tasks(struct csf_runqlat *r, const struct csf_runqlat_options *o)
{
	int err;

	r->skel = runqlat_bpf__open();
	err = r->skel ? prepare(r, o) : -errno;
	if (err > 0)
		return err;
	if (!err)
		err = load(r);
	if (!err) {
		r->rows_fd = bpf_map__fd(r->skel->maps.rows);
		r->slow_fd = bpf_map__fd(r->skel->maps.slow_waits);
		return 0;
	}
	csf_explain(err, 5, 10);
	return CSF_EXIT_FAIL;
}

int csf_runqlat_load(struct csf_runqlat *r, const struct csf_runqlat_options *o)
{
	int err;

	memset(r, 0, sizeof(*r));
	r->options = o;
	r->cost.fd = -1;
	if (o->watch.stats)
		csf_cost_begin(&r->cost);
	csf_explain_begin();
	if (o->watch.no_btf || !csf_has_btf())
		err = csf_classic_load(r, o);
	else
		err = load_for_tasks(r, o);
	if (err)
		csf_runqlat_unload(r);
	return err;
}

void csf_runqlat_unload(struct csf_runqlat *r)
{
	bpf_link__destroy(r->walk_link);
	if (r->cpus)
		munmap(r->cpus, r->nr_cpus * sizeof(*r->cpus));
	runqlat_bpf__destroy(r->skel);
	csf_classic_unload(r);
	csf_cost_end(&r->cost);
}

static uint64_t take_max(struct csf_runqlat_cpu *cpu)
{
	return __atomic_exchange_n(&cpu->max_ns, 0, __ATOMIC_RELAXED);
}

static void add_cpu(struct csf_runqlat_counts *c, struct csf_runqlat_cpu *cpu)
{
	unsigned int i;

	for (i = 0; i < CSF_FINE_SLOTS; i++)
		c->hist.slots[i] += cpu->slots[i];
	c->hist.total_ns += cpu->total_ns;
	for (i = 0; i < CSF_DISCARDS; i++)
		c->discarded[i] += cpu->discarded[i];
	c->open_count += cpu->open_count;
	c->open_ns += cpu->open_ns;
	c->gone_delay_ns += cpu->gone_delay_ns;
	c->gone_pcount += cpu->gone_pcount;
	c->overtaken_count += cpu->overtaken_count;
	c->overtaken_ns += cpu->overtaken_ns;
}

void csf_runqlat_read(struct csf_runqlat *r, struct csf_runqlat_counts *c)
{
	unsigned int cpu;

	memset(c, 0, sizeof(*c));
	c->hist.unit_ns = r->options->unit_ns;
	for (cpu = 0; cpu < r->nr_cpus; cpu++)
		add_cpu(c, &r->cpus[cpu]);
}

/* The longest wait since this was asked last. */
static uint64_t longest(struct csf_runqlat *r)
{
	uint64_t max = 0, ns;
	unsigned int cpu;

	for (cpu = 0; cpu < r->nr_cpus; cpu++) {
		ns = take_max(&r->cpus[cpu]);
		if (ns > max)
			max = ns;
	}
	return max;
}

/* All that a walk prints. */
static bool read_all(int fd, struct csf_runqlat_edge *e)
{
	size_t size = 0, room = 0;
	char *text = NULL, *more = NULL;
	ssize_t n;

	do {
		if (room - size < 65536) {
			room = 2 * room + 65536;
			more = realloc(text, room);
			if (!more)
				break;
			text = more;
		}
		n = read(fd, text + size, room - size);
		size += n > 0 ? n : 0;
	} while (n > 0 || (n < 0 && errno == EAGAIN));
	free(e->tasks);
	e->tasks = (void *)text;
	e->nr_tasks = size / sizeof(*e->tasks);
	return more && !n;
}

static bool walk_once(struct csf_runqlat *r, struct csf_runqlat_edge *e)
{
	int fd = bpf_iter_create(bpf_link__fd(r->walk_link));
	struct timespec ran;
	bool ok;

	if (fd < 0)
		return false;
	/* the kernel reads the clock of our run queue for it, by which csf_walk goes */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
	ok = read_all(fd, e);
	close(fd);
	return ok;
}

void csf_runqlat_mark(struct csf_runqlat *r)
{
	struct csf_runqlat_edge e = { 0 };

	if (!r->skel || r->options->from == CSF_FROM_QUEUE)
		return;
	r->skel->bss->walk_marks = true;
	walk_once(r, &e);
	free(e.tasks);
	r->skel->bss->walk_marks = false;
}

static int by_tid(const void *a, const void *b)
{
	const struct csf_task_counters *x = a, *y = b;

	return (x->tid > y->tid) - (x->tid < y->tid);
}

static bool read_rows(const struct csf_runqlat *r, struct csf_rows *rows)
{
	return !r->options->by || !csf_rows_read(rows, r->rows_fd, r->options->by);
}

/* From here on, a wait that ends is noted if it had begun. */
static void begin_look(struct csf_runqlat *r)
{
	struct csf_walk *walk = &r->skel->bss->walk;

	memset(walk, 0, sizeof(*walk));
	__atomic_store_n(&walk->look_ns, csf_now_ns(), __ATOMIC_SEQ_CST);
}

/* Tasks that are wanted at one edge and not at the other would bring what they waited in all their lives. */
static bool same_tasks(const struct csf_runqlat_options *o)
{
	return !o->comm && !o->watch.cgroup;
}

/* Without groups, tasks do not lead to a run queue and its clock. */
static bool could_tell(enum csf_from from, const struct csf_walk *walk)
{
	return from != CSF_FROM_QUEUE || walk->queue_look_ns || !walk->at;
}

static void walk_tasks(struct csf_runqlat *r, struct csf_runqlat_edge *e)
{
	bool ok = walk_once(r, e);

	e->walk = r->skel->bss->walk;
	if (!ok)
		perror("csf: cannot walk over all tasks");
	e->failed |= !ok;
	e->all = csf_kernel_pids() && could_tell(r->options->from, &e->walk);
	e->walked = ok && csf_kernel_pids() && same_tasks(r->options);
}

static void end_look(struct csf_runqlat *r, struct csf_runqlat_edge *e)
{
	e->walk.waiting += e->after.overtaken_count - e->before.overtaken_count;
	e->walk.waiting_ns += e->after.overtaken_ns - e->before.overtaken_ns;
	if (!r->classic)
		r->skel->bss->walk.look_ns = 0;
}

static void walk(struct csf_runqlat *r, struct csf_runqlat_edge *e, bool first)
{
	uint64_t max;

	if (!r->classic)
		begin_look(r);
	e->at_ns = csf_now_ns();
	csf_runqlat_read(r, &e->before);
	max = longest(r);
	if (max > e->max_ns)
		e->max_ns = max;
	e->failed |= !read_rows(r, &e->rows_before);
	if (r->classic)
		e->failed |= !(e->all = csf_classic_walk(r, &e->walk));
	else
		walk_tasks(r, e);
	if (first) { /* the window begins now */
		longest(r);
		e->at_ns = csf_now_ns();
	}
	csf_runqlat_read(r, &e->after);
	e->failed |= !read_rows(r, &e->rows_after);
	end_look(r, e);
}

/* Runs of the programs that the kernel left out. */
static uint64_t count_skipped(const struct csf_runqlat *r)
{
	struct bpf_program *prog;
	uint64_t n = 0;

	bpf_object__for_each_program(prog, r->object)
	{
		struct bpf_prog_info info = { 0 };
		__u32 size = sizeof(info);

		if (!bpf_obj_get_info_by_fd(bpf_program__fd(prog), &info, &size))
			n += info.recursion_misses;
	}
	return n;
}

/* A task that ends during the walk may be counted as living and as gone: then once more. */
static void edge(struct csf_runqlat *r, struct csf_runqlat_edge *e, bool first)
{
	int tries = 0;

	e->skipped = count_skipped(r);
	do {
		walk(r, e, first);
	} while (e->walked && e->before.gone_pcount != e->after.gone_pcount && ++tries < 8);
	e->before.hist.max_ns = e->max_ns;
	if (e->nr_tasks)
		qsort(e->tasks, e->nr_tasks, sizeof(*e->tasks), by_tid);
}

void csf_runqlat_first_edge(struct csf_runqlat *r, struct csf_runqlat_edge *e)
{
	edge(r, e, true);
}

void csf_runqlat_edge(struct csf_runqlat *r, struct csf_runqlat_edge *e)
{
	edge(r, e, false);
}

void csf_runqlat_edge_free(struct csf_runqlat_edge *e)
{
	csf_rows_free(&e->rows_before);
	csf_rows_free(&e->rows_after);
	free(e->tasks);
	memset(e, 0, sizeof(*e));
}

void csf_runqlat_next(struct csf_runqlat_edge *a, struct csf_runqlat_edge *b)
{
	csf_runqlat_edge_free(a);
	*a = *b;
	a->chained = true;
	memset(b, 0, sizeof(*b));
}
