/* SPDX-License-Identifier: GPL-2.0 */
/* --stats: what the programs cost, by the kernel's own measure of them. */
#ifndef CSF_COST_H
#define CSF_COST_H

#include <bpf/libbpf.h>
#include <stdint.h>
#include <stdio.h>

struct csf_cost {
	int fd; /* the kernel measures while it is open; -1: it does not */
};

/* Tells on stderr if the kernel cannot measure. */
void csf_cost_begin(struct csf_cost *c);

/* A line for each program that ran: how often, and how long each time, the measuring included. */
void csf_cost_print(const struct csf_cost *c, const struct bpf_object *obj, FILE *f);

/* The same as members of a JSON object: {"NAME": {"runs": N, "ns": N}, ...} */
void csf_cost_json(const struct csf_cost *c, const struct bpf_object *obj, FILE *f);

void csf_cost_end(struct csf_cost *c);

/* Memory in KiB: of this process, and of the maps of @obj in the kernel. */
uint64_t csf_cost_resident(void);
uint64_t csf_cost_maps(const struct bpf_object *obj);

#endif /* CSF_COST_H */
