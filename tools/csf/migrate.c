// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "bpf/probe.h"
#include "count.h"
#include "csf.h"
#include "migrate_classic.h"
#include "topology.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "migrate.skel.h"

#define SHOWN_MOVES 16

struct move {
	uint64_t count;
	int from, to;
};

struct migrate {
	struct migrate_bpf *skel;
	struct migrate_classic_bpf *classic; /* instead, without BTF */
	int nr_cpus;
	volatile uint64_t *counts; /* by the CPU left and the CPU gone to, shared with the programs */
	uint64_t *now; /* the same at the last edge */
	uint64_t *before; /* and at the one before */
	struct csf_place *places;
	struct move *moves; /* in this window, most first */
	size_t nr_moves;
	uint64_t sum, other_cache, other_node, unknown;
};

static size_t nr_pairs(const struct migrate *m)
{
	return (size_t)m->nr_cpus * m->nr_cpus;
}

static void set_options(const struct csf_count *c, const struct migrate *m)
{
	struct migrate_bpf *skel = m->skel;

	CSF_COUNT_FILTER(c, skel->rodata);
	skel->rodata->nr_cpus = m->nr_cpus;
	skel->rodata->use_hash = c->watch.force_hash || !csf_storage_dependable() ||
				 !csf_storage_in_scheduler();
	bpf_map__set_autocreate(skel->maps.wakeups, !skel->rodata->use_hash);
	if (skel->rodata->use_hash)
		bpf_map__set_max_entries(skel->maps.hashed_wakeups, c->watch.max_tasks);
	bpf_map__set_max_entries(skel->maps.moves, nr_pairs(m));
	bpf_program__set_autoattach(skel->progs.edge_walk, false);
}

static int map_moves(void *own, int fd)
{
	struct migrate *m = own;
	size_t size = nr_pairs(m) * sizeof(*m->before);

	m->counts = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (m->counts == MAP_FAILED)
		return -errno;
	m->before = calloc(1, size);
	m->now = calloc(1, size);
	m->places = calloc(m->nr_cpus, sizeof(*m->places));
	if (!m->before || !m->now || !m->places)
		return -ENOMEM;
	csf_topology_read(m->places, m->nr_cpus);
	return 0;
}

static int load(struct csf_count *c)
{
	struct migrate *m = c->own;
	int err;

	m->nr_cpus = libbpf_num_possible_cpus();
	if (m->nr_cpus < 0)
		return m->nr_cpus;
	m->skel = migrate_bpf__open();
	if (!m->skel)
		return -errno;
	set_options(c, m);
	err = migrate_bpf__load(m->skel);
	if (!err)
		err = map_moves(m, bpf_map__fd(m->skel->maps.moves));
	if (!err)
		err = migrate_bpf__attach(m->skel);
	if (err)
		return err;
	c->obj = m->skel->obj;
	c->state = &m->skel->bss->edge_state;
	return 0;
}

static int load_plain(struct csf_count *c)
{
	struct migrate *m = c->own;

	m->nr_cpus = libbpf_num_possible_cpus();
	if (m->nr_cpus < 0)
		return m->nr_cpus;
	return csf_migrate_classic_load(c, &m->classic, m->nr_cpus, map_moves);
}

static void unload(struct csf_count *c)
{
	struct migrate *m = c->own;

	if (m->counts && m->counts != MAP_FAILED)
		munmap((void *)m->counts, nr_pairs(m) * sizeof(*m->before));
	migrate_bpf__destroy(m->skel);
	csf_migrate_classic_unload(m->classic);
	free(m->before);
	free(m->now);
	free(m->places);
	free(m->moves);
}

static void edge(struct csf_count *c)
{
	struct migrate *m = c->own;
	uint64_t *was = m->before;
	size_t i;

	m->before = m->now;
	m->now = was;
	for (i = 0; i < nr_pairs(m); i++)
		m->now[i] = m->counts[i];
}

static int most_first(const void *a, const void *b)
{
	const struct move *x = a, *y = b;

	if (x->count != y->count)
		return x->count < y->count ? 1 : -1;
	return x->from != y->from ? x->from - y->from : x->to - y->to;
}

