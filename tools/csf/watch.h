/* SPDX-License-Identifier: GPL-2.0 */
/* What the commands that watch the machine for a while have in common. */
#ifndef CSF_WATCH_H
#define CSF_WATCH_H

#include <argp.h>
#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static inline uint64_t csf_now_ns(void) /* CLOCK_MONOTONIC */
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

/* What --cgroup means to BPF: the id of the cgroup and its depth below the root. */
struct csf_cgroup {
	uint64_t id;
	uint32_t level;
};

/* Filled by csf_watch_argp, which is a child of each command's own parser, from its defaults (0). */
struct csf_watch {
	uint64_t seconds; /* to watch; 0: until a signal */
	uint64_t interval; /* seconds of each window; 0: one window */
	uint32_t pid; /* only this process, all its threads; 0: all */
	uint32_t tid; /* only this thread; 0: all */
	const char *cgroup; /* only tasks in this cgroup or below it; NULL: all */
	bool json; /* one document a window, a line each, instead of text */
	bool verify; /* compare with the kernel's own counters */
	bool stats; /* say what watching cost */
	bool no_btf; /* as on a kernel without BTF (for tests) */
	bool force_hash; /* as on a kernel without task storage (for tests) */
	uint32_t max_tasks; /* of such a hash */
	int ready_fd; /* told when the first window begins; -1: nobody */

	/* the course of events, not options */
	struct csf_cgroup in; /* what cgroup names */
	int signal_fd;
	int pid_fd;
	uint64_t begun_ns; /* CLOCK_MONOTONIC: of this window */
	uint64_t edge_ns; /* of the last edge: its end, when it is over */
	uint64_t over_ns; /* when all windows are; 0: not by time */
	bool stopped; /* by a signal, or because what was watched has ended */
	bool failed; /* to write the report, or to say that it is ready */
};

extern const struct argp csf_watch_argp;

/*
 * Checks that what shall be watched exists, and gets ready for signals: before anything is attached,
 * so that none is lost. 0, or the exit code after a message.
 */
int csf_watch_prepare(struct csf_watch *w);

/* False in a PID name space: its PIDs are not the kernel's, and its tasks not all. */
bool csf_kernel_pids(void);

/* 0, or the exit code after a message: a process or thread is named by a number that means another one. */
int csf_watch_kernel_pids(const struct csf_watch *w);

/* Says at which moment, by csf_now_ns(), an edge was taken: before the first window, and after each. */
void csf_watch_edge(struct csf_watch *w, uint64_t at_ns);

/* The first window, and each next one, begins at the last edge. */
void csf_watch_begin(struct csf_watch *w);

/* A descriptor to serve while waiting, such as a ring buffer's; fd -1: none. */
struct csf_watch_also {
	int fd;
	void (*handle)(void *arg);
	void *arg;
};

/*
 * Until the window is over, SIGINT, SIGTERM or SIGHUP says so, or the watched process has ended (which it
 * says on stderr). Shows its progress if stderr is a terminal.
 */
void csf_watch_wait(struct csf_watch *w, const struct csf_watch_also *also);

/* Those that have come already ended the window; another one means that its user is in a hurry. */
void csf_watch_forget_signals(const struct csf_watch *w);

/* True if another window follows the one that is over. */
bool csf_watch_more(const struct csf_watch *w);

double csf_watch_seconds(const struct csf_watch *w); /* the length of the window that is over */

/*
 * A report is collected in memory and written whole, so that it is never half there. If standard
 * output does not take it (a full disk), it goes to standard error, and the exit code will be
 * CSF_EXIT_FAIL. A reader that went away ends the command quietly.
 */
FILE *csf_report_begin(void);
void csf_report_end(struct csf_watch *w, FILE *report);

/* Prints the document on a line of its own, and drops the reference. */
void csf_report_json(FILE *report, struct json_object *document);

int csf_watch_end(struct csf_watch *w); /* the exit code */

#endif /* CSF_WATCH_H */
