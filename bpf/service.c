// SPDX-License-Identifier: GPL-2.0
/*
 * Answers processes that want pages. One thread, never blocking on a client: a connection that
 * stalls, floods or talks nonsense costs itself only.
 */
#define _GNU_SOURCE
#include "service.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "cpu_page.h"
#include "listen.h"
#include "load.h"
#include "pages.h"
#include "uapi/csf_service.h"
#include "users.h"

/* What the service has in all, and what one user may take of it. */
#define MAX_CONNS 16384
#define MAX_CONNS_PER_USER (MAX_CONNS / 8)
#define MAX_CLIENTS (CSF_MAX_CLIENTS - 1024) /* not all: those that end leave the map later */
#define MAX_CLIENTS_PER_USER (CSF_MAX_CLIENTS / 4)
#define MAX_CHUNKS_PER_USER (CSF_MAX_CHUNKS / 4)
#define CONN_TIMEOUT_MS 2000
#define ACCEPT_PAUSE_MS 100
#define CLIENT_BUCKETS 1024

_Static_assert(sizeof(struct csf_request) == 24 && sizeof(struct csf_reply) == 32, "protocol");

/* What epoll tells us about; each kind of event embeds one. */
struct source {
	void (*ready)(struct csf_service *s, struct source *src);
};

/* A process that may have pages, until it is gone or executes another program. */
struct client {
	struct source exited;
	int pidfd;
	pid_t pid;
	uint64_t nonce; /* its requests must carry it; before an execve() nobody can know it */
	struct csf_user *user;
	bool has_cpu_page;
	int *chunks;
	unsigned int nr_chunks;
	struct client *next;
};

struct conn {
	struct source readable;
	int fd;
	struct ucred peer;
	struct csf_user *user;
	uint64_t since_ms;
	struct csf_request waiting; /* type 0: none; else until a chunk is ready */
	struct conn *next, **link;
};

struct owner {
	struct csf_user *user;
	unsigned int size;
};

struct csf_service {
	struct csf_service_options o;
	struct csf_loaded bpf;
	struct csf_pages *pages;
	struct csf_cpu_page_file *cpu_page;
	struct csf_user *users;
	struct owner owners[CSF_MAX_CHUNKS]; /* whom a chunk's memory counts for */
	struct client *clients[CLIENT_BUCKETS];
	unsigned int nr_clients, nr_cpu_clients, nr_conns;
	struct conn *conns, **last_conn; /* the oldest first */
	uint64_t looked_ms; /* when stalled connections were last looked for */
	uint64_t paused_ms; /* not 0: when accepting failed for want of descriptors */
	int epoll_fd, listen_fd, timer_fd;
	struct source listening, pages_changed, cpu_timer, stopping;
	bool stop, unlink_socket;
};

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int watch(struct csf_service *s, int fd, struct source *src)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = src };

	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev);
}

/* Clients */

static struct client **client_slot(struct csf_service *s, pid_t pid)
{
	struct client **c = &s->clients[(unsigned int)pid % CLIENT_BUCKETS];

	while (*c && (*c)->pid != pid)
		c = &(*c)->next;
	return c;
}

static void set_cpu_clients(struct csf_service *s, int change)
{
	struct itimerspec spec = { 0 };

	s->nr_cpu_clients += change;
	if (s->nr_cpu_clients) {
		spec.it_interval.tv_sec = s->o.period_us / 1000000;
		spec.it_interval.tv_nsec = s->o.period_us % 1000000 * 1000L;
		spec.it_value = spec.it_interval;
	}
	timerfd_settime(s->timer_fd, 0, &spec, NULL);
}

static void client_gone(struct csf_service *s, struct source *src)
{
	struct client *c = (struct client *)src;
	uint32_t pid = c->pid;
	unsigned int i;

	*client_slot(s, c->pid) = c->next;
	bpf_map_delete_elem(s->bpf.clients_fd, &pid);
	for (i = 0; i < c->nr_chunks; i++)
		csf_pages_retire(s->pages, c->chunks[i]);
	if (c->has_cpu_page)
		set_cpu_clients(s, -1);
	close(c->pidfd);
	c->user->clients--;
	s->nr_clients--;
	free(c->chunks);
	free(c);
}

