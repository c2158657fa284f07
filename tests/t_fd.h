/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For the tests of what only the file interface has: descriptors, mappings, and passing them on.
 */
#ifndef T_FD_H
#define T_FD_H

#include "t.h"

#include <sys/socket.h>
#include <sys/uio.h>

#define T_PAGE 4096

static inline int t_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		t_die("%s: %s", path, strerror(errno));
	return fd;
}

/* The calling thread's page. */
static inline int t_open_self(void)
{
	return t_open(CSF_THREAD_PATH);
}

static inline const struct csf_thread_page *t_map(int fd)
{
	void *p = mmap(NULL, T_PAGE, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		t_die("mmap: %s", strerror(errno));
	return p;
}

static inline void t_unmap(const struct csf_thread_page *page)
{
	if (munmap((void *)(uintptr_t)page, T_PAGE))
		t_die("munmap: %s", strerror(errno));
}

static inline void t_close(int fd)
{
	if (close(fd))
		t_die("close: %s", strerror(errno));
}

/* A copy of anybody's page. A virtual CPU that writes it and does not run makes EAGAIN. */
static inline struct csf_snap t_page_snap(const struct csf_thread_page *page)
{
	struct csf_snap s;
	int ret, tries = 0;

	while ((ret = csf_page_snap(page, &s)) && errno == EAGAIN && tries++ < 100)
		t_sleep_ns(5 * T_MS);
	if (ret)
		t_die("csf_page_snap: %s", strerror(errno));
	return s;
}

/* 0, or -1 with errno. */
static inline int t_send_fd(int socket, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(socket, &msg, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* A descriptor, or -1 with errno. */
static inline int t_receive_fd(int socket)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c;
	int fd = -1;

	if (recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) < 0)
		return -1;
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/*
 * A thread that does as it is told, one thing at a time: so a test can be the stranger that closes
 * what this thread opened.
 */
struct t_worker {
	pthread_t thread;
	void (*task)(struct t_worker *);
	int busy; /* there is a task, or it is being done */
	int quit;
	pid_t tid;
	/* for tasks to work with */
	int fd;
	const struct csf_thread_page *page;
	struct csf_snap snap;
	void *arg;
};

static inline void *t_worker_(void *arg)
{
	struct t_worker *w = (struct t_worker *)arg;

	w->tid = t_gettid();
	for (;;) {
		while (!__atomic_load_n(&w->busy, __ATOMIC_ACQUIRE))
			t_sleep_ns(200000);
		if (w->quit)
			return NULL;
		w->task(w);
		__atomic_store_n(&w->busy, 0, __ATOMIC_RELEASE);
	}
}

static inline void t_tell(struct t_worker *w, void (*task)(struct t_worker *))
{
	w->task = task;
	__atomic_store_n(&w->busy, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&w->busy, __ATOMIC_ACQUIRE))
		t_sleep_ns(200000);
}

static inline void t_worker_nop_(struct t_worker *w)
{
	(void)w;
}

static inline void t_worker_start(struct t_worker *w)
{
	memset(w, 0, sizeof(*w));
	w->fd = -1;
	w->thread = t_go(t_worker_, w);
	t_tell(w, t_worker_nop_);
}

static inline void t_worker_end(struct t_worker *w)
{
	w->quit = 1;
	__atomic_store_n(&w->busy, 1, __ATOMIC_RELEASE);
	t_join(w->thread);
}

/* Tasks: open the page, or open and map it. */
static inline void t_task_open(struct t_worker *w)
{
	w->fd = t_open_self();
}

static inline void t_task_map(struct t_worker *w)
{
	w->fd = t_open_self();
	w->page = t_map(w->fd);
}

static inline void t_task_close(struct t_worker *w)
{
	t_close(w->fd);
	w->fd = -1;
}

static inline void t_task_unmap(struct t_worker *w)
{
	t_unmap(w->page);
	w->page = NULL;
}

/* Sleeps, so that the thread has left its CPU and come back. */
static inline void t_task_sleep(struct t_worker *w)
{
	(void)w;
	t_sleep_ns(5 * T_MS);
}

#endif /* T_FD_H */
