// SPDX-License-Identifier: GPL-2.0
/* A shared library that uses the header for itself; u_dl loads and unloads it. */
static char thread_path[256], cpu_path[256];
#define CSF_THREAD_PATH thread_path
#define CSF_CPU_PATH cpu_path

#include "lib/coarse_stat_fs.h"

void dl_paths(const char *thread, const char *cpu);
int dl_snap(void);

void dl_paths(const char *thread, const char *cpu)
{
	snprintf(thread_path, sizeof(thread_path), "%s", thread);
	snprintf(cpu_path, sizeof(cpu_path), "%s", cpu);
}

int dl_snap(void)
{
	struct csf_snap s;

	return csf_thread_snap(&s) ? errno : 0;
}
