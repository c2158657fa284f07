// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of a service, which a thread of the test plays: what becomes of a page whose writer is
 * gone, also where a signal handler comes in between, and of a clock that is off.
 */
#include "u_step.h"

#include <sys/socket.h>
#include <sys/un.h>

#define CHUNK "/memfd:csf-unit-chunk"

static int listen_fd, chunk_fd, pipe_fds[2];
static volatile int refuse; /* the errno that the service answers with */
static volatile int unmappable; /* the chunk is none */

/* What the writer knows of the one thread that has a page. */
static void write_page(unsigned int state)
{
	struct csf_thread_page p;

	u_fill_thread_page(&p);
	p.hdr.clock = CSF_CLOCK_MONOTONIC;
	p.hdr.clock_khz = 1000000;
	p.hdr.mult = 1;
	p.hdr.shift = 0;
	p.state = (__u16)state;
	p.last_switch_tsc = u_now_ns();
	if (pwrite(chunk_fd, &p, sizeof(p), 0) != (ssize_t)sizeof(p))
		u_die("write_page");
}

static void answer(int sock, const struct csf_reply *r, int iter)
{
	int fds[2] = { iter, unmappable ? pipe_fds[0] : chunk_fd };
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(fds))];
	} control;
	struct iovec iov = { (void *)(uintptr_t)r, sizeof(*r) };
	struct msghdr msg;
	struct cmsghdr *c;

	memset(&msg, 0, sizeof(msg));
	memset(&control, 0, sizeof(control));
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	if (!r->err) {
		msg.msg_control = control.buf;
		msg.msg_controllen = sizeof(control.buf);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(c), fds, sizeof(fds));
	}
	sendmsg(sock, &msg, MSG_NOSIGNAL);
}

/* The clock in the ticket is read when the client waits for it, else the client asks again. */
static void register_one(int sock)
{
	struct csf_ticket ticket;
	struct csf_reply r;
	int iter[2];

	memset(&r, 0, sizeof(r));
	memset(&ticket, 0, sizeof(ticket));
	r.magic = CSF_SERVICE_MAGIC;
	r.version = CSF_SERVICE_VERSION;
	r.err = refuse;
	if (pipe(iter))
		u_die("pipe");
	if (!refuse)
		write_page(CSF_ONCPU);
	answer(sock, &r, iter[0]);
	usleep(100);
	ticket.now_ns = u_now_ns();
	if (!refuse && write(iter[1], &ticket, sizeof(ticket)) != (ssize_t)sizeof(ticket))
		u_die("ticket");
	close(iter[1]);
	close(iter[0]);
}

static void *serve(void *arg)
{
	struct csf_request q;

	for (;;) {
		int sock = accept(listen_fd, NULL, NULL);

		if (sock < 0)
			u_die("accept");
		while (recv(sock, &q, sizeof(q), 0) == (ssize_t)sizeof(q))
			register_one(sock);
		close(sock);
	}
	return arg;
}

static struct sockaddr_un service_at;
static char service_dir[] = "/tmp/csf-unit.XXXXXX"; /* $U_DIR may be too long for a socket */

static void start_service(void)
{
	struct sockaddr_un *a = &service_at;
	pthread_t thread;

	a->sun_family = AF_UNIX;
	if (!mkdtemp(service_dir))
		u_die(service_dir);
	snprintf(a->sun_path, sizeof(a->sun_path), "%s/socket", service_dir);
	setenv(CSF_SOCKET_ENV, a->sun_path, 1);
	chunk_fd = memfd_create("csf-unit-chunk", MFD_CLOEXEC);
	listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (chunk_fd < 0 || ftruncate(chunk_fd, CSF_SLOT_SIZE) || pipe(pipe_fds))
		u_die("chunk");
	if (bind(listen_fd, (struct sockaddr *)a, sizeof(*a)) || listen(listen_fd, 4))
		u_die(a->sun_path);
	if (pthread_create(&thread, NULL, serve, NULL))
		u_die("pthread_create");
}

static void end_service(void)
{
	unlink(service_at.sun_path);
	rmdir(service_dir);
}

/* 0 or errno; however lately the last one failed. */
static int snap(void)
{
	struct csf_snap s;

	csf_tls_.thread_failed.err = 0;
	return csf_thread_snap(&s) ? errno : 0;
}

static int is_mapped(void *page)
{
	return !msync(page, CSF_SLOT_SIZE, MS_ASYNC);
}

static int register_and_again(void)
{
	const void *page;

	EXPECT(!snap());
	EXPECT(u_count_maps(CHUNK) == 1);
	page = csf_tls_.page;
	write_page(CSF_SLEEP); /* it says that its thread sleeps, so it has missed a switch */
	EXPECT(!snap());
	EXPECT(csf_tls_.page == page);
	EXPECT(u_count_maps(CHUNK) == 1);
	return 0;
}

