/* SPDX-License-Identifier: GPL-2.0 */
/* What the translation units of u_tus tell each other: each includes the library for itself. */
#ifndef U_TUS_H
#define U_TUS_H

#include "u_path.h"

#include "lib/coarse_stat_fs.h"

/* The results of one unit's snapshots, in one thread. */
struct tu_view {
	struct csf_snap snap;
	struct csf_cpu_snap cpu;
	const void *thread_page, *cpu_page;
	uint64_t clock;
	int ret, cpu_ret;
};

#ifdef __cplusplus
extern "C" {
#endif
void tu_c_look(struct tu_view *v);
void tu_cxx_look(struct tu_view *v);
#ifdef __cplusplus
}
#endif

static inline void tu_look(struct tu_view *v)
{
	v->ret = csf_thread_snap(&v->snap);
	v->thread_page = csf_tls_.page;
	v->cpu_ret = csf_cpu_snap(&v->cpu, CSF_CPU_ALL);
	v->cpu_page = csf_guard_->cpu;
	v->clock = csf_rdtsc();
}

#endif /* U_TUS_H */
