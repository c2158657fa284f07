// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "csf.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/service.h"
#include "uapi/csf_service.h"

enum { OPT_SOCKET = 's', OPT_THREADS = 't', OPT_MEMORY = 'm', OPT_PERIOD = 'p', OPT_HASH = 256 };

static const struct argp_option options[] = {
	{ "socket", OPT_SOCKET, "PATH", 0, "Listen there (default: " CSF_SOCKET ")", 0 },
	{ "max-threads", OPT_THREADS, "N", 0, "Threads one user may register (default: 32768)", 0 },
	{ "max-memory", OPT_MEMORY, "MIB", 0,
	  "Kernel memory one user's pages may take (default: 256)", 0 },
	{ "period-us", OPT_PERIOD, "US", 0,
	  "Microseconds between updates of the cpu page, 1000 to 1000000 (default: 10000)", 0 },
	{ "force-hash", OPT_HASH, NULL, 0,
	  "Find threads as on kernels whose task storage is not dependable (for tests)", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct csf_service_options *o = state->input;

	switch (key) {
	case OPT_SOCKET:
		o->socket = arg;
		return 0;
	case OPT_THREADS:
		o->max_threads = csf_number(arg, "--max-threads", 1, 1u << 22);
		return 0;
	case OPT_MEMORY:
		o->max_bytes = csf_number(arg, "--max-memory", 1, 1u << 20) << 20;
		return 0;
	case OPT_PERIOD:
		o->period_us = csf_number(arg, "--period-us", 1000, 1000000);
		return 0;
	case OPT_HASH:
		o->force_hash = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "'%s' is one argument too many", arg);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
	options,
	parse,
	NULL,
	"Write the pages of local processes by BPF programs, where no module is loaded."
	"\vNeeds root, or CAP_BPF and CAP_PERFMON, and to begin with CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 2 (Debian); and a kernel with BTF, 5.19 or later. Its clients need nothing.",
	NULL,
	NULL,
	NULL
};

/* Socket activation: systemd passes a listening socket as descriptor 3. */
static void take_activation(struct csf_service_options *o)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	char ours[16];

	snprintf(ours, sizeof(ours), "%d", (int)getpid());
	if (!pid || !fds || strcmp(pid, ours) || strcmp(fds, "1"))
		return;
	o->socket = NULL;
	o->listen_fd = 3;
}

/* The directory of the default socket is ours to make; of another, the user's. */
static void make_directory(const struct csf_service_options *o)
{
	char dir[] = CSF_SOCKET;

	if (!o->socket || strcmp(o->socket, CSF_SOCKET))
		return;
	*strrchr(dir, '/') = 0;
	if (!mkdir(dir, 0755))
		chmod(dir, 0755); /* whatever the umask is: its clients are other users */
}

int csf_serve(int argc, char **argv)
{
	struct csf_service_options o = {
		.socket = CSF_SOCKET,
		.listen_fd = -1,
		.max_threads = 32768,
		.max_bytes = 256ull << 20,
		.period_us = 10000,
		.give_up_admin = true,
	};
	struct csf_service *s;
	int stop_fd, err;

	argp_parse(&argp, argc, argv, 0, NULL, &o);
	take_activation(&o);
	make_directory(&o);
	stop_fd = csf_stop_signals();
	if (stop_fd < 0)
		return CSF_EXIT_FAIL;
	s = csf_service_start(&o);
	if (!s)
		return CSF_EXIT_FAIL;
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "csf: listening on %s; Ctrl-C ends it\n",
			o.socket ? o.socket : "the socket of systemd");
	err = csf_service_run(s, stop_fd);
	csf_service_stop(s);
	close(stop_fd);
	return err ? CSF_EXIT_FAIL : 0;
}
