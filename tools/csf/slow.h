/* SPDX-License-Identifier: GPL-2.0 */
/* The waits above a limit, one by one, as they end. */
#ifndef CSF_SLOW_H
#define CSF_SLOW_H

#include "watch.h"

struct csf_slow_waits;

/* NULL with errno. */
struct csf_slow_waits *csf_slow_open(int ring_fd, struct csf_watch *watch);
void csf_slow_close(struct csf_slow_waits *s);

/* What there is by now. */
void csf_slow_show(struct csf_slow_waits *s);

/* What to look at while waiting. */
struct csf_watch_also csf_slow_also(struct csf_slow_waits *s);

#endif /* CSF_SLOW_H */
