// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "cpu_page.h"

#include <bpf/libbpf.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

struct csf_cpu_page_file {
	struct csf_cpu_page *page;
	struct csf_cpu_row *rows; /* gathered here first: short writes, few retries */
	uint32_t nr_rows, size;
	uint64_t tick_ns;
	const struct csf_loaded *bpf;
	const struct csf_cpu_irqs *irqs; /* the map cpu_irqs */
	FILE *stat;
	int fd;
};

static void init_page(struct csf_cpu_page_file *f, uint32_t period_us)
{
	struct csf_cpu_page *p = f->page;

	p->hdr.magic = CSF_MAGIC;
	p->hdr.version = CSF_ABI_VERSION;
	p->hdr.kind = CSF_KIND_CPU;
	p->hdr.size = f->size;
	p->hdr.flags = CSF_F_TSC_CONSTANT | CSF_F_TSC_SYNCED;
	p->hdr.clock_khz = 1000000;
	p->hdr.clock = CSF_CLOCK_MONOTONIC;
	p->hdr.mult = 1;
	p->nr_rows = f->nr_rows;
	p->row_size = sizeof(struct csf_cpu_row);
	p->rows_offset = sizeof(*p);
	p->period_us = period_us;
	p->resolution_ns = f->tick_ns;
}

