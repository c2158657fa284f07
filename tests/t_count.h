/* SPDX-License-Identifier: GPL-2.0 */
/* What the tests of csf cswitch and csf migrate have in common: running them, and tasks to count. */
#ifndef T_COUNT_H
#define T_COUNT_H

#include "t.h"

#include <dirent.h>
#include <linux/bpf.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* A csf command whose first window has begun, and what it printed. */
struct t_csf {
	pid_t pid;
	FILE *out;
	char *text;
	int status;
	struct rusage used;
};

static inline const char *t_csf_path(void)
{
	const char *path = getenv("CSF_CMD");

	return path ? path : "build/csf";
}

static inline void t_csf_exec(const char *command, FILE *out, int ready)
{
	char words[512], *argv[32], *word, fd[16];
	int n = 0;

	snprintf(words, sizeof(words), "%s", command);
	snprintf(fd, sizeof(fd), "%d", ready);
	argv[n++] = (char *)"csf";
	for (word = strtok(words, " "); word && n < 28; word = strtok(NULL, " "))
		argv[n++] = word;
	argv[n++] = (char *)"--ready-fd";
	argv[n++] = fd;
	argv[n] = NULL;
	dup2(fileno(out), STDOUT_FILENO);
	signal(SIGHUP, SIG_DFL); /* with nohup csf heeds none */
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a test that hangs */
	execv(t_csf_path(), argv);
	fprintf(stderr, "%s: %s\n", t_csf_path(), strerror(errno));
	_exit(127);
}

