/* SPDX-License-Identifier: GPL-2.0 */
/* The counters of `perf stat` that need no hardware, of the calling thread, in one read(). */
#ifndef CSF_BENCH_COUNTERS_H
#define CSF_BENCH_COUNTERS_H

#include <errno.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

struct counters {
	__u64 nr;
	__u64 task_clock_ns;
	__u64 switches;
	__u64 migrations;
};

static inline int counters_add_(__u64 config, int leader)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = config,
		.read_format = PERF_FORMAT_GROUP,
	};

	return (int)syscall(SYS_perf_event_open, &attr, 0, -1, leader, PERF_FLAG_FD_CLOEXEC);
}

/* A descriptor to read struct counters from, or -1 with errno. */
static inline int counters_open(void)
{
	int fd = counters_add_(PERF_COUNT_SW_TASK_CLOCK, -1);

	if (fd < 0 || counters_add_(PERF_COUNT_SW_CONTEXT_SWITCHES, fd) < 0 ||
	    counters_add_(PERF_COUNT_SW_CPU_MIGRATIONS, fd) < 0)
		return -1;
	return fd;
}

#endif /* CSF_BENCH_COUNTERS_H */
