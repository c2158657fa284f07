/* SPDX-License-Identifier: GPL-2.0 */
/*
 * --verify: /proc is read before and after each walk. What the walk found has to lie between, of every
 * thread that was there all the time: counts only grow, so the bound is strict.
 */
#ifndef CSF_VERIFY_H
#define CSF_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "proc.h"
#include "table.h"
#include "tasks.h"

struct csf_verify {
	unsigned int what; /* CSF_PROC_STATUS or CSF_PROC_SCHED: our counts are those */
	uint32_t tgid, tid; /* what is watched; 0: all */
	struct csf_proc_list before, after;
	size_t compared; /* threads at both edges of the window */
	size_t outside;
};

/* Each false after a message. */
bool csf_verify_before(struct csf_verify *v);
bool csf_verify_after(struct csf_verify *v, const struct csf_tasks *tasks,
		      const struct csf_columns *c);

/* What the window's last walk found of each thread that counted something, beside /proc. */
void csf_verify_print(const struct csf_verify *v, const struct csf_tasks *tasks,
		      const struct csf_columns *c, FILE *f);
void csf_verify_json(const struct csf_verify *v, const struct csf_tasks *tasks,
		     const struct csf_columns *c, FILE *f);

/* After the report: the last edge is the next window's first. True if all was as it should be. */
bool csf_verify_next(struct csf_verify *v);
void csf_verify_free(struct csf_verify *v);

#endif /* CSF_VERIFY_H */
