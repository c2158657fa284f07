// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "rows.h"
#include "printable.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_key(const void *a, const void *b)
{
	const struct csf_row_key *x = &((const struct csf_rows_row *)a)->key;
	const struct csf_row_key *y = &((const struct csf_rows_row *)b)->key;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

static int by_total(const void *a, const void *b)
{
	const struct csf_rows_row *x = a, *y = b;

	if (x->total_ns != y->total_ns)
		return x->total_ns > y->total_ns ? -1 : 1;
	return by_key(a, b);
}

static struct csf_rows_row *append(struct csf_rows *rows)
{
	/* room doubles at each power of two */
	if (!(rows->n & (rows->n - 1))) {
		size_t room = rows->n ? 2 * rows->n : 1;
		struct csf_rows_row *more = realloc(rows->row, room * sizeof(*more));

		if (!more)
			return NULL;
		rows->row = more;
	}
	return memset(&rows->row[rows->n++], 0, sizeof(*rows->row));
}

static void convert(struct csf_rows_row *to, const struct csf_row_key *key,
		    const struct csf_row *from, enum csf_by by)
{
	unsigned int i;

	to->key = *key;
	if (by != CSF_BY_CPU)
		to->key.cpu = 0;
	for (i = 0; i < CSF_ROW_SLOTS; i++) {
		to->slots[i] = from->slots[i];
		to->samples += from->slots[i];
	}
	to->total_ns = from->total_ns;
	to->max_ns = from->max_ns;
	to->named_ns = from->named_ns;
	memcpy(to->comm, from->comm, sizeof(to->comm));
	csf_make_printable(to->comm, sizeof(to->comm));
}

static void add(struct csf_rows_row *to, const struct csf_rows_row *from)
{
	unsigned int i;

	for (i = 0; i < CSF_ROW_SLOTS; i++)
		to->slots[i] += from->slots[i];
	to->samples += from->samples;
	to->total_ns += from->total_ns;
	if (from->max_ns > to->max_ns)
		to->max_ns = from->max_ns;
	if (from->named_ns > to->named_ns) {
		to->named_ns = from->named_ns;
		memcpy(to->comm, from->comm, sizeof(to->comm));
	}
}

/* What one row counted on several CPUs. */
static void merge(struct csf_rows *rows)
{
	size_t i, n = 0;

	if (rows->n)
		qsort(rows->row, rows->n, sizeof(*rows->row), by_key);
	for (i = 0; i < rows->n; i++)
		if (n && !by_key(&rows->row[n - 1], &rows->row[i]))
			add(&rows->row[n - 1], &rows->row[i]);
		else
			rows->row[n++] = rows->row[i];
	rows->n = n;
}

int csf_rows_read(struct csf_rows *rows, int map_fd, enum csf_by by)
{
	struct csf_row_key key, *last = NULL;
	struct csf_rows_row *to;
	struct csf_row row;

	rows->n = 0;
	while (!bpf_map_get_next_key(map_fd, last, &key)) {
		last = &key;
		if (bpf_map_lookup_elem(map_fd, &key, &row))
			continue;
		to = append(rows);
		if (!to) {
			fprintf(stderr, "csf: no memory for so many rows\n");
			return -1;
		}
		convert(to, &key, &row, by);
	}
	merge(rows);
	return 0;
}

void csf_rows_free(struct csf_rows *rows)
{
	free(rows->row);
	memset(rows, 0, sizeof(*rows));
}

const struct csf_rows_row *csf_rows_find(const struct csf_rows *rows, const struct csf_row_key *key)
{
	struct csf_rows_row want = { .key = *key };

	return rows->n ? bsearch(&want, rows->row, rows->n, sizeof(want), by_key) : NULL;
}

static void subtract(struct csf_rows_row *from, const struct csf_rows_row *what)
{
	unsigned int i;

	for (i = 0; i < CSF_ROW_SLOTS; i++)
		from->slots[i] -= what->slots[i];
	from->samples -= what->samples;
	from->total_ns -= what->total_ns;
}

int csf_rows_growth(struct csf_rows *growth, const struct csf_rows *later,
		    const struct csf_rows *earlier)
{
	const struct csf_rows_row *old;
	struct csf_rows_row *to;
	size_t i;

	growth->n = 0;
	for (i = 0; i < later->n; i++) {
		old = csf_rows_find(earlier, &later->row[i].key);
		if (old && old->samples == later->row[i].samples)
			continue;
		to = append(growth);
		if (!to)
			return -1;
		*to = later->row[i];
		if (old)
			subtract(to, old);
	}
	if (growth->n)
		qsort(growth->row, growth->n, sizeof(*growth->row), by_total);
	return 0;
}

static void to_hist(struct csf_hist *h, const struct csf_rows_row *row, uint64_t unit_ns)
{
	static const struct csf_hist nothing = { .coarse = true };

	*h = nothing;
	memcpy(h->slots, row->slots, sizeof(row->slots));
	h->total_ns = row->total_ns;
	h->max_ns = row->max_ns;
	h->unit_ns = unit_ns;
	h->coarse = true;
	csf_hist_subtract(h, &nothing); /* the longest may be of an earlier window */
}

static int open_cgroup_mount(void)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	struct mntent *m;
	int fd = -1;

	while (f && fd < 0 && (m = getmntent(f)))
		if (!strcmp(m->mnt_type, "cgroup2"))
			fd = open(m->mnt_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f)
		endmntent(f);
	return fd;
}

