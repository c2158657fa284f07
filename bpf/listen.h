/* SPDX-License-Identifier: GPL-2.0 */
/* The socket on which the service is asked. */
#ifndef CSF_LISTEN_H
#define CSF_LISTEN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A listening socket, whose file takes the place of one that nobody listens on; -1 with errno. */
int csf_listen(const char *path);

/* Connections of this socket take no descriptors, where the kernel can refuse them. */
void csf_refuse_descriptors(int fd);

/* What comes on this socket, or on connections of it, says who sent it; -1 with errno. */
int csf_pass_credentials(int fd);

/* One message, its true length, and the process that sent it (0: unknown); -1 with errno. */
ssize_t csf_receive(int fd, void *buf, size_t size, pid_t *sender);

#define CSF_SEND_FDS 2 /* at most */

/* One message, without waiting; 0, or -1 with errno. */
int csf_send(int fd, const void *buf, size_t size, const int *fds, unsigned int nr_fds);

/* Nobody can guess it, and it is not 0; 0 with errno. */
uint64_t csf_new_nonce(void);

/* The process that connected, which @pid is or was; -1 with errno. */
int csf_peer_pidfd(int fd, pid_t pid);

#endif /* CSF_LISTEN_H */
