// SPDX-License-Identifier: GPL-2.0
/*
 * A child maps its own pages, however it was made. MADV_DONTFORK on the parent's mappings is what
 * the module's VM_DONTCOPY is: a child that used the parent's pointer would crash.
 */
#include "u.h"

#include <sched.h>
#include <sys/syscall.h>

static char cpu_file[4096];

static void make_cpu_file(void)
{
	struct csf_cpu_page *p = (struct csf_cpu_page *)cpu_file;

	u_fill_hdr(&p->hdr, CSF_KIND_CPU, sizeof(*p) + 2 * sizeof(struct csf_cpu_row));
	p->nr_rows = 2;
	p->row_size = sizeof(struct csf_cpu_row);
	p->rows_offset = sizeof(*p);
	u_write_file(u_cpu_path, cpu_file, sizeof(cpu_file));
}

/* As the module makes a mapping. */
static int make_private_to_process(const void *page)
{
	return page && madvise((void *)(uintptr_t)page, 4096, MADV_DONTFORK);
}

static int snap(void)
{
	struct csf_snap s;

	EXPECT(!csf_thread_snap(&s));
	EXPECT(!make_private_to_process(csf_tls_.page));
	return 0;
}

static int snap_twice(void)
{
	EXPECT(!snap());
	EXPECT(!snap());
	EXPECT(u_count_maps(u_thread_path) == 1);
	return 0;
}

static int thread_in_child(void)
{
	EXPECT(!u_in_thread(snap));
	EXPECT(u_count_maps(u_thread_path) == 0);
	EXPECT(!snap_twice());
	EXPECT(!u_in_thread(snap));
	EXPECT(u_count_maps(u_thread_path) == 1);
	return 0;
}

static int grandchild(void)
{
	EXPECT(!u_in_child(snap_twice)); /* the child has not used it yet */
	EXPECT(!snap_twice());
	EXPECT(!u_in_child(snap_twice));
	EXPECT(!snap_twice());
	return 0;
}

static int end_without_use(void)
{
	pthread_exit(NULL); /* runs the library's destructor, whose mapping is the parent's */
}

static int raw_fork(int (*fn)(void))
{
	pid_t pid = (pid_t)syscall(SYS_fork);

	if (!pid)
		_exit(fn());
	return u_wait(pid);
}

static int raw_clone(int (*fn)(void))
{
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

	if (!pid)
		_exit(fn());
	return u_wait(pid);
}

/* The parent's own use goes on undisturbed. */
static void check_parent(void)
{
	CHECK_EQ(snap(), 0);
	CHECK_EQ(u_count_maps(u_thread_path), 1);
}

static void test_children(void)
{
	static const struct {
		const char *name;
		int (*how)(int (*fn)(void));
		int (*fn)(void);
	} cases[] = {
		{ "fork()", u_in_child, snap_twice },
		{ "the fork system call", raw_fork, snap_twice },
		{ "the clone system call", raw_clone, snap_twice },
		{ "fork(), then a thread", u_in_child, thread_in_child },
		{ "fork() twice", u_in_child, grandchild },
		{ "fork(), and the child's thread ends without a snapshot", u_in_child,
		  end_without_use },
	};
	char name[100];
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(name, sizeof(name), "child by %s", cases[i].name);
		TEST(name) {
			CHECK_EQ(cases[i].how(cases[i].fn), 0);
			check_parent();
		}
	}
}

/*
 * fork() by a thread that has no mapping, in a process that has one: its thread-local state is new.
 */
static int fork_before_use(void)
{
	return u_in_child(snap_twice);
}

static int fork_after_use(void)
{
	EXPECT(!snap());
	EXPECT(!u_in_child(snap_twice));
	EXPECT(!snap());
	return 0;
}

/* The parent failed before; its guard exists but nothing is mapped. */
static int fail_then_fork(void)
{
	struct csf_snap s;
	int ret;

	EXPECT(!rename(u_thread_path, u_cpu_path));
	EXPECT(csf_thread_snap(&s) == -1 && errno == ENOENT);
	EXPECT(!rename(u_cpu_path, u_thread_path));
	u_sleep_ms(110); /* the failure is forgotten in both */
	ret = u_in_child(snap_twice);
	EXPECT(!ret);
	EXPECT(!snap());
	return 0;
}

static void test_other_threads(void)
{
	TEST("child of a thread that took no snapshot, where another thread did")
		CHECK_EQ(u_in_thread(fork_before_use), 0);
	TEST("child of a thread that took one")
		CHECK_EQ(u_in_thread(fork_after_use), 0);
	TEST("child of a thread whose first snapshot failed")
		CHECK_EQ(u_in_thread(fail_then_fork), 0);
	TEST("the parent has what it had")
		check_parent();
}

static int cpu_snap(void)
{
	struct csf_cpu_snap c;

	EXPECT(!csf_cpu_snap(&c, CSF_CPU_ALL));
	EXPECT(u_count_maps(u_cpu_path) == 1);
	EXPECT(!make_private_to_process(csf_guard_->cpu));
	return 0;
}

static int both(void)
{
	EXPECT(!cpu_snap());
	EXPECT(!snap_twice());
	EXPECT(!cpu_snap());
	return 0;
}

static void test_cpu(void)
{
	make_cpu_file();
	TEST("a child maps the cpu page anew") {
		CHECK_EQ(cpu_snap(), 0);
		CHECK_EQ(u_in_child(cpu_snap), 0);
		CHECK_EQ(u_in_child(both), 0);
		CHECK_EQ(raw_clone(both), 0);
		CHECK_EQ(cpu_snap(), 0);
	}
}

static int twice_each_way(void)
{
	EXPECT(!snap());
	EXPECT(!u_in_child(snap_twice));
	return 0;
}

static void test_many(void)
{
	int i;

	TEST("200 children of children and threads")
		for (i = 0; i < 50; i++) {
			if (!CHECK_EQ(u_in_child(twice_each_way), 0))
				break;
			if (!CHECK_EQ(u_in_thread(twice_each_way), 0))
				break;
		}
}

/* In a vfork() child the thread-local state is the parent's, and so is the page: it sleeps. */
static void test_vfork(void)
{
	struct csf_thread_page *p =
		(struct csf_thread_page *)u_map_to_write(u_thread_path, sizeof(*p));
	volatile int ret = 0, err = 0;
	static struct csf_snap s;
	pid_t pid;

	TEST("a vfork() child gets ESRCH, and its parent goes on") {
		check_parent();
		p->state = CSF_DSLEEP;
		pid = vfork();
		if (!pid) {
			ret = csf_thread_snap(&s);
			err = errno;
			_exit(0);
		}
		waitpid(pid, NULL, 0);
		p->state = CSF_ONCPU;
		CHECK_EQ(ret, -1);
		CHECK_EQ(err, ESRCH);
		check_parent();
	}
}

int main(void)
{
	u_start();
	u_make_thread_file();
	if (snap())
		u_die("the first snapshot");
	test_children();
	test_other_threads();
	test_cpu();
	test_many();
	test_vfork();
	return u_done();
}
