/* SPDX-License-Identifier: GPL-2.0 */
/* What csf runqlat and its BPF programs have in common. */
#ifndef CSF_RUNQLAT_H
#define CSF_RUNQLAT_H

#include <linux/types.h>

/*
 * A histogram's unit (1 us, say) is cut into 8 steps. Slot i < 8 counts waits of i steps, and each
 * doubling after that has 8 slots: what the kernel counts is 12.5 % sharp, what is printed are
 * whole doublings.
 */
#define CSF_FINE 8
#define CSF_FINE_SLOTS 496

/*
 * Of a row of a breakdown: whole doublings only. Slot 0 is [0, 2) units, slot i is [2^i, 2^(i+1)).
 */
#define CSF_ROW_SLOTS 62

enum csf_from { CSF_FROM_WAKEUP, CSF_FROM_QUEUE, CSF_FROM_WAKING };

enum csf_by { CSF_BY_NONE, CSF_BY_PROCESS, CSF_BY_THREAD, CSF_BY_CPU, CSF_BY_CGROUP };

/* Why something that was seen is in no sample. */
enum csf_discard {
	CSF_NEGATIVE, /* it ended before it began: clocks of two CPUs */
	CSF_STALE, /* the task ran since: the end of the wait was not shown */
	CSF_UNSEEN_START, /* the task ran without having been seen to wait */
	CSF_UNSEEN_END, /* it waits again without having been seen to run */
	CSF_NO_ROOM, /* there was no memory, or no room in the hash, to note the start */
	CSF_ROWS_FULL, /* in the whole, but in no row */
	CSF_EVENTS_LOST, /* in the histogram, but not printed for --over */
	CSF_DISCARDS = 8
};

/* What one CPU has counted; only its own programs write it. The size of a page, and mapped. */
struct csf_runqlat_cpu {
	__u64 slots[CSF_FINE_SLOTS];
	__u64 total_ns;
	__u64 max_ns; /* user space takes it, and leaves 0 */
	__u64 discarded[CSF_DISCARDS];
	__u64 open_count; /* waits that had begun before we looked: ended, of unknown length */
	__u64 open_ns; /* since we looked */
	__u64 gone_delay_ns; /* run_delay and pcount of tasks that have ended here */
	__u64 gone_pcount;
	__u64 overtaken_count; /* waits that ended during a look, before it came to their task */
	__u64 overtaken_ns; /* how long they had been when it began */
};

struct csf_row_key {
	__u64 id; /* start time, so that a reused PID is another row; or a cgroup's id */
	__u32 pid;
	__u32 cpu; /* so that only one CPU writes it */
};

struct csf_row {
	__u64 slots[CSF_ROW_SLOTS];
	__u64 total_ns;
	__u64 max_ns;
	__u64 named_ns; /* when comm was that of the task */
	char comm[16];
};

/* A thread's counters at an edge of the window, for --verify. */
struct csf_task_counters {
	__u64 start_time;
	__u64 run_delay;
	__u64 pcount;
	__u64 migrations;
	__u32 tid;
	__u32 tgid;
	__u32 waiting;
	__u32 pad;
	char comm[16];
};

/* What a walk over all tasks found. */
struct csf_walk {
	__u64 run_delay_ns; /* sums over tasks that live */
	__u64 pcount;
	__u64 waiting; /* tasks that waited when the look began, and how long they had then */
	__u64 waiting_ns;
	__u64 look_ns; /* when it began, by CLOCK_MONOTONIC; 0: nobody looks */
	__u64 queue_look_ns; /* likewise, by the clock of run queues; 0: not asked for yet */
	__u32 at; /* the TID that the walk has come to; it goes by them */
	__u32 pad;
};

#define CSF_RAN_MAX 8
#define CSF_SLOW_BYTES (1 << 20) /* of those not printed yet */

struct csf_ran {
	__u64 from_ns;
	__u32 tid; /* 0: the CPU was idle */
	char comm[16];
};

/* A wait above the limit. Times are CLOCK_MONOTONIC. */
struct csf_slow {
	__u64 from_ns;
	__u64 to_ns;
	__u32 tid;
	__u32 tgid;
	__u32 cpu;
	__u32 nr_ran; /* who had this CPU meanwhile, the latest first */
	char comm[16];
	struct csf_ran ran[CSF_RAN_MAX];
};

#endif /* CSF_RUNQLAT_H */
