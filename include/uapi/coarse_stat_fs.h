/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * coarse_stat_fs: the layout of the pages that a writer (the kernel module, or BPF programs) fills
 * and that lib/coarse_stat_fs.h reads. Nothing else is shared between the two sides.
 *
 * Growth: fields are only ever appended, and hdr.size says how many bytes the writer fills. Pages
 * are zero-filled behind that, so a reader copies its own sizeof and takes a missing field as 0.
 * hdr.version changes only if an old reader would misread a page; readers refuse other versions.
 *
 * Reading one's own thread page
 *
 *	do {
 *		seq = page->seq;
 *		barrier();
 *		copy the page;
 *		now = clock();
 *		barrier();
 *	} while (page->seq != seq);
 *	the bucket named by page->state also holds now - last_switch_tsc.
 *
 * Compiler barriers are enough: the only writer is a context switch of this very thread, on the
 * CPU that reads. A switch begins with an interrupt or a system call, both of which throw away
 * whatever the CPU had read ahead, so each load either precedes the whole switch in program order
 * or follows all of it; with seq unchanged there was no switch between the two reads of seq. For
 * the same reason the owner never sees an odd count, and always sees state CSF_ONCPU.
 *
 * Reading the page of another thread
 *
 *	do {
 *		seq = load_acquire(page->seq);	(odd: being written, try again)
 *		copy the page;
 *		read fence;
 *	} while (seq is odd || page->seq != seq);
 *
 * The writer makes seq odd, issues a write barrier, writes, issues a write barrier, and makes it
 * even; each side's barrier pairs with the other's. A virtual CPU can be descheduled between the
 * two, so bound the number of tries. The clock must be read ordered (rdtscp) after the copy.
 *
 * The sum rule: every cycle since the page was armed is in exactly one bucket, so between two
 * extrapolated snapshots of one epoch the differences of the five buckets add up to the
 * difference of the clock, exactly, in 64-bit wrapping arithmetic.
 */
#ifndef _UAPI_COARSE_STAT_FS_H
#define _UAPI_COARSE_STAT_FS_H

#include <linux/types.h>

#define CSF_MAGIC 0x31465343u /* "CSF1" in memory */
#define CSF_ABI_VERSION 1

#define CSF_FS_NAME "coarse_stat_fs"
#define CSF_MOUNT_POINT "/sys/kernel/coarse_stat_fs"

/* csf_hdr.kind */
#define CSF_KIND_THREAD 1
#define CSF_KIND_CPU 2

/* csf_hdr.clock: what the fields in cycles (_cyc, _tsc) count */
#define CSF_CLOCK_TSC 1 /* the x86 time stamp counter */
#define CSF_CLOCK_MONOTONIC 2 /* ns of CLOCK_MONOTONIC as in the initial time namespace */

/* csf_hdr.flags */
#define CSF_F_TSC_CONSTANT (1u << 0) /* the clock ticks at one rate in every power state */
#define CSF_F_TSC_SYNCED (1u << 1) /* the kernel has not found it to differ between CPUs */
#define CSF_F_IO (1u << 2) /* the kernel accounts I/O per task; else those fields are 0 */

/* csf_thread_page.state: the bucket that time since last_switch_tsc belongs to */
#define CSF_ONCPU 0
#define CSF_RUNQ 1
#define CSF_SLEEP 2
#define CSF_DSLEEP 3
#define CSF_IOWAIT 4
#define CSF_NR_BUCKETS 5

/* csf_thread_page.life */
#define CSF_LIVE 1 /* the writer follows the thread */
#define CSF_PAUSED 2 /* nobody has it open: nothing is counted until the owner opens it again */
#define CSF_DEAD 3 /* the thread has ended or executed another program; its last values */

/* csf_cpu_row.cpu of row 0, which sums all possible CPUs */
#define CSF_CPU_ALL (~0u)

/* Compile-time checks that work in C99 with -Wpedantic, C++ and the kernel. */
#define CSF_CONCAT_(a, b) a##b
#define CSF_CONCAT(a, b) CSF_CONCAT_(a, b)
#ifdef __cplusplus
#define CSF_CHECK(cond) static_assert(cond, #cond)
#else
#define CSF_CHECK(cond) __extension__ _Static_assert(cond, #cond)
#endif
#define CSF_AT(type, field, offset) CSF_CHECK(__builtin_offsetof(struct type, field) == (offset))

