// SPDX-License-Identifier: GPL-2.0
#include "users.h"

#include <stdlib.h>

struct csf_user *csf_user_get(struct csf_user **list, uid_t uid)
{
	struct csf_user *u = *list;

	while (u && u->uid != uid)
		u = u->next;
	if (u)
		return u;
	u = calloc(1, sizeof(*u));
	if (!u)
		return NULL;
	u->uid = uid;
	u->next = *list;
	*list = u;
	return u;
}

void csf_users_free(struct csf_user **list)
{
	struct csf_user *u;

	while ((u = *list)) {
		*list = u->next;
		free(u);
	}
}
