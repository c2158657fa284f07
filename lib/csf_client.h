/* SPDX-License-Identifier: MIT */
/*
 * Part of coarse_stat_fs.h: getting pages from the service of a machine that loads no module.
 * include/uapi/csf_service.h has the protocol. A connection lives for one registration only, so no
 * descriptor stays open, and a forked child inherits nothing.
 */
#ifndef COARSE_STAT_FS_CLIENT_H
#define COARSE_STAT_FS_CLIENT_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../include/uapi/coarse_stat_fs.h"
#include "../include/uapi/csf_service.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What strict ISO modes of the C library hide; C++ compilers always show it. */
#if defined(__STRICT_ANSI__) && !defined(__cplusplus)
int clock_gettime(int clock, struct timespec *ts);
int madvise(void *addr, size_t len, int advice);
#endif
#ifdef O_CLOEXEC
#define CSF_O_CLOEXEC_ O_CLOEXEC
#else
#define CSF_O_CLOEXEC_ 02000000
#endif
#define CSF_CLOCK_MONOTONIC_ID_ 1
#define CSF_MADV_DONTFORK_ 10
#define CSF_RUSAGE_THREAD_ 1
#define CSF_AT_SECURE_ 23
/* The chunk in which a thread finds its page can be full of other threads by then. */
#define CSF_REGISTER_TRIES_ 64
#define CSF_NONCE_TRIES_ 4
#define CSF_SERVICE_PATIENCE_NS_ 1000000000u /* of one registration, in all */

/* The initial time namespace's CLOCK_MONOTONIC, which the writer uses, less ours; in ns. */
__attribute__((weak, visibility("hidden"))) int64_t csf_mono_offset_;

/* What the service knows this process by; another one after fork() or execve(), which it tells. */
__attribute__((weak, visibility("hidden"))) uint64_t csf_nonce_;

