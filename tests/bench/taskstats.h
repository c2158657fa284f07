/* SPDX-License-Identifier: GPL-2.0 */
/* Asking the kernel for a thread's taskstats by generic netlink. Takes CAP_NET_ADMIN. */
#ifndef CSF_BENCH_TASKSTATS_H
#define CSF_BENCH_TASKSTATS_H

#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/taskstats.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

struct taskstats_conn {
	int fd;
	__u16 family;
};

/* A message in either direction; the kernel's answer is some 500 bytes. */
struct taskstats_msg_ {
	struct nlmsghdr n;
	struct genlmsghdr g;
	char attrs[4096];
};

/* The contents of the attribute of this type, or NULL. */
static inline const void *taskstats_attr_(const void *attrs, size_t len, int type)
{
	const char *at = (const char *)attrs, *end = at + len;

	while (end - at >= (ptrdiff_t)NLA_HDRLEN) {
		const struct nlattr *a = (const struct nlattr *)at;

		if (a->nla_len < NLA_HDRLEN || a->nla_len > end - at)
			return NULL;
		if ((a->nla_type & NLA_TYPE_MASK) == type)
			return at + NLA_HDRLEN;
		at += NLA_ALIGN(a->nla_len);
	}
	return NULL;
}

static inline size_t taskstats_attrs_len_(const struct taskstats_msg_ *m)
{
	return m->n.nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
}

/* One question with one attribute; its answer in *m. 0, or -1 with errno. */
static inline int taskstats_ask_(const struct taskstats_conn *c, struct taskstats_msg_ *m, int cmd,
				 int type, const void *value, size_t size)
{
	struct nlattr *a = (struct nlattr *)m->attrs;
	ssize_t n;

	a->nla_type = (__u16)type;
	a->nla_len = (__u16)(NLA_HDRLEN + size);
	memcpy(m->attrs + NLA_HDRLEN, value, size);
	m->n = (struct nlmsghdr){
		.nlmsg_len = (__u32)(NLMSG_LENGTH(GENL_HDRLEN) + NLA_ALIGN(a->nla_len)),
		.nlmsg_type = c->family,
		.nlmsg_flags = NLM_F_REQUEST,
	};
	m->g = (struct genlmsghdr){ .cmd = (__u8)cmd, .version = 1 };
	if (send(c->fd, m, m->n.nlmsg_len, 0) < 0)
		return -1;
	n = recv(c->fd, m, sizeof(*m), 0);
	if (n < 0)
		return -1;
	errno = m->n.nlmsg_type == NLMSG_ERROR ? -((struct nlmsgerr *)&m->g)->error : 0;
	if (!errno && (size_t)n < NLMSG_LENGTH(GENL_HDRLEN))
		errno = EPROTO;
	return errno ? -1 : 0;
}

/* 0, or -1 with errno. Fields that this kernel does not have are 0. */
static inline int taskstats_of(const struct taskstats_conn *c, pid_t tid, struct taskstats *ts)
{
	__u32 id = (__u32)tid;
	struct taskstats_msg_ m;
	const char *both, *stats;
	size_t len;

	if (taskstats_ask_(c, &m, TASKSTATS_CMD_GET, TASKSTATS_CMD_ATTR_PID, &id, sizeof(id)))
		return -1;
	errno = EPROTO;
	both = taskstats_attr_(m.attrs, taskstats_attrs_len_(&m), TASKSTATS_TYPE_AGGR_PID);
	if (!both)
		return -1;
	len = ((const struct nlattr *)(both - NLA_HDRLEN))->nla_len - (size_t)NLA_HDRLEN;
	stats = taskstats_attr_(both, len, TASKSTATS_TYPE_STATS);
	if (!stats)
		return -1;
	len = ((const struct nlattr *)(stats - NLA_HDRLEN))->nla_len - (size_t)NLA_HDRLEN;
	memset(ts, 0, sizeof(*ts));
	memcpy(ts, stats, len < sizeof(*ts) ? len : sizeof(*ts));
	return 0;
}

/* 0, or -1 with errno: ENOENT where the kernel has no taskstats, EPERM without the capability. */
static inline int taskstats_open(struct taskstats_conn *c)
{
	struct taskstats_msg_ m;
	struct taskstats ts;
	const void *id;

	c->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	c->family = GENL_ID_CTRL;
	if (c->fd < 0)
		return -1;
	if (taskstats_ask_(c, &m, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, TASKSTATS_GENL_NAME,
			   sizeof(TASKSTATS_GENL_NAME)))
		return -1;
	id = taskstats_attr_(m.attrs, taskstats_attrs_len_(&m), CTRL_ATTR_FAMILY_ID);
	errno = EPROTO;
	if (!id)
		return -1;
	memcpy(&c->family, id, sizeof(c->family));
	return taskstats_of(c, getpid(), &ts);
}

#endif /* CSF_BENCH_TASKSTATS_H */
