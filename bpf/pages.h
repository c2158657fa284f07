/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Chunks: inner maps full of pages, in sizes of 1 to 256. Putting one where the programs find it
 * waits for an RCU grace period (10 ms and more), so a thread of its own keeps some of each
 * size ready, and takes away those whose process is gone. A chunk serves one process, ever.
 */
#ifndef CSF_PAGES_H
#define CSF_PAGES_H

#include <stdint.h>

#include "writer.h"

#define CSF_NR_SIZES 5

struct csf_pages;

/*
 * How to make a map that the outer map of @chunks_fd accepts. @ids_link_fd: makes iterators over
 * the numbers of all maps that there are.
 */
struct csf_pages_maps {
	int chunks_fd;
	int chunk_use_fd;
	int btf_fd;
	int ids_link_fd;
	uint32_t key_type;
	uint32_t value_type;
};

/* Slots of a chunk of @size (0 to CSF_NR_SIZES - 1), and the kernel memory it takes. */
uint32_t csf_pages_slots(unsigned int size);
uint64_t csf_pages_bytes(unsigned int size);

/* NULL with errno. Returns once a chunk of each size is ready. */
struct csf_pages *csf_pages_start(const struct csf_pages_maps *maps);
void csf_pages_stop(struct csf_pages *p);

/* Readable after chunks have become ready, or gone. */
int csf_pages_event_fd(const struct csf_pages *p);
void csf_pages_event_clear(struct csf_pages *p);

/* A chunk of this size for a process, or -1 if none is ready yet. */
int csf_pages_take(struct csf_pages *p, unsigned int size);
int csf_pages_fd(const struct csf_pages *p, int chunk);
/* Slots that no thread has taken. */
uint32_t csf_pages_free_slots(const struct csf_pages *p, int chunk);

/* The process is gone. Its memory is free when csf_pages_gone() has named the chunk. */
void csf_pages_retire(struct csf_pages *p, int chunk);
/* The next chunk whose memory the kernel has freed, or -1. */
int csf_pages_gone(struct csf_pages *p);

#endif /* CSF_PAGES_H */
