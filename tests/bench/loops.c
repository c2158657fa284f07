// SPDX-License-Identifier: GPL-2.0
/* The loops whose cost depends on the compiler; see loops.h. */
#include <stdlib.h>

#include "loops.h"

#define CSF_THREAD_PATH bench_thread_path
#define CSF_CPU_PATH bench_cpu_path
#include "lib/coarse_stat_fs.h"

#define LOOP(name) void CSF_CONCAT(PREFIX, name)(long n)
#define CONSUME(value) __asm__ __volatile__("" : : "r"(value) : "memory")

LOOP(rdtsc)
{
	while (n--) {
		uint64_t now = __builtin_ia32_rdtsc();

		CONSUME(now);
	}
}

LOOP(rdtscp)
{
	unsigned int aux;

	while (n--) {
		uint64_t now = __builtin_ia32_rdtscp(&aux);

		CONSUME(now);
	}
}

LOOP(thread_snap)
{
	struct csf_snap s;

	while (n--) {
		if (csf_thread_snap(&s))
			abort();
		CONSUME(&s);
	}
}

LOOP(thread_snap_ordered)
{
	struct csf_snap s;

	while (n--) {
		if (csf_thread_snap_ordered(&s))
			abort();
		CONSUME(&s);
	}
}

LOOP(cpu_snap)
{
	struct csf_cpu_snap c;

	while (n--) {
		if (csf_cpu_snap(&c, CSF_CPU_ALL))
			abort();
		CONSUME(&c);
	}
}
