/* SPDX-License-Identifier: GPL-2.0 */
/* csf runqlat on kernels without BTF. */
#ifndef CSF_CLASSIC_H
#define CSF_CLASSIC_H

#include "runqlat_load.h"

/*
 * Loads and attaches. 0, or the exit code after a message: much cannot be told from records alone.
 */
int csf_classic_load(struct csf_runqlat *r, const struct csf_runqlat_options *o);
/* Who waits now, since when they were seen to. False after a message. */
bool csf_classic_walk(const struct csf_runqlat *r, struct csf_walk *walk);
void csf_classic_unload(struct csf_runqlat *r);

#endif /* CSF_CLASSIC_H */