/**
 * struct csf_hdr - the first 64 bytes of every page
 *
 * Written when the page is made and not changed afterwards, except flags: the writer brings them
 * up to date at each switch in, from what it knew at most 10 ms before (thread page), or at each
 * update (cpu page).
 *
 * @magic: CSF_MAGIC
 * @version: CSF_ABI_VERSION
 * @kind: CSF_KIND_THREAD or CSF_KIND_CPU
 * @size: bytes the writer fills: the thread page's struct, or the cpu page with all its rows
 * @flags: CSF_F_*
 * @clock_khz: ticks of the clock per millisecond; never 0
 * @clock: CSF_CLOCK_*
 * @mult: with @shift, converts cycles to nanoseconds: ns = cycles * mult >> shift, where the
 *	  product needs 96 bits; relative error below 1e-8
 * @shift: 0 to 32
 * @reserved: 0
 */
struct csf_hdr {
	__u32 magic;
	__u16 version;
	__u16 kind;
	__u32 size;
	__u32 flags;
	__u32 clock_khz;
	__u32 clock;
	__u32 mult;
	__u32 shift;
	__u64 reserved[4];
};

CSF_CHECK(sizeof(struct csf_hdr) == 64);
CSF_AT(csf_hdr, version, 4);
CSF_AT(csf_hdr, kind, 6);
CSF_AT(csf_hdr, size, 8);
CSF_AT(csf_hdr, flags, 12);
CSF_AT(csf_hdr, clock_khz, 16);
CSF_AT(csf_hdr, clock, 20);
CSF_AT(csf_hdr, mult, 24);
CSF_AT(csf_hdr, shift, 28);
CSF_AT(csf_hdr, reserved, 32);

/**
 * struct csf_thread_page - one thread's account, from the moment it was armed
 *
 * Who writes, and how old a value can be: "in" fields are written when the thread gets a CPU,
 * "out" fields when it leaves one, "both" at each of the two; "arm" fields when the thread opens
 * its page first, or again after a pause. Between those the page does not change, so "out" fields
 * of a running thread are as old as its last leave (or its arming). All are written by the thread's
 * own context switches and nobody else.
 *
 * @hdr: the header; hdr.flags: in
 * @seq: odd while the page is being written (both); never goes back
 * @state: CSF_ONCPU to CSF_IOWAIT: where the time since @last_switch_tsc goes (both)
 * @life: CSF_LIVE, CSF_PAUSED or CSF_DEAD (arm, out)
 * @cpu: the CPU the thread is on, or left last (in)
 * @tid: the thread's ID in the initial PID namespace (arm)
 * @epoch: which arming this is: unique since the writer started; values of two epochs must not be
 *	   subtracted (arm)
 * @nr_waking: blocks at which a waker on another CPU had already overwritten the thread's state.
 *	       Unless it waited for I/O, their time is in @sleep_cyc (out)
 * @nr_guessed: switches at which the writer could not tell waiting, sleeping and running apart and
 *		had to estimate: the kernel moved the sleeping thread between CPUs while its
 *		dequeue was delayed (Linux 6.12 and later; only the end of its wait is in @runq_cyc
 *		then), or a switch was not reported to the BPF programs, or it was on a CPU that
 *		came online after their service had started (both)
 * @last_switch_tsc: the clock at the last switch in or out, or at arming (both)
 * @oncpu_cyc: cycles: running (out)
 * @runq_cyc: cycles: runnable and waiting for a CPU, from wakeup or preemption on (in)
 * @sleep_cyc: cycles: interruptible sleep, stopped or traced (in)
 * @dsleep_cyc: cycles: uninterruptible or killable sleep that is not I/O wait (in)
 * @iowait_cyc: cycles: blocked while marked as waiting for I/O (in)
 * @nr_switch_in: times it got a CPU (in)
 * @nr_preempt: times it left a CPU still runnable, sched_yield() included (out)
 * @nr_block: times it left a CPU to sleep or wait (out)
 * @nr_migrate: switch-ins on another CPU than the one before (in)
 * @sum_exec_ns: ns: /proc/PID/task/TID/schedstat, first value (out)
 * @run_delay_ns: ns: the same, second value: waiting for a CPU as the scheduler accounts it, which
 *		  is less than @runq_cyc: it ends at a clock the scheduler may have read before the
 *		  wakeup (out)
 * @pcount: the same, third value: times run on a CPU (out)
 * @nvcsw: voluntary context switches, as in /proc/PID/task/TID/status (out)
 * @nivcsw: involuntary context switches, likewise (out)
 * @utime_ns: ns: user time, in the resolution of the kernel's accounting, often a tick (out)
 * @stime_ns: ns: system time, likewise (out)
 * @min_flt: minor page faults (out)
 * @maj_flt: major page faults (out)
 * @rchar: bytes asked for by reads: /proc/PID/task/TID/io has it and the next six (out)
 * @wchar: bytes passed to writes (out)
 * @syscr: read system calls (out)
 * @syscw: write system calls (out)
 * @read_bytes: bytes fetched from the block layer (out)
 * @write_bytes: bytes sent to the block layer (out)
 * @cancelled_write_bytes: bytes of dirty page cache that were dropped unwritten (out)
 */
