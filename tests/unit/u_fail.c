// SPDX-License-Identifier: GPL-2.0
/*
 * What goes wrong at the first use: the error is said, nothing is left behind, and it may work
 * later.
 */
#include "u.h"

#include <stddef.h>
#include <sys/resource.h>

#define BACKOFF_NS 100000000ull

static int fails_with(int err)
{
	struct csf_snap s;

	memset(&s, 0xff, sizeof(s));
	errno = 0;
	EXPECT(csf_thread_snap(&s) == -1);
	EXPECT(errno == err);
	EXPECT(u_is_zero(&s, sizeof(s)));
	return 0;
}

/* The file comes while the failure is remembered: it is not looked for until 0.1 s have passed. */
static int recovers(void)
{
	uint64_t start, first, worked = 0;
	struct csf_snap s;
	long calls = 0;

	unlink(u_thread_path);
	start = u_now_ns();
	EXPECT(!fails_with(ENOENT));
	first = u_now_ns();
	u_make_thread_file();
	while (!worked && u_now_ns() - start < 5000000000ull) {
		if (!csf_thread_snap(&s))
			worked = u_now_ns();
		else
			EXPECT(errno == ENOENT);
		calls++;
	}
	EXPECT(worked);
	EXPECT(worked - start >= BACKOFF_NS);
	EXPECT(worked - first < 2 * BACKOFF_NS + 200000000ull); /* and some for a busy machine */
	EXPECT(calls > 1000);
	EXPECT(s.extrapolated);
	return 0;
}

static int snap(void)
{
	struct csf_snap s;

	EXPECT(!csf_thread_snap(&s));
	return 0;
}

/* Another thread's failure is its own. */
static int fails_alone(void)
{
	unlink(u_thread_path);
	EXPECT(!u_in_thread(recovers));
	EXPECT(!snap());
	return 0;
}

/* The difference to the writer's clock becomes known, or another one, between two attempts. */
static int recovers_with_other_clock(void)
{
	struct csf_cpu_snap c;
	struct csf_snap s;

	unlink(u_thread_path);
	csf_mono_offset_ = 864000000000000;
	EXPECT(!fails_with(ENOENT));
	EXPECT(csf_cpu_snap(&c, CSF_CPU_ALL) == -1 && errno == ENOENT);
	csf_mono_offset_ = 0;
	u_make_thread_file();
	u_sleep_ms(110);
	EXPECT(!csf_thread_snap(&s));
	EXPECT(!csf_failed_lately_(&csf_tls_.cpu_failed));
	return 0;
}

static void test_missing(void)
{
	TEST("no file: ENOENT for 0.1 s without looking again, then it works")
		CHECK_EQ(u_in_thread(recovers), 0);
	TEST("a failure is remembered by its thread only")
		CHECK_EQ(u_in_thread(fails_alone), 0);
	TEST("... for 0.1 s also if the writer's clock turns out to be another one")
		CHECK_EQ(u_in_thread(recovers_with_other_clock), 0);
}

/*
 * Files that are no page. Each is met by a thread of its own, as failures are remembered.
 */
static int protocol_error(void)
{
	return fails_with(EPROTO);
}

static int invalid(void)
{
	return fails_with(EINVAL);
}

static int no_device(void)
{
	return fails_with(ENODEV);
}

static const struct odd_page {
	const char *name;
	size_t offset, size;
	uint32_t value;
} odd_pages[] = {
	{ "magic", offsetof(struct csf_hdr, magic), 4, 0x46534331 },
	{ "version", offsetof(struct csf_hdr, version), 2, CSF_ABI_VERSION + 1 },
	{ "version 0", offsetof(struct csf_hdr, version), 2, 0 },
	{ "kind", offsetof(struct csf_hdr, kind), 2, CSF_KIND_CPU },
	{ "clock", offsetof(struct csf_hdr, clock), 4, 3 },
	{ "clock rate of 0", offsetof(struct csf_hdr, clock_khz), 4, 0 },
	{ "shift that shifts everything out", offsetof(struct csf_hdr, shift), 4, 64 },
	{ "size of 0", offsetof(struct csf_hdr, size), 4, 0 },
	{ "size beyond the file", offsetof(struct csf_hdr, size), 4, 4097 },
	{ "size of 4 GiB", offsetof(struct csf_hdr, size), 4, 0xffffffff },
};

static void check_nothing_left(int fds)
{
	CHECK_EQ(u_count_maps(u_thread_path), 0);
	CHECK_EQ(u_count_fds(), fds);
}

