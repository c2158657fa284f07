// SPDX-License-Identifier: GPL-2.0
/* The third translation unit of u_tus, in C++17. */
#include "u_tus.h"

void tu_cxx_look(struct tu_view *v)
{
	tu_look(v);
}
