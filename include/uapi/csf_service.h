/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * How lib/coarse_stat_fs.h gets pages from a service (csf serve) where BPF programs write them.
 *
 * A SOCK_SEQPACKET connection carries one request, and one reply with file descriptors:
 *
 * CSF_REQ_THREAD: an iterator and a chunk of pages. Reading struct csf_ticket from the iterator
 *	runs a BPF program as the thread that reads: it can register nobody but itself. The ticket
 *	says which page of which chunk is the thread's. That is nearly always the chunk that came
 *	along; else
 * CSF_REQ_CHUNK: asks for the chunk numbered in arg, if it is the process's own.
 * CSF_REQ_CPU: the cpu page, a sealed file that is updated as long as the process lives.
 *
 * Chunks are BPF arrays: slot s is at offset s * 4096. They belong to one process as long as it
 * executes one program, and are never given to another.
 *
 * Whose request it is: the process that connected must be the one that sends (SCM_CREDENTIALS), and
 * must send the nonce that the service has made for it, which is another one after it has executed
 * a program. A request with a wrong nonce, such as 0, is answered with EAGAIN and the right one. So
 * neither a child that inherited the connection, nor a request that was sent before the process
 * executed a set-user-ID program, gets what belongs to that program.
 */
#ifndef _UAPI_CSF_SERVICE_H
#define _UAPI_CSF_SERVICE_H

#include <linux/types.h>

#define CSF_SOCKET "/run/coarse_stat_fs/socket"
#define CSF_SOCKET_ENV "CSF_SOCKET" /* another path, for programs that are not set-user-ID */

#define CSF_SERVICE_MAGIC 0x53465343u
#define CSF_SERVICE_VERSION 1

#define CSF_REQ_THREAD 1
#define CSF_REQ_CHUNK 2
#define CSF_REQ_CPU 3

#define CSF_SLOT_SIZE 4096

struct csf_request {
	__u32 magic;
	__u32 version;
	__u32 type;
	__u32 arg;
	__u64 nonce;
};

/*
 * err is 0 or an errno; chunk is the number of the chunk that comes along, size its bytes. With
 * EAGAIN and a nonce that is not 0: ask again with it.
 */
struct csf_reply {
	__u32 magic;
	__u32 version;
	__s32 err;
	__u32 chunk;
	__u32 size;
	__u32 reserved;
	__u64 nonce;
};

/*
 * err is 0 or an errno: EAGAIN (no free page in the chunk; ask again), EACCES, EPERM, ENOMEM.
 * now_ns is CLOCK_MONOTONIC as the writer reads it, so that a time namespace is noticed.
 */
struct csf_ticket {
	__s32 err;
	__u32 chunk;
	__u32 slot;
	__u32 reserved;
	__u64 now_ns;
};

#endif /* _UAPI_CSF_SERVICE_H */