/* Points the registration program to the chunk where the process's next thread finds a page. */
static int client_point(const struct csf_service *s, const struct client *c, uint32_t chunk)
{
	uint32_t room = c->pidfd;

	return bpf_map_update_elem(s->bpf.room_fd, &room, &chunk, BPF_ANY) ? -errno : 0;
}

/* NULL with errno */
static struct client *client_add(struct csf_service *s, const struct conn *conn)
{
	struct csf_client known = { 0 };
	uint32_t pid = conn->peer.pid;
	struct client *c;

	if (s->nr_clients >= MAX_CLIENTS || conn->user->clients >= MAX_CLIENTS_PER_USER) {
		errno = EDQUOT;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->exited.ready = client_gone;
	c->pid = conn->peer.pid;
	c->user = conn->user;
	c->nonce = known.nonce = csf_new_nonce();
	c->pidfd = c->nonce ? csf_peer_pidfd(conn->fd, c->pid) : -1;
	if (c->pidfd < 0)
		goto free_client;
	known.room = c->pidfd; /* a number that no other client has */
	if (client_point(s, c, CSF_MAX_CHUNKS) ||
	    bpf_map_update_elem(s->bpf.clients_fd, &pid, &known, BPF_ANY))
		goto close_pidfd;
	if (watch(s, c->pidfd, &c->exited))
		goto forget_pid;
	c->next = NULL;
	*client_slot(s, c->pid) = c;
	c->user->clients++;
	s->nr_clients++;
	return c;

forget_pid:
	bpf_map_delete_elem(s->bpf.clients_fd, &pid);
close_pidfd:
	close(c->pidfd);
free_client:
	free(c);
	return NULL;
}

/* The programs forget a process that executes another program, which is a client of its own. */
static bool client_known(struct csf_service *s, const struct client *c)
{
	struct csf_client known;
	uint32_t pid = c->pid;

	return !bpf_map_lookup_elem(s->bpf.clients_fd, &pid, &known) && known.nonce == c->nonce;
}

static struct client *client_of(struct csf_service *s, const struct conn *conn)
{
	struct client *c = *client_slot(s, conn->peer.pid);

