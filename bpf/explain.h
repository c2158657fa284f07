/* SPDX-License-Identifier: GPL-2.0 */
/* Saying why BPF programs cannot be loaded. */
#ifndef CSF_EXPLAIN_H
#define CSF_EXPLAIN_H

#include <stdbool.h>

bool csf_kernel_before(unsigned int major, unsigned int minor);

/* From here on libbpf's complaints are kept instead of printed. */
void csf_explain_begin(void);

/* On stderr: why loading failed with @err (negative) on a kernel that has to be @major.@minor or later. */
void csf_explain(int err, unsigned int major, unsigned int minor);

/* The same for programs that do without BTF, of any kernel. */
void csf_explain_load(int err);

/* On stderr: what is asked for cannot be had without BTF, which is missing or is not to be used (--no-btf). */
void csf_explain_no_btf(const char *what);

#endif /* CSF_EXPLAIN_H */
