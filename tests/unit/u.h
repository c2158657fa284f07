/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For the unit tests: named tests with checks, page files that the test makes itself, children and
 * threads. The judge of mappings is /proc/self/maps, never the library.
 *
 * Included by one translation unit a program, before or after the library.
 */
#ifndef U_H
#define U_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "u_path.h"

#include "lib/coarse_stat_fs.h"

/* Not every program calls each of these; inlined, they would take the compilers twice the time. */
#define U_API __attribute__((unused, noinline)) static

char u_thread_path[U_PATH_LEN], u_cpu_path[U_PATH_LEN];

static const char *u_name;
static int u_bad, u_open, u_passed, u_failed;
static uint64_t u_random_state;

__attribute__((noreturn)) U_API void u_die(const char *what)
{
	printf("not ok %s: %s: %s\n", u_name ? u_name : "start", what, strerror(errno));
	exit(1);
}

U_API void u_remove_files(void)
{
	unlink(u_thread_path);
	unlink(u_cpu_path);
}

U_API void u_start(void)
{
	const char *seed = getenv("U_SEED"), *dir = getenv("U_DIR");
	char real[PATH_MAX];

	if (!realpath(dir ? dir : "/tmp", real))
		u_die("U_DIR"); /* absolute and resolved, as /proc/self/maps has it */
	snprintf(u_thread_path, U_PATH_LEN, "%.200s/csf-unit-%d-thread", real, getpid());
	snprintf(u_cpu_path, U_PATH_LEN, "%.200s/csf-unit-%d-cpu", real, getpid());
	u_random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	if (!u_random_state)
		u_random_state = 1;
	printf("# U_SEED=%llu\n", (unsigned long long)u_random_state);
	setvbuf(stdout, NULL, _IOLBF, 0);
}

/* xorshift64*, mixed with small and extreme values, which is where arithmetic goes wrong */
U_API uint64_t u_random(void)
{
	u_random_state ^= u_random_state >> 12;
	u_random_state ^= u_random_state << 25;
	u_random_state ^= u_random_state >> 27;
	return u_random_state * 2685821657736338717ull;
}

U_API uint64_t u_random_edgy(void)
{
	uint64_t r = u_random();

	switch (r % 4) {
	case 0:
		return r >> (r / 4 % 64);
	case 1:
		return (1ull << (r / 4 % 64)) + (r >> 62) - 1;
	case 2:
		return 0 - (r >> (r / 4 % 64));
	default:
		return u_random();
	}
}

U_API void u_begin(const char *name)
{
	u_name = name;
	u_bad = 0;
	u_open = 1;
}

U_API void u_end(void)
{
	u_open = 0;
	if (u_bad) {
		u_failed++;
	} else {
		u_passed++;
		printf("ok %s\n", u_name);
	}
}

/* The first failed check of a test is its reason; the rest mostly follow from it. */
__attribute__((format(printf, 3, 4))) U_API int u_check(int good, int line, const char *fmt, ...)
{
	va_list ap;

	if (good || u_bad++)
		return good;
	printf("not ok %s: line %d: ", u_name, line);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	return 0;
}

U_API int u_check_eq(long long a, long long b, int line, const char *a_is, const char *b_is)
{
	return u_check(a == b, line, "%s is %lld, not %s = %lld", a_is, a, b_is, b);
}

#define TEST(name) for (u_begin(name); u_open; u_end())
#define CHECK(cond, ...) u_check(!!(cond), __LINE__, __VA_ARGS__)
#define CHECK_EQ(a, b) u_check_eq((long long)(a), (long long)(b), __LINE__, #a, #b)

U_API int u_done(void)
{
	u_remove_files();
	printf("# %d passed, %d failed\n", u_passed, u_failed);
	return u_failed != 0;
}

U_API uint64_t u_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

U_API void u_sleep_ms(unsigned int ms)
{
	usleep(ms * 1000);
}

/*
 * Pages
 */