/* The words of @command are separated by single spaces. Returns when the first window has begun. */
static inline void t_csf_start(struct t_csf *c, const char *command)
{
	int ready[2];
	char byte;

	memset(c, 0, sizeof(*c));
	c->out = tmpfile();
	if (!c->out || pipe(ready))
		t_die("%s", strerror(errno));
	fflush(stdout);
	c->pid = fork();
	if (c->pid < 0)
		t_die("fork: %s", strerror(errno));
	if (!c->pid) {
		close(ready[0]);
		t_csf_exec(command, c->out, ready[1]);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		t_die("csf %s: it did not begin", command);
	close(ready[0]);
}

/* Waits for its end and reads what it printed. The exit status is not looked at. */
static inline void t_csf_wait(struct t_csf *c)
{
	long size;

	while (wait4(c->pid, &c->status, 0, &c->used) != c->pid)
		if (errno != EINTR)
			t_die("wait4: %s", strerror(errno));
	fseek(c->out, 0, SEEK_END);
	size = ftell(c->out);
	rewind(c->out);
	c->text = (char *)calloc(1, (size_t)size + 1);
	if (!c->text || fread(c->text, 1, (size_t)size, c->out) != (size_t)size)
		t_die("cannot read what csf printed");
	fclose(c->out);
}

static inline void t_csf_finish(struct t_csf *c)
{
	t_csf_wait(c);
	CHECK(WIFEXITED(c->status) && !WEXITSTATUS(c->status), "csf ended with status %#x: %.200s",
	      (unsigned int)c->status, c->text);
}

static inline void t_csf_stop(struct t_csf *c)
{
	kill(c->pid, SIGINT);
	t_csf_finish(c);
}

static inline void t_csf_free(struct t_csf *c)
{
	free(c->text);
}

/* The number of a member of the document that is in no array. */
static inline unsigned long long t_csf_number(const struct t_csf *c, const char *name)
{
	char key[64];

	snprintf(key, sizeof(key), "\"%s\":", name);
	return t_number(c->text, key);
}

/* The number in the row of a TID (or, if @key is "pid", of a process); 0 if there is no such row. */
static inline unsigned long long t_csf_row(const struct t_csf *c, const char *key, pid_t id,
					   const char *name)
{
	char text[64];
	const char *row = strstr(c->text, "\"tasks\":[");
	const char *end;

	snprintf(text, sizeof(text), "\"%s\":%d,", key, id);
	row = row ? strstr(row, text) : NULL;
	if (!row)
		return 0;
	end = strchr(row, '}');
	snprintf(text, sizeof(text), "\"%s\":", name);
	row = strstr(row, text);
	return row && end && row < end ? strtoull(row + strlen(text), NULL, 10) : 0;
}

static inline int t_csf_has_row(const struct t_csf *c, const char *key, pid_t id)
{
	char text[64];
	const char *rows = strstr(c->text, "\"tasks\":[");

	snprintf(text, sizeof(text), "\"%s\":%d,", key, id);
	return rows && strstr(rows, text);
}

/*
 * Nothing may be missing. Some virtual machines run old kernel text in some contexts, without the tracepoints that
 * are on, and then ends are missed; csf has to say so. In our guests that is no excuse. The number of these.
 * A few wakeups may be uncounted: the kernel does not wait for memory there.
 */
static inline unsigned long long t_csf_complete(const struct t_csf *c)
{
	const char *at = strstr(c->text, "\"discarded\":{"), *end = at ? strchr(at, '}') : NULL;
	unsigned long long unfinished = t_csf_number(c, "unfinished");
	static const char few[] = "\"uncounted\":";

	CHECK(end, "no \"discarded\" in %.200s", c->text);
	if (end && !t_in_guest())
		at += strcspn(at, ","); /* "unfinished" comes first */
	for (; end && at < end; at++) {
		if (!strncmp(at, few, strlen(few)) && strtoull(at + strlen(few), NULL, 10) <= 10)
			at += strlen(few) + strcspn(at + strlen(few), ",}");
		CHECK(*at < '1' || *at > '9', "discarded: %.*s", (int)(end - at), at);
	}
	if (unfinished)
		t_note("%llu ends were missed here", unfinished);
	return unfinished;
}

/* A cgroup (v2) of our own, frozen and thawed. */
struct t_cgroup {
	char path[128];
	char mount[64]; /* empty if it was mounted already */
};

static inline int t_cgroup_is_v2(const char *path)
{
	char file[160];

	snprintf(file, sizeof(file), "%s/cgroup.controllers", path);
	return !access(file, F_OK);
}

static inline void t_cgroup_make(struct t_cgroup *g)
{
	const char *root = "/sys/fs/cgroup";

	g->mount[0] = 0;
	if (!t_cgroup_is_v2(root)) {
		snprintf(g->mount, sizeof(g->mount), "/tmp/t_cgroup.XXXXXX");
		root = mkdtemp(g->mount);
		if (!root || mount("none", root, "cgroup2", 0, NULL))
			t_die("cannot mount cgroup2: %s", strerror(errno));
	}
	snprintf(g->path, sizeof(g->path), "%s/t_count.%d", root, (int)getpid());
	if (mkdir(g->path, 0755))
		t_die("mkdir %s: %s", g->path, strerror(errno));
}

static inline void t_cgroup_file(const struct t_cgroup *g, const char *name, char *path,
				 size_t size)
{
	snprintf(path, size, "%s/%s", g->path, name);
}

static inline void t_cgroup_set(const struct t_cgroup *g, const char *name, const char *text)
{
	char path[192];

	t_cgroup_file(g, name, path, sizeof(path));
	if (t_write(path, text))
		t_die("%s: %s", path, strerror(errno));
}

static inline void t_cgroup_add(const struct t_cgroup *g, pid_t pid)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", (int)pid);
	t_cgroup_set(g, "cgroup.procs", text);
}

static inline void t_cgroup_freeze(const struct t_cgroup *g, int freeze)
{
	char path[192], text[128];
	int i;

	t_cgroup_set(g, "cgroup.freeze", freeze ? "1" : "0");
	t_cgroup_file(g, "cgroup.events", path, sizeof(path));
	for (i = 0; i < 30000; i++) {
		t_read(path, text, sizeof(text));
		if (t_number(text, "frozen ") == (unsigned long long)freeze)
			return;
		t_sleep_ns(T_MS);
	}
	t_die("the cgroup does not become frozen: %d", freeze);
}

static inline void t_cgroup_remove(const struct t_cgroup *g)
{
	int i;

	for (i = 0; i < 1000 && rmdir(g->path) && errno == EBUSY; i++)
		t_sleep_ns(10 * T_MS);
	if (!g->mount[0])
		return;
	umount(g->mount);
	rmdir(g->mount);
}

/*
 * Keeps all CPUs from being idle, at no cost to others: some virtual machines run old kernel text on an idle
 * CPU, without the tracepoints that are on.
 */
struct t_awake {
	struct t_rival rivals[64];
	int n;
};

static inline void t_awake_start(struct t_awake *a)
{
	const struct sched_param param = { 0 };
	int cpus = t_in_guest() ? 0 : t_cpus(); /* our guests are not like that */

	for (a->n = 0; a->n < cpus && a->n < 64; a->n++) {
		t_rival_start(&a->rivals[a->n], a->n, 0);
		pthread_setschedparam(a->rivals[a->n].thread, SCHED_IDLE, &param);
	}
}

