// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "slow.h"
#include "printable.h"
#include "runqlat.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NS UINT64_C(1000000000)

/* As many as are there at most when somebody looks: if more come meanwhile, there would be no end. */
#define AT_ONCE (CSF_SLOW_BYTES / sizeof(struct csf_slow))

struct csf_slow_waits {
	struct ring_buffer *ring;
	struct csf_watch *watch;
	FILE *report;
	size_t left; /* to be shown now */
};

/* Who ran is told from the latest back; each until the next one came. */
static uint64_t ran_until(const struct csf_slow *s, uint32_t i)
{
	return i ? s->ran[i - 1].from_ns : s->to_ns;
}

static uint64_t ran_from(const struct csf_slow *s, uint32_t i)
{
	return s->ran[i].from_ns > s->from_ns ? s->ran[i].from_ns : s->from_ns;
}

static uint64_t ran_ns(const struct csf_slow *s, uint32_t i)
{
	uint64_t from = ran_from(s, i), until = ran_until(s, i);

	return until > from ? until - from : 0;
}

static const char *ran_comm(const struct csf_ran *ran)
{
	return ran->tid ? ran->comm : "idle";
}

static void print_time(FILE *f, uint64_t ns)
{
	fprintf(f, "%" PRIu64 ".%06" PRIu64, ns / NS, ns % NS / 1000);
}

static void print_text(FILE *f, const struct csf_slow *s)
{
	uint32_t i;

	print_time(f, s->from_ns);
	fprintf(f, " -> ");
	print_time(f, s->to_ns);
	fprintf(f, " TID %" PRIu32 " %s waited %.1f us for CPU %" PRIu32, s->tid, s->comm,
		(double)(s->to_ns - s->from_ns) / 1e3, s->cpu);
	for (i = 0; i < s->nr_ran; i++)
		fprintf(f, "%s %s[%" PRIu32 "] %.1f", i ? "," : "; ran:", ran_comm(&s->ran[i]),
			s->ran[i].tid, (double)ran_ns(s, i) / 1e3);
	if (s->nr_ran == CSF_RAN_MAX && s->ran[s->nr_ran - 1].from_ns > s->from_ns)
		fprintf(f, ", and others before");
	fprintf(f, "\n");
}

static void add_number(struct json_object *o, const char *name, uint64_t n)
{
	json_object_object_add(o, name, json_object_new_uint64(n));
}

static struct json_object *json_ran(const struct csf_slow *s)
{
	struct json_object *all = json_object_new_array(), *o;
	uint32_t i;

	for (i = 0; i < s->nr_ran; i++) {
		o = json_object_new_object();
		add_number(o, "tid", s->ran[i].tid);
		json_object_object_add(o, "comm", json_object_new_string(ran_comm(&s->ran[i])));
		add_number(o, "ran_ns", ran_ns(s, i));
		json_object_array_add(all, o);
	}
	return all;
}

static struct json_object *json_wait(const struct csf_slow *s)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, "tool", json_object_new_string("runqlat"));
	json_object_object_add(o, "event", json_object_new_string("wait"));
	add_number(o, "from_ns", s->from_ns);
	add_number(o, "to_ns", s->to_ns);
	add_number(o, "tid", s->tid);
	if (s->tgid) /* not known without BTF */
		add_number(o, "pid", s->tgid);
	json_object_object_add(o, "comm", json_object_new_string(s->comm));
	add_number(o, "cpu", s->cpu);
	json_object_object_add(o, "ran", json_ran(s));
	return o;
}

static int show(void *arg, void *data, size_t size)
{
	struct csf_slow_waits *s = arg;
	struct csf_slow wait;
	uint32_t i;

	if (size < sizeof(wait))
		return 0;
	memcpy(&wait, data, sizeof(wait));
	csf_make_printable(wait.comm, sizeof(wait.comm));
	for (i = 0; i < wait.nr_ran; i++)
		csf_make_printable(wait.ran[i].comm, sizeof(wait.ran[i].comm));
	if (s->watch->json)
		csf_report_json(s->report, json_wait(&wait));
	else
		print_text(s->report, &wait);
	return --s->left ? 0 : -EAGAIN;
}

static void show_all(void *arg)
{
	struct csf_slow_waits *s = arg;

	s->report = csf_report_begin();
	s->left = AT_ONCE;
	ring_buffer__consume(s->ring);
	csf_report_end(s->watch, s->report);
}

struct csf_slow_waits *csf_slow_open(int ring_fd, struct csf_watch *watch)
{
	struct csf_slow_waits *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->watch = watch;
	s->ring = ring_buffer__new(ring_fd, show, s, NULL);
	if (s->ring)
		return s;
	free(s);
	return NULL;
}

void csf_slow_close(struct csf_slow_waits *s)
{
	if (!s)
		return;
	ring_buffer__free(s->ring);
	free(s);
}

void csf_slow_show(struct csf_slow_waits *s)
{
	if (s)
		show_all(s);
}

struct csf_watch_also csf_slow_also(struct csf_slow_waits *s)
{
	return (struct csf_watch_also){ s ? ring_buffer__epoll_fd(s->ring) : -1, show_all, s };
}
