// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "explain.h"
#include "probe.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The complaints of libbpf, shown if they are not about something that we can explain better. */
static char warnings[4096];

static int keep_warning(enum libbpf_print_level level, const char *format, va_list args)
{
	size_t len = strlen(warnings);

	if (level == LIBBPF_WARN)
		vsnprintf(warnings + len, sizeof(warnings) - len, format, args);
	return 0;
}

bool csf_kernel_before(unsigned int major, unsigned int minor)
{
	unsigned int a, b;
	struct utsname u;

	if (uname(&u) || sscanf(u.release, "%u.%u", &a, &b) != 2)
		return false;
	return a < major || (a == major && b < minor);
}

static bool locked_down(void)
{
	char mode[128] = "";
	FILE *f = fopen("/sys/kernel/security/lockdown", "re");

	if (!f)
		return false;
	if (!fgets(mode, sizeof(mode), f))
		mode[0] = 0;
	fclose(f);
	return strstr(mode, "[confidentiality]");
}

/* It says EACCES, too, with reasons of its own. */
static bool verifier_said_no(void)
{
	return strstr(warnings, "PROG LOAD LOG");
}

void csf_explain_begin(void)
{
	warnings[0] = 0;
	libbpf_set_print(keep_warning);
}

void csf_explain_load(int err)
{
	if (locked_down())
		fprintf(stderr, "csf: kernel lockdown (confidentiality) keeps BPF programs from "
				"reading the kernel: boot with lockdown=integrity\n");
	else if (err == -EPERM || (err == -EACCES && !verifier_said_no()))
		fprintf(stderr,
			"csf: not permitted to load BPF programs: run as root, or with "
			"CAP_BPF and CAP_PERFMON; the service also CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 2\n");
	else
		fprintf(stderr, "csf: cannot load the BPF programs: %s\n%s", strerror(-err),
			warnings);
}

void csf_explain_no_btf(const char *what)
{
	if (csf_has_btf())
		fprintf(stderr, "csf: without BTF, as asked for by --no-btf, there is no %s\n",
			what);
	else
		fprintf(stderr,
			"csf: this kernel has no BTF (/sys/kernel/btf/vmlinux), without which there "
			"is no %s\n",
			what);
}

void csf_explain(int err, unsigned int major, unsigned int minor)
{
	if (access("/sys/kernel/btf/vmlinux", R_OK))
		fprintf(stderr,
			"csf: this kernel has no BTF (/sys/kernel/btf/vmlinux): it takes one "
			"built with CONFIG_DEBUG_INFO_BTF\n");
	else if (csf_kernel_before(major, minor))
		fprintf(stderr, "csf: this kernel is too old: it takes Linux %u.%u or later\n",
			major, minor);
	else
		csf_explain_load(err);
}