U_API void u_fill_hdr(struct csf_hdr *h, unsigned int kind, size_t size)
{
	memset(h, 0, sizeof(*h));
	h->magic = CSF_MAGIC;
	h->version = CSF_ABI_VERSION;
	h->kind = (__u16)kind;
	h->size = (__u32)size;
	h->flags = CSF_F_TSC_CONSTANT | CSF_F_TSC_SYNCED | CSF_F_IO;
	h->clock = CSF_CLOCK_TSC;
	h->clock_khz = 2000000;
	h->mult = 1u << 31;
	h->shift = 32;
}

U_API void u_fill_thread_page(struct csf_thread_page *p)
{
	memset(p, 0, sizeof(*p));
	u_fill_hdr(&p->hdr, CSF_KIND_THREAD, sizeof(*p));
	p->state = CSF_ONCPU;
	p->life = CSF_LIVE;
	p->epoch = 1;
	p->tid = 1;
	p->last_switch_tsc = __builtin_ia32_rdtsc();
}

U_API void u_write_file(const char *path, const void *bytes, size_t len)
{
	int fd;

	unlink(path); /* whoever has the old one mapped keeps it */
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0444);
	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
		u_die(path);
	close(fd);
}

/* The page file of the module is one page long, as st_size says. */
U_API void u_write_thread_file(const struct csf_thread_page *p)
{
	static char page[4096];

	memset(page, 0, sizeof(page));
	memcpy(page, p, sizeof(*p));
	u_write_file(u_thread_path, page, sizeof(page));
}

U_API void u_make_thread_file(void)
{
	struct csf_thread_page p;

	u_fill_thread_page(&p);
	u_write_thread_file(&p);
}

/* The writer's view of a page file. Under another name, so that u_count_maps() does not see it. */
U_API void *u_map_to_write(const char *path, size_t len)
{
	char other[U_PATH_LEN + 4];
	void *p;
	int fd;

	snprintf(other, sizeof(other), "%s.rw", path);
	if (link(path, other) || chmod(other, 0644))
		u_die("link");
	fd = open(other, O_RDWR);
	if (fd < 0 || chmod(other, 0444))
		u_die("open to write");
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		u_die("map to write");
	close(fd);
	unlink(other);
	return p;
}

/* How many mappings of this file the process has. */
U_API int u_count_maps(const char *path)
{
	FILE *f = fopen("/proc/self/maps", "r");
	size_t len = strlen(path);
	char line[512];
	int n = 0;

	if (!f)
		u_die("/proc/self/maps");
	while (fgets(line, sizeof(line), f)) {
		const char *name = strchr(line, '/');

		n += name && !strncmp(name, path, len) && (name[len] == '\n' || name[len] == ' ');
	}
	fclose(f);
	return n;
}

U_API int u_count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	if (!d)
		u_die("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/*
 * Children and threads
 */

/* Runs fn in a child made by fork(); its value (0 is good) or 1000 + the signal that killed it. */
U_API int u_wait(pid_t pid)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		u_die("child");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

U_API int u_in_child(int (*fn)(void))
{
	pid_t pid = fork();

	if (!pid)
		_exit(fn());
	return u_wait(pid);
}

U_API void *u_run_fn(void *arg)
{
	int (*fn)(void);

	memcpy(&fn, arg, sizeof(fn));
	return (void *)(intptr_t)fn();
}

U_API int u_in_thread(int (*fn)(void))
{
	pthread_t thread;
	void *ret;

	errno = pthread_create(&thread, NULL, u_run_fn, &fn);
	if (errno)
		u_die("pthread_create");
	pthread_join(thread, &ret);
	return (int)(intptr_t)ret;
}

/* In a child process or thread: the line where it went wrong is the value. */
#define EXPECT(cond)                                                    \
	do {                                                            \
		if (!(cond))                                            \
			return __LINE__ & 0xff ? __LINE__ & 0xff : 255; \
	} while (0)

U_API int u_is_zero(const void *p, size_t len)
{
	const unsigned char *c = (const unsigned char *)p;

	while (len--)
		if (*c++)
			return 0;
	return 1;
}

#endif /* U_H */
