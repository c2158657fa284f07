/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For the tests of the service (csf serve): starting and ending it, looking at it from outside by
 * /proc and bpf(2), talking to it in its own protocol, and being an ordinary user.
 *
 * CSF_CMD is the csf command (default: csf beside the directory of the test program).
 */
#ifndef T_SERVE_H
#define T_SERVE_H

#include "t.h"

#include <dirent.h>
#include <grp.h>
#include <limits.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define PAGE 4096

enum { SERVANT = 61009 };

struct service {
	pid_t pid;
	char dir[32], path[48];
	int servant; /* runs as a user with no capabilities but those it needs */
};

static struct service service;
static char command[PATH_MAX];

static inline int command_there(const char *argv0)
{
	const char *env = getenv("CSF_CMD");
	char self[PATH_MAX], *slash;

	if (!env && realpath(argv0, self)) {
		slash = strrchr(self, '/');
		snprintf(slash, sizeof(self) - (size_t)(slash - self), "/../csf");
		env = self;
	}
	return env && realpath(env, command);
}

static inline void find_command(const char *argv0)
{
	if (!command_there(argv0))
		t_die("there is no csf command for %s", argv0);
}

static inline int can_connect(void)
{
	int fd = csf_service_connect_(csf_service_until_());

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* The path is new at the first start, and stays. */
static inline void service_place(void)
{
	snprintf(service.dir, sizeof(service.dir), "/tmp/csf-t-XXXXXX");
	if (!mkdtemp(service.dir) || chmod(service.dir, 0755) ||
	    (service.servant && chown(service.dir, SERVANT, SERVANT)))
		t_die("mkdtemp: %s", strerror(errno));
	snprintf(service.path, sizeof(service.path), "%s/socket", service.dir);
	setenv(CSF_SOCKET_ENV, service.path, 1);
}

static inline int become_servant(void)
{
	static const int caps[] = { CAP_BPF, CAP_PERFMON };
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	memset(data, 0, sizeof(data));
	for (size_t i = 0; i < sizeof(caps) / sizeof(*caps); i++)
		data[CAP_TO_INDEX(caps[i])].permitted |= CAP_TO_MASK(caps[i]);
	for (int i = 0; i < 2; i++)
		data[i].effective = data[i].inheritable = data[i].permitted;
	if (prctl(PR_SET_KEEPCAPS, 1) || setgroups(0, NULL) ||
	    setresgid(SERVANT, SERVANT, SERVANT) || setresuid(SERVANT, SERVANT, SERVANT) ||
	    syscall(SYS_capset, &h, data))
		return -1;
	for (size_t i = 0; i < sizeof(caps) / sizeof(*caps); i++)
		if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, caps[i], 0, 0))
			return -1;
	return 0;
}

/* It can be run as an option more than one word; NULL for none. */
static inline pid_t service_spawn(const char *a, const char *b, const char *err_to)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	if (err_to && !freopen(err_to, "w", stderr))
		_exit(99);
	if (service.servant && become_servant())
		_exit(98);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl(command, "csf", "serve", "--socket", service.path, a, b, (char *)NULL);
	_exit(99);
}

static inline void service_start(const char *a, const char *b)
{
	uint64_t end = t_mono_ns() + 60 * T_SEC;

	if (!*service.path)
		service_place();
	service.pid = service_spawn(a, b, NULL);
	while (!can_connect()) {
		if (t_mono_ns() > end || waitpid(service.pid, NULL, WNOHANG))
			t_die("csf serve does not start");
		t_sleep_ns(5 * T_MS);
	}
}

/* The wait status */
static inline int service_end(int sig)
{
	int status;

	kill(service.pid, sig);
	while (waitpid(service.pid, &status, 0) < 0)
		if (errno != EINTR)
			t_die("waitpid: %s", strerror(errno));
	service.pid = 0;
	return status;
}

static inline void service_stop(void)
{
	int status = service_end(SIGTERM);

	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "csf serve ended with status %#x", status);
}

/* What the program leaves when it ends, by t_die() too. */
static inline void service_cleanup(void)
{
	if (getpid() != t_.pid)
		return;
	if (service.pid > 0)
		service_end(SIGKILL);
	if (*service.path) {
		unlink(service.path);
		rmdir(service.dir);
	}
}

static inline int service_fds(void)
{
	char path[64];
	int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", service.pid);
	d = opendir(path);
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n - 2;
}

static inline unsigned long long service_status(const char *key)
{
	char path[64], buf[4096];

	snprintf(path, sizeof(path), "/proc/%d/status", service.pid);
	t_read(path, buf, sizeof(buf));
	return t_number(buf, key);
}

/* Waits for an fd count not above this one; returns what it is then, or after ten seconds. */
static inline int service_fds_settle(int most)
{
	for (int i = 0; i < 200 && service_fds() > most; i++)
		t_sleep_ns(50 * T_MS);
	return service_fds();
}

/* bpf(2) */

