/* SPDX-License-Identifier: GPL-2.0 */
/* What the running kernel can do for BPF programs. */
#ifndef CSF_PROBE_H
#define CSF_PROBE_H

#include <stdbool.h>

bool csf_has_symbol(const char *name);
bool csf_has_btf(void);
bool csf_has_field(const char *type, const char *field); /* of a struct */

/* Task storage that a program finds always, whoever else is at it. */
bool csf_storage_dependable(void);

/*
 * And that may be made within the scheduler, where memory must not be asked for in the usual way.
 */
bool csf_storage_in_scheduler(void);

#endif /* CSF_PROBE_H */
