/* SPDX-License-Identifier: GPL-2.0 */
/* The socket on which the service is asked. */
#ifndef CSF_LISTEN_H
#define CSF_LISTEN_H

/* A listening socket, whose file takes the place of one that nobody listens on; -1 with errno. */
int csf_listen(const char *path);

/* Connections of this socket take no descriptors, where the kernel can refuse them. */
void csf_refuse_descriptors(int fd);

#endif /* CSF_LISTEN_H */