static void test_odd_pages(void)
{
	struct csf_thread_page p;
	int fds = u_count_fds();
	char name[80];
	size_t i;

	for (i = 0; i < sizeof(odd_pages) / sizeof(odd_pages[0]); i++) {
		const struct odd_page *o = &odd_pages[i];

		u_fill_thread_page(&p);
		memcpy((char *)&p.hdr + o->offset, &o->value, o->size);
		u_write_thread_file(&p);
		snprintf(name, sizeof(name), "a page with an odd header (%s): EPROTO", o->name);
		TEST(name) {
			CHECK_EQ(u_in_thread(protocol_error), 0);
			check_nothing_left(fds);
		}
	}
}

static void test_truncated(void)
{
	static const size_t sizes[] = { 1, 4, 63, 64, 65, sizeof(struct csf_thread_page) - 1 };
	struct csf_thread_page p;
	int fds = u_count_fds();
	size_t i;

	u_fill_thread_page(&p);
	TEST("a truncated page: EPROTO")
		for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			u_write_file(u_thread_path, &p, sizes[i]);
			if (!CHECK(!u_in_thread(protocol_error), "of %zu bytes", sizes[i]))
				break;
			check_nothing_left(fds);
		}
	TEST("a page that ends with its last field is whole") {
		u_write_file(u_thread_path, &p, sizeof(p));
		CHECK_EQ(u_in_thread(snap), 0);
		check_nothing_left(fds);
	}
	TEST("an empty file: EINVAL") {
		u_write_file(u_thread_path, &p, 0);
		CHECK_EQ(u_in_thread(invalid), 0);
		check_nothing_left(fds);
	}
	TEST("a directory: ENODEV") {
		unlink(u_thread_path);
		CHECK(!mkdir(u_thread_path, 0755), "mkdir");
		CHECK_EQ(u_in_thread(no_device), 0);
		CHECK(!rmdir(u_thread_path), "rmdir");
		check_nothing_left(fds);
	}
}

/* Any bytes at all: it works or fails with an errno that it names, and never crashes or leaks. */
static int any_result(void)
{
	struct csf_snap a, b;
	char buf[CSF_DIFF_BUFSZ];

	if (csf_thread_snap(&a)) {
		EXPECT(errno == EPROTO || errno == ESRCH || errno == ESTALE);
		EXPECT(u_is_zero(&a, sizeof(a)));
		return 0;
	}
	EXPECT(!csf_thread_snap(&b));
	csf_format_diff(buf, sizeof(buf), &a, &b);
	EXPECT(strlen(buf) < sizeof(buf));
	csf_ns_to_cyc(&a.p.hdr, csf_cyc_to_ns(&a.p.hdr, a.tsc));
	return 0;
}

static void test_random_pages(void)
{
	struct csf_thread_page p;
	int i, j, fds = u_count_fds();

	TEST("2000 pages with random damage")
		for (i = 0; i < 2000; i++) {
			u_fill_thread_page(&p);
			for (j = (int)(u_random() % 4); j >= 0; j--)
				((unsigned char *)&p)[u_random() % (i % 2 ? 80 : sizeof(p))] =
					(unsigned char)u_random_edgy();
			u_write_file(u_thread_path, &p, sizeof(p));
			if (!CHECK_EQ(u_in_thread(any_result), 0))
				break;
		}
	check_nothing_left(fds);
}

/*
 * Limits of the process, in children so that they do not stay.
 */
static int no_descriptor_left(void)
{
	struct rlimit limit = { 3, 3 };

	EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
	return fails_with(EMFILE);
}

static int no_key_left(void)
{
	pthread_key_t key;

	while (!pthread_key_create(&key, NULL))
		;
	EXPECT(!fails_with(EAGAIN));
	EXPECT(u_count_maps(u_thread_path) == 0);
	return 0;
}

static int not_allowed(void)
{
	EXPECT(!chmod(u_thread_path, 0));
	(void)!setuid(65534); /* of an ordinary user, the mode is enough */
	return fails_with(EACCES);
}

static int descriptors_closed(void)
{
	close(0);
	close(1);
	close(2);
	EXPECT(!snap());
	EXPECT(fcntl(0, F_GETFD) == -1 && fcntl(1, F_GETFD) == -1 && fcntl(2, F_GETFD) == -1);
	return 0;
}

static void test_limits(void)
{
	u_make_thread_file();
	TEST("no descriptor left: EMFILE")
		CHECK_EQ(u_in_child(no_descriptor_left), 0);
	TEST("no key for thread-specific data left: EAGAIN")
		CHECK_EQ(u_in_child(no_key_left), 0);
	TEST("with descriptors 0, 1 and 2 closed it works and leaves them closed")
		CHECK_EQ(u_in_child(descriptors_closed), 0);
	TEST("a file one may not read: EACCES")
		CHECK_EQ(u_in_child(not_allowed), 0);
}

int main(void)
{
	u_start();
	test_limits();
	test_odd_pages();
	test_truncated();
	test_random_pages();
	test_missing();
	return u_done();
}
