/* SPDX-License-Identifier: GPL-2.0 */
/* What each user takes: pages (threads), kernel memory, connections and so on; by user ID. */
#ifndef CSF_USERS_H
#define CSF_USERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct csf_user {
	uid_t uid;
	uint32_t pages;
	uint64_t bytes;
	unsigned int conns, clients, chunks;
	struct csf_user *next;
};

/* The entry of @uid in @list, made on first use and kept; NULL with ENOMEM. */
struct csf_user *csf_user_get(struct csf_user **list, uid_t uid);
void csf_users_free(struct csf_user **list);

#endif /* CSF_USERS_H */
