// SPDX-License-Identifier: GPL-2.0
/*
 * Everything that the header offers, used once. Compiled in each language and mode that it promises
 * to work in, without any warning; it is never run.
 */
#include "lib/coarse_stat_fs.h"

int use_everything(const struct csf_thread_page *page);

int use_everything(const struct csf_thread_page *page)
{
	struct csf_snap a, b;
	struct csf_cpu_snap c;
	char buf[CSF_DIFF_BUFSZ];
	uint64_t cyc = csf_rdtsc();

	if (csf_thread_snap(&a) || csf_thread_snap_ordered(&b) || csf_page_snap(page, &b) ||
	    csf_cpu_snap(&c, CSF_CPU_ALL))
		return errno;
	cyc = csf_ns_to_cyc(&a.p.hdr, csf_cyc_to_ns(&a.p.hdr, cyc));
	return csf_format_diff(buf, sizeof(buf), &a, &b) + (int)(cyc & 1) + a.extrapolated +
	       (int)c.row.online + (int)(c.update_tsc == c.update_mono_ns);
}
