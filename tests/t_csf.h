/* SPDX-License-Identifier: GPL-2.0 */
/* Running csf's watching commands from tests. */
#ifndef T_CSF_H
#define T_CSF_H

#include "t.h"

#include <sys/prctl.h>

struct t_csf {
	pid_t pid;
	int out, err; /* what it prints */
	char text[1 << 20]; /* on stdout, when it has ended */
	char said[1 << 16]; /* on stderr */
	int status;
};

static inline const char *t_csf_path(void)
{
	const char *path = getenv("CSF_CMD");

	return path ? path : "build/csf";
}

/* What csf's process does before it becomes csf. */
static void (*t_csf_before)(void);

static inline void t_csf_exec_(const char *const *argv, int out, int err, int ready)
{
	char fd[16];
	char *args[40] = { NULL };
	int i;

	for (i = 0; argv[i]; i++)
		args[i] = (char *)argv[i];
	if (ready >= 0) {
		snprintf(fd, sizeof(fd), "%d", ready);
		args[i++] = (char *)"--ready-fd";
		args[i++] = fd;
	}
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	signal(SIGHUP, SIG_DFL); /* with nohup csf heeds none */
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a test that hangs */
	if (t_csf_before)
		t_csf_before();
	execv(t_csf_path(), args);
	_exit(127);
}

/* Starts "csf ARGUMENT..."; @wait_ready: and waits until it watches, or has ended. */
static inline void t_csf_start_argv(struct t_csf *c, int wait_ready, const char *const *argv)
{
	int out[2], err[2], ready[2];
	char byte;

	if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe(ready))
		t_die("pipe: %s", strerror(errno));
	fcntl(out[1], F_SETPIPE_SZ, sizeof(c->text));
	fflush(stdout);
	c->pid = fork();
	if (c->pid < 0)
		t_die("fork: %s", strerror(errno));
	if (!c->pid) {
		close(ready[0]);
		t_csf_exec_(argv, out[1], err[1], wait_ready ? ready[1] : -1);
	}
	close(out[1]);
	close(err[1]);
	close(ready[1]);
	c->out = out[0];
	c->err = err[0];
	if (wait_ready && read(ready[0], &byte, 1) < 0)
		t_die("read: %s", strerror(errno));
	close(ready[0]);
}

#define t_csf_start(c, ...) \
	t_csf_start_argv(c, 1, (const char *const[]){ "csf", __VA_ARGS__, NULL })

static inline void t_csf_read_(int fd, char *text, size_t size)
{
	size_t len = 0;
	ssize_t n;

	while (len < size - 1 && (n = read(fd, text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = 0;
	close(fd);
}

/* Until it ends; its exit status, or 128 and the signal. */
static inline int t_csf_end(struct t_csf *c)
{
	t_csf_read_(c->out, c->text, sizeof(c->text));
	t_csf_read_(c->err, c->said, sizeof(c->said));
	while (waitpid(c->pid, &c->status, 0) != c->pid)
		if (errno != EINTR)
			t_die("waitpid: %s", strerror(errno));
	c->status = WIFSIGNALED(c->status) ? 128 + WTERMSIG(c->status) : WEXITSTATUS(c->status);
	return c->status;
}

static inline int t_csf_stop(struct t_csf *c)
{
	kill(c->pid, SIGINT);
	return t_csf_end(c);
}

/* Runs it whole. */
#define t_csf(c, ...) \
	(t_csf_start_argv(c, 0, (const char *const[]){ "csf", __VA_ARGS__, NULL }), t_csf_end(c))

/* A number of its JSON. */
static inline unsigned long long t_json(const struct t_csf *c, const char *name)
{
	char key[64];

	snprintf(key, sizeof(key), "\"%s\":", name);
	return t_number(c->text, key);
}

/* What it tells of waits that are in no sample, from there to the end of its JSON. */
static inline const char *t_discarded(const struct t_csf *c)
{
	const char *from = strstr(c->text, "\"open\":");

	return from ? from : c->text;
}

/* What /proc has for a thread: run time and waiting in ns, and how often it ran. */
struct t_schedstat {
	unsigned long long ran, waited, times;
};

static inline struct t_schedstat t_schedstat(pid_t tid)
{
	struct t_schedstat s = { 0, 0, 0 };
	char path[64], buf[128];

	snprintf(path, sizeof(path), "/proc/%d/schedstat", tid);
	if (t_read(path, buf, sizeof(buf)) < 0 ||
	    sscanf(buf, "%llu %llu %llu", &s.ran, &s.waited, &s.times) != 3)
		t_die("cannot read %s", path);
	return s;
}

/* How often it has left a CPU. */
static inline unsigned long long t_switches(pid_t tid)
{
	char path[64], buf[4096];

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	if (t_read(path, buf, sizeof(buf)) < 0)
		t_die("cannot read %s", path);
	return t_number(buf, "\nvoluntary_ctxt_switches:") +
	       t_number(buf, "\nnonvoluntary_ctxt_switches:");
}

/*
 * Stopped, and off its CPU: it can be preempted between the one and the other, which takes long with PREEMPT_RT.
 * Who asks for its system call is let wait for that by the kernel.
 */
static inline void t_freeze(pid_t pid)
{
	char path[64], text[256];

	kill(pid, SIGSTOP);
	while (t_state_letter(pid) != 'T')
		t_sleep_ns(T_MS);
	snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
	t_read(path, text, sizeof(text));
}

#endif /* T_CSF_H */
