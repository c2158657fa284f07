// SPDX-License-Identifier: GPL-2.0
/* csfcat: the pages of coarse_stat_fs as text. Needs nothing but the library header and libc. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include "lib/coarse_stat_fs.h"

#ifndef CSF_VERSION
#define CSF_VERSION "unknown" /* the Makefile says it */
#endif

#define MODULE_FILE "kmod/" CSF_FS_NAME ".ko" /* as built in the current directory */
#define MAX_MS 3600000
#define UPDATE_TRIES 3000 /* ms to wait for the first update: three of the longest periods */
#define SAME_UPDATE_TRIES 1000

enum { EXIT_RUNTIME = 1, EXIT_USAGE = 2 };

struct command {
	const char *name;
	const char *arg;
	const char *help;
	int (*run)(const char *arg);
};

static int run_cpu(const char *arg);
static int run_self(const char *arg);

static const struct command commands[] = {
	{ "cpu", NULL, "print the cpu page in the format of /proc/stat", run_cpu },
	{ "self", "[MS]",
	  "sleep MS/2 ms, spin MS/2 ms, and print where the time went;\n"
	  "                without MS, print csfcat's own thread page",
	  run_self },
};

#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

__attribute__((format(printf, 1, 2))) static int usage_error(const char *fmt, ...)
{
	va_list ap;

	fputs("csfcat: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("\nTry 'csfcat --help' for more information.\n", stderr);
	return EXIT_USAGE;
}

static int print_help(void)
{
	size_t i;

	puts("Usage: csfcat COMMAND [ARGUMENT]\n"
	     "Print pages of the module, mounted on " CSF_MOUNT_POINT ", or of csf-serve.\n");
	for (i = 0; i < NR_COMMANDS; i++)
		printf("  %-5s%-7s  %s\n", commands[i].name, commands[i].arg ? commands[i].arg : "",
		       commands[i].help);
	puts("\n"
	     "  -h, --help     print this help\n"
	     "  -V, --version  print the version\n"
	     "\n"
	     "Exit status: 0 if it worked, 1 if a page could not be read or the output not\n"
	     "written, 2 if the command line is wrong.");
	return 0;
}

/*
 * Why there is no page. The library takes the module's file; where there is none, it asks the service.
 */

static void print_how_to_serve(void)
{
	const char *path = csf_service_path_();
	int usual = !strcmp(path, CSF_SOCKET);

	fprintf(stderr, "  sudo csf serve%s%s, or sudo csf run COMMAND\n",
		usual ? "" : " --socket ", usual ? "" : path);
}

/* A loaded module has made its mount point, so a missing page in it wants nothing but the mount. */
static void print_how_to_mount(void)
{
	if (!access(CSF_MOUNT_POINT, F_OK))
		fputs("The module is loaded but its file system is not mounted. Mount it:\n",
		      stderr);
	else if (!access(MODULE_FILE, F_OK))
		fputs("The module is not loaded. Load and mount it:\n"
		      "  sudo insmod " MODULE_FILE "\n",
		      stderr);
	else
		fputs("The module is not loaded. Where it is installed, load and mount it\n"
		      "('make' in the source builds it):\n"
		      "  sudo modprobe " CSF_FS_NAME "\n",
		      stderr);
	fputs("  sudo mount -t " CSF_FS_NAME " none " CSF_MOUNT_POINT "\n", stderr);
}

/* A service that was killed leaves its socket. */
static void print_how_to_begin(const char *path)
{
	const char *socket_path = csf_service_path_();
	struct stat st;
	int left = !stat(socket_path, &st) && S_ISSOCK(st.st_mode);

	fprintf(stderr, "csfcat: nobody writes pages: there is no %s,\n", path);
	fprintf(stderr, "and no service listens at %s%s\n", socket_path, left ? " any more" : "");
	print_how_to_mount();
	fputs("Or let BPF write the pages, without the module:\n", stderr);
	print_how_to_serve();
}

/* What does not depend on who writes the pages. */
static void explain_common(int err)
{
	switch (err) {
	case EACCES:
	case EPERM:
		fputs("Every user may read the pages: look at the permissions of its directories\n"
		      "and at what confines this process (container, seccomp, security module).\n",
		      stderr);
		break;
	case EMFILE:
	case ENFILE:
	case ENOMEM:
		fputs("Try again when there are fewer open files or there is more memory.\n",
		      stderr);
		break;
	default:
		break;
	}
}

static void explain_module(const char *path, int err)
{
	fprintf(stderr, "csfcat: cannot read %s: %s\n", path, strerror(err));
	if (err == EPROTO)
		fputs("It is no page of the version that this csfcat knows. Build csfcat and the\n"
		      "module from the same source, and load that module.\n",
		      stderr);
	explain_common(err);
}

static void explain_service(int err)
{
	fprintf(stderr, "csfcat: no page from the service at %s: %s\n", csf_service_path_(),
		strerror(err));
	switch (err) {
	case EAGAIN:
		fputs("It is busy or stopped: it gave none within a second. Try again, and if\n"
		      "that does not help, look at the process that listens there.\n",
		      stderr);
		break;
	case EPROTO:
	case EPROTOTYPE:
		fputs("What listens there is no csf serve of the version that this csfcat knows,\n"
		      "or this process has a clock of its own (time namespace) and no /proc.\n"
		      "The environment variable " CSF_SOCKET_ENV " names another socket.\n",
		      stderr);
		break;
	default:
		explain_common(err);
		break;
	}
}

static void explain_end(void)
{
	fprintf(stderr, "csfcat: the service at %s, which wrote the page, has ended\n",
		csf_service_path_());
	fputs("Try again if it is back by now, else start it:\n", stderr);
	print_how_to_serve();
}

static int no_page(const char *path, int err)
{
	int module = !access(path, F_OK) || errno != ENOENT;

	if (err == ESTALE) /* only pages of a service outlive their writer */
		explain_end();
	else if (err == ENOENT)
		print_how_to_begin(path);
	else if (module)
		explain_module(path, err);
	else
		explain_service(err);
	return EXIT_RUNTIME;
}

static int page_error(const char *path)
{
	return no_page(path, errno);
}

/* Of a page that has been read before: if nobody writes it now, then its writer has ended. */
static int page_lost(const char *path)
{
	return no_page(path, errno == ENOENT ? ESTALE : errno);
}

static void sleep_ns(uint64_t ns)
{
	struct timespec left = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/*
 * The cpu page
 */

static uint64_t ticks(uint64_t ns)
{
	static uint64_t ns_per_tick;

	if (!ns_per_tick)
		ns_per_tick = 1000000000u / (uint64_t)sysconf(_SC_CLK_TCK);
	return ns / ns_per_tick;
}

static void print_row(const char *name, const struct csf_cpu_row *r)
{
	printf("%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
	       " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
	       name, ticks(r->user_ns), ticks(r->nice_ns), ticks(r->system_ns), ticks(r->idle_ns),
	       ticks(r->iowait_ns), ticks(r->irq_ns), ticks(r->softirq_ns), ticks(r->steal_ns),
	       ticks(r->guest_ns), ticks(r->guest_nice_ns));
}

/* Opening the page starts the updates; the first one may take a period. */
static int first_update(struct csf_cpu_snap *all)
{
	int tries = UPDATE_TRIES;

	do {
		if (csf_cpu_snap(all, CSF_CPU_ALL))
			return page_error(CSF_CPU_PATH);
		if (all->update_tsc)
			return 0;
		sleep_ns(1000000);
	} while (tries--);
	fprintf(stderr, "csfcat: the module does not update %s: see 'sudo dmesg'\n", CSF_CPU_PATH);
	return EXIT_RUNTIME;
}

/* How many CPU numbers there can be. */
static unsigned int count_cpus(void)
{
	struct csf_cpu_snap c;
	unsigned int n = 0;

	while (n < CSF_CPU_ALL && !csf_cpu_snap(&c, n))
		n++;
	return n;
}

/* All rows of one update: 0, or 1 if the page was updated meanwhile, or -1 with errno. */
static int read_rows(struct csf_cpu_snap *rows, unsigned int n)
{
	unsigned int i;

	for (i = 0; i <= n; i++) {
		if (csf_cpu_snap(&rows[i], i ? i - 1 : CSF_CPU_ALL))
			return -1;
		if (rows[i].update_mono_ns != rows[0].update_mono_ns)
			return 1;
	}
	return 0;
}

static void print_rows(const struct csf_cpu_snap *rows, unsigned int n)
{
	char name[16];
	unsigned int i;

	print_row("cpu ", &rows[0].row); /* two blanks, as in /proc/stat */
	for (i = 1; i <= n; i++) {
		if (!rows[i].row.online)
			continue;
		snprintf(name, sizeof(name), "cpu%u", rows[i].row.cpu);
		print_row(name, &rows[i].row);
	}
	printf("intr %llu\n", (unsigned long long)rows[0].row.irqs);
	printf("softirq %llu\n", (unsigned long long)rows[0].row.softirqs);
}

static int run_cpu(const char *arg)
{
	struct csf_cpu_snap all, *rows;
	int tries = SAME_UPDATE_TRIES;
	unsigned int n;
	int ret;

	(void)arg;
	ret = first_update(&all);
	if (ret)
		return ret;
	n = count_cpus();
	rows = (struct csf_cpu_snap *)calloc((size_t)n + 1, sizeof(*rows));
	if (!rows)
		return page_error(CSF_CPU_PATH);
	do {
		ret = read_rows(rows, n);
	} while (ret > 0 && tries--);
	if (!ret)
		print_rows(rows, n);
	else if (ret < 0)
		page_lost(CSF_CPU_PATH);
	else
		fprintf(stderr, "csfcat: %s is updated faster than it can be read\n", CSF_CPU_PATH);
	free(rows);
	return ret ? EXIT_RUNTIME : 0;
}

/*
 * The thread page
 */

enum unit { PLAIN, CYCLES, NANOSECONDS, BYTES, KHZ, STATE, LIFE, CLOCK };

struct field {
	const char *name;
	size_t offset;
	size_t size;
	enum unit unit;
};

#define AT(name, unit)                                                    \
	{                                                                 \
#name, offsetof(struct csf_thread_page, name),            \
			sizeof(((struct csf_thread_page *)0)->name), unit \
	}

static const struct field fields[] = {
	AT(hdr.version, PLAIN),
	AT(hdr.size, BYTES),
	AT(hdr.clock, CLOCK),
	AT(hdr.clock_khz, KHZ),
	AT(hdr.mult, PLAIN),
	AT(hdr.shift, PLAIN),
	AT(tid, PLAIN),
	AT(cpu, PLAIN),
	AT(life, LIFE),
	AT(state, STATE),
	AT(epoch, PLAIN),
	AT(seq, PLAIN),
	AT(last_switch_tsc, CYCLES),
	AT(oncpu_cyc, CYCLES),
	AT(runq_cyc, CYCLES),
	AT(sleep_cyc, CYCLES),
	AT(dsleep_cyc, CYCLES),
	AT(iowait_cyc, CYCLES),
	AT(nr_switch_in, PLAIN),
	AT(nr_preempt, PLAIN),
	AT(nr_block, PLAIN),
	AT(nr_migrate, PLAIN),
	AT(nr_waking, PLAIN),
	AT(nr_guessed, PLAIN),
	AT(sum_exec_ns, NANOSECONDS),
	AT(run_delay_ns, NANOSECONDS),
	AT(pcount, PLAIN),
	AT(nvcsw, PLAIN),
	AT(nivcsw, PLAIN),
	AT(utime_ns, NANOSECONDS),
	AT(stime_ns, NANOSECONDS),
	AT(min_flt, PLAIN),
	AT(maj_flt, PLAIN),
	AT(rchar, BYTES),
	AT(wchar, BYTES),
	AT(syscr, PLAIN),
	AT(syscw, PLAIN),
	AT(read_bytes, BYTES),
	AT(write_bytes, BYTES),
	AT(cancelled_write_bytes, BYTES),
};

static const char *const states[] = { "oncpu", "runq", "sleep", "dsleep", "iowait" };
static const char *const lives[] = { "unknown", "live", "paused", "dead" };
static const char *const clocks[] = { "unknown", "tsc", "monotonic" };

#define NAME_OF(names, i) ((i) < sizeof(names) / sizeof((names)[0]) ? (names)[i] : "unknown")

static uint64_t field_value(const struct csf_thread_page *p, const struct field *f)
{
	const char *at = (const char *)p + f->offset;
	uint16_t v16;
	uint32_t v32;
	uint64_t v64;

	switch (f->size) {
	case sizeof(v16):
		memcpy(&v16, at, sizeof(v16));
		return v16;
	case sizeof(v32):
		memcpy(&v32, at, sizeof(v32));
		return v32;
	default:
		memcpy(&v64, at, sizeof(v64));
		return v64;
	}
}

static void print_value(const struct csf_hdr *h, uint64_t v, enum unit unit)
{
	switch (unit) {
	case CYCLES:
		printf("%" PRIu64 " cycles = %" PRIu64 " ns\n", v, csf_cyc_to_ns(h, v));
		break;
	case STATE:
		printf("%s\n", NAME_OF(states, v));
		break;
	case LIFE:
		printf("%s\n", NAME_OF(lives, v));
		break;
	case CLOCK:
		printf("%s\n", NAME_OF(clocks, v));
		break;
	default:
		printf("%" PRIu64 "%s\n", v,
		       unit == NANOSECONDS ? " ns" :
		       unit == BYTES	   ? " bytes" :
		       unit == KHZ	   ? " kHz" :
					     "");
		break;
	}
}

static void print_page(const struct csf_snap *s)
{
	uint32_t flags = s->p.hdr.flags;
	size_t i;

	printf("%-24s%#x%s%s%s\n", "hdr.flags", flags,
	       flags & CSF_F_TSC_CONSTANT ? " tsc_constant" : "",
	       flags & CSF_F_TSC_SYNCED ? " tsc_synced" : "", flags & CSF_F_IO ? " io" : "");
	for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		printf("%-24s", fields[i].name);
		print_value(&s->p.hdr, field_value(&s->p, &fields[i]), fields[i].unit);
	}
	printf("%-24s", "tsc");
	print_value(&s->p.hdr, s->tsc, CYCLES);
}

static void spin_ns(const struct csf_hdr *h, uint64_t ns)
{
	uint64_t start = csf_rdtsc(), cycles = csf_ns_to_cyc(h, ns);

	while (csf_rdtsc() - start < cycles)
		;
}

static int sleep_and_spin(uint64_t ms)
{
	struct csf_snap before, after;
	char buf[CSF_DIFF_BUFSZ];
	uint64_t half_ns = ms * 500000;

	if (csf_thread_snap(&before))
		return page_error(CSF_THREAD_PATH);
	sleep_ns(half_ns);
	spin_ns(&before.p.hdr, half_ns);
	if (csf_thread_snap(&after))
		return page_lost(CSF_THREAD_PATH);
	if (csf_format_diff(buf, sizeof(buf), &before, &after) < 0) {
		fprintf(stderr, "csfcat: %s\n", buf);
		return EXIT_RUNTIME;
	}
	printf("sleep %g ms + spin %g ms: %s\n", (double)ms / 2, (double)ms / 2, buf);
	return 0;
}

static int run_self(const char *arg)
{
	struct csf_snap s;
	char *end;
	long ms;

	if (!arg) {
		if (csf_thread_snap(&s))
			return page_error(CSF_THREAD_PATH);
		print_page(&s);
		return 0;
	}
	errno = 0;
	ms = strtol(arg, &end, 10);
	if (*arg < '0' || *arg > '9' || *end || errno || ms < 1 || ms > MAX_MS)
		return usage_error("self: '%s' is not a whole number of ms from 1 to %d", arg,
				   MAX_MS);
	return sleep_and_spin((uint64_t)ms);
}

static int run_command(int argc, char **argv)
{
	const struct command *c;
	int max_args;

	if (!argc)
		return usage_error("a command is missing");
	for (c = commands; c < commands + NR_COMMANDS; c++) {
		if (strcmp(c->name, argv[0]))
			continue;
		max_args = c->arg ? 2 : 1;
		if (argc > max_args)
			return usage_error("%s: unexpected argument '%s'", c->name, argv[max_args]);
		return c->run(argv[1]);
	}
	return usage_error("there is no command '%s'", argv[0]);
}

/* What was printed is worth an exit status of 0 only if it arrived. */
static int close_stdout(int ret)
{
	int failed = ferror(stdout);

	if (fclose(stdout) || failed) {
		fprintf(stderr, "csfcat: cannot write the output: %s\n", strerror(errno));
		return ret ? ret : EXIT_RUNTIME;
	}
	return ret;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};

	switch (getopt_long(argc, argv, "hV", options, NULL)) {
	case 'h':
		return close_stdout(print_help());
	case 'V':
		puts("csfcat (coarse_stat_fs) " CSF_VERSION);
		return close_stdout(0);
	case -1:
		return close_stdout(run_command(argc - optind, argv + optind));
	default:
		fputs("Try 'csfcat --help' for more information.\n", stderr);
		return EXIT_USAGE;
	}
}