	if (c && !client_known(s, c)) {
		client_gone(s, &c->exited);
		c = NULL;
	}
	if (!c)
		return client_add(s, conn);
	/* it may have given up privileges: what it asks for from now on counts for the new user */
	c->user->clients--;
	c->user = conn->user;
	c->user->clients++;
	return c;
}

static bool within_quota(const struct csf_service *s, const struct csf_user *u, unsigned int size)
{
	return u->chunks < MAX_CHUNKS_PER_USER &&
	       u->pages + csf_pages_slots(size) <= s->o.max_threads &&
	       u->bytes + csf_pages_bytes(size) <= s->o.max_bytes;
}

/*
 * A new chunk: larger ones for clients that have many, as the quota allows. What is ready comes
 * before what fits best, for a grace period takes long on a busy machine.
 */
static int take_chunk(struct csf_service *s, const struct client *c, unsigned int *size)
{
	unsigned int best = c->nr_chunks < CSF_NR_SIZES ? c->nr_chunks : CSF_NR_SIZES - 1, i;
	int chunk, err = -EDQUOT;

	for (i = 0; i < CSF_NR_SIZES; i++) {
		*size = i <= best ? best - i : i; /* smaller ones, then larger ones */
		if (!within_quota(s, c->user, *size))
			continue;
		if (best && !*size && err == -EAGAIN)
			continue; /* single pages are for processes that have none */
		chunk = csf_pages_take(s->pages, *size);
		if (chunk >= 0)
			return chunk;
		err = -EAGAIN;
	}
	return err;
}

static int client_grow(struct csf_service *s, struct client *c)
{
	unsigned int size;
	int *chunks, chunk;

	chunks = realloc(c->chunks, (c->nr_chunks + 1) * sizeof(*chunks));
	if (!chunks)
		return -ENOMEM;
	c->chunks = chunks;
	chunk = take_chunk(s, c, &size);
	if (chunk < 0)
		return chunk;
	c->chunks[c->nr_chunks++] = chunk;
	s->owners[chunk] = (struct owner){ c->user, size };
	c->user->chunks++;
	c->user->pages += csf_pages_slots(size);
	c->user->bytes += csf_pages_bytes(size);
	return chunk;
}

/* A chunk of the client that has a free page; -errno, -EAGAIN if one is being made. */
static int client_room(struct csf_service *s, struct client *c)
{
	int chunk = -1, err;
	unsigned int i;

	for (i = c->nr_chunks; i-- > 0 && chunk < 0;)
		if (csf_pages_free_slots(s->pages, c->chunks[i]))
			chunk = c->chunks[i];
	if (chunk < 0)
		chunk = client_grow(s, c);
	if (chunk < 0)
		return chunk;
	err = client_point(s, c, chunk);
	return err ? err : chunk;
}

/* The kernel has freed these: their owners may have others. */
static void account_gone(struct csf_service *s)
{
	int chunk;

	while ((chunk = csf_pages_gone(s->pages)) >= 0) {
		struct owner *o = &s->owners[chunk];

		o->user->chunks--;
		o->user->pages -= csf_pages_slots(o->size);
		o->user->bytes -= csf_pages_bytes(o->size);
		o->user = NULL;
	}
}

/* Connections */

static void conn_close(struct csf_service *s, struct conn *conn)
{
	*conn->link = conn->next;
	*(conn->next ? &conn->next->link : &s->last_conn) = conn->link;
	close(conn->fd);
	conn->user->conns--;
	s->nr_conns--;
	free(conn);
}

static struct csf_reply reply_of(int err)
{
	return (struct csf_reply){ CSF_SERVICE_MAGIC, CSF_SERVICE_VERSION, .err = err };
}

/* A client that does not take its reply at once does not get it. */
static void conn_reply(struct csf_service *s, struct conn *conn, const struct csf_reply *r,
		       const int *fds, unsigned int nr_fds)
{
	if (csf_send(conn->fd, r, sizeof(*r), fds, nr_fds))
		conn_close(s, conn);
}

static void conn_error(struct csf_service *s, struct conn *conn, int err)
{
	struct csf_reply r = reply_of(err);

	conn_reply(s, conn, &r, NULL, 0);
}

/* The same request with this nonce is served. */
static void conn_again(struct csf_service *s, struct conn *conn, uint64_t nonce)
{
	struct csf_reply r = reply_of(EAGAIN);

	r.nonce = nonce;
	conn_reply(s, conn, &r, NULL, 0);
}

/* Somebody who inherited the connection, or was given it, asks in another's name. */
static void conn_refuse(struct csf_service *s, struct conn *conn)
{
	struct csf_reply r = reply_of(EPERM);

	csf_send(conn->fd, &r, sizeof(r), NULL, 0);
	conn_close(s, conn);
}

static void answer_thread(struct csf_service *s, struct conn *conn, struct client *c,
			  const struct csf_request *q)
{
	struct csf_reply r = reply_of(0);
	int chunk = client_room(s, c), fds[2];

	if (chunk == -EAGAIN) {
		conn->waiting = *q;
		return;
	}
	if (chunk < 0) {
		conn_error(s, conn, -chunk);
		return;
	}
	fds[0] = csf_load_iterator(&s->bpf);
	fds[1] = csf_pages_fd(s->pages, chunk);
	if (fds[0] < 0) {
		conn_error(s, conn, errno);
		return;
	}
	r.chunk = chunk;
	r.size = csf_pages_slots(s->owners[chunk].size) * CSF_SLOT_SIZE;
	conn_reply(s, conn, &r, fds, 2);
	close(fds[0]);
}

static void answer_chunk(struct csf_service *s, struct conn *conn, const struct client *c,
			 uint32_t chunk)
{
	struct csf_reply r = reply_of(0);
	unsigned int i;
	int fd;

	for (i = 0; i < c->nr_chunks; i++)
		if ((uint32_t)c->chunks[i] == chunk)
			break;
	if (i == c->nr_chunks) {
		conn_error(s, conn, EACCES);
		return;
	}
	fd = csf_pages_fd(s->pages, (int)chunk);
	r.chunk = chunk;
	r.size = csf_pages_slots(s->owners[chunk].size) * CSF_SLOT_SIZE;
	conn_reply(s, conn, &r, &fd, 1);
}

static void answer_cpu(struct csf_service *s, struct conn *conn, struct client *c)
{
	struct csf_reply r = reply_of(0);
	int fd = csf_cpu_page_fd(s->cpu_page);

	if (!s->nr_cpu_clients)
		csf_cpu_page_update(s->cpu_page);
	if (!c->has_cpu_page) {
		c->has_cpu_page = true;
		set_cpu_clients(s, 1);
	}
	r.size = csf_cpu_page_size(s->cpu_page);
	conn_reply(s, conn, &r, &fd, 1);
}

static void answer(struct csf_service *s, struct conn *conn, const struct csf_request *q)
{
	struct client *c;

	if (q->magic != CSF_SERVICE_MAGIC || q->version != CSF_SERVICE_VERSION) {
		conn_error(s, conn, EPROTO);
		return;
	}
	c = client_of(s, conn);
	if (!c)
		conn_error(s, conn, errno);
	else if (q->nonce != c->nonce)
		conn_again(s, conn, c->nonce);
	else if (q->type == CSF_REQ_THREAD)
		answer_thread(s, conn, c, q);
	else if (q->type == CSF_REQ_CHUNK)
		answer_chunk(s, conn, c, q->arg);
	else if (q->type == CSF_REQ_CPU)
		answer_cpu(s, conn, c);
	else
		conn_error(s, conn, EINVAL);
}

/* One request an event: nobody gets more of us than the others by sending more. */
static void conn_ready(struct csf_service *s, struct source *src)
{
	struct conn *conn = (struct conn *)src;
	struct csf_request q;
	pid_t sender;
	ssize_t n = csf_receive(conn->fd, &q, sizeof(q), &sender);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n != sizeof(q) || conn->waiting.type) {
		conn_close(s, conn);
		return;
	}
	conn->since_ms = now_ms();
	if (sender != conn->peer.pid)
		conn_refuse(s, conn);
	else
		answer(s, conn, &q);
}

