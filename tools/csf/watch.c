// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "watch.h"
#include "csf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define NS UINT64_C(1000000000)

enum { OPT_NO_BTF = 256, OPT_HASH, OPT_TASKS, OPT_READY, OPT_VERIFY, OPT_STATS, OPT_JSON };

static const struct argp_option options[] = {
	{ "interval", 'i', "SECONDS", 0, "A window every so many seconds", 0 },
	{ "pid", 'p', "PID", 0, "Only this process, with all its threads", 0 },
	{ "tid", 't', "TID", 0, "Only this thread", 0 },
	{ "cgroup", 'c', "PATH", 0, "Only tasks in this cgroup (v2) or below it", 0 },
	{ "json", OPT_JSON, NULL, 0, "Print JSON: a document a window, a line each", 0 },
	{ "verify", OPT_VERIFY, NULL, 0,
	  "Compare with the kernel's own counters; fail if too far off", 0 },
	{ "stats", OPT_STATS, NULL, 0, "Say what watching cost", 0 },
	{ "max-tasks", OPT_TASKS, "N", 0,
	  "Room for so many rows, and for tasks without task storage (default: 65536)", 0 },
	{ "ready-fd", OPT_READY, "FD", 0,
	  "Write a byte to this descriptor when the first window begins", 0 },
	{ "no-btf", OPT_NO_BTF, NULL, 0, "Watch as on a kernel without BTF (for tests)", 0 },
	{ "force-hash", OPT_HASH, NULL, 0, "Watch as on a kernel without task storage (for tests)",
	  0 },
	{ 0 },
};

static error_t parse_option(int key, char *arg, struct csf_watch *w)
{
	switch (key) {
	case 'i':
		w->interval = csf_number(arg, "--interval", 1, 1u << 30);
		return 0;
	case 'p':
		w->pid = csf_number(arg, "--pid", 1, 1u << 22);
		return 0;
	case 't':
		w->tid = csf_number(arg, "--tid", 1, 1u << 22);
		return 0;
	case 'c':
		w->cgroup = arg;
		return 0;
	case OPT_JSON:
		w->json = true;
		return 0;
	case OPT_VERIFY:
		w->verify = true;
		return 0;
	case OPT_STATS:
		w->stats = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_rare_option(int key, char *arg, struct csf_watch *w)
{
	switch (key) {
	case OPT_TASKS:
		w->max_tasks = csf_number(arg, "--max-tasks", 1, 1u << 22);
		return 0;
	case OPT_READY:
		w->ready_fd = (int)csf_number(arg, "--ready-fd", 0, 1u << 20);
		return 0;
	case OPT_NO_BTF:
		w->no_btf = true;
		return 0;
	case OPT_HASH:
		w->force_hash = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct csf_watch *w = state->input;

	if (key == ARGP_KEY_INIT) {
		w->ready_fd = w->signal_fd = w->pid_fd = -1;
		w->max_tasks = 65536;
		return 0;
	}
	if (parse_option(key, arg, w) != ARGP_ERR_UNKNOWN)
		return 0;
	return parse_rare_option(key, arg, w);
}

const struct argp csf_watch_argp = { options, parse, NULL, NULL, NULL, NULL, NULL };

static bool thread_there(const struct csf_watch *w)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/task/%" PRIu32, w->pid ? w->pid : w->tid,
		 w->tid);
	return !access(path, F_OK);
}

bool csf_kernel_pids(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) || st.st_ino == 0xEFFFFFFC; /* PROC_PID_INIT_INO */
}

int csf_watch_kernel_pids(const struct csf_watch *w)
{
	if ((!w->pid && !w->tid) || csf_kernel_pids())
		return 0;
	fprintf(stderr,
		"csf: PIDs and TIDs here are those of a PID namespace, which these programs "
		"do not know: run csf outside of it\n");
	return CSF_EXIT_FAIL;
}

/* A thread that leads no process is EINVAL, or ENOENT since 6.9. */
static void explain_pidfd(uint32_t pid, int err)
{
	if (err == ESRCH)
		fprintf(stderr, "csf: there is no process %" PRIu32 "\n", pid);
	else if (err == EINVAL || err == ENOENT)
		fprintf(stderr,
			"csf: there is no process %" PRIu32 "; to watch one thread, use --tid\n",
			pid);
	else
		fprintf(stderr, "csf: cannot watch process %" PRIu32 ": %s\n", pid, strerror(err));
}

