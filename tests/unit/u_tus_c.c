// SPDX-License-Identifier: GPL-2.0
/* The second translation unit of u_tus, in C99. */
#include "u_tus.h"

void tu_c_look(struct tu_view *v)
{
	tu_look(v);
}
