// SPDX-License-Identifier: GPL-2.0
/*
 * Keeps task storage busy until it is told to end; for t_storage. Before Linux 6.2 a task's storage
 * cannot be had by one program while another one on that CPU is looking for its own.
 */
#include <bpf/libbpf.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "busy_storage.skel.h"

/* A program that can be preempted takes a kernel that can be patched at functions. */
static struct busy_storage_bpf *start(bool preemptible)
{
	struct busy_storage_bpf *skel = busy_storage_bpf__open();

	if (!skel)
		return NULL;
	bpf_program__set_autoload(skel->progs.busy_sleep, preemptible);
	skel->rodata->create_anywhere = !preemptible;
	if (!busy_storage_bpf__load(skel) && !busy_storage_bpf__attach(skel))
		return skel;
	busy_storage_bpf__destroy(skel);
	return NULL;
}

int main(void)
{
	struct busy_storage_bpf *skel;
	bool preemptible = true;
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	libbpf_set_print(NULL);
	skel = start(true);
	if (!skel) {
		preemptible = false;
		skel = start(false);
	}
	if (!skel) {
		perror("busy_storage");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	sigwait(&set, &sig);
	printf("%llu failures of %llu%s\n", (unsigned long long)skel->bss->failures,
	       (unsigned long long)skel->bss->gets, preemptible ? "" : ", never preempted");
	busy_storage_bpf__destroy(skel);
	return 0;
}
