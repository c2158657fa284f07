/* SPDX-License-Identifier: GPL-2.0 */
/* Which CPUs share a last-level cache, and a node. */
#ifndef CSF_TOPOLOGY_H
#define CSF_TOPOLOGY_H

struct csf_place {
	int cache; /* the first CPU that shares the last-level cache; -1: unknown */
	int node; /* -1: unknown */
};

/* Reads /sys; @cpus has room for @nr. */
void csf_topology_read(struct csf_place *cpus, int nr);

#endif /* CSF_TOPOLOGY_H */