/* A cgroup's id is its handle in the file system. Its number, if it is gone. */
static void cgroup_name(uint64_t id, char *name, size_t size)
{
	struct {
		struct file_handle h;
		uint64_t id;
	} handle = { { .handle_bytes = sizeof(id), .handle_type = 0xfe }, id };
	int mount = open_cgroup_mount(), fd;
	char link[64];
	ssize_t n = -1;

	memcpy(handle.h.f_handle, &id, sizeof(id));
	fd = mount < 0 ? -1 : open_by_handle_at(mount, &handle.h, O_PATH | O_CLOEXEC);
	if (fd >= 0) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, name, size - 1);
		close(fd);
	}
	if (mount >= 0)
		close(mount);
	if (n > 0)
		name[n] = 0;
	else
		snprintf(name, size, "%" PRIu64, id);
	csf_make_printable(name, size);
}

static void print_heading(FILE *f, const struct csf_rows_row *row, enum csf_by by)
{
	char name[4096];

	switch (by) {
	case CSF_BY_PROCESS:
	case CSF_BY_THREAD:
		fprintf(f, "%s %" PRIu32 " %s\n", by == CSF_BY_PROCESS ? "PID" : "TID",
			row->key.pid, row->comm);
		break;
	case CSF_BY_CPU:
		fprintf(f, "CPU %" PRIu32 "\n", row->key.cpu);
		break;
	default:
		cgroup_name(row->key.id, name, sizeof(name));
		fprintf(f, "cgroup %s\n", name);
	}
}

void csf_rows_print(FILE *f, const struct csf_rows *rows, enum csf_by by, uint64_t unit_ns)
{
	struct csf_hist h;
	size_t i;

	for (i = 0; i < rows->n; i++) {
		to_hist(&h, &rows->row[i], unit_ns);
		print_heading(f, &rows->row[i], by);
		csf_hist_print_table(f, &h);
		csf_hist_print_percentiles(f, &h);
		csf_hist_print_sum(f, &h);
		fprintf(f, "\n");
	}
	if (rows->n)
		fprintf(f, "all\n");
}

static void name_json(struct json_object *o, const struct csf_rows_row *row, enum csf_by by)
{
	char name[4096];

	switch (by) {
	case CSF_BY_PROCESS:
	case CSF_BY_THREAD:
		json_object_object_add(o, by == CSF_BY_PROCESS ? "pid" : "tid",
				       json_object_new_uint64(row->key.pid));
		json_object_object_add(o, "comm", json_object_new_string(row->comm));
		break;
	case CSF_BY_CPU:
		json_object_object_add(o, "cpu", json_object_new_uint64(row->key.cpu));
		break;
	default:
		cgroup_name(row->key.id, name, sizeof(name));
		json_object_object_add(o, "cgroup", json_object_new_string(name));
	}
}

struct json_object *csf_rows_json(const struct csf_rows *rows, enum csf_by by, uint64_t unit_ns)
{
	struct json_object *all = json_object_new_array(), *o;
	struct csf_hist h;
	size_t i;

	for (i = 0; i < rows->n; i++) {
		to_hist(&h, &rows->row[i], unit_ns);
		o = json_object_new_object();
		name_json(o, &rows->row[i], by);
		csf_hist_json(o, &h);
		json_object_array_add(all, o);
	}
	return all;
}