static int find_task(struct csf_watch *w)
{
	if (w->pid) {
		w->pid_fd = (int)syscall(SYS_pidfd_open, w->pid, 0);
		if (w->pid_fd < 0) {
			explain_pidfd(w->pid, errno);
			return CSF_EXIT_FAIL;
		}
	}
	if (w->tid && !thread_there(w)) {
		fprintf(stderr, "csf: there is no thread %" PRIu32 "%s\n", w->tid,
			w->pid ? " in that process" : "");
		return CSF_EXIT_FAIL;
	}
	return 0;
}

/*
 * How deep @path lies below the root cgroup; false if its mount begins at another one, as in a cgroup
 * namespace: how deep that lies is not known there.
 */
static bool cgroup_level(const char *path, uint32_t *level)
{
	char up[4096];
	struct stat here, above;

	*level = 0;
	snprintf(up, sizeof(up), "%s", path);
	while (!stat(up, &here) && strlen(up) + 4 < sizeof(up)) {
		memcpy(up + strlen(up), "/..", sizeof("/.."));
		if (stat(up, &above) || above.st_dev != here.st_dev)
			return here.st_ino == 1;
		++*level;
	}
	return false;
}

static int find_cgroup(const char *path, struct csf_cgroup *cgroup)
{
	struct statfs fs;
	struct stat st;

	if (statfs(path, &fs) || stat(path, &st)) {
		fprintf(stderr, "csf: --cgroup %s: %s\n", path, strerror(errno));
		return CSF_EXIT_FAIL;
	}
	if (fs.f_type != CGROUP2_SUPER_MAGIC || !S_ISDIR(st.st_mode)) {
		fprintf(stderr,
			"csf: --cgroup %s: this is no directory of a cgroup v2 file system\n",
			path);
		return CSF_EXIT_USAGE;
	}
	cgroup->id = st.st_ino;
	if (cgroup_level(path, &cgroup->level))
		return 0;
	fprintf(stderr,
		"csf: --cgroup %s: what is mounted there is a part of the cgroups only, as in a "
		"container: run csf outside of it\n",
		path);
	return CSF_EXIT_FAIL;
}

int csf_watch_prepare(struct csf_watch *w)
{
	int err;

	if (w->ready_fd >= 0 && fcntl(w->ready_fd, F_GETFD) < 0) {
		fprintf(stderr, "csf: --ready-fd: descriptor %d is not open\n", w->ready_fd);
		return CSF_EXIT_USAGE;
	}
	err = w->cgroup ? find_cgroup(w->cgroup, &w->in) : 0;
	if (!err)
		err = find_task(w);
	if (err)
		return err;
	w->signal_fd = csf_stop_signals();
	return w->signal_fd < 0 ? CSF_EXIT_FAIL : 0;
}

static void say_ready(struct csf_watch *w)
{
	if (w->ready_fd < 0 || write(w->ready_fd, "", 1) == 1)
		return;
	fprintf(stderr, "csf: --ready-fd: %s\n", strerror(errno));
	w->failed = true;
}

void csf_watch_begin(struct csf_watch *w)
{
	if (!w->begun_ns && w->seconds)
		w->over_ns = csf_now_ns() + w->seconds * NS;
	if (!w->begun_ns)
		say_ready(w);
	/* windows follow each other without a gap, whatever the report took */
	w->begun_ns = w->edge_ns;
}

static uint64_t window_end(const struct csf_watch *w)
{
	uint64_t end = w->interval ? w->begun_ns + w->interval * NS : w->over_ns;

	return w->over_ns && w->over_ns < end ? w->over_ns : end;
}

static bool can_rewrite_line(void)
{
	const char *term = getenv("TERM");

	return isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
}

static void show_progress(const struct csf_watch *w, uint64_t now, uint64_t end)
{
	static int shown = -1;

	if (shown < 0)
		shown = can_rewrite_line();
	if (!shown)
		return;
	if (!now)
		fprintf(stderr, "\r\033[K");
	else if (end)
		fprintf(stderr, "\rwatching: %" PRIu64 " s of %" PRIu64 ", Ctrl-C ends it\033[K",
			(now - w->begun_ns) / NS, (end - w->begun_ns + NS / 2) / NS);
	else
		fprintf(stderr, "\rwatching: %" PRIu64 " s, Ctrl-C ends it\033[K",
			(now - w->begun_ns) / NS);
}

/* Milliseconds to wait: until the next second, in which the progress and the thread are looked at. */
static int patience(uint64_t now, uint64_t end)
{
	uint64_t ns = NS;

	if (end && end - now < ns)
		ns = end - now;
	return (int)((ns + 999999) / 1000000);
}

