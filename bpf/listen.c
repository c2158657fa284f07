// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "listen.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Connecting to any file is refused as if it were a socket that nobody listens on. */
static bool other_file(const char *path)
{
	struct stat st;

	return !lstat(path, &st) && !S_ISSOCK(st.st_mode);
}

/* A socket file that nobody listens on any more is taken over; one that is alive is not. */
static int bind_socket(int fd, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int probe, err;

	if (!*path || strlen(path) >= sizeof(a.sun_path)) {
		errno = *path ? ENAMETOOLONG : EINVAL; /* bind() would take it for no name at all */
		return -1;
	}
	if (other_file(path)) {
		errno = EEXIST;
		return -1;
	}
	memcpy(a.sun_path, path, strlen(path)); /* the rest is zeros */
	probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return -1;
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

/*
 * A user can have as many connections queued as there is room, and all others are behind them. Who finds the
 * queue full waits in connect(), in the order of coming, and can be there but once.
 */
#define BACKLOG 64

int csf_listen(const char *path)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;

	if (fd < 0)
		return -1;
	if (!bind_socket(fd, path) && !listen(fd, BACKLOG))
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

/* Also of messages that are sent before the connection is accepted. */
int csf_pass_credentials(int fd)
{
	int yes = 1;

	return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes));
}

ssize_t csf_receive(int fd, void *buf, size_t size, pid_t *sender)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(struct ucred))]; /* and no room for descriptors */
	} control;
	struct iovec iov = { buf, size };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);
	struct ucred cred = { 0 };

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS &&
	    c->cmsg_len == CMSG_LEN(sizeof(cred)))
		memcpy(&cred, CMSG_DATA(c), sizeof(cred));
	*sender = cred.pid;
	return n;
}

int csf_send(int fd, const void *buf, size_t size, const int *fds, unsigned int nr_fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(CSF_SEND_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)buf, size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (nr_fds) {
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE(nr_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nr_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, nr_fds * sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

uint64_t csf_new_nonce(void)
{
	uint64_t nonce;

	if (getrandom(&nonce, sizeof(nonce), GRND_NONBLOCK) != sizeof(nonce))
		return 0;
	return nonce ? nonce : 1;
}

/* By its number only on kernels before 6.5: elsewhere it may have been used again. */
int csf_peer_pidfd(int fd, pid_t pid)
{
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
	int pidfd;
	socklen_t len = sizeof(pidfd);

	if (!getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len))
		return pidfd;
	if (errno != ENOPROTOOPT && errno != EOPNOTSUPP && errno != EINVAL)
		return -1;
	return (int)syscall(SYS_pidfd_open, pid, 0);
}
