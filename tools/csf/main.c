// SPDX-License-Identifier: GPL-2.0
/* csf: what the scheduler does, to a program and to the machine. */
#define _GNU_SOURCE
#include "csf.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static int help(int argc, char **argv);

static const struct csf_command commands[] = {
	{ "run", "run a command with pages, starting a service for it if there is no writer",
	  csf_run },
	{ "serve", "write the pages of local processes by BPF, where no module is loaded",
	  csf_serve },
	{ "runqlat", "show how long tasks wait for a CPU", csf_runqlat },
	{ "cswitch", "count the voluntary and involuntary switches of tasks", csf_cswitch },
	{ "migrate", "count migrations between CPUs and wakeups of tasks", csf_migrate },
	{ "help", "show this list, or the help of a command", help },
};

#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct csf_command *find(const char *name)
{
	size_t i;

	for (i = 0; i < NR_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static void list(FILE *f)
{
	size_t i;

	fprintf(f, "Usage: csf COMMAND [OPTION...]\n\n");
	for (i = 0; i < NR_COMMANDS; i++)
		fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].summary);
	fprintf(f, "\n'csf COMMAND --help' tells more about a command.\n");
}

/* Output that is lost is an error, which argp and exit() do not notice. */
static void flush_stdout(void)
{
	errno = 0;
	if (!(ferror(stdout) | fflush(stdout)))
		return;
	fprintf(stderr, "csf: cannot write to standard output: %s\n",
		strerror(errno ? errno : EIO));
	_exit(CSF_EXIT_FAIL);
}

static int too_many(const char *argument)
{
	fprintf(stderr, "csf: '%s' is one argument too many; 'csf help' tells more\n", argument);
	return CSF_EXIT_USAGE;
}

static int unknown(const char *name)
{
	fprintf(stderr, "csf: there is no command '%s'; 'csf help' lists them\n", name);
	return CSF_EXIT_USAGE;
}

/* argp prints names as they are called: "csf serve"; and it has no -h, which csf itself has. */
static int call(const struct csf_command *c, int argc, char **argv)
{
	static char name[32], option[] = "--help";

	snprintf(name, sizeof(name), "csf %s", c->name);
	argv[0] = name;
	if (argc == 2 && !strcmp(argv[1], "-h"))
		argv[1] = option;
	return c->run(argc, argv);
}

static int help(int argc, char **argv)
{
	char option[] = "--help", *args[] = { NULL, option, NULL };
	const struct csf_command *c = argc > 1 ? find(argv[1]) : NULL;

	if (argc > 1 && !c)
		return unknown(argv[1]);
	if (argc > 2)
		return too_many(argv[2]);
	if (c && c->run != help)
		return call(c, 2, args);
	list(stdout);
	return 0;
}

void csf_argp_init(void)
{
	argp_program_version = "csf " CSF_VERSION;
	argp_err_exit_status = CSF_EXIT_USAGE;
}

unsigned long long csf_number(const char *text, const char *what, unsigned long long min,
			      unsigned long long max)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (isdigit((unsigned char)text[0]) && !*end && !errno && n >= min && n <= max)
		return n;
	fprintf(stderr, "csf: %s must be a number from %llu to %llu, not '%s'\n", what, min, max,
		text);
	exit(CSF_EXIT_USAGE);
}

int csf_stop_signals(void)
{
	struct sigaction hangup;
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) /* nohup */
		sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC);
	if (fd < 0)
		perror("csf: cannot watch for signals");
	return fd;
}

static bool is_option(const char *arg, const char *brief, const char *verbose)
{
	return !strcmp(arg, brief) || !strcmp(arg, verbose);
}

/* Else what is opened next takes the place of a closed one, and our output goes there. */
static void keep_standard_files(void)
{
	int fd;

	for (fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
			_exit(CSF_EXIT_FAIL);
}

int main(int argc, char **argv)
{
	const struct csf_command *c;

	keep_standard_files();
	csf_argp_init();
	atexit(flush_stdout);
	if (argc < 2) {
		list(stderr);
		return CSF_EXIT_USAGE;
	}
	c = find(argv[1]);
	if (c)
		return call(c, argc - 1, argv + 1);
	if (!is_option(argv[1], "-V", "--version") && !is_option(argv[1], "-h", "--help"))
		return unknown(argv[1]);
	if (argc > 2)
		return too_many(argv[2]);
	if (is_option(argv[1], "-h", "--help"))
		list(stdout);
	else
		puts(argp_program_version);
	return 0;
}
