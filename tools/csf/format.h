/* SPDX-License-Identifier: GPL-2.0 */
/* Where fields lie in the records of tracepoints: the kernel's format files say so. */
#ifndef CSF_FORMAT_H
#define CSF_FORMAT_H

/* Of an event of the scheduler; 0, which is no field's place, if there is no such field of @want bytes. */
unsigned int csf_format_offset(const char *event, const char *field, unsigned int want);

/* On stderr: why there was none. */
void csf_format_explain(void);

#endif /* CSF_FORMAT_H */