/* The mapping made before the seal stays writable: it is ours; later ones, and write(), are not. */
static int make_file(struct csf_cpu_page_file *f)
{
	int fd = memfd_create("csf_cpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char path[64];

	if (fd < 0 || ftruncate(fd, f->size))
		goto fail;
	f->page = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (f->page == MAP_FAILED)
		goto fail;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
		goto fail;
	fchmod(fd, 0444); /* whoever has it shall not open it again for more */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	close(fd);
	return f->fd < 0 ? -1 : 0;
fail:
	if (fd >= 0)
		close(fd);
	return -1;
}

static size_t irqs_len(const struct csf_cpu_page_file *f)
{
	return (f->nr_rows - 1) * sizeof(*f->irqs);
}

struct csf_cpu_page_file *csf_cpu_page_new(uint32_t period_us, const struct csf_loaded *bpf)
{
	struct csf_cpu_page_file *f = calloc(1, sizeof(*f));
	uint32_t i;

	if (!f)
		return NULL;
	f->page = MAP_FAILED;
	f->fd = -1;
	f->bpf = bpf;
	f->nr_rows = libbpf_num_possible_cpus() + 1;
	f->size = sizeof(*f->page) + f->nr_rows * sizeof(*f->rows);
	f->tick_ns = 1000000000 / sysconf(_SC_CLK_TCK);
	f->rows = calloc(f->nr_rows, sizeof(*f->rows));
	f->stat = fopen("/proc/stat", "re");
	f->irqs = mmap(NULL, irqs_len(f), PROT_READ, MAP_SHARED, bpf->cpu_irqs_fd, 0);
	if (!f->rows || !f->stat || f->irqs == MAP_FAILED || make_file(f)) {
		csf_cpu_page_free(f);
		return NULL;
	}
	for (i = 0; i < f->nr_rows; i++)
		f->rows[i].cpu = i - 1;
	init_page(f, period_us);
	return f;
}

void csf_cpu_page_free(struct csf_cpu_page_file *f)
{
	if (f->page != MAP_FAILED)
		munmap(f->page, f->size);
	if (f->irqs && f->irqs != MAP_FAILED)
		munmap((void *)f->irqs, irqs_len(f));
	if (f->fd >= 0)
		close(f->fd);
	if (f->stat)
		fclose(f->stat);
	free(f->rows);
	free(f);
}

int csf_cpu_page_fd(const struct csf_cpu_page_file *f)
{
	return f->fd;
}

uint32_t csf_cpu_page_size(const struct csf_cpu_page_file *f)
{
	return f->size;
}

/* "cpu3 1 2 3 ...": the ten times in the order of struct csf_cpu_row */
static void read_cpu_line(struct csf_cpu_page_file *f, const char *line)
{
	char *end;
	unsigned long cpu = strtoul(line + 3, &end, 10), i;
	struct csf_cpu_row *row = &f->rows[cpu + 1];
	__u64 *times = &row->user_ns;

	if (cpu + 1 >= f->nr_rows)
		return;
	for (i = 0; i < 10; i++)
		times[i] = strtoull(end, &end, 10) * f->tick_ns;
	row->online = 1;
}

/* Not the line "cpu": that is rounded by itself, and would not be the sum of the others. */
static void sum_rows(struct csf_cpu_page_file *f)
{
	struct csf_cpu_row *sum = &f->rows[0];
	uint32_t i, field;

	memset(sum, 0, sizeof(*sum));
	sum->cpu = CSF_CPU_ALL;
	for (i = 1; i < f->nr_rows; i++) {
		for (field = 0; field < offsetof(struct csf_cpu_row, cpu) / sizeof(__u64); field++)
			(&sum->user_ns)[field] += (&f->rows[i].user_ns)[field];
		sum->online += f->rows[i].online;
	}
}

/*
 * Adds up a table of /proc with a heading of CPUs ("CPU0 CPU2 ...") and lines "NAME: count count
 * ...". Of interrupts only the numbered lines: as in the kernel's own sum, those of the
 * architecture do not count.
 */
static void add_table(struct csf_cpu_page_file *f, const char *path, bool softirqs)
{
	FILE *table = fopen(path, "re");
	char *line = NULL, *heading = NULL, *cpu, *end;
	size_t len = 0, heading_len = 0;

	if (!table || getline(&heading, &heading_len, table) < 0)
		goto out;
	while (getline(&line, &len, table) > 0) {
		end = strchr(line, ':');
		if (!end || (!softirqs && !isdigit((unsigned char)end[-1])))
			continue;
		end++;
		for (cpu = strstr(heading, "CPU"); cpu; cpu = strstr(cpu + 1, "CPU")) {
			unsigned long i = strtoul(cpu + 3, NULL, 10) + 1;
			__u64 n = strtoull(end, &end, 10);

			if (i < f->nr_rows)
				*(softirqs ? &f->rows[i].softirqs : &f->rows[i].irqs) += n;
		}
	}
out:
	if (table)
		fclose(table);
	free(heading);
	free(line);
}

static void read_irqs(struct csf_cpu_page_file *f)
{
	bool counted = csf_load_count_irqs(f->bpf);
	uint32_t i;

	for (i = 1; i < f->nr_rows; i++) {
		f->rows[i].irqs = counted ? f->irqs[i - 1].irqs : 0;
		f->rows[i].softirqs = counted ? f->irqs[i - 1].softirqs : 0;
	}
	if (counted)
		return;
	add_table(f, "/proc/interrupts", false);
	add_table(f, "/proc/softirqs", true);
}

static void read_stat(struct csf_cpu_page_file *f)
{
	char line[1024];
	uint32_t i;

	rewind(f->stat);
	fflush(f->stat);
	for (i = 0; i < f->nr_rows; i++)
		f->rows[i].online = 0;
	while (fgets(line, sizeof(line), f->stat) && !strncmp(line, "cpu", 3))
		if (line[3] != ' ')
			read_cpu_line(f, line);
	read_irqs(f);
	sum_rows(f);
}

void csf_cpu_page_update(struct csf_cpu_page_file *f)
{
	struct csf_cpu_page *p = f->page;
	struct timespec ts;
	uint64_t mono;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	mono = (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
	read_stat(f);
	__atomic_store_n(&p->seq, p->seq + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	memcpy(p + 1, f->rows, f->nr_rows * sizeof(*f->rows));
	p->update_tsc = mono;
	p->update_mono_ns = mono;
	__atomic_store_n(&p->seq, p->seq + 1, __ATOMIC_RELEASE);
}
