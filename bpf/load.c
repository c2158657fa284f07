// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "load.h"
#include "explain.h"
#include "probe.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "writer.skel.h"

/* An iterator over the elements of a map; NULL with errno. */
static struct bpf_link *attach_iterator(struct bpf_program *prog, const struct bpf_map *map)
{
	union bpf_iter_link_info info = { .map.map_fd = bpf_map__fd(map) };
	LIBBPF_OPTS(bpf_iter_attach_opts, opts, .link_info = &info, .link_info_len = sizeof(info));

	return bpf_program__attach_iter(prog, &opts);
}

/* Reads it to its end, which runs its program over all elements. */
static bool run_iterator(const struct bpf_link *link)
{
	int fd = bpf_iter_create(bpf_link__fd(link));
	char nothing[64];
	ssize_t n;

	if (fd < 0)
		return false;
	do {
		n = read(fd, nothing, sizeof(nothing));
	} while (n > 0);
	close(fd);
	return !n;
}

/*
 * An event on one CPU that counts nanoseconds of the scheduler's clock. The map keeps it, without
 * the descriptor.
 */
static int open_clock(const struct writer_bpf *skel, uint32_t cpu, struct csf_cpu_clock *clock)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_CLOCK,
	};

	clock->fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	if (clock->fd < 0 && errno != ENODEV)
		return -errno;
	if (clock->fd >= 0 &&
	    bpf_map_update_elem(bpf_map__fd(skel->maps.clock_events), &cpu, &clock->fd, BPF_ANY))
		return -errno;
	if (bpf_map_update_elem(bpf_map__fd(skel->maps.cpu_clocks), &cpu, clock, BPF_ANY))
		return -errno;
	return 0;
}

static int start_clocks(struct writer_bpf *skel)
{
	struct bpf_link *link =
		attach_iterator(skel->progs.csf_start_clocks, skel->maps.cpu_clocks);
	int nr = libbpf_num_possible_cpus(), err = link ? 0 : -errno, cpu;
	struct csf_cpu_clock *clocks = calloc(nr, sizeof(*clocks));

	if (!clocks)
		err = -ENOMEM;
	for (cpu = 0; cpu < nr && !err; cpu++)
		err = open_clock(skel, cpu, &clocks[cpu]);
	if (!err && !run_iterator(link))
		err = -errno;
	while (clocks && cpu-- > 0)
		if (clocks[cpu].fd >= 0)
			close(clocks[cpu].fd);
	free(clocks);
	bpf_link__destroy(link);
	return err;
}

static int attach_iterators(struct csf_loaded *l)
{
	struct writer_bpf *skel = l->skel;

	l->register_link = attach_iterator(skel->progs.csf_register, skel->maps.once);
	if (!l->register_link)
		return -errno;
	l->map_ids_link = bpf_program__attach_iter(skel->progs.csf_map_ids, NULL);
	if (!l->map_ids_link)
		return -errno;
	if (!bpf_program__autoload(skel->progs.csf_count_irqs))
		return 0;
	l->irqs_link = attach_iterator(skel->progs.csf_count_irqs, skel->maps.cpu_irqs);
	return l->irqs_link ? 0 : -errno;
}

