// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "probe.h"
#include "explain.h"

#include <bpf/btf.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

bool csf_has_symbol(const char *name)
{
	char line[256], symbol[128];
	bool found = false;
	FILE *f = fopen("/proc/kallsyms", "re");

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*s %*s %127s", symbol) == 1 && !strcmp(symbol, name);
	if (f)
		fclose(f);
	return found;
}

bool csf_has_btf(void)
{
	return !access("/sys/kernel/btf/vmlinux", R_OK);
}

static bool struct_has_field(const struct btf *btf, const char *type, const char *field)
{
	int id = btf__find_by_name_kind(btf, type, BTF_KIND_STRUCT), i;
	const struct btf_type *t = id > 0 ? btf__type_by_id(btf, id) : NULL;

	for (i = 0; t && i < btf_vlen(t); i++)
		if (!strcmp(btf__name_by_offset(btf, btf_members(t)[i].name_off), field))
			return true;
	return false;
}

bool csf_has_field(const char *type, const char *field)
{
	struct btf *btf = btf__load_vmlinux_btf();
	bool has = btf && struct_has_field(btf, type, field);

	btf__free(btf);
	return has;
}

/*
 * 6.2 brought bpf_task_storage_get_recur(), which does not fail while somebody else's program is at
 * it; later ones do without the function, since none fails.
 */
bool csf_storage_dependable(void)
{
	return !csf_kernel_before(6, 2) || csf_has_symbol("bpf_task_storage_get_recur");
}

static bool kernel_is_realtime(void)
{
	struct utsname u;

	return !uname(&u) && strstr(u.version, "PREEMPT_RT");
}

/*
 * 6.4 takes it from BPF's own allocator; kmalloc() may wake kswapd, which takes the lock of a run
 * queue. With PREEMPT_RT that allocator has nothing to give in many a wakeup (seen on 7.3).
 */
bool csf_storage_in_scheduler(void)
{
	return !csf_kernel_before(6, 4) && !kernel_is_realtime();
}