static inline void t_awake_stop(struct t_awake *a)
{
	while (a->n)
		t_rival_stop(&a->rivals[--a->n]);
}

/* All threads of a process, as /proc has them. */
#define T_MAX_THREADS 256

static inline int t_threads(pid_t pid, pid_t *tids)
{
	struct dirent *e;
	char path[64];
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir)) && n < T_MAX_THREADS)
		if (e->d_name[0] != '.')
			tids[n++] = atoi(e->d_name);
	if (dir)
		closedir(dir);
	return n;
}

/* Until a process has as many, and they have had time to do something. */
static inline void t_wait_threads(pid_t pid, int n)
{
	pid_t tids[T_MAX_THREADS];

	while (t_threads(pid, tids) < n)
		t_sleep_ns(10 * T_MS);
	t_sleep_ns(300 * T_MS);
}

/* A file of a thread in /proc as text; the program ends if there is none. */
static inline void t_thread_file(pid_t pid, pid_t tid, const char *name, char *text, size_t size)
{
	char path[96];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, (int)tid, name);
	if (t_read(path, text, size) <= 0)
		t_die("cannot read %s", path);
}

/* A child that waits until it is killed, or runs @fn first, in a cgroup from its start. */
static inline pid_t t_child_in(const struct t_cgroup *g, void (*fn)(void *), void *arg)
{
	int go[2];
	pid_t pid;
	char byte = 0;

	if (pipe(go))
		t_die("pipe: %s", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		t_die("fork: %s", strerror(errno));
	if (!pid) {
		close(go[1]);
		if (read(go[0], &byte, 1) == 1)
			fn(arg);
		_exit(t_.now->failed);
	}
	close(go[0]);
	t_cgroup_add(g, pid);
	if (write(go[1], &byte, 1) != 1)
		t_die("write: %s", strerror(errno));
	close(go[1]);
	return pid;
}

/* Ended, and through its last switch: only then its counts are final. */
static inline void t_let_end(pid_t pid)
{
	siginfo_t info;

	while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) && errno == EINTR)
		;
	t_sleep_ns(20 * T_MS);
}

static inline long t_bpf(int cmd, union bpf_attr *attr)
{
	return syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

/* How many BPF programs there are whose name begins so, and how often they ran. */
static inline int t_bpf_programs(const char *prefix, unsigned long long *runs)
{
	union bpf_attr id = { 0 }, fd, info;
	struct bpf_prog_info prog;
	int n = 0, at;

	*runs = 0;
	while (!t_bpf(BPF_PROG_GET_NEXT_ID, &id)) {
		memset(&fd, 0, sizeof(fd));
		id.start_id = id.next_id;
		fd.prog_id = id.next_id;
		at = (int)t_bpf(BPF_PROG_GET_FD_BY_ID, &fd);
		if (at < 0)
			continue;
		memset(&prog, 0, sizeof(prog));
		memset(&info, 0, sizeof(info));
		info.info.bpf_fd = (__u32)at;
		info.info.info_len = sizeof(prog);
		info.info.info = (__u64)(uintptr_t)&prog;
		if (!t_bpf(BPF_OBJ_GET_INFO_BY_FD, &info) &&
		    !strncmp(prog.name, prefix, strlen(prefix))) {
			n++;
			*runs += prog.run_cnt;
		}
		close(at);
	}
	return n;
}

static inline int t_bpf_count(const char *prefix)
{
	unsigned long long runs;

	return t_bpf_programs(prefix, &runs);
}

/* Programs go away a grace period after their last descriptor. */
static inline int t_bpf_base(const char *prefix)
{
	int i;

	for (i = 0; i < 500 && t_bpf_count(prefix); i++)
		t_sleep_ns(10 * T_MS);
	return t_bpf_count(prefix); /* somebody else's */
}

static inline void t_bpf_settles(const char *prefix, int want, const char *what)
{
	int i;

	for (i = 0; i < 500 && t_bpf_count(prefix) != want; i++)
		t_sleep_ns(10 * T_MS);
	CHECK(t_bpf_count(prefix) == want, "%s: %d programs %s*, not %d", what, t_bpf_count(prefix),
	      prefix, want);
}

#endif /* T_COUNT_H */