/* Epochs are told apart across restarts by where they start. */
static uint64_t first_epoch(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int load(struct csf_loaded *l, bool force_hash)
{
	int err;

	l->skel = writer_bpf__open();
	if (!l->skel)
		return -errno;
	l->skel->rodata->use_hash = force_hash || !csf_storage_dependable();
	l->skel->bss->epochs = first_epoch();
	/* whichever is not used shall not take memory */
	if (!l->skel->rodata->use_hash)
		bpf_map__set_max_entries(l->skel->maps.hashed_refs, 1);
	/* an iterator needs to be told over what */
	bpf_program__set_autoattach(l->skel->progs.csf_register, false);
	bpf_program__set_autoattach(l->skel->progs.csf_count_irqs, false);
	bpf_program__set_autoattach(l->skel->progs.csf_start_clocks, false);
	bpf_program__set_autoattach(l->skel->progs.csf_map_ids, false);
	/*
	 * variables are found by name, if CONFIG_KALLSYMS_ALL keeps those; else cpu_page.c asks
	 * /proc
	 */
	bpf_program__set_autoload(l->skel->progs.csf_count_irqs, csf_has_symbol("kstat"));
	bpf_map__set_max_entries(l->skel->maps.cpu_irqs, libbpf_num_possible_cpus());
	bpf_map__set_max_entries(l->skel->maps.cpu_clocks, libbpf_num_possible_cpus());
	bpf_map__set_max_entries(l->skel->maps.clock_events, libbpf_num_possible_cpus());
	err = writer_bpf__load(l->skel);
	if (!err)
		err = start_clocks(l->skel);
	if (!err)
		err = writer_bpf__attach(l->skel);
	return err ? err : attach_iterators(l);
}

/* The programs know clients by their numbers in the initial PID namespace, and we by ours. */
static bool in_pid_namespace(const struct writer_bpf *skel)
{
	if (skel->bss->service_tgid == (__u32)getpid())
		return false;
	fprintf(stderr,
		"csf: this is a PID namespace, where clients cannot be told apart: run the "
		"service outside of it (in a container: with the host's PID namespace), and "
		"let clients in it have the socket\n");
	return true;
}

/*
 * CAP_SYS_ADMIN was of use to open the clocks, at most; threads that are made from now on lack it. What
 * fails here fails where there was nothing to give up.
 */
static void give_up_admin(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	const uint32_t admin = 1u << CAP_SYS_ADMIN;

	if (syscall(SYS_capget, &header, data))
		return;
	data[0].permitted &= ~admin;
	data[0].effective &= ~admin;
	data[0].inheritable &= ~admin;
	syscall(SYS_capset, &header, data);
}

/* A thread maps a slot, which is a page on most machines. */
static bool right_page_size(void)
{
	long size = sysconf(_SC_PAGESIZE);

	if (size == CSF_PAGE_SIZE)
		return true;
	fprintf(stderr,
		"csf: this kernel's pages have %ld bytes; the service takes one with pages of %d\n",
		size, CSF_PAGE_SIZE);
	return false;
}

int csf_load(struct csf_loaded *l, bool force_hash, bool give_up)
{
	int err;

	memset(l, 0, sizeof(*l));
	if (!right_page_size())
		return -1;
	csf_explain_begin();
	err = load(l, force_hash);
	if (err)
		csf_explain(err, 5, 19);
	if (err || in_pid_namespace(l->skel)) {
		csf_unload(l);
		return -1;
	}
	l->maps.chunks_fd = bpf_map__fd(l->skel->maps.chunks);
	l->maps.chunk_use_fd = bpf_map__fd(l->skel->maps.chunk_use);
	l->maps.ids_link_fd = bpf_link__fd(l->map_ids_link);
	l->maps.btf_fd = bpf_object__btf_fd(l->skel->obj);
	l->maps.key_type = bpf_map__btf_key_type_id(l->skel->maps.chunk_template);
	l->maps.value_type = bpf_map__btf_value_type_id(l->skel->maps.chunk_template);
	l->cpu_irqs_fd = bpf_map__fd(l->skel->maps.cpu_irqs);
	l->clients_fd = bpf_map__fd(l->skel->maps.clients);
	l->room_fd = bpf_map__fd(l->skel->maps.room);
	if (give_up)
		give_up_admin();
	return 0;
}

/* What the programs had to refuse is seen by one thread each; this is where it shows as a whole. */
static void report_lost(const struct writer_bpf *skel)
{
	const __u64 *lost = skel->bss->lost;

	if (lost[CSF_LOST_STORAGE])
		fprintf(stderr, "csf: %llu registrations failed for want of kernel memory\n",
			(unsigned long long)lost[CSF_LOST_STORAGE]);
	if (lost[CSF_LOST_RACE])
		fprintf(stderr,
			"csf: %llu registrations failed because the thread kept switching\n",
			(unsigned long long)lost[CSF_LOST_RACE]);
}

void csf_unload(struct csf_loaded *l)
{
	if (l->skel && l->skel->bss)
		report_lost(l->skel);
	bpf_link__destroy(l->irqs_link);
	bpf_link__destroy(l->map_ids_link);
	bpf_link__destroy(l->register_link);
	writer_bpf__destroy(l->skel);
}

int csf_load_iterator(const struct csf_loaded *l)
{
	return bpf_iter_create(bpf_link__fd(l->register_link));
}

bool csf_load_count_irqs(const struct csf_loaded *l)
{
	return l->irqs_link && run_iterator(l->irqs_link);
}
