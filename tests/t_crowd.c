// SPDX-License-Identifier: GPL-2.0
/* The commands that watch the machine, with 100,000 tasks alive: how soon they begin, what memory they take. */
#include "t_count.h"

#define PROCESSES 10
#define THREADS 10000
#define NEEDED_MB 8000 /* the kernel's stacks and all */
#define MAX_KIB (40 * 1024ull)

static void *asleep(void *arg)
{
	__atomic_add_fetch((int *)arg, 1, __ATOMIC_RELAXED);
	pause();
	return NULL;
}

static void many_threads(void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	int i, err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 16384);
	pthread_attr_setguardsize(&attr, 0); /* each would be a mapping, and those are limited */
	for (i = 0; i < THREADS; i++) {
		err = pthread_create(&thread, &attr, asleep, arg);
		if (err)
			t_die("thread %d: %s", i, strerror(err));
	}
	pause();
}

static void start_crowd(pid_t *pids)
{
	int *asleep = t_shared(sizeof(*asleep));
	int i;

	for (i = 0; i < PROCESSES; i++)
		pids[i] = t_fork(many_threads, asleep);
	while (__atomic_load_n(asleep, __ATOMIC_RELAXED) < PROCESSES * THREADS)
		t_sleep_ns(10 * T_MS);
	t_sleep_ns(T_SEC);
}

static int there_is_room(void)
{
	char text[4096];

	t_read("/proc/meminfo", text, sizeof(text));
	return t_number(text, "\nMemAvailable:") / 1024 >= NEEDED_MB;
}

/* KiB of the maps that a process has open. */
static unsigned long long maps_kib(pid_t pid)
{
	unsigned long long bytes = 0;
	char path[64], text[1024], *at;
	int fd;

	for (fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)pid, fd);
		if (t_read(path, text, sizeof(text)) <= 0 || !strstr(text, "map_type:"))
			continue;
		at = strstr(text, "memlock:");
		bytes += at ? strtoull(at + strlen("memlock:"), NULL, 10) : 0;
	}
	return bytes / 1024;
}

/* What it waited for a CPU is for others to answer. */
static uint64_t waited_ns(pid_t pid)
{
	unsigned long long run, wait;
	char path[64], text[128];

	snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
	t_read(path, text, sizeof(text));
	if (sscanf(text, "%llu %llu", &run, &wait) != 2)
		t_die("no schedstat");
	return wait;
}

static void watch_crowd(const char *command)
{
	unsigned long long maps, memory;
	uint64_t begin, took, best = UINT64_MAX;
	struct t_csf c;
	int i;

	for (i = 0; i < 3; i++) {
		begin = t_mono_ns();
		t_csf_start(&c, command);
		took = t_mono_ns() - begin - waited_ns(c.pid);
		best = took < best ? took : best;
		t_sleep_ns(T_SEC);
		maps = maps_kib(c.pid);
		t_csf_stop(&c);
		memory = (unsigned long long)c.used.ru_maxrss + maps;
		t_csf_free(&c);
	}
	t_note("csf %s: begins after %.0f ms, %ld KiB resident, %llu KiB of maps", command,
	       (double)best / 1e6, c.used.ru_maxrss, maps);
	CHECK(best <= T_SEC / 2, "csf %s: it takes %.0f ms to begin", command, (double)best / 1e6);
	CHECK(memory <= MAX_KIB, "csf %s: it takes %llu KiB", command, memory);
}

static void crowd(void)
{
	static const char *const commands[] = { "cswitch", "cswitch -T --json", "migrate",
						"migrate -T --json --force-hash" };
	char old[32];
	pid_t pids[PROCESSES];
	size_t i;

	t_limit(300);
	t_read("/proc/sys/kernel/pid_max", old, sizeof(old));
	if (atoi(old) < 150000 && t_write("/proc/sys/kernel/pid_max", "150000"))
		t_die("pid_max: %s", strerror(errno));
	start_crowd(pids);
	for (i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		watch_crowd(commands[i]);
	for (i = 0; i < PROCESSES; i++)
		t_kill(pids[i]);
	t_write("/proc/sys/kernel/pid_max", old);
}

int main(void)
{
	TEST("100,000 tasks alive") {
		if (!there_is_room()) {
			t_skip("it takes %d MB of free memory", NEEDED_MB);
			continue;
		}
		crowd();
	}
	return t_done("t_crowd");
}
