/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which bucket the time of a thread belongs to while it is not running. Pure, and the same for
 * every writer. Callers pass the kernel's own word on "runnable" (a task can be preempted with a
 * sleeping state set), and check that the kernel's state bits are these.
 */
#ifndef CSF_BUCKET_H
#define CSF_BUCKET_H

#include "uapi/coarse_stat_fs.h"

#define CSF_TASK_UNINTERRUPTIBLE 0x0002u /* killable and idle waits have it set too */
#define CSF_TASK_DEAD 0x0080u
#define CSF_TASK_WAKING 0x0200u /* a waker on another CPU was faster than the switch */
#define CSF_TASK_RTLOCK_WAIT 0x1000u
#define CSF_TASK_FROZEN 0x8000u

#define CSF_TASK_DSLEEP (CSF_TASK_UNINTERRUPTIBLE | CSF_TASK_RTLOCK_WAIT | CSF_TASK_FROZEN)

static inline unsigned int csf_bucket(int runnable, int in_iowait, unsigned int state)
{
	if (runnable)
		return CSF_RUNQ;
	if (in_iowait)
		return CSF_IOWAIT;
	return state & CSF_TASK_DSLEEP ? CSF_DSLEEP : CSF_SLEEP;
}

#endif /* CSF_BUCKET_H */
