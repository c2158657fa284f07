/* SPDX-License-Identifier: GPL-2.0 */
/* csf migrate on kernels without BTF. */
#ifndef CSF_MIGRATE_CLASSIC_H
#define CSF_MIGRATE_CLASSIC_H

#include "count.h"

struct migrate_classic_bpf;

/* Loads, attaches and sets c->obj and c->state. 0, an exit code after a message, or a negative error. */
int csf_migrate_classic_load(struct csf_count *c, struct migrate_classic_bpf **loaded, int nr_cpus,
			     int (*map_moves)(void *own, int fd));
void csf_migrate_classic_unload(struct migrate_classic_bpf *skel);

#endif /* CSF_MIGRATE_CLASSIC_H */