static inline uint64_t csf_own_mono_ns_(void)
{
	struct timespec ts;

	clock_gettime(CSF_CLOCK_MONOTONIC_ID_, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t csf_mono_ns_(void)
{
	return csf_own_mono_ns_() + (uint64_t)csf_mono_offset_;
}

/* When to give up what begins now: the service may be stopped. */
static inline uint64_t csf_service_until_(void)
{
	return csf_own_mono_ns_() + CSF_SERVICE_PATIENCE_NS_;
}

/* Lets the socket wait (SO_RCVTIMEO, SO_SNDTIMEO) until then; 0, or -1 with EAGAIN after it. */
static inline int csf_service_patience_(int sock, int which, uint64_t until)
{
	uint64_t now = csf_own_mono_ns_(), us;
	struct timeval left;

	if (now >= until) {
		errno = EAGAIN;
		return -1;
	}
	us = (until - now + 999) / 1000; /* 0 would be for ever */
	left.tv_sec = (time_t)(us / 1000000);
	left.tv_usec = (suseconds_t)(us % 1000000);
	return setsockopt(sock, SOL_SOCKET, which, &left, sizeof(left));
}

static inline const char *csf_service_path_(void)
{
	const char *path = getauxval(CSF_AT_SECURE_) ? NULL : getenv(CSF_SOCKET_ENV);

	return path ? path : CSF_SOCKET;
}

/* A connection, or -1 with errno: ENOENT where no service is. */
static inline int csf_service_connect_(uint64_t until)
{
	const char *path = csf_service_path_();
	struct sockaddr_un a;
	int fd, err;

	memset(&a, 0, sizeof(a));
	a.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(a.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(a.sun_path, path, strlen(path)); /* a is all zeros */
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	do {
		err = csf_service_patience_(fd, SO_SNDTIMEO, until);
		if (!err)
			err = connect(fd, (struct sockaddr *)&a, sizeof(a));
	} while (err && errno == EINTR);
	if (!err)
		return fd;
	err = errno;
	close(fd);
	errno = err == ECONNREFUSED ? ENOENT : err; /* the socket of a service that was killed */
	return -1;
}

static inline void csf_close_(const int *fds, int n)
{
	int saved = errno;

	while (n > 0)
		close(fds[--n]);
	errno = saved;
}

static inline int csf_service_send_(int sock, uint32_t type, uint32_t arg)
{
	struct csf_request q;

	q.magic = CSF_SERVICE_MAGIC;
	q.version = CSF_SERVICE_VERSION;
	q.type = type;
	q.arg = arg;
	q.nonce = __atomic_load_n(&csf_nonce_, __ATOMIC_RELAXED);
	if (send(sock, &q, sizeof(q), MSG_NOSIGNAL) == (ssize_t)sizeof(q))
		return 0;
	errno = EAGAIN; /* nobody reads it any more */
	return -1;
}

/* However often a profiler's signals interrupt it. */
static inline ssize_t csf_service_recv_(int sock, uint64_t until, struct msghdr *msg)
{
	ssize_t got;

	do {
		got = csf_service_patience_(sock, SO_RCVTIMEO, until);
		if (!got)
			got = recvmsg(sock, msg, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (!got || (got < 0 && errno == ECONNRESET)) { /* too many of our user's at once */
		errno = EAGAIN;
		return -1;
	}
	return got;
}

/* An answer with up to two descriptors. Their number, or -1 with errno. */
static inline int csf_service_answer_(int sock, uint64_t until, struct csf_reply *r, int *fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct cmsghdr *c;
	struct msghdr msg;
	struct iovec iov;
	ssize_t got;
	int n = 0;

	iov.iov_base = r;
	iov.iov_len = sizeof(*r);
	memset(&msg, 0, sizeof(msg));
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = control.buf;
	msg.msg_controllen = sizeof(control.buf);
	memset(&control, 0, sizeof(control));
	memset(r, 0, sizeof(*r));
	got = csf_service_recv_(sock, until, &msg);
	if (got < 0)
		return -1;
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
	}
	errno = got != (ssize_t)sizeof(*r) || r->magic != CSF_SERVICE_MAGIC ||
				r->version != CSF_SERVICE_VERSION ?
			EPROTO :
			r->err;
	if (!errno && msg.msg_flags & MSG_CTRUNC)
		errno = EMFILE; /* some of them did not fit below our RLIMIT_NOFILE */
	if (!errno)
		return n;
	csf_close_(fds, n);
	return -1;
}

/* One question, and its answer; once more if the service tells us a nonce that we do not have. */
static inline int csf_service_ask_(int sock, uint64_t until, uint32_t type, uint32_t arg,
				   struct csf_reply *r, int *fds)
{
	int tries = CSF_NONCE_TRIES_, n;

	do {
		if (csf_service_send_(sock, type, arg))
			return -1;
		n = csf_service_answer_(sock, until, r, fds);
		if (n >= 0 || errno != EAGAIN || !r->nonce)
			return n;
		__atomic_store_n(&csf_nonce_, r->nonce, __ATOMIC_RELAXED);
	} while (--tries);
	return -1;
}

/* Registers the calling thread by reading; 0, or -1 with errno. */
static inline int csf_service_ticket_(int iter, struct csf_ticket *ticket)
{
	ssize_t n;

	do {
		n = read(iter, ticket, sizeof(*ticket));
	} while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*ticket)) {
		errno = n < 0 ? errno : EPROTO;
		return -1;
	}
	errno = ticket->err;
	return errno ? -1 : 0;
}

/*
 * At a given address, in place of what is there, or anywhere. The address is forgotten: if mmap()
 * fails, what was there may be gone, and somebody else's mapping come.
 */
static inline const void *csf_service_map_slot_(void **at, int chunk_fd, uint32_t slot)
{
	void *p = mmap(*at, CSF_SLOT_SIZE, PROT_READ, MAP_SHARED | (*at ? MAP_FIXED : 0), chunk_fd,
		       (off_t)slot * CSF_SLOT_SIZE);

	*at = NULL;
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, CSF_SLOT_SIZE, CSF_MADV_DONTFORK_);
	return p;
}

/* The chunk that came along with the iterator is nearly always the one of the ticket. */
static inline const void *csf_service_map_ticket_(void **at, int sock, uint64_t until,
						  const struct csf_ticket *ticket,
						  const struct csf_reply *r, int chunk_fd)
{
	struct csf_reply r2;
	const void *p;
	int fds[2], n;

	if (ticket->chunk == r->chunk)
		return csf_service_map_slot_(at, chunk_fd, ticket->slot);
	n = csf_service_ask_(sock, until, CSF_REQ_CHUNK, ticket->chunk, &r2, fds);
	if (n < 1)
		return NULL;
	p = csf_service_map_slot_(at, fds[0], ticket->slot);
	csf_close_(fds, n);
	return p;
}

/* What /proc says of the time namespace of this process, or of its children's. 0 if nothing. */
static inline int csf_time_offset_(int64_t *offset)
{
	int fd = open("/proc/self/timens_offsets", O_RDONLY | CSF_O_CLOEXEC_);
	char text[256], *at;
	ssize_t n;

	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	at = strstr(text, "monotonic ");
	if (!at)
		return 0;
	*offset = -1000000000 * (int64_t)strtoll(at + strlen("monotonic "), &at, 10);
	*offset -= (int64_t)strtoll(at, NULL, 10);
	return 1;
}

/* Was the writer's clock read between these two of ours, if it is so far ahead of them? */
static inline int csf_service_between_(uint64_t before, uint64_t writer_ns, uint64_t after,
				       int64_t ahead)
{
	return writer_ns - (uint64_t)ahead - before <= after - before;
}

/*
 * The writer's clock was read between before and after, so it must say a time between them; else
 * this process is in a time namespace of its own, which tells how far its clock is off. Other
 * threads use what is known of it, so that is replaced only by what fits.
 */
static inline int csf_service_check_clock_(uint64_t before, const struct csf_ticket *ticket)
{
	uint64_t after = csf_own_mono_ns_();
	int64_t known = csf_mono_offset_, offset;

	if (csf_service_between_(before, ticket->now_ns, after, known))
		return 0;
	if (!csf_time_offset_(&offset)) {
		errno = EPROTO;
		return -1;
	}
	if (offset == known) {
		errno = EAGAIN; /* an adjusted clock's quick reading can be a little off */
		return -1;
	}
	if (!csf_service_between_(before, ticket->now_ns, after, offset)) {
		errno = EPROTO;
		return -1;
	}
	csf_mono_offset_ = offset;
	return 0;
}

/* One attempt: 1 done (*page is set), 0 to be tried again, -1 with errno. */
static inline int csf_service_register_(void **at, int sock, uint64_t until, const void **page)
{
	struct csf_ticket ticket;
	struct csf_reply r;
	uint64_t before;
	int fds[2], n, ret;

	n = csf_service_ask_(sock, until, CSF_REQ_THREAD, 0, &r, fds);
	if (n != 2) {
		csf_close_(fds, n);
		errno = n < 0 ? errno : EPROTO;
		return -1;
	}
	before = csf_own_mono_ns_();
	ret = csf_service_ticket_(fds[0], &ticket);
	if (!ret)
		ret = csf_service_check_clock_(before, &ticket);
	if (!ret)
		*page = csf_service_map_ticket_(at, sock, until, &ticket, &r, fds[1]);
	csf_close_(fds, n);
	if (ret)
		return errno == EAGAIN ? 0 : -1;
	return *page ? 1 : -1;
}

/* The page of the calling thread, in place of one whose writer is gone if *at is one: NULL then. */
static inline const void *csf_service_thread_page_(void **at)
{
	uint64_t until = csf_service_until_();
	int sock = csf_service_connect_(until), tries = CSF_REGISTER_TRIES_, ret = 0;
	const void *page = NULL;

	if (sock < 0)
		return NULL;
	while (!ret && tries--)
		ret = csf_service_register_(at, sock, until, &page);
	csf_close_(&sock, 1);
	return ret > 0 ? page : NULL;
}

/* The cpu page, mapped; NULL with errno. */
static inline const void *csf_service_cpu_page_(void)
{
	uint64_t until = csf_service_until_();
	int sock = csf_service_connect_(until), fds[2], n;
	struct csf_reply r;
	void *p;

	if (sock < 0)
		return NULL;
	n = csf_service_ask_(sock, until, CSF_REQ_CPU, 0, &r, fds);
	csf_close_(&sock, 1);
	if (n < 1 || r.size < sizeof(struct csf_cpu_page)) {
		csf_close_(fds, n);
		errno = n < 0 ? errno : EPROTO;
		return NULL;
	}
	p = mmap(NULL, r.size, PROT_READ, MAP_SHARED, fds[0], 0);
	csf_close_(fds, n);
	if (p == MAP_FAILED)
		return NULL;
	if (((const struct csf_hdr *)p)->size != r.size) {
		munmap(p, r.size);
		errno = EPROTO;
		return NULL;
	}
	madvise(p, r.size, CSF_MADV_DONTFORK_);
	return p;
}

/* The kernel's own count of this thread's switches: that of a page, while its writer lives. */
static inline unsigned long csf_thread_switches_(void)
{
	struct rusage ru;

	if (getrusage((__typeof__(RUSAGE_SELF))CSF_RUSAGE_THREAD_, &ru))
		return ~0ul;
	return (unsigned long)ru.ru_nvcsw + (unsigned long)ru.ru_nivcsw;
}

#ifdef __cplusplus
}
#endif

#endif /* COARSE_STAT_FS_CLIENT_H */
