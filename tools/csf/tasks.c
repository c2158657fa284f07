// SPDX-License-Identifier: GPL-2.0
/*
 * A task is found by its address, which is its own from birth until the kernel frees it: TIDs are used
 * again, and execve() by a thread gives it the leader's TID and start time.
 */
#define _GNU_SOURCE
#include "tasks.h"
#include "printable.h"

#include <stdlib.h>
#include <string.h>

/* Both kinds of rows begin with the address and have the next row of the same hash value somewhere. */
struct kind {
	size_t size;
	size_t next;
};

static const struct kind task_kind = { sizeof(struct csf_task_row),
				       offsetof(struct csf_task_row, next) };
static const struct kind process_kind = { sizeof(struct csf_process_row),
					  offsetof(struct csf_process_row, next) };

static char *row_at(const struct csf_pool *p, const struct kind *k, uint32_t i)
{
	return p->rows + i * k->size;
}

static uint64_t *address_of(const struct csf_pool *p, const struct kind *k, uint32_t i)
{
	return (uint64_t *)row_at(p, k, i);
}

static uint32_t *next_of(const struct csf_pool *p, const struct kind *k, uint32_t i)
{
	return (uint32_t *)(row_at(p, k, i) + k->next);
}

static uint32_t *bucket(const struct csf_pool *p, uint64_t address)
{
	return &p->buckets[(address * 0x9e3779b97f4a7c15ull >> 32) & p->mask];
}

static uint32_t find(const struct csf_pool *p, const struct kind *k, uint64_t address)
{
	uint32_t i = p->buckets ? *bucket(p, address) : 0;

	while (i && *address_of(p, k, i) != address)
		i = *next_of(p, k, i);
	return i;
}

static void link_row(struct csf_pool *p, const struct kind *k, uint32_t i)
{
	uint32_t *head = bucket(p, *address_of(p, k, i));

	*next_of(p, k, i) = *head;
	*head = i;
}

static void unlink_row(struct csf_pool *p, const struct kind *k, uint32_t i)
{
	uint32_t *at = bucket(p, *address_of(p, k, i));

	while (*at != i)
		at = next_of(p, k, *at);
	*at = *next_of(p, k, i);
	*address_of(p, k, i) = 0;
}

static bool grow(struct csf_pool *p, const struct kind *k)
{
	uint32_t size = p->size ? 2 * p->size : 1024, *buckets, i;
	char *rows = realloc(p->rows, size * k->size);

	if (!rows)
		return false;
	p->rows = rows;
	buckets = realloc(p->buckets, size * sizeof(*buckets));
	if (!buckets)
		return false;
	memset(buckets, 0, size * sizeof(*buckets));
	p->buckets = buckets;
	p->size = size;
	p->mask = size - 1;
	p->nr += !p->nr;
	for (i = 1; i < p->nr; i++)
		if (*address_of(p, k, i))
			link_row(p, k, i);
	return true;
}

/* A row of zeros that can be found; 0 if there is no memory. */
static uint32_t make(struct csf_pool *p, const struct kind *k, uint64_t address)
{
	uint32_t i = p->free;

	if (i)
		p->free = *next_of(p, k, i);
	else if (p->nr < p->size || grow(p, k))
		i = p->nr++;
	else
		return 0;
	memset(row_at(p, k, i), 0, k->size);
	*address_of(p, k, i) = address;
	link_row(p, k, i);
	return i;
}

/* Of a row that is not linked. */
static void give_up(struct csf_pool *p, const struct kind *k, uint32_t i)
{
	*next_of(p, k, i) = p->free;
	p->free = i;
}

static uint32_t process_of(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i = find(&t->processes, &process_kind, e->process);

	if (!i)
		i = make(&t->processes, &process_kind, e->process);
	return i;
}

/* 0 if there is no memory. */
static uint32_t make_task(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t process = process_of(t, e), i;

	i = process ? make(&t->tasks, &task_kind, e->task) : 0;
	if (!i) {
		t->lost[CSF_LOSS_MEMORY]++;
		return 0;
	}
	csf_task_row(t, i)->process = process;
	csf_process_row(t, process)->live++;
	return i;
}

static void add(struct csf_tasks *t, struct csf_task_row *r, const struct csf_edge_task *e)
{
	struct csf_process_row *p = csf_process_row(t, r->process);
	int i;

	for (i = 0; i < CSF_EDGE_COUNTS; i++) {
		uint64_t more = e->count[i] - r->last[i];

		if ((int64_t)more < 0) {
			t->lost[CSF_LOSS_BACKWARDS]++;
			more = 0;
		}
		r->count[i] += more;
		p->count[i] += more;
		r->last[i] = e->count[i];
	}
}

