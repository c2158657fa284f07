// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "format.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static FILE *open_format(const char *event)
{
	static const char *const places[] = { "/sys/kernel/tracing", "/sys/kernel/debug/tracing" };
	char path[128];
	FILE *f = NULL;
	unsigned int i;

	for (i = 0; !f && i < 2; i++) {
		snprintf(path, sizeof(path), "%s/events/sched/%s/format", places[i], event);
		f = fopen(path, "re");
		if (!f && errno == EACCES)
			break; /* which is the reason to tell */
	}
	return f;
}

void csf_format_explain(void)
{
	FILE *f = open_format("sched_switch");
	int err = f ? 0 : errno;

	if (f)
		fclose(f);
	fprintf(stderr, "csf: without BTF it takes the tracepoints' format files: %s\n",
		err == EACCES ? "run it as root" :
		err	      ? "mount tracefs at /sys/kernel/tracing" :
				"those of this kernel are of another kind");
}

/* The field's name is the last word before the semicolon, perhaps with the length of an array. */
static bool line_has(const char *line, const char *field, unsigned int *offset, unsigned int *size)
{
	const char *end = strchr(line, ';'), *name;
	size_t len = strlen(field);

	if (!end || sscanf(end, "; offset:%u; size:%u;", offset, size) != 2)
		return false;
	name = memrchr(line, ' ', end - line);
	return name && !strncmp(name + 1, field, len) &&
	       (name[1 + len] == ';' || name[1 + len] == '[');
}

unsigned int csf_format_offset(const char *event, const char *field, unsigned int want)
{
	unsigned int offset = 0, size = 0;
	bool found = false;
	char line[256];
	FILE *f = open_format(event);

	while (f && !found && fgets(line, sizeof(line), f))
		found = line_has(line, field, &offset, &size);
	if (f)
		fclose(f);
	return found && size == want ? offset : 0;
}
