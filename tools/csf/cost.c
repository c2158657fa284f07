// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "cost.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

void csf_cost_begin(struct csf_cost *c)
{
	c->fd = bpf_enable_stats(BPF_STATS_RUN_TIME);
	if (c->fd < 0)
		fprintf(stderr, "csf: --stats: the kernel does not measure its BPF programs: %s\n",
			strerror(errno));
}

static bool runs(const struct bpf_program *prog, struct bpf_prog_info *info)
{
	__u32 len = sizeof(*info);

	memset(info, 0, sizeof(*info));
	return !bpf_obj_get_info_by_fd(bpf_program__fd(prog), info, &len) && info->run_cnt;
}

void csf_cost_print(const struct csf_cost *c, const struct bpf_object *obj, FILE *f)
{
	struct bpf_program *prog;
	struct bpf_prog_info info;

	if (c->fd < 0)
		return;
	bpf_object__for_each_program(prog, obj) if (runs(prog, &info))
		fprintf(f, "cost: %-16s %10" PRIu64 " runs of %5.0f ns\n", bpf_program__name(prog),
			(uint64_t)info.run_cnt, (double)info.run_time_ns / info.run_cnt);
}

void csf_cost_json(const struct csf_cost *c, const struct bpf_object *obj, FILE *f)
{
	struct bpf_program *prog;
	struct bpf_prog_info info;
	const char *comma = "";

	fprintf(f, "{");
	bpf_object__for_each_program(prog, obj)
	{
		if (c->fd < 0 || !runs(prog, &info))
			continue;
		fprintf(f, "%s\"%s\":{\"runs\":%" PRIu64 ",\"ns\":%" PRIu64 "}", comma,
			bpf_program__name(prog), (uint64_t)info.run_cnt,
			(uint64_t)info.run_time_ns);
		comma = ",";
	}
	fprintf(f, "}");
}

void csf_cost_end(struct csf_cost *c)
{
	if (c->fd >= 0)
		close(c->fd);
}

/* The number behind a key at the start of a line of a file in /proc. */
static uint64_t field(const char *path, const char *key)
{
	char line[256];
	uint64_t value = 0;
	FILE *f = fopen(path, "re");

	while (f && !value && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			sscanf(line + strlen(key), "%" SCNu64, &value);
	if (f)
		fclose(f);
	return value;
}

uint64_t csf_cost_resident(void)
{
	return field("/proc/self/status", "VmRSS:");
}

uint64_t csf_cost_maps(const struct bpf_object *obj)
{
	struct bpf_map *map;
	uint64_t bytes = 0;
	char path[64];

	bpf_object__for_each_map(map, obj)
	{
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", bpf_map__fd(map));
		bytes += field(path, "memlock:");
	}
	return bytes / 1024;
}