/* What is unknown is on neither side. */
static void classify(struct migrate *m, const struct move *move)
{
	const struct csf_place *a = &m->places[move->from], *b = &m->places[move->to];

	m->sum += move->count;
	if (a->cache < 0 || b->cache < 0)
		m->unknown += move->count;
	else if (a->cache != b->cache)
		m->other_cache += move->count;
	if (a->node != b->node)
		m->other_node += move->count;
}

static bool add(struct migrate *m, size_t pair)
{
	size_t nr = m->nr_moves;
	struct move *moves = m->moves;

	if (!(nr & (nr - 1))) { /* full at each power of two */
		moves = realloc(moves, (nr ? 2 * nr : 1) * sizeof(*moves));
		if (!moves)
			return false;
		m->moves = moves;
	}
	m->moves[m->nr_moves++] = (struct move){ m->now[pair] - m->before[pair],
						 (int)(pair / m->nr_cpus),
						 (int)(pair % m->nr_cpus) };
	return true;
}

static void collect(struct csf_count *c)
{
	struct migrate *m = c->own;
	size_t i;

	m->nr_moves = m->sum = m->other_cache = m->other_node = m->unknown = 0;
	for (i = 0; i < nr_pairs(m); i++) {
		if (m->now[i] == m->before[i])
			continue;
		if (!add(m, i)) {
			fprintf(stderr, "csf: no memory for all pairs of CPUs\n");
			c->watch.failed = true;
			break;
		}
		classify(m, &m->moves[m->nr_moves - 1]);
	}
	if (m->nr_moves)
		qsort(m->moves, m->nr_moves, sizeof(*m->moves), most_first);
}

static void print_known(FILE *f, const struct migrate *m)
{
	fprintf(f, "moves=%" PRIu64 " other_cache=", m->sum);
	if (m->unknown)
		fprintf(f, "unknown");
	else
		fprintf(f, "%" PRIu64, m->other_cache);
	fprintf(f, " other_node=%" PRIu64 "\n", m->other_node);
}

static void print(struct csf_count *c, FILE *f)
{
	struct migrate *m = c->own;
	size_t i;

	collect(c);
	if (m->nr_moves)
		fprintf(f, "%-7s %-7s %10s\n", "FROM", "TO", "MOVES");
	for (i = 0; i < m->nr_moves && i < SHOWN_MOVES; i++)
		fprintf(f, "%-7d %-7d %10" PRIu64 "\n", m->moves[i].from, m->moves[i].to,
			m->moves[i].count);
	if (i < m->nr_moves)
		fprintf(f, "(%zu more pairs of CPUs)\n", m->nr_moves - i);
	print_known(f, m);
}

static void json(struct csf_count *c, FILE *f)
{
	struct migrate *m = c->own;
	size_t i;

	collect(c);
	fprintf(f, ",\"moves\":%" PRIu64 ",\"other_cache\":", m->sum);
	if (m->unknown)
		fprintf(f, "null");
	else
		fprintf(f, "%" PRIu64, m->other_cache);
	fprintf(f, ",\"other_node\":%" PRIu64 ",\"pairs\":[", m->other_node);
	for (i = 0; i < m->nr_moves; i++)
		fprintf(f, "%s{\"from\":%d,\"to\":%d,\"count\":%" PRIu64 "}", i ? "," : "",
			m->moves[i].from, m->moves[i].to, m->moves[i].count);
	fprintf(f, "]");
}

static const struct csf_counter counter = {
	.name = "migrate",
	.doc = "Count the migrations between CPUs and the wakeups of each process, for SECONDS or "
	       "until Ctrl-C.\v"
	       "Processes and threads that were born or ended meanwhile are included. Needs root, or "
	       "CAP_BPF and CAP_PERFMON.",
	.columns = { { "MIGRATIONS", "WAKEUPS" }, { "migrations", "wakeups" } },
	.proc = CSF_PROC_SCHED,
	.load = load,
	.load_plain = load_plain,
	.unload = unload,
	.edge = edge,
	.print = print,
	.json = json,
};

int csf_migrate(int argc, char **argv)
{
	struct migrate m = { 0 };

	return csf_count_run(&counter, &m, argc, argv);
}
