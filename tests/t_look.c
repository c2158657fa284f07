// SPDX-License-Identifier: GPL-2.0
/*
 * csf's look at the tasks takes time, in which waits and tasks end and others begin: its windows must not lose the
 * one nor gain the other. The look is halted before its walk, by halting the system call that begins it.
 */
#include "t_csf.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static struct t_csf csf;
static int channel[2]; /* on which csf's process hands over its walks */
static unsigned int walk_begins; /* command of bpf() */

static int filter_walks(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, walk_begins, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
			    &program);
}

union control {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

static struct msghdr message(union control *c, struct iovec *v)
{
	return (struct msghdr){
		.msg_iov = v, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof(*c)
	};
}

static void hand_over(void)
{
	union control c = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	char byte = 0;
	struct iovec v = { &byte, 1 };
	struct msghdr m = message(&c, &v);
	int fd = filter_walks();

	memcpy(CMSG_DATA(&c.header), &fd, sizeof(fd));
	if (fd < 0 || sendmsg(channel[1], &m, 0) != 1)
		_exit(126);
}

static int take_over(void)
{
	union control c;
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = message(&c, &v);
	int fd;

	if (recvmsg(channel[0], &m, MSG_CMSG_CLOEXEC) != 1)
		t_die("no walks to halt: %s", strerror(errno));
	memcpy(&fd, CMSG_DATA(&c.header), sizeof(fd));
	return fd;
}

static atomic_int halting, halted, slow_ms;

/* Lets each walk go on: at once or after some time, or when nobody halts it any more. */
static void *answer(void *arg)
{
	int fd = take_over();
	struct pollfd ended = { fd, POLLIN, 0 };

	(void)arg;
	while (poll(&ended, 1, -1) == 1 && ended.revents & POLLIN) {
		struct seccomp_notif walk = { 0 };
		struct seccomp_notif_resp go = { .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

		if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &walk))
			continue;
		halted = halting;
		t_sleep_ns((uint64_t)slow_ms * T_MS);
		while (halting)
			t_sleep_ns(T_MS);
		go.id = walk.id;
		ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &go);
	}
	close(fd);
	return NULL;
}

/* Until it is ended, the spinner waits for it. */
static pid_t *ranked;

static void fifo_spin(void *arg)
{
	struct sched_param param = { .sched_priority = 1 };

	t_pin(0);
	if (sched_setscheduler(0, SCHED_FIFO, &param))
		_exit(77);
	*ranked = getpid();
	t_spin(arg);
}

/* 0 if there can be none. */
static pid_t outrank(void)
{
	pid_t rival;

	*ranked = 0;
	rival = t_fork(fifo_spin, NULL);
	while (!*(volatile pid_t *)ranked)
		if (waitpid(rival, NULL, WNOHANG) == rival)
			return 0;
	return rival;
}

static void run_on(pid_t pid)
{
	unsigned long long ran = t_schedstat(pid).ran;

	while (t_schedstat(pid).ran < ran + 20 * T_MS)
		t_sleep_ns(T_MS);
}

static void halt_last_look(void)
{
	halted = 0;
	halting = 1;
	kill(csf.pid, SIGINT);
	while (!halted)
		t_sleep_ns(T_MS);
}

static void go_on(void)
{
	halting = 0;
	CHECK(!t_csf_end(&csf), "exit status %d: %s", csf.status, csf.said);
}

/* Of waits that have not ended, and of one that may have been under way when csf began. */
static double open_ms(void)
{
	return (double)t_number(t_discarded(&csf), "\"wait_ns\":") / T_MS;
}

/* Waits whose beginning this machine's kernel did not show (see t_runqlat.c). */
static int hidden(void)
{
	return !t_in_guest() && t_json(&csf, "unseen_start") + t_json(&csf, "stale");
}

/* It waits when the window ends, and has got its CPU before the walk comes to it. */
static void ends_in_look(pid_t spinner)
{
	uint64_t begin = t_mono_ns();
	pid_t rival = outrank();
	double ms;

	t_sleep_ns(200 * T_MS);
	halt_last_look();
	ms = (double)(t_mono_ns() - begin) / T_MS;
	if (rival)
		t_kill(rival);
	else
		t_skip("no SCHED_FIFO here");
	run_on(spinner);
	go_on();
	if (!rival || hidden())
		return;
	CHECK(open_ms() > 150 && open_ms() < ms + 100,
	      "it waited for 200 to %.3f ms when the window ended: %s", ms, t_discarded(&csf));
}

/* It begins to wait after the end of the window; another task may have had its CPU for a moment then. */
static void begins_in_look(pid_t spinner)
{
	pid_t rival;

	run_on(spinner);
	halt_last_look();
	rival = outrank();
	t_sleep_ns(200 * T_MS);
	go_on();
	if (rival)
		t_kill(rival);
	else
		t_skip("no SCHED_FIFO here");
	CHECK(open_ms() < 100, "it ran when the window ended: %s", t_discarded(&csf));
}

