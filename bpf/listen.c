// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "listen.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A socket file that nobody listens on any more is taken over; one that is alive is not. */
static int bind_socket(int fd, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int probe, err;

	if (strlen(path) >= sizeof(a.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(a.sun_path, path);
	probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	err = connect(probe, (struct sockaddr *)&a, sizeof(a)) ? errno : 0;
	close(probe);
	if (!err) {
		errno = EADDRINUSE;
		return -1;
	}
	if (err == ECONNREFUSED)
		unlink(path);
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)))
		return -1;
	return chmod(path, 0666); /* whoever may see the directory may ask */
}

int csf_listen(const char *path)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;

	if (fd < 0)
		return -1;
	if (!bind_socket(fd, path) && !listen(fd, SOMAXCONN))
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

/*
 * Nobody shall send us descriptors: closing the last one of a file can take as long as its owner
 * likes (SO_LINGER). Kernels before 6.16 cannot refuse them.
 */
void csf_refuse_descriptors(int fd)
{
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
	int no = 0;

	setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
}
