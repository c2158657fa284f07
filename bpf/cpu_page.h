/* SPDX-License-Identifier: GPL-2.0 */
/* The cpu page of the service: a sealed memory file that is filled from /proc/stat. */
#ifndef CSF_CPU_PAGE_H
#define CSF_CPU_PAGE_H

#include <stdint.h>

struct csf_cpu_page_file;

struct csf_loaded;

/* NULL with errno. The programs count interrupts by CPU, and must outlive the page. */
struct csf_cpu_page_file *csf_cpu_page_new(uint32_t period_us, const struct csf_loaded *bpf);
void csf_cpu_page_free(struct csf_cpu_page_file *f);

/* A descriptor to hand out: it cannot be written, nor mapped for writing. */
int csf_cpu_page_fd(const struct csf_cpu_page_file *f);
uint32_t csf_cpu_page_size(const struct csf_cpu_page_file *f);

/* Reads /proc/stat into the page. */
void csf_cpu_page_update(struct csf_cpu_page_file *f);

#endif /* CSF_CPU_PAGE_H */
