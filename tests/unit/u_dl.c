// SPDX-License-Identifier: GPL-2.0
/* A shared library that uses the header comes and goes while threads that used it live. */
#include "u.h"

#include <dlfcn.h>

#define NR_THREADS 4

static void *library;
static int (*dl_snap)(void);

static int load(void)
{
	void (*paths)(const char *thread, const char *cpu);
	void *symbol;

	library = dlopen(getenv("U_DL_LIB"), RTLD_NOW);
	EXPECT(library);
	symbol = dlsym(library, "dl_paths");
	EXPECT(symbol);
	memcpy(&paths, &symbol, sizeof(paths));
	symbol = dlsym(library, "dl_snap");
	EXPECT(symbol);
	memcpy(&dl_snap, &symbol, sizeof(dl_snap));
	paths(u_thread_path, u_cpu_path);
	return 0;
}

static int snap_twice(void)
{
	EXPECT(!dl_snap());
	EXPECT(!dl_snap());
	return 0;
}

static int snap_in_both(void)
{
	struct csf_snap s;
	int base = u_count_maps(u_thread_path);

	EXPECT(!snap_twice());
	EXPECT(!csf_thread_snap(&s));
	EXPECT(u_count_maps(u_thread_path) == base + 2);
	return 0;
}

static pthread_barrier_t used, leave;

static void *use_and_stay(void *arg)
{
	int ret = dl_snap();

	(void)arg;
	pthread_barrier_wait(&used);
	pthread_barrier_wait(&leave); /* the library is unloaded in between */
	return (void *)(intptr_t)ret;
}

static int unload_under_threads(void)
{
	pthread_t threads[NR_THREADS];
	void *ret;
	int i;

	EXPECT(!load());
	pthread_barrier_init(&used, NULL, NR_THREADS + 1);
	pthread_barrier_init(&leave, NULL, NR_THREADS + 1);
	for (i = 0; i < NR_THREADS; i++)
		EXPECT(!pthread_create(&threads[i], NULL, use_and_stay, NULL));
	pthread_barrier_wait(&used);
	EXPECT(!dlclose(library));
	EXPECT(!dlopen(getenv("U_DL_LIB"), RTLD_NOW | RTLD_NOLOAD)); /* really gone */
	pthread_barrier_wait(&leave);
	for (i = 0; i < NR_THREADS; i++) {
		EXPECT(!pthread_join(threads[i], &ret));
		EXPECT(!ret);
	}
	return 0;
}

static int load_and_unload(void)
{
	EXPECT(!load());
	EXPECT(!u_in_thread(snap_twice));
	EXPECT(!dlclose(library));
	return 0;
}

/* More often than there are keys for thread-specific data. */
static int many_times(void)
{
	int i;

	for (i = 0; i < PTHREAD_KEYS_MAX + 100; i++)
		EXPECT(!load_and_unload());
	EXPECT(u_count_maps(u_thread_path) == 0);
	return 0;
}

int main(void)
{
	u_start();
	u_make_thread_file();
	if (load())
		u_die(dlerror());
	TEST("program and library have a mapping each, and both go with the thread") {
		CHECK_EQ(u_in_thread(snap_in_both), 0);
		CHECK_EQ(u_count_maps(u_thread_path), 0);
	}
	TEST("dlclose()")
		CHECK(!dlclose(library), "%s", dlerror());
	TEST("dlclose() while threads live that used it: they end in peace")
		CHECK_EQ(u_in_child(unload_under_threads), 0);
	TEST("loaded and unloaded more often than there are keys")
		CHECK_EQ(u_in_child(many_times), 0);
	return u_done();
}
