/* SPDX-License-Identifier: GPL-2.0 */
/* What the writer's BPF programs and the service around them share. */
#ifndef CSF_WRITER_H
#define CSF_WRITER_H

#include "uapi/coarse_stat_fs.h"

#define CSF_PAGE_SIZE 4096
#define CSF_MAX_CHUNKS 16384 /* inner maps that can exist at one time */
#define CSF_CHUNK_SLOTS_MAX 256 /* pages of the largest inner map */
#define CSF_MAX_CLIENTS 16384
#define CSF_MAX_FDS 65536 /* of the service: a chunk and a client have one each */
#define CSF_MAX_HASHED 65536 /* registered threads where task storage is not dependable */

/* A slot: one page, whole, so that a thread maps nothing but its own. */
struct csf_slot {
	struct csf_thread_page page;
	char pad[CSF_PAGE_SIZE - sizeof(struct csf_thread_page)];
};

/* Which slots of an inner map are taken: set by the registering thread, cleared at its end. */
struct csf_chunk {
	__u64 used[CSF_CHUNK_SLOTS_MAX / 64];
	__u32 nr_slots;
	__u32 pad;
};

/*
 * A process that may register its threads, by TGID. The service adds it; it goes when the process
 * ends, before its TGID can be used again, or executes another program. Nothing changes it meanwhile:
 * to update an element of a hash is to put another in its place, and whoever looks for it may then
 * find none, or one that is somebody else's by the time it is read.
 */
struct csf_client {
	__u32 room; /* in the map of that name: the chunk where its next thread finds a page */
	__u32 pad;
	__u64 nonce; /* the service's name for this process while it executes this program */
};

/* A registered thread. */
struct csf_ref {
	__u64 start_time; /* tells whose it is where the TID is the key */
	__u32 chunk; /* CSF_MAX_CHUNKS: it is registered no more */
	__u32 slot;
	__u32 moved_asleep; /* since it left its CPU: when it was queued last is not when it woke */
	__u32 pad;
};

/* One CPU's clock as the scheduler reads it, which programs see through a perf event's count. */
struct csf_cpu_clock {
	__u64 start_ns; /* that clock when the count was 0 */
	__s32 fd; /* of the event, in the service */
	__u32 pad;
};

/* Interrupts of one CPU since boot. */
struct csf_cpu_irqs {
	__u64 irqs;
	__u64 softirqs;
};

/* Why something did not go as it should; counters of the service. */
enum csf_lost {
	CSF_LOST_STORAGE, /* no task storage could be made: the thread was not registered */
	CSF_LOST_RACE, /* switched too often while registering */
	CSF_LOST_MAX,
};

#endif /* CSF_WRITER_H */