static void conn_add(struct csf_service *s, int fd)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	socklen_t len = sizeof(conn->peer);

	if (!conn)
		goto close_fd;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &conn->peer, &len) || conn->peer.pid <= 0 ||
	    csf_pass_credentials(fd))
		goto free_conn;
	conn->user = csf_user_get(&s->users, conn->peer.uid);
	if (!conn->user || conn->user->conns >= MAX_CONNS_PER_USER || s->nr_conns >= MAX_CONNS)
		goto free_conn;
	conn->fd = fd;
	conn->readable.ready = conn_ready;
	conn->since_ms = now_ms();
	if (watch(s, fd, &conn->readable))
		goto free_conn;
	conn->link = s->last_conn;
	*conn->link = conn;
	s->last_conn = &conn->next;
	conn->user->conns++;
	s->nr_conns++;
	return;

free_conn:
	free(conn);
close_fd:
	close(fd);
}

static void listen_ready(struct csf_service *s, struct source *src)
{
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)src;
	if (fd >= 0) {
		conn_add(s, fd);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
		epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listen_fd, NULL);
		s->paused_ms = now_ms();
	}
}

/* Those who connect wait: asking all the time whether there is room would take a whole CPU. */
static void accept_again(struct csf_service *s)
{
	if (s->paused_ms && now_ms() - s->paused_ms >= ACCEPT_PAUSE_MS &&
	    !watch(s, s->listen_fd, &s->listening))
		s->paused_ms = 0;
}

static void drop_stalled(struct csf_service *s)
{
	uint64_t now = now_ms(), oldest = now - CONN_TIMEOUT_MS;
	struct conn *conn, *next;

	if (now - s->looked_ms < CONN_TIMEOUT_MS / 10)
		return;
	s->looked_ms = now;
	for (conn = s->conns; conn; conn = next) {
		next = conn->next;
		if (!conn->waiting.type && conn->since_ms < oldest)
			conn_close(s, conn);
	}
}

static void pages_ready(struct csf_service *s, struct source *src)
{
	struct conn *conn, *next;

	(void)src;
	csf_pages_event_clear(s->pages);
	account_gone(s);
	for (conn = s->conns; conn; conn = next) {
		next = conn->next;
		if (conn->waiting.type) {
			struct csf_request q = conn->waiting;

			conn->waiting.type = 0;
			answer(s, conn, &q);
		}
	}
}

