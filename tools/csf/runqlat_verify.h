/* SPDX-License-Identifier: GPL-2.0 */
/* What csf runqlat counted for each thread beside what the kernel did. */
#ifndef CSF_RUNQLAT_VERIFY_H
#define CSF_RUNQLAT_VERIFY_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdio.h>

#include "runqlat_load.h"

/*
 * Counts at an edge are known to what happened while all tasks were walked over: at least, at most.
 */
struct csf_verified {
	struct csf_row_key key;
	char comm[16];
	uint64_t samples[2];
	uint64_t wait_ns[2];
	uint64_t pcount;
	uint64_t run_delay_ns;
	bool migrated; /* or about to: the kernel's sum has waits that no switch ended */
	bool ok;
};

struct csf_runqlat_verify {
	struct csf_verified *thread;
	size_t n;
	size_t failed;
};

/* Threads that were there at both edges. 0, or -1 for want of memory. */
int csf_runqlat_verify(struct csf_runqlat_verify *v, enum csf_from from,
		       const struct csf_runqlat_edge *a, const struct csf_runqlat_edge *b);
void csf_runqlat_verify_print(FILE *f, const struct csf_runqlat_verify *v);
struct json_object *csf_runqlat_verify_json(const struct csf_runqlat_verify *v);

#endif /* CSF_RUNQLAT_VERIFY_H */
