/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which slot of a histogram a wait is in: for BPF programs, which have no instruction for a
 * logarithm.
 */
#ifndef CSF_SLOTS_H
#define CSF_SLOTS_H

#include "runqlat.h"

static inline __u32 csf_log2(__u64 v)
{
	__u32 r = 0;

	if (v >> 32) {
		v >>= 32;
		r = 32;
	}
	if (v >> 16) {
		v >>= 16;
		r |= 16;
	}
	if (v >> 8) {
		v >>= 8;
		r |= 8;
	}
	if (v >> 4) {
		v >>= 4;
		r |= 4;
	}
	if (v >> 2) {
		v >>= 2;
		r |= 2;
	}
	return r | v >> 1;
}

/*
 * In steps of the unit. A division takes longer than all the rest; 274877907 / 2^35 is 1 / 125,
 * exact for 32 bits.
 */
static inline __u64 csf_steps(__u64 ns, __u64 unit_ns)
{
	if (ns >> 56)
		ns = (__u64)1 << 56;
	if (unit_ns == 1)
		return ns * CSF_FINE;
	if (unit_ns == 1000 && !(ns >> 32))
		return ns * 274877907 >> 35;
	return ns / (unit_ns / CSF_FINE);
}

static inline __u32 csf_fine_slot(__u64 v)
{
	__u32 e;

	if (v < CSF_FINE)
		return v;
	e = csf_log2(v);
	return (e - 2) * CSF_FINE + (__u32)(v >> (e - 3) & (CSF_FINE - 1));
}

/* Of a row, by the fine one. */
static inline __u32 csf_row_slot(__u32 slot)
{
	return slot < 2 * CSF_FINE ? 0 : slot / CSF_FINE - 1;
}

#endif /* CSF_SLOTS_H */