static void cpu_timer_ready(struct csf_service *s, struct source *src)
{
	uint64_t n;

	(void)src;
	if (read(s->timer_fd, &n, sizeof(n)) == sizeof(n))
		csf_cpu_page_update(s->cpu_page);
}

static void stop_ready(struct csf_service *s, struct source *src)
{
	(void)src;
	s->stop = true;
}

/* Life */

static int make_socket(struct csf_service *s)
{
	s->listen_fd = s->o.socket ? csf_listen(s->o.socket) : s->o.listen_fd;
	s->unlink_socket = s->o.socket && s->listen_fd >= 0;
	if (s->listen_fd < 0) {
		fprintf(stderr, "csf: cannot listen on %s: %s\n",
			s->o.socket && *s->o.socket ? s->o.socket : "a socket without a path",
			strerror(errno));
		return -1;
	}
	csf_refuse_descriptors(s->listen_fd);
	if (csf_pass_credentials(s->listen_fd)) {
		perror("csf: cannot learn who asks");
		return -1;
	}
	return 0;
}

static int watch_all(struct csf_service *s)
{
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	s->listening.ready = listen_ready;
	s->pages_changed.ready = pages_ready;
	s->cpu_timer.ready = cpu_timer_ready;
	s->stopping.ready = stop_ready;
	if (s->epoll_fd < 0 || s->timer_fd < 0 || watch(s, s->listen_fd, &s->listening) ||
	    watch(s, csf_pages_event_fd(s->pages), &s->pages_changed) ||
	    watch(s, s->timer_fd, &s->cpu_timer)) {
		perror("csf: cannot watch for events");
		return -1;
	}
	return 0;
}

/* A chunk and a client take a descriptor each. */
static void raise_nofile(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r))
		return;
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

struct csf_service *csf_service_start(const struct csf_service_options *o)
{
	struct csf_service *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->o = *o;
	s->last_conn = &s->conns;
	s->listen_fd = s->epoll_fd = s->timer_fd = -1;
	raise_nofile();
	if (csf_load(&s->bpf, o->force_hash, o->give_up_admin))
		goto free_service;
	s->pages = csf_pages_start(&s->bpf.maps);
	if (!s->pages) {
		perror("csf: cannot make pages");
		goto unload;
	}
	s->cpu_page = csf_cpu_page_new(o->period_us, &s->bpf);
	if (!s->cpu_page) {
		perror("csf: cannot make the cpu page");
		goto stop_pages;
	}
	if (make_socket(s) || watch_all(s)) {
		csf_service_stop(s);
		return NULL;
	}
	return s;

stop_pages:
	csf_pages_stop(s->pages);
unload:
	csf_unload(&s->bpf);
free_service:
	free(s);
	return NULL;
}

int csf_service_run(struct csf_service *s, int stop_fd)
{
	struct epoll_event ev;
	int n;

	if (watch(s, stop_fd, &s->stopping)) {
		perror("csf: cannot watch for signals");
		return -1;
	}
	/* one event at a time: handling one may free what another is about */
	while (!s->stop) {
		n = epoll_wait(s->epoll_fd, &ev, 1, s->paused_ms ? ACCEPT_PAUSE_MS : 1000);
		if (n > 0) {
			struct source *src = ev.data.ptr;

			src->ready(s, src);
		} else if (n < 0 && errno != EINTR) {
			perror("csf: cannot wait for events");
			return -1;
		}
		drop_stalled(s);
		accept_again(s);
	}
	return 0;
}

void csf_service_stop(struct csf_service *s)
{
	unsigned int i;

	/* first: clients that lose their pages then find no service, not one that is busy */
	if (s->unlink_socket)
		unlink(s->o.socket);
	if (s->listen_fd >= 0)
		close(s->listen_fd);
	while (s->conns) /* conn->link of the first points to it */
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
		conn_close(s, s->conns);
	for (i = 0; i < CLIENT_BUCKETS; i++)
		while (s->clients[i])
			client_gone(s, &s->clients[i]->exited);
	csf_cpu_page_free(s->cpu_page);
	csf_pages_stop(s->pages);
	csf_unload(&s->bpf);
	if (s->epoll_fd >= 0)
		close(s->epoll_fd);
	if (s->timer_fd >= 0)
		close(s->timer_fd);
	csf_users_free(&s->users);
	free(s);
}
