// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "csf.h"

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bpf/service.h"
#include "uapi/coarse_stat_fs.h"
#include "uapi/csf_service.h"

static error_t parse(int key, char *arg, struct argp_state *state)
{
	int *first = state->input;

	if (key == ARGP_KEY_ARGS) {
		*first = state->next;
		return 0;
	}
	if (key == ARGP_KEY_NO_ARGS)
		argp_error(state, "which command shall be run?");
	(void)arg;
	return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
	NULL,
	parse,
	"[--] COMMAND [ARGUMENT...]",
	"Run a command that reads its scheduler pages."
	"\vUses the kernel module or the service if one is there; else it starts a service for this "
	"command, which needs the privileges that 'csf serve --help' names. Exits as the command does; "
	"126 if it cannot be run, 127 if it is not found.",
	NULL,
	NULL,
	NULL
};

static bool service_at(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	err = connect(fd, (struct sockaddr *)&a, sizeof(a));
	close(fd);
	return !err;
}

static bool service_there(void)
{
	const char *path = getenv(CSF_SOCKET_ENV);

	return service_at(path ? path : CSF_SOCKET);
}

static void __attribute__((noreturn)) exec_command(char **argv)
{
	int err;

	execvp(argv[0], argv);
	err = errno;
	fprintf(stderr, "csf: cannot run '%s': %s\n", argv[0], strerror(err));
	_exit(err == ENOENT ? 127 : 126);
}

static pid_t child;

/* What the command shall find as we found it: the service changes it for itself. */
static struct {
	sigset_t mask;
	struct sigaction chld;
	struct rlimit nofile;
} caller;

/* A signal that comes before there is a command to pass it on to has to wait. */
static void prepare(void)
{
	const struct sigaction wait_for = { .sa_handler = SIG_DFL };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGQUIT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, &caller.mask);
	sigaction(SIGCHLD, &wait_for, &caller.chld); /* ignored, it would take the status */
	getrlimit(RLIMIT_NOFILE, &caller.nofile);
}

static void pass_on(int sig)
{
	kill(child, sig);
}

/* Ctrl-C reaches the command by itself; a signal for us alone is meant for it too. */
static void let_child_decide(void)
{
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	struct sigaction pass = { .sa_handler = pass_on, .sa_flags = SA_RESTART };

	sigaction(SIGINT, &ignore, NULL);
	sigaction(SIGQUIT, &ignore, NULL);
	sigaction(SIGTERM, &pass, NULL);
	sigaction(SIGHUP, &pass, NULL);
	sigprocmask(SIG_SETMASK, &caller.mask, NULL);
}

static int wait_child(void)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return CSF_EXIT_FAIL;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int serve_child(struct csf_service *s)
{
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0);

	let_child_decide();
	if (pidfd < 0 || csf_service_run(s, pidfd))
		fprintf(stderr, "csf: the service failed; the command goes on without\n");
	if (pidfd >= 0)
		close(pidfd);
	return wait_child();
}

static int run_served(char **argv, const char *socket)
{
	struct csf_service_options o = {
		.socket = socket,
		.max_threads = 1u << 22,
		.max_bytes = 1ull << 40,
		.period_us = 10000,
	};
	struct csf_service *s = csf_service_start(&o);
	int code;

	if (!s)
		return CSF_EXIT_FAIL;
	child = fork();
	if (!child) {
		setenv(CSF_SOCKET_ENV, socket, 1);
		setrlimit(RLIMIT_NOFILE, &caller.nofile);
		sigaction(SIGCHLD, &caller.chld, NULL);
		sigprocmask(SIG_SETMASK, &caller.mask, NULL);
		exec_command(argv);
	}
	code = child < 0 ? CSF_EXIT_FAIL : serve_child(s);
	csf_service_stop(s);
	return code;
}

/*
 * A directory for the socket that others can find, so that it can be bind-mounted. It is locked as
 * long as we live: one that is not was left by a csf run that was killed, and the next removes it.
 */
#define DIR_NAME "csf-run-"
#define DIR_PATH "/run/" DIR_NAME

static int lock_directory(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB))
		return fd;
	close(fd);
	return -1;
}

#define SOCKET_NAME "/socket"
#define DIR_LEN sizeof(DIR_PATH "XXXXXX")
#define SOCKET_LEN (DIR_LEN + sizeof(SOCKET_NAME))

static void socket_in(const char *dir, char *path)
{
	snprintf(path, SOCKET_LEN, "%.*s" SOCKET_NAME, (int)DIR_LEN, dir);
}

static void remove_directory(const char *dir)
{
	char path[SOCKET_LEN];

	socket_in(dir, path);
	unlink(path);
	rmdir(dir);
}

static void remove_if_stale(const char *dir)
{
	int fd = lock_directory(dir);
	char path[SOCKET_LEN];

	if (fd < 0)
		return;
	socket_in(dir, path);
	if (!service_at(path))
		remove_directory(dir);
	close(fd);
}

static void remove_stale(void)
{
	DIR *run = opendir("/run");
	char path[DIR_LEN];
	struct dirent *d;

	while (run && (d = readdir(run))) {
		if (strncmp(d->d_name, DIR_NAME, strlen(DIR_NAME)) ||
		    strlen(d->d_name) != strlen(DIR_NAME "XXXXXX"))
			continue;
		snprintf(path, sizeof(path), "/run/%.*s", (int)strlen(DIR_NAME "XXXXXX"),
			 d->d_name);
		remove_if_stale(path);
	}
	if (run)
		closedir(run);
}

/* Somebody may take it for stale just before we lock it: then there is another one. -1 with errno. */
static int make_directory(char *dir)
{
	int fd, err;

	do {
		memcpy(dir, DIR_PATH "XXXXXX", sizeof(DIR_PATH "XXXXXX"));
		if (!mkdtemp(dir))
			return -1;
		fd = lock_directory(dir);
		/* the command may give up its privileges before it connects */
		if (fd >= 0 && !chmod(dir, 0755))
			return fd;
		if (fd >= 0)
			close(fd);
	} while (errno == ENOENT || errno == EWOULDBLOCK);
	err = errno;
	remove_directory(dir);
	errno = err;
	return -1;
}

int csf_run(int argc, char **argv)
{
	char dir[DIR_LEN], socket[SOCKET_LEN];
	int first = 0, code, lock;

	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &first);
	if (!access(CSF_MOUNT_POINT "/thread-self", F_OK) || service_there())
		exec_command(argv + first);
	prepare();
	remove_stale();
	lock = make_directory(dir);
	if (lock < 0) {
		fprintf(stderr, "csf: no writer is there, and starting one takes root: %s: %s\n",
			dir, strerror(errno));
		return CSF_EXIT_FAIL;
	}
	socket_in(dir, socket);
	code = run_served(argv + first, socket);
	remove_directory(dir);
	close(lock);
	return code;
}
