// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All of a file of the thread as text; false if it cannot be read. */
static bool slurp(const struct csf_proc_task *t, const char *name, char *text, size_t size)
{
	char path[96];
	size_t len = 0;
	ssize_t n = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task/%" PRIu32 "/%s", t->tgid, t->tid,
		 name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while (len < size - 1 && (n = read(fd, text + len, size - 1 - len)) > 0)
		len += n;
	close(fd);
	text[len] = 0;
	return !n && len;
}

/* The number behind a key at the start of a line, such as "se.nr_migrations   :   12". */
static bool number(const char *text, const char *key, uint64_t *value)
{
	const char *at = text;
	size_t len = strlen(key);

	while (at && strncmp(at, key, len)) {
		at = strchr(at, '\n');
		at = at ? at + 1 : NULL;
	}
	if (!at)
		return false;
	at += len;
	at += strspn(at, " \t:");
	return sscanf(at, "%" SCNu64, value) == 1;
}

static bool read_status(struct csf_proc_task *t)
{
	char text[8192], *name;

	if (!slurp(t, "status", text, sizeof(text)))
		return false;
	name = strncmp(text, "Name:\t", 6) ? NULL : text + 6;
	if (name)
		snprintf(t->comm, sizeof(t->comm), "%.*s", (int)strcspn(name, "\n"), name);
	return number(text, "voluntary_ctxt_switches:", &t->voluntary) &&
	       number(text, "nonvoluntary_ctxt_switches:", &t->involuntary);
}

static bool read_schedstat(struct csf_proc_task *t)
{
	char text[128];

	return slurp(t, "schedstat", text, sizeof(text)) &&
	       sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &t->run_ns, &t->delay_ns,
		      &t->pcount) == 3;
}

static bool read_sched(struct csf_proc_task *t)
{
	char text[8192];

	return slurp(t, "sched", text, sizeof(text)) &&
	       number(text, "se.nr_migrations", &t->migrations);
}

/* Behind the name, which may contain anything: 20 words, of which the first is the state. */
static bool read_start(struct csf_proc_task *t)
{
	char text[1024], *at;
	int i;

	at = slurp(t, "stat", text, sizeof(text)) ? strrchr(text, ')') : NULL;
	for (i = 0; at && i < 20; i++)
		at = strchr(at + 1, ' ');
	return at && sscanf(at, "%" SCNu64, &t->start) == 1;
}

uint64_t csf_proc_births(void)
{
	FILE *f = fopen("/proc/stat", "re");
	uint64_t births = 0;
	char line[4096];

	while (f && !births && fgets(line, sizeof(line), f))
		if (sscanf(line, "processes %" SCNu64, &births) != 1)
			births = 0;
	if (f)
		fclose(f);
	return births;
}

bool csf_proc_read(uint32_t tgid, uint32_t tid, unsigned int what, struct csf_proc_task *t)
{
	char path[64];

	memset(t, 0, sizeof(*t));
	t->tgid = tgid;
	t->tid = tid;
	if ((what & CSF_PROC_STATUS) && read_status(t))
		t->has |= CSF_PROC_STATUS;
	if ((what & CSF_PROC_SCHEDSTAT) && read_schedstat(t))
		t->has |= CSF_PROC_SCHEDSTAT;
	if ((what & CSF_PROC_SCHED) && read_sched(t))
		t->has |= CSF_PROC_SCHED;
	if ((what & CSF_PROC_START) && read_start(t))
		t->has |= CSF_PROC_START;
	if (t->has)
		return true;
	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task/%" PRIu32, tgid, tid);
	return !access(path, F_OK);
}

/* The next entry whose name is a number; 0 at the end. */
static uint32_t next_id(DIR *dir)
{
	struct dirent *e;
	uint32_t id;
	char *end;

	while (dir && (e = readdir(dir))) {
		id = strtoul(e->d_name, &end, 10);
		if (id && !*end)
			return id;
	}
	return 0;
}

static bool add(struct csf_proc_list *list, const struct csf_proc_task *t)
{
	struct csf_proc_task *tasks = list->tasks;
	size_t nr = list->nr;

	if (!(nr & (nr - 1))) { /* full at each power of two */
		tasks = realloc(tasks, (nr ? 2 * nr : 1) * sizeof(*tasks));
		if (!tasks)
			return false;
		list->tasks = tasks;
	}
	tasks[list->nr++] = *t;
	return true;
}

static bool add_process(struct csf_proc_list *list, uint32_t tgid, uint32_t only, unsigned int what)
{
	struct csf_proc_task t;
	bool fits = true;
	char path[64];
	uint32_t tid;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task", tgid);
	dir = opendir(path);
	while (fits && (tid = next_id(dir)))
		if ((!only || tid == only) && csf_proc_read(tgid, tid, what, &t) && t.has)
			fits = add(list, &t);
	if (dir)
		closedir(dir);
	return fits;
}

static bool add_all(struct csf_proc_list *list, uint32_t only, unsigned int what)
{
	DIR *dir = opendir("/proc");
	bool fits = true;
	uint32_t tgid;

	while (fits && (tgid = next_id(dir)))
		fits = add_process(list, tgid, only, what);
	if (dir)
		closedir(dir);
	return fits;
}

static int by_tid(const void *a, const void *b)
{
	const struct csf_proc_task *x = a, *y = b;

	return (x->tid > y->tid) - (x->tid < y->tid);
}

bool csf_proc_list(uint32_t tgid, uint32_t tid, unsigned int what, struct csf_proc_list *list)
{
	memset(list, 0, sizeof(*list));
	if (tgid ? add_process(list, tgid, tid, what) : add_all(list, tid, what)) {
		if (list->nr)
			qsort(list->tasks, list->nr, sizeof(*list->tasks), by_tid);
		return true;
	}
	fprintf(stderr, "csf: no memory for the counters of %zu threads\n", list->nr);
	csf_proc_free(list);
	return false;
}

const struct csf_proc_task *csf_proc_find(const struct csf_proc_list *list, uint32_t tid)
{
	struct csf_proc_task key = { .tid = tid };

	return list->nr ? bsearch(&key, list->tasks, list->nr, sizeof(key), by_tid) : NULL;
}

void csf_proc_free(struct csf_proc_list *list)
{
	free(list->tasks);
	memset(list, 0, sizeof(*list));
}