static pthread_t begin_answers(unsigned int command)
{
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, channel))
		t_die("socketpair: %s", strerror(errno));
	walk_begins = command;
	return t_go(answer, NULL);
}

static void end_answers(pthread_t answers)
{
	t_join(answers);
	close(channel[0]);
	close(channel[1]);
}

static void watched(const char *from, void (*fn)(pid_t spinner))
{
	pid_t spinner;
	char number[16];
	pthread_t answers;

	if (access("/sys/kernel/btf/vmlinux", R_OK)) {
		t_skip("this kernel has no BTF");
		return;
	}
	spinner = t_fork(t_spin, NULL);
	answers = begin_answers(BPF_ITER_CREATE);
	snprintf(number, sizeof(number), "%d", spinner);
	t_csf_start(&csf, "runqlat", "--json", "--from", from, "-t", number);
	fn(spinner);
	t_kill(spinner);
	end_answers(answers);
}

/* Wakes often, until it is told to end. */
static void wakes(void *arg)
{
	atomic_int *enough = arg;

	while (!*enough)
		t_sleep_ns(T_MS);
}

/* A task that nobody has told the birth of ends before the walk comes to it; the kernel frees it then, or later. */
static void task_ends(uint64_t patience_ns)
{
	pthread_t answers = begin_answers(BPF_MAP_GET_NEXT_KEY);
	atomic_int *enough = t_shared(sizeof(*enough));
	char row[64];
	pid_t pid;

	t_csf_start(&csf, "migrate", "--json", "--no-btf");
	pid = t_fork(wakes, enough);
	t_sleep_ns(200 * T_MS);
	halt_last_look();
	*enough = 1;
	t_wait(pid);
	t_sleep_ns(patience_ns);
	go_on();
	end_answers(answers);
	snprintf(row, sizeof(row), "\"pid\":%d,\"comm\":\"t_look\",", pid);
	CHECK(strstr(csf.text, row), "there is no row of %d: %.300s", pid, csf.text);
}

/* Each look takes longer than a window, so that none is ever in time. */
static void late(void)
{
	pthread_t answers = begin_answers(BPF_ITER_CREATE);
	uint64_t begin;

	slow_ms = 1200;
	t_csf_start(&csf, "cswitch", "-i", "1");
	t_sleep_ns(2 * T_SEC);
	begin = t_mono_ns();
	kill(csf.pid, SIGINT);
	t_limit(60);
	CHECK(!t_csf_end(&csf), "exit status %d: %s", csf.status, csf.said);
	CHECK(t_mono_ns() - begin < 10 * T_SEC, "it took %llu ms to end",
	      (unsigned long long)(t_mono_ns() - begin) / T_MS);
	slow_ms = 0;
	end_answers(answers);
}

static void *spin_on_first(void *arg)
{
	t_pin(0);
	t_spin(arg);
	return NULL;
}

static void two_spin(void *arg)
{
	t_go(spin_on_first, arg);
	spin_on_first(arg);
}

/* It may have begun at the last tick, or since. */
static void one_waits(void)
{
	pid_t pid = t_fork(two_spin, NULL);
	char number[16];
	const char *window;
	int windows = 0, waits = 0;

	if (access("/sys/kernel/btf/vmlinux", R_OK) || t_cpus() < 2) {
		t_skip("no BTF or no other CPU here");
		t_kill(pid);
		return;
	}
	t_csf_before = NULL;
	snprintf(number, sizeof(number), "%d", pid);
	CHECK(!t_csf(&csf, "runqlat", "--json", "--from", "queue", "-i", "1", "-p", number, "4"),
	      "exit status %d: %s", csf.status, csf.said);
	t_kill(pid);
	for (window = csf.text; (window = strstr(window, "\"open\":")); window++, windows++)
		waits += t_number(window, "\"count\":") > 0;
	/* a switch in the look may be hidden here, and in a guest come between two instructions of the walk */
	CHECK(windows >= 3 && waits >= (t_in_guest() ? windows - 1 : 1),
	      "in %d of %d windows nobody waits", windows - waits, windows);
	t_csf_before = hand_over;
}

int main(void)
{
	static const char *const from[] = { "wakeup", "waking", "queue" };
	char name[64];
	size_t i;

	t_pin(t_cpus() - 1); /* csf as well */
	ranked = t_shared(sizeof(*ranked));
	t_csf_before = hand_over;
	for (i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "a wait ends in the look: %s", from[i]);
		TEST(name)
			watched(from[i], ends_in_look);
		snprintf(name, sizeof(name), "a wait begins in the look: %s", from[i]);
		TEST(name)
			watched(from[i], begins_in_look);
	}
	TEST("a task ends and is freed in the look: migrate, no BTF")
		task_ends(500 * T_MS);
	TEST("a task ends in the look: migrate, no BTF")
		task_ends(0);
	TEST("windows that are all late")
		late();
	TEST("one of two always waits: queue")
		one_waits();
	return t_done("t_look");
}