/* The process is named by its leader, or who is known first. */
static void name(struct csf_tasks *t, struct csf_task_row *r, const struct csf_edge_task *e)
{
	struct csf_process_row *p = csf_process_row(t, r->process);

	memcpy(r->comm, e->comm, sizeof(r->comm));
	csf_make_printable(r->comm, sizeof(r->comm));
	if (e->tid) {
		r->tid = e->tid;
		p->tgid = e->tgid;
	}
	if (!p->comm[0] || r->tid == p->tgid)
		memcpy(p->comm, r->comm, sizeof(p->comm));
}

static void keep(struct csf_tasks *t, struct csf_edge_list *list, const struct csf_edge_task *e)
{
	size_t nr = list->nr;
	struct csf_edge_task *edges = list->edges;
	const struct csf_edge_task kept = *e; /* may be one of those that move */

	if (!(nr & (nr - 1))) { /* full at each power of two */
		edges = realloc(edges, (nr ? 2 * nr : 1) * sizeof(*edges));
		if (!edges) {
			t->lost[CSF_LOSS_MEMORY]++;
			return;
		}
		list->edges = edges;
	}
	list->edges[list->nr++] = kept;
}

/* What was before the window counts for nobody. */
static void found(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i = make_task(t, e);
	struct csf_task_row *r = csf_task_row(t, i);

	if (!i)
		return;
	memcpy(r->last, e->count, sizeof(r->last));
	name(t, r, e);
	r->walk = e->walk;
}

static void alive(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i = find(&t->tasks, &task_kind, e->task);
	struct csf_task_row *r = csf_task_row(t, i);

	if (!i && t->walk && t->no_births) {
		i = make_task(t, e);
		r = csf_task_row(t, i);
		t->new_tasks++;
		if (!i)
			return;
	}
	if (i) {
		name(t, r, e);
		add(t, r, e);
		r->walk = e->walk;
	} else if (t->walk) {
		keep(t, &t->strangers, e);
	} else {
		found(t, e);
	}
}

static void leave_process(struct csf_tasks *t, uint32_t i)
{
	struct csf_process_row *p = csf_process_row(t, i);

	/* nobody tells of births: its next thread may be heard of at its own end only */
	if (!--p->live && !t->no_births)
		unlink_row(&t->processes, &process_kind, i);
}

static void end_row(struct csf_tasks *t, uint32_t i)
{
	struct csf_task_row *r = csf_task_row(t, i);

	unlink_row(&t->tasks, &task_kind, i);
	leave_process(t, r->process);
	if (!t->per_thread) {
		r->tid = 0;
		give_up(&t->tasks, &task_kind, i);
	}
}

/*
 * A walk may have seen it already. Any other task at its address has ended, though nobody told: events
 * get lost if the ring is full, and on virtual machines that run old kernel text in some contexts.
 */
static bool is_new(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i = find(&t->tasks, &task_kind, e->task);
	const struct csf_task_row *r = csf_task_row(t, i);

	if (!i)
		return true;
	if (r->walk == e->walk && r->tid == e->tid)
		return false;
	t->lost[CSF_LOSS_UNFINISHED]++;
	end_row(t, i);
	return true;
}

/* All counts begin at 0. What was born before the first walk was seen by it, or ended before. */
static void born(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i;

	if (!e->walk || !is_new(t, e))
		return;
	i = make_task(t, e);
	if (i)
		name(t, csf_task_row(t, i), e);
}

static void freed(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i = find(&t->tasks, &task_kind, e->task);
	struct csf_task_row *r = csf_task_row(t, i);

	if (!i && t->no_births) {
		i = make_task(t, e);
		r = csf_task_row(t, i);
	}
	if (!i) /* it had ended before the window began */
		return;
	name(t, r, e);
	add(t, r, e);
	end_row(t, i);
}

/* What came after the walk is for the next window. */
static void take_late(struct csf_tasks *t, const struct csf_edge_task *e)
{
	uint32_t i = find(&t->tasks, &task_kind, e->task);

	if (e->kind == CSF_EDGE_BORN && e->walk < t->walk)
		born(t, e);
	else if (e->kind == CSF_EDGE_FREED && i && csf_task_row(t, i)->walk != t->walk)
		freed(t, e);
	else
		keep(t, &t->later, e);
}

void csf_tasks_begin(struct csf_tasks *t, bool per_thread)
{
	memset(t, 0, sizeof(*t));
	t->per_thread = per_thread;
}