struct csf_thread_page {
	struct csf_hdr hdr;
	__u32 seq;
	__u16 state;
	__u16 life;
	__u32 cpu;
	__u32 tid;
	__u64 epoch;
	__u32 nr_waking;
	__u32 nr_guessed;
	__u64 last_switch_tsc;
	__u64 oncpu_cyc;
	__u64 runq_cyc;
	__u64 sleep_cyc;
	__u64 dsleep_cyc;
	__u64 iowait_cyc;
	__u64 nr_switch_in;
	__u64 nr_preempt;
	__u64 nr_block;
	__u64 nr_migrate;
	__u64 sum_exec_ns;
	__u64 run_delay_ns;
	__u64 pcount;
	__u64 nvcsw;
	__u64 nivcsw;
	__u64 utime_ns;
	__u64 stime_ns;
	__u64 min_flt;
	__u64 maj_flt;
	__u64 rchar;
	__u64 wchar;
	__u64 syscr;
	__u64 syscw;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 cancelled_write_bytes;
};

CSF_CHECK(sizeof(struct csf_thread_page) == 304);
CSF_AT(csf_thread_page, seq, 64);
CSF_AT(csf_thread_page, state, 68);
CSF_AT(csf_thread_page, life, 70);
CSF_AT(csf_thread_page, cpu, 72);
CSF_AT(csf_thread_page, tid, 76);
CSF_AT(csf_thread_page, epoch, 80);
CSF_AT(csf_thread_page, nr_waking, 88);
CSF_AT(csf_thread_page, nr_guessed, 92);
CSF_AT(csf_thread_page, last_switch_tsc, 96);
CSF_AT(csf_thread_page, oncpu_cyc, 104);
CSF_AT(csf_thread_page, runq_cyc, 112);
CSF_AT(csf_thread_page, sleep_cyc, 120);
CSF_AT(csf_thread_page, dsleep_cyc, 128);
CSF_AT(csf_thread_page, iowait_cyc, 136);
CSF_AT(csf_thread_page, nr_switch_in, 144);
CSF_AT(csf_thread_page, nr_preempt, 152);
CSF_AT(csf_thread_page, nr_block, 160);
CSF_AT(csf_thread_page, nr_migrate, 168);
CSF_AT(csf_thread_page, sum_exec_ns, 176);
CSF_AT(csf_thread_page, run_delay_ns, 184);
CSF_AT(csf_thread_page, pcount, 192);
CSF_AT(csf_thread_page, nvcsw, 200);
CSF_AT(csf_thread_page, nivcsw, 208);
CSF_AT(csf_thread_page, utime_ns, 216);
CSF_AT(csf_thread_page, stime_ns, 224);
CSF_AT(csf_thread_page, min_flt, 232);
CSF_AT(csf_thread_page, maj_flt, 240);
CSF_AT(csf_thread_page, rchar, 248);
CSF_AT(csf_thread_page, wchar, 256);
CSF_AT(csf_thread_page, syscr, 264);
CSF_AT(csf_thread_page, syscw, 272);
CSF_AT(csf_thread_page, read_bytes, 280);
CSF_AT(csf_thread_page, write_bytes, 288);
CSF_AT(csf_thread_page, cancelled_write_bytes, 296);

