/* SPDX-License-Identifier: GPL-2.0 */
#ifndef CSF_CMD_H
#define CSF_CMD_H

/* Exit codes: a problem met while running, and a command line that makes no sense */
#define CSF_EXIT_FAIL 1
#define CSF_EXIT_USAGE 2

struct csf_command {
	const char *name;
	const char *summary;
	int (*run)(int argc, char **argv);
};

int csf_serve(int argc, char **argv);
int csf_run(int argc, char **argv);
int csf_runqlat(int argc, char **argv);
int csf_cswitch(int argc, char **argv);
int csf_migrate(int argc, char **argv);

/* Options of argp that every subcommand understands; call before argp_parse(). */
void csf_argp_init(void);

/*
 * The number in @text, or the end of the program (CSF_EXIT_USAGE) with a message that names
 * @what and the range.
 */
unsigned long long csf_number(const char *text, const char *what, unsigned long long min,
			      unsigned long long max);

/*
 * From here on SIGINT, SIGTERM and, unless it is ignored, SIGHUP do not end the program but make this descriptor readable; -1 after a
 * message.
 */
int csf_stop_signals(void);

#endif /* CSF_CMD_H */