void csf_tasks_take(struct csf_tasks *t, const struct csf_edge_task *e)
{
	if (t->closing)
		take_late(t, e);
	else if (e->kind == CSF_EDGE_ALIVE)
		alive(t, e);
	else if (e->kind == CSF_EDGE_BORN)
		born(t, e);
	else
		freed(t, e);
}

void csf_tasks_close(struct csf_tasks *t)
{
	t->walk++;
	t->closing = true;
}

/* Those of which a birth in the window has become known. */
static void know_strangers(struct csf_tasks *t)
{
	struct csf_edge_list *list = &t->strangers;
	size_t i, nr = 0;

	for (i = 0; i < list->nr; i++)
		if (find(&t->tasks, &task_kind, list->edges[i].task))
			alive(t, &list->edges[i]);
		else
			list->edges[nr++] = list->edges[i];
	list->nr = nr;
}

uint32_t csf_tasks_unfinished(struct csf_tasks *t)
{
	uint32_t i, nr = 0;

	know_strangers(t);
	for (i = 1; i < t->tasks.nr; i++) {
		const struct csf_task_row *r = csf_task_row(t, i);

		nr += r->task && r->walk != t->walk;
	}
	return nr;
}

void csf_tasks_leave(struct csf_tasks *t, bool (*lives)(uint32_t tid))
{
	uint32_t i;

	for (i = 1; i < t->tasks.nr; i++) {
		const struct csf_task_row *r = csf_task_row(t, i);

		if (!r->task || r->walk == t->walk || !r->tid || !lives(r->tid))
			continue;
		t->lost[CSF_LOSS_MOVED]++;
		end_row(t, i);
	}
}

static void clear_task(struct csf_tasks *t, uint32_t i)
{
	struct csf_task_row *r = csf_task_row(t, i);

	memset(r->count, 0, sizeof(r->count));
	if (!r->task && r->tid) {
		r->tid = 0;
		give_up(&t->tasks, &task_kind, i);
	}
}

static void clear_process(struct csf_tasks *t, uint32_t i)
{
	struct csf_process_row *p = csf_process_row(t, i);

	memset(p->count, 0, sizeof(p->count));
	if (p->process && !p->live)
		unlink_row(&t->processes, &process_kind, i);
	if (!p->process && p->tgid) {
		p->tgid = 0;
		give_up(&t->processes, &process_kind, i);
	}
}

static bool born_later(const struct csf_tasks *t, const struct csf_edge_task *e)
{
	size_t i;

	for (i = 0; i < t->later.nr; i++)
		if (t->later.edges[i].kind == CSF_EDGE_BORN && t->later.edges[i].task == e->task)
			return true;
	return false;
}

/* Of strangers that are not new either, it is not known what they did before the window. */
void csf_tasks_settle(struct csf_tasks *t)
{
	struct csf_edge_list *list = &t->strangers;
	size_t i, nr = 0;

	t->lost[CSF_LOSS_UNFINISHED] += csf_tasks_unfinished(t);
	for (i = 0; i < list->nr; i++)
		if (!born_later(t, &list->edges[i]))
			list->edges[nr++] = list->edges[i];
	list->nr = nr;
	t->lost[t->may_move ? CSF_LOSS_MOVED : CSF_LOSS_APPEARED] += nr;
}

/* What has not been seen has ended, whether somebody tells or not. */
static void end_unseen(struct csf_tasks *t)
{
	uint32_t i;

	for (i = 1; i < t->tasks.nr; i++) {
		const struct csf_task_row *r = csf_task_row(t, i);

		if (r->task && r->walk != t->walk)
			end_row(t, i);
	}
}

void csf_tasks_next(struct csf_tasks *t)
{
	size_t nr = t->later.nr, i;

	end_unseen(t);
	t->new_tasks = 0;
	for (i = 1; i < t->tasks.nr; i++)
		clear_task(t, i);
	for (i = 1; i < t->processes.nr; i++)
		clear_process(t, i);
	memset(t->lost, 0, sizeof(t->lost));
	t->closing = false;
	for (i = 0; i < t->strangers.nr; i++)
		found(t, &t->strangers.edges[i]);
	t->strangers.nr = 0;
	for (i = 0; i < nr; i++)
		csf_tasks_take(t, &t->later.edges[i]);
	t->later.nr = 0;
}

void csf_tasks_end(struct csf_tasks *t)
{
	free(t->tasks.rows);
	free(t->tasks.buckets);
	free(t->processes.rows);
	free(t->processes.buckets);
	free(t->later.edges);
	free(t->strangers.edges);
}