static int refused_for_once(void)
{
	EXPECT(!snap());
	write_page(CSF_SLEEP);
	refuse = EACCES;
	EXPECT(snap() == EACCES);
	EXPECT(u_count_maps(CHUNK) == 1);
	EXPECT(snap() == EACCES);
	refuse = 0;
	EXPECT(!snap());
	EXPECT(u_count_maps(CHUNK) == 1);
	return 0;
}

static void test_pages(void)
{
	TEST("a thread whose page missed a switch registers again, at the same address")
		CHECK_EQ(u_in_thread(register_and_again), 0);
	TEST("... or later, if it is refused")
		CHECK_EQ(u_in_thread(refused_for_once), 0);
	TEST("the mappings end with their threads")
		CHECK_EQ(u_count_maps(CHUNK), 0);
}

/*
 * A failing mmap() at an address may have removed what was there. Then the next mapping there is
 * another one's.
 */
static int foreign_mapping_stays(void)
{
	volatile unsigned char *foreign;
	void *page;

	EXPECT(!snap());
	page = (void *)(uintptr_t)csf_tls_.page;
	write_page(CSF_SLEEP);
	unmappable = 1;
	EXPECT(snap() == ENODEV);
	unmappable = 0;
	foreign = (volatile unsigned char *)mmap(page, CSF_SLOT_SIZE, PROT_READ | PROT_WRITE,
						 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	EXPECT(foreign == page);
	*foreign = 0x5a;
	EXPECT(!snap());
	EXPECT(csf_tls_.page != page);
	EXPECT(*foreign == 0x5a);
	return 0;
}

static void test_failing_map(void)
{
	TEST("after mmap() failed in place of a page, nothing is mapped over there")
		CHECK_EQ(u_in_thread(foreign_mapping_stays), 0);
}

/*
 * A handler at an instruction of what gives up a page. Pages that are named are mapped, and pages
 * that are mapped are named.
 */
static int handler_refused;

static void snap_in_handler(void)
{
	refuse = handler_refused;
	snap();
	refuse = 0;
}

static int interrupted_drop(void)
{
	EXPECT(!snap());
	write_page(CSF_SLEEP); /* so a handler that comes early gives it up as well */
	u_handled = 0;
	u_step_begin();
	csf_page_drop_(&csf_tls_);
	u_step_end();
	EXPECT(!csf_tls_.stale || is_mapped(csf_tls_.stale));
	EXPECT(u_count_maps(CHUNK) ==
	       (csf_tls_.gen == csf_guard_->gen) +
		       (csf_tls_.stale && csf_tls_.stale_gen == csf_guard_->gen));
	EXPECT(!snap());
	return 0;
}

static void test_drop(const char *name, int refused)
{
	long at = 1;

	handler_refused = refused;
	u_handler = snap_in_handler;
	TEST(name) {
		do {
			u_steps_left = at;
			if (!CHECK_EQ(u_in_thread(interrupted_drop), 0))
				printf("# at instruction %ld\n", at);
			CHECK_EQ(u_count_maps(CHUNK), 0);
		} while (u_handled && at++ < 10000 && !u_bad);
		CHECK(at > 10, "%ld instructions", at);
		printf("# %ld instructions\n", at);
	}
}

/*
 * What a ticket's clock says of ours.
 */
static int check_clock(int64_t writer_ahead_ns)
{
	uint64_t before = csf_own_mono_ns_();
	struct csf_ticket ticket;

	memset(&ticket, 0, sizeof(ticket));
	ticket.now_ns = before + (uint64_t)writer_ahead_ns;
	return csf_service_check_clock_(before, &ticket) ? errno : 0;
}

static void test_clock(void)
{
	const int64_t s = 1000000000;

	TEST("a time namespace's offset stays what it was if a ticket fits no clock") {
		csf_mono_offset_ = 5 * s;
		CHECK_EQ(check_clock(5 * s), 0);
		CHECK_EQ(csf_mono_offset_, 5 * s);
		CHECK_EQ(check_clock(3 * s), EPROTO);
		CHECK_EQ(csf_mono_offset_, 5 * s);
	}
	TEST("... and is taken from /proc if the ticket fits that") {
		CHECK_EQ(check_clock(0), 0);
		CHECK_EQ(csf_mono_offset_, 0);
		CHECK_EQ(check_clock(3 * s), EAGAIN);
		CHECK_EQ(csf_mono_offset_, 0);
	}
}

int main(void)
{
	u_start();
	signal(SIGPIPE, SIG_IGN);
	u_step_start();
	start_service();
	test_pages();
	test_failing_map();
	test_drop("a handler whose snapshot fails, where a page is given up", EACCES);
	test_drop("a handler that maps a new page, where one is given up", 0);
	test_clock();
	end_service();
	return u_done();
}
