/* SPDX-License-Identifier: GPL-2.0 */
/* Names that others have chosen, before they go to a terminal or into JSON. */
#ifndef CSF_PRINTABLE_H
#define CSF_PRINTABLE_H

#include <stddef.h>

/* Replaces control characters, and what is not UTF-8 (a name that was cut, say), by '?'. */
void csf_make_printable(char *name, size_t size);

#endif /* CSF_PRINTABLE_H */
