// SPDX-License-Identifier: GPL-2.0
/* Three translation units, two in C and one in C++, that share one mapping a thread. */
#include "u.h"
#include "u_tus.h"

static char cpu_file[4096];

static void make_cpu_file(void)
{
	struct csf_cpu_page *p = (struct csf_cpu_page *)cpu_file;

	u_fill_hdr(&p->hdr, CSF_KIND_CPU, sizeof(*p) + sizeof(struct csf_cpu_row));
	p->nr_rows = 1;
	p->row_size = sizeof(struct csf_cpu_row);
	p->rows_offset = sizeof(*p);
	u_write_file(u_cpu_path, cpu_file, sizeof(cpu_file));
}

static int base_maps;

static int look_from_all(void)
{
	struct tu_view a, b, c;

	tu_cxx_look(&c); /* whichever is first */
	tu_look(&a);
	tu_c_look(&b);
	EXPECT(!a.ret && !b.ret && !c.ret);
	EXPECT(!a.cpu_ret && !b.cpu_ret && !c.cpu_ret);
	EXPECT(a.thread_page && a.thread_page == b.thread_page && a.thread_page == c.thread_page);
	EXPECT(a.cpu_page && a.cpu_page == b.cpu_page && a.cpu_page == c.cpu_page);
	EXPECT(u_count_maps(u_thread_path) == base_maps + 1);
	EXPECT(u_count_maps(u_cpu_path) == 1);
	EXPECT(c.clock <= a.clock && a.clock <= b.clock); /* on this CPU or synchronised ones */
	return 0;
}

int main(void)
{
	u_start();
	u_make_thread_file();
	make_cpu_file();
	TEST("units in C and C++ share one mapping, in the main thread")
		CHECK_EQ(look_from_all(), 0);
	base_maps = 1;
	TEST("... in another thread, which has its own")
		CHECK_EQ(u_in_thread(look_from_all), 0);
	TEST("... and which takes it down when it ends") {
		CHECK_EQ(u_count_maps(u_thread_path), 1);
		CHECK_EQ(u_count_maps(u_cpu_path), 1);
	}
	TEST("... in a child, where everything is new") {
		CHECK(!madvise((void *)(uintptr_t)csf_tls_.page, 4096, MADV_DONTFORK), "madvise");
		CHECK(!madvise((void *)(uintptr_t)csf_guard_->cpu, 4096, MADV_DONTFORK), "madvise");
		base_maps = 0;
		CHECK_EQ(u_in_child(look_from_all), 0);
	}
	return u_done();
}