/**
 * struct csf_cpu_row - one CPU's time and interrupts since boot, or the sum over all possible CPUs
 *
 * The values are those of /proc/stat, in nanoseconds where that has USER_HZ ticks (divide by
 * 1e9 / sysconf(_SC_CLK_TCK)). As there, user includes guest and nice includes guest_nice.
 *
 * @irqs: interrupts, without those the architecture counts apart (on x86 NMI, LOC and so on), so
 *	  that this is less than the "intr" line of /proc/stat
 * @softirqs: softirqs, as in the "softirq" line
 * @cpu: the CPU's number; CSF_CPU_ALL in row 0
 * @online: 1 if the CPU was online at the update; in row 0 how many were
 */
struct csf_cpu_row {
	__u64 user_ns;
	__u64 nice_ns;
	__u64 system_ns;
	__u64 idle_ns;
	__u64 iowait_ns;
	__u64 irq_ns;
	__u64 softirq_ns;
	__u64 steal_ns;
	__u64 guest_ns;
	__u64 guest_nice_ns;
	__u64 irqs;
	__u64 softirqs;
	__u32 cpu;
	__u32 online;
	__u64 reserved[3];
};

CSF_CHECK(sizeof(struct csf_cpu_row) == 128);
CSF_AT(csf_cpu_row, user_ns, 0);
CSF_AT(csf_cpu_row, nice_ns, 8);
CSF_AT(csf_cpu_row, system_ns, 16);
CSF_AT(csf_cpu_row, idle_ns, 24);
CSF_AT(csf_cpu_row, iowait_ns, 32);
CSF_AT(csf_cpu_row, irq_ns, 40);
CSF_AT(csf_cpu_row, softirq_ns, 48);
CSF_AT(csf_cpu_row, steal_ns, 56);
CSF_AT(csf_cpu_row, guest_ns, 64);
CSF_AT(csf_cpu_row, guest_nice_ns, 72);
CSF_AT(csf_cpu_row, irqs, 80);
CSF_AT(csf_cpu_row, softirqs, 88);
CSF_AT(csf_cpu_row, cpu, 96);
CSF_AT(csf_cpu_row, online, 100);
CSF_AT(csf_cpu_row, reserved, 104);

/**
 * struct csf_cpu_page - what every CPU did since boot
 *
 * Everything below hdr is written at each update, while somebody has the file open, and is at
 * most a little over @period_us old then. All rows of one sequence count are of one update.
 * Row i is at offset rows_offset + i * row_size: use those two, not sizeof, since rows may grow.
 *
 * @hdr: the header; hdr.flags: each update
 * @seq: odd while the rows are being written
 * @nr_rows: 1 + the number of possible CPU numbers; CPU c has row c + 1; constant
 * @row_size: bytes from one row to the next; constant
 * @rows_offset: bytes from the page's start to row 0; constant
 * @update_tsc: the clock at the last update; 0 before the first
 * @update_mono_ns: CLOCK_MONOTONIC at the last update, in ns
 * @period_us: the period of the updates, in microseconds
 * @resolution_ns: ns: the step in which these times grow, usually a tick; at worst
 * @reserved: 0
 */
struct csf_cpu_page {
	struct csf_hdr hdr;
	__u32 seq;
	__u32 nr_rows;
	__u32 row_size;
	__u32 rows_offset;
	__u64 update_tsc;
	__u64 update_mono_ns;
	__u32 period_us;
	__u32 resolution_ns;
	__u32 reserved[6];
};

CSF_CHECK(sizeof(struct csf_cpu_page) == 128);
CSF_AT(csf_cpu_page, seq, 64);
CSF_AT(csf_cpu_page, nr_rows, 68);
CSF_AT(csf_cpu_page, row_size, 72);
CSF_AT(csf_cpu_page, rows_offset, 76);
CSF_AT(csf_cpu_page, update_tsc, 80);
CSF_AT(csf_cpu_page, update_mono_ns, 88);
CSF_AT(csf_cpu_page, period_us, 96);
CSF_AT(csf_cpu_page, resolution_ns, 100);
CSF_AT(csf_cpu_page, reserved, 104);

#endif /* _UAPI_COARSE_STAT_FS_H */
