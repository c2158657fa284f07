/* SPDX-License-Identifier: GPL-2.0 */
/*
 * loops.c is compiled once by each compiler, with PREFIX gcc_ or clang_. A loop does its one thing
 * n times, back to back, and leaves nothing that a compiler could move out of it.
 */
#ifndef CSF_BENCH_LOOPS_H
#define CSF_BENCH_LOOPS_H

typedef void loop_fn(long n);

loop_fn gcc_rdtsc, gcc_rdtscp, gcc_thread_snap, gcc_thread_snap_ordered, gcc_cpu_snap;

/* Null where there is no clang. */
#define CSF_BENCH_WEAK __attribute__((weak))
CSF_BENCH_WEAK loop_fn clang_rdtsc, clang_rdtscp, clang_thread_snap, clang_thread_snap_ordered,
	clang_cpu_snap;

/* The files that the library maps, as native.c chose them. */
extern const char *bench_thread_path, *bench_cpu_path;

#endif /* CSF_BENCH_LOOPS_H */
