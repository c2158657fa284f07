// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "topology.h"

#include <dirent.h>
#include <stdio.h>

#define CPU_DIR "/sys/devices/system/cpu"

/* The number at the start of a file; -1 if there is none. */
static int number_in(const char *path)
{
	FILE *f = fopen(path, "re");
	int n = -1;

	if (f && fscanf(f, "%d", &n) != 1)
		n = -1;
	if (f)
		fclose(f);
	return n;
}

/* Of all that the CPU has, the cache with the highest level. */
static int last_cache(int cpu)
{
	int level, highest = 0, index, shared = -1;
	char path[96];

	for (index = 0;; index++) {
		snprintf(path, sizeof(path), CPU_DIR "/cpu%d/cache/index%d/level", cpu, index);
		level = number_in(path);
		if (level < 0)
			return shared;
		if (level <= highest)
			continue;
		highest = level;
		snprintf(path, sizeof(path), CPU_DIR "/cpu%d/cache/index%d/shared_cpu_list", cpu,
			 index);
		shared = number_in(path);
	}
}

/* A link in the CPU's directory says it: nodeN */
static int node_of(int cpu)
{
	struct dirent *e;
	char path[64];
	int node = -1;
	DIR *dir;

	snprintf(path, sizeof(path), CPU_DIR "/cpu%d", cpu);
	dir = opendir(path);
	while (dir && node < 0 && (e = readdir(dir)))
		if (sscanf(e->d_name, "node%d", &node) != 1)
			node = -1;
	if (dir)
		closedir(dir);
	return node;
}

void csf_topology_read(struct csf_place *cpus, int nr)
{
	int cpu;

	for (cpu = 0; cpu < nr; cpu++)
		cpus[cpu] = (struct csf_place){ last_cache(cpu), node_of(cpu) };
}