static inline int sys_bpf(int cmd, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

static inline struct bpf_map_info map_info(int fd)
{
	struct bpf_map_info info;
	union bpf_attr attr;

	memset(&info, 0, sizeof(info));
	memset(&attr, 0, sizeof(attr));
	attr.info.bpf_fd = (__u32)fd;
	attr.info.info_len = sizeof(info);
	attr.info.info = (__u64)(uintptr_t)&info;
	if (sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr))
		t_die("BPF_OBJ_GET_INFO_BY_FD: %s", strerror(errno));
	return info;
}

static inline int next_id(int cmd, __u32 *id)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.start_id = *id;
	if (sys_bpf(cmd, &attr))
		return 0;
	*id = attr.next_id;
	return 1;
}

static inline int open_id(int cmd, __u32 id)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_id = id; /* the same place for programs and links */
	return sys_bpf(cmd, &attr);
}

static inline __u32 newest_map_id(void)
{
	__u32 id = 0;

	while (next_id(BPF_MAP_GET_NEXT_ID, &id))
		;
	return id;
}

/* The kernel's account of a map's memory, in bytes, as it tells whoever holds a descriptor. */
static inline unsigned long long map_memory(int fd)
{
	char path[64], buf[1024];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	t_read(path, buf, sizeof(buf));
	return t_number(buf, "\nmemlock:");
}

struct maps {
	unsigned int nr;
	unsigned long long bytes;
};

/* Maps of pages that are newer than this one: all that this test's services made. */
static inline struct maps page_maps(__u32 after)
{
	struct maps m = { 0, 0 };

	for (__u32 id = after; next_id(BPF_MAP_GET_NEXT_ID, &id);) {
		int fd = open_id(BPF_MAP_GET_FD_BY_ID, id);

		if (fd < 0)
			continue;
		if (!strncmp(map_info(fd).name, "csf_pages", 9)) {
			m.nr++;
			m.bytes += map_memory(fd);
		}
		close(fd);
	}
	return m;
}

/* Users */

static inline void become(uid_t uid)
{
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		t_die("setresuid(%u): %s", uid, strerror(errno));
	prctl(PR_SET_DUMPABLE, 1); /* as after a login */
}

/* The protocol, one step at a time */

static inline int in_my_process(unsigned int tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%u", tid);
	return !access(path, F_OK);
}

static inline int ask_service(int sock, uint32_t type, uint32_t arg, struct csf_reply *r, int *fds)
{
	return csf_service_ask_(sock, csf_service_until_(), type, arg, r, fds);
}

struct given {
	struct csf_reply r;
	int iter, chunk;
};

static inline int try_ask(struct given *g)
{
	int sock = csf_service_connect_(csf_service_until_()), fds[2], n;

	if (sock < 0)
		return -1;
	n = ask_service(sock, CSF_REQ_THREAD, 0, &g->r, fds);
	csf_close_(&sock, 1);
	if (n != 2)
		return -1;
	g->iter = fds[0];
	g->chunk = fds[1];
	return 0;
}

static inline struct given ask(void)
{
	struct given g;

	if (try_ask(&g))
		t_die("the service does not answer: %s", strerror(errno));
	return g;
}

static inline void give_back(struct given *g)
{
	close(g->iter);
	close(g->chunk);
}

/* Registers the calling thread; the ticket's error. */
static inline int redeem(int iter, struct csf_ticket *t)
{
	memset(t, 0, sizeof(*t));
	return read(iter, t, sizeof(*t)) == (ssize_t)sizeof(*t) ? t->err : -errno;
}

static inline const struct csf_slot_ {
	struct csf_thread_page page;
	char pad[PAGE - sizeof(struct csf_thread_page)];
} * map_chunk(int fd, uint32_t slots)
{
	void *p = mmap(NULL, (size_t)slots * PAGE, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		t_die("mmap: %s", strerror(errno));
	return (const struct csf_slot_ *)p;
}

/* 1, or 0 with errno */
static inline int send_with_fd(int sock, const void *data, size_t size, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = "";
	struct iovec iov = { (void *)(uintptr_t)data, size };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	return sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)size;
}

static inline void send_fd(int sock, int fd)
{
	if (!send_with_fd(sock, "", 1, fd))
		t_die("sendmsg: %s", strerror(errno));
}

static inline int receive_fd(int sock)
{
	char control[CMSG_SPACE(sizeof(int))] = "", byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	int fd;

	if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) != 1 || !(c = CMSG_FIRSTHDR(&msg)))
		t_die("no descriptor came");
	memcpy(&fd, CMSG_DATA(c), sizeof(int));
	return fd;
}

/* Root, and a kernel that lets it load BPF programs; else the tests are skipped. */
static inline int service_possible(void)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	return !geteuid() && (!sys_bpf(BPF_MAP_GET_NEXT_ID, &attr) || errno == ENOENT) &&
	       !access("/sys/kernel/btf/vmlinux", R_OK) && access(CSF_THREAD_PATH, F_OK);
}

__attribute__((unused)) static const struct csf_cpu_page *map_cpu_page(int fd)
{
	void *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? (t_die("mmap: %s", strerror(errno)), NULL) : p;
}

#endif /* T_SERVE_H */