static bool task_ended(const struct csf_watch *w, bool pid_event)
{
	if (!pid_event && (!w->tid || thread_there(w)))
		return false;
	show_progress(w, 0, 0);
	fprintf(stderr, "csf: %s %" PRIu32 " has ended\n", pid_event ? "process" : "thread",
		pid_event ? w->pid : w->tid);
	return true;
}

void csf_watch_wait(struct csf_watch *w, const struct csf_watch_also *also)
{
	uint64_t end = window_end(w), now;
	bool over;
	struct pollfd fds[] = {
		{ .fd = w->signal_fd, .events = POLLIN },
		{ .fd = w->pid_fd, .events = POLLIN },
		{ .fd = also ? also->fd : -1, .events = POLLIN },
	};

	do { /* at least once: a window may be late, and somebody may want it to be the last */
		now = csf_now_ns();
		over = w->stopped || (end && now >= end);
		if (!over)
			show_progress(w, now, end);
		if (poll(fds, 3, over ? 0 : patience(now, end)) < 0 && errno != EINTR)
			break;
		if (also && fds[2].revents) {
			show_progress(w, 0, 0); /* it may print */
			also->handle(also->arg);
		}
		if (fds[0].revents || task_ended(w, fds[1].revents))
			w->stopped = true;
	} while (!over && !w->stopped);
	show_progress(w, 0, 0);
}

void csf_watch_edge(struct csf_watch *w, uint64_t at_ns)
{
	w->edge_ns = at_ns;
}

bool csf_watch_more(const struct csf_watch *w)
{
	return w->interval && !w->stopped && (!w->over_ns || w->edge_ns < w->over_ns);
}

double csf_watch_seconds(const struct csf_watch *w)
{
	return (double)(w->edge_ns - w->begun_ns) / NS;
}

void csf_watch_forget_signals(const struct csf_watch *w)
{
	struct pollfd fd = { .fd = w->signal_fd, .events = POLLIN };
	struct signalfd_siginfo info;

	while (poll(&fd, 1, 0) == 1 && read(w->signal_fd, &info, sizeof(info)) > 0)
		;
}

/*
 * Piece by piece, as the reader takes it, which may be a pager that waits for a key. Signals only stop us
 * where we look: after another one, it is given a second. False with errno.
 */
static bool write_out(struct csf_watch *w, const char *text, size_t size)
{
	struct pollfd fds[] = { { .fd = STDOUT_FILENO, .events = POLLOUT },
				{ .fd = w->signal_fd, .events = POLLIN } };
	bool hurry = false;
	ssize_t n;

	if (w->stopped)
		csf_watch_forget_signals(w);
	while (size) {
		n = poll(fds, hurry ? 1 : 2, hurry ? 1000 : -1);
		if (!n) {
			errno = ETIMEDOUT;
			return false;
		}
		hurry |= n > 0 && !hurry && fds[1].revents;
		if (n < 0 || !fds[0].revents)
			continue;
		n = write(STDOUT_FILENO, text, size < PIPE_BUF ? size : PIPE_BUF);
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		text += n > 0 ? n : 0;
		size -= n > 0 ? n : 0;
	}
	return true;
}

static char *report_text;
static size_t report_size;

FILE *csf_report_begin(void)
{
	FILE *report = open_memstream(&report_text, &report_size);

	if (report)
		return report;
	fprintf(stderr, "csf: %s: the report goes here as it is made\n", strerror(errno));
	return stderr;
}

/* Nothing is lost, and nothing more is measured for nobody. */
void csf_report_end(struct csf_watch *w, FILE *report)
{
	static bool told;

	if (report == stderr)
		return;
	if (fclose(report) || fflush(stdout) || !write_out(w, report_text, report_size)) {
		if (!told)
			fprintf(stderr,
				"csf: cannot write to standard output: %s; here is the report\n",
				strerror(errno));
		fwrite(report_text, 1, report_size, stderr);
		clearerr(stdout);
		told = w->failed = w->stopped = true;
	}
	free(report_text);
}

void csf_report_json(FILE *report, struct json_object *document)
{
	const int flags = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;

	fprintf(report, "%s\n", json_object_to_json_string_ext(document, flags));
	json_object_put(document);
}

int csf_watch_end(struct csf_watch *w)
{
	close(w->signal_fd);
	if (w->pid_fd >= 0)
		close(w->pid_fd);
	return w->failed ? CSF_EXIT_FAIL : 0;
}
