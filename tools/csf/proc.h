/* SPDX-License-Identifier: GPL-2.0 */
/* The kernel's own counters of each thread, from /proc, to compare with. */
#ifndef CSF_PROC_H
#define CSF_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What to read: a system call or three each. */
enum csf_proc_what {
	CSF_PROC_STATUS = 1, /* voluntary, involuntary, comm */
	CSF_PROC_SCHEDSTAT = 2, /* run_ns, delay_ns, pcount */
	CSF_PROC_SCHED = 4, /* migrations; not every kernel has it */
	CSF_PROC_START = 8, /* start */
};

struct csf_proc_task {
	uint32_t tgid;
	uint32_t tid;
	unsigned int has; /* bits of csf_proc_what: what could be read */
	char comm[16];
	uint64_t voluntary, involuntary;
	uint64_t run_ns, delay_ns, pcount;
	uint64_t migrations;
	uint64_t start; /* ticks since boot: with the TID, who it is */
};

/* Reads /proc/TGID/task/TID/; false if the thread has ended (or is of another PID namespace). */
bool csf_proc_read(uint32_t tgid, uint32_t tid, unsigned int what, struct csf_proc_task *task);

struct csf_proc_list {
	struct csf_proc_task *tasks; /* by TID */
	size_t nr;
};

/*
 * All threads of the process @tgid, or of all processes if it is 0; of them only @tid unless it is 0. A
 * thread that ends meanwhile is left out. False, after a message, if there is no memory.
 */
bool csf_proc_list(uint32_t tgid, uint32_t tid, unsigned int what, struct csf_proc_list *list);
const struct csf_proc_task *csf_proc_find(const struct csf_proc_list *list, uint32_t tid);

/* How many tasks were ever born, threads included; 0 if it is not known. */
uint64_t csf_proc_births(void);

void csf_proc_free(struct csf_proc_list *list);

#endif /* CSF_PROC_H */
