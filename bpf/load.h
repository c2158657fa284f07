/* SPDX-License-Identifier: GPL-2.0 */
/* Loading the writer's BPF programs, and saying why it cannot be done. */
#ifndef CSF_LOAD_H
#define CSF_LOAD_H

#include <stdbool.h>

#include "pages.h"

struct writer_bpf;
struct bpf_link;

struct csf_loaded {
	struct writer_bpf *skel;
	struct bpf_link *register_link;
	struct bpf_link *irqs_link;
	struct bpf_link *map_ids_link;
	struct csf_pages_maps maps;
	int clients_fd;
	int room_fd;
	int cpu_irqs_fd;
};

/* 0, or -1 after a message on stderr */
int csf_load(struct csf_loaded *l, bool force_hash, bool give_up);
void csf_unload(struct csf_loaded *l);

/* An iterator for one thread to register itself with; -1 with errno. */
int csf_load_iterator(const struct csf_loaded *l);

/* Brings the map of cpu_irqs_fd up to date; false where the kernel does not let BPF see it. */
bool csf_load_count_irqs(const struct csf_loaded *l);

#endif /* CSF_LOAD_H */
