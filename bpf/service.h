/* SPDX-License-Identifier: GPL-2.0 */
/* The service around the writer's BPF programs: csf serve. */
#ifndef CSF_SERVICE_H
#define CSF_SERVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct csf_service;

/**
 * struct csf_service_options - what csf serve can be told
 * @socket: path of the socket to make, or NULL to use @listen_fd
 * @listen_fd: a listening SOCK_SEQPACKET socket (socket activation), if @socket is NULL
 * @max_threads: threads one user may have registered
 * @max_bytes: kernel memory that the pages of one user may take, in bytes
 * @period_us: microseconds between updates of the cpu page
 * @force_hash: keep threads in a hash even where task storage is dependable (tests)
 * @give_up_admin: give up CAP_SYS_ADMIN, of the calling thread and those it makes, once it is of no more use
 */
struct csf_service_options {
	const char *socket;
	int listen_fd;
	uint32_t max_threads;
	uint64_t max_bytes;
	uint32_t period_us;
	bool force_hash;
	bool give_up_admin;
};

/**
 * csf_service_start - load and attach the programs, and listen
 *
 * Return: the service, or NULL after saying on stderr what is missing and what to do.
 */
struct csf_service *csf_service_start(const struct csf_service_options *o);

/**
 * csf_service_run - answer requests until @stop_fd becomes readable
 *
 * Return: 0, or -1 after saying on stderr what went wrong.
 */
int csf_service_run(struct csf_service *s, int stop_fd);

/*
 * Detaches and frees everything, and says on stderr what could not be registered. Pages that are
 * still mapped stand still: their readers find that out within a second.
 */
void csf_service_stop(struct csf_service *s);

#endif /* CSF_SERVICE_H */
