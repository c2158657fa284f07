// SPDX-License-Identifier: GPL-2.0
/* csf_cpu_snap(): the right row, whole, from one mapping a process. */
#include "u.h"

#define NR_CPUS 3
#define FILE_LEN 8192

static char file[FILE_LEN];

static struct csf_cpu_page *header_of(void *bytes)
{
	return (struct csf_cpu_page *)bytes;
}

static struct csf_cpu_row *row_of(void *bytes, unsigned int index)
{
	const struct csf_cpu_page *p = header_of(bytes);

	return (struct csf_cpu_row *)((char *)bytes + p->rows_offset + (size_t)index * p->row_size);
}

/* Every field of row i holds something of its own, from v on. */
static void fill_row(struct csf_cpu_row *r, uint64_t v)
{
	__u64 *fields[] = { &r->user_ns,   &r->nice_ns,	      &r->system_ns,  &r->idle_ns,
			    &r->iowait_ns, &r->irq_ns,	      &r->softirq_ns, &r->steal_ns,
			    &r->guest_ns,  &r->guest_nice_ns, &r->irqs,	      &r->softirqs };
	size_t i;

	for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		*fields[i] = v + i;
}

static void fill_file(uint32_t rows_offset, uint32_t row_size)
{
	struct csf_cpu_page *p = header_of(file);
	uint32_t i;

	memset(file, 0, sizeof(file));
	u_fill_hdr(&p->hdr, CSF_KIND_CPU, rows_offset + (NR_CPUS + 1) * (size_t)row_size);
	p->nr_rows = NR_CPUS + 1;
	p->row_size = row_size;
	p->rows_offset = rows_offset;
	p->update_tsc = 11;
	p->update_mono_ns = 22;
	for (i = 0; i <= NR_CPUS; i++) {
		fill_row(row_of(file, i), 1000UL * i);
		row_of(file, i)->cpu = i - 1; /* row 0: CSF_CPU_ALL */
		row_of(file, i)->online = 1;
	}
}

static void write_file(void)
{
	const struct csf_cpu_page *p = header_of(file);

	u_write_file(u_cpu_path, file, p->hdr.size);
}

static int row_is(unsigned int cpu, uint64_t v)
{
	struct csf_cpu_snap c;
	struct csf_cpu_row want;

	memset(&want, 0, sizeof(want));
	fill_row(&want, v);
	want.cpu = cpu;
	want.online = 1;
	memset(&c, 0xff, sizeof(c));
	EXPECT(!csf_cpu_snap(&c, cpu));
	EXPECT(!memcmp(&c.row, &want, sizeof(want)));
	EXPECT(c.update_tsc == 11 && c.update_mono_ns == 22);
	return 0;
}

static int refused(unsigned int cpu, int err)
{
	struct csf_cpu_snap c;

	memset(&c, 0xff, sizeof(c));
	errno = 0;
	EXPECT(csf_cpu_snap(&c, cpu) == -1);
	EXPECT(errno == err);
	EXPECT(u_is_zero(&c, sizeof(c)));
	return 0;
}

static int all_rows(void)
{
	int cpu;

	EXPECT(!row_is(CSF_CPU_ALL, 0));
	for (cpu = 0; cpu < NR_CPUS; cpu++)
		EXPECT(!row_is((unsigned int)cpu, 1000 * ((uint64_t)cpu + 1)));
	EXPECT(!refused(NR_CPUS, EINVAL));
	EXPECT(!refused(NR_CPUS + 1, EINVAL));
	EXPECT(!refused(0x7fffffff, EINVAL));
	EXPECT(!refused(0x80000000, EINVAL));
	EXPECT(!refused(CSF_CPU_ALL - 1, EINVAL));
	EXPECT(u_count_maps(u_cpu_path) == 1);
	return 0;
}

static int keeps_errno(void)
{
	struct csf_cpu_snap c;

	errno = 12345;
	EXPECT(!csf_cpu_snap(&c, 0));
	EXPECT(errno == 12345);
	EXPECT(!csf_cpu_snap(&c, CSF_CPU_ALL));
	EXPECT(errno == 12345);
	return 0;
}

static void test_rows(void)
{
	fill_file(sizeof(struct csf_cpu_page), sizeof(struct csf_cpu_row));
	write_file();
	TEST("each CPU's row, the sum's row, EINVAL for any other")
		CHECK_EQ(u_in_child(all_rows), 0);
	TEST("errno is left alone on success, by the first call too")
		CHECK_EQ(u_in_child(keeps_errno), 0);
	TEST("rows that have grown, behind a header that has grown") {
		fill_file(sizeof(struct csf_cpu_page) + 64, sizeof(struct csf_cpu_row) + 192);
		write_file();
		CHECK_EQ(u_in_child(all_rows), 0);
	}
	TEST("more rows than one page of memory") {
		fill_file(sizeof(struct csf_cpu_page), 2000);
		write_file();
		CHECK_EQ(u_in_child(all_rows), 0);
	}
}

/*
 * Failures
 */
static int missing_then_there(void)
{
	uint64_t start = u_now_ns();
	struct csf_cpu_snap c;

	EXPECT(!refused(0, ENOENT));
	write_file();
	while (csf_cpu_snap(&c, 0)) {
		EXPECT(errno == ENOENT);
		EXPECT(u_now_ns() - start < 5000000000ull);
	}
	EXPECT(u_now_ns() - start >= 100000000);
	EXPECT(u_count_maps(u_cpu_path) == 1);
	return 0;
}

static int protocol_error(void)
{
	EXPECT(!refused(0, EPROTO));
	EXPECT(!refused(CSF_CPU_ALL, EPROTO));
	EXPECT(u_count_maps(u_cpu_path) == 0);
	return 0;
}

static int being_written(void)
{
	EXPECT(!refused(0, EAGAIN));
	return 0;
}

static void check_damaged(uint32_t *field, uint32_t value, int (*fn)(void))
{
	uint32_t was = *field;

	*field = value;
	u_write_file(u_cpu_path, file,
		     sizeof(struct csf_cpu_page) + 4 * sizeof(struct csf_cpu_row));
	CHECK(!u_in_child(fn), "field at %td, value %u", (char *)field - file, value);
	*field = was;
}

static void test_failures(void)
{
	struct csf_cpu_page *p = header_of(file);

	fill_file(sizeof(struct csf_cpu_page), sizeof(struct csf_cpu_row));
	TEST("no file: ENOENT, and it works 0.1 s after it has come") {
		unlink(u_cpu_path);
		CHECK_EQ(u_in_child(missing_then_there), 0);
	}
	TEST("a page whose rows are not where it says: EPROTO") {
		check_damaged(&p->hdr.magic, 1, protocol_error);
		check_damaged(&p->hdr.size, 100000, protocol_error);
		check_damaged(&p->nr_rows, 5, protocol_error);
		check_damaged(&p->nr_rows, 0xffffffff, protocol_error);
		check_damaged(&p->row_size, 129, protocol_error);
		check_damaged(&p->row_size, 8, protocol_error);
		check_damaged(&p->row_size, 0xffffffff, protocol_error);
		check_damaged(&p->rows_offset, 129, protocol_error);
		check_damaged(&p->rows_offset, 0xfffffff0, protocol_error);
	}
	TEST("a page that is being written for ever: EAGAIN")
		check_damaged(&p->seq, 3, being_written);
}

/*
 * Threads that race for the first use
 */
static pthread_barrier_t start_line;

static void *race(void *arg)
{
	struct csf_cpu_snap c;

	(void)arg;
	pthread_barrier_wait(&start_line);
	return (void *)(intptr_t)csf_cpu_snap(&c, CSF_CPU_ALL);
}

static int racers(void)
{
	pthread_t threads[8];
	void *ret;
	int i;

	pthread_barrier_init(&start_line, NULL, 8);
	for (i = 0; i < 8; i++)
		EXPECT(!pthread_create(&threads[i], NULL, race, NULL));
	for (i = 0; i < 8; i++) {
		pthread_join(threads[i], &ret);
		EXPECT(!ret);
	}
	EXPECT(u_count_maps(u_cpu_path) == 1);
	return 0;
}

static void test_race(void)
{
	int i;

	fill_file(sizeof(struct csf_cpu_page), sizeof(struct csf_cpu_row));
	write_file();
	TEST("8 threads race for the first use, 50 times: one mapping is left each time")
		for (i = 0; i < 50; i++)
			if (!CHECK_EQ(u_in_child(racers), 0))
				break;
}

/* A writer that updates all rows under the sequence count: no row is of two updates. */
static int stop;

static void *writer(void *arg)
{
	struct csf_cpu_page *p = (struct csf_cpu_page *)arg;
	uint64_t n = 0;
	uint32_t i;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		__atomic_store_n(&p->seq, p->seq + 1, __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		for (i = 0, n += 100; i <= NR_CPUS; i++)
			fill_row(row_of(p, i), n);
		p->update_tsc = n;
		p->update_mono_ns = n;
		__atomic_store_n(&p->seq, p->seq + 1, __ATOMIC_RELEASE);
		usleep(1);
	}
	return NULL;
}

static void test_torn(void)
{
	struct csf_cpu_page *p = (struct csf_cpu_page *)u_map_to_write(u_cpu_path, 4096);
	uint64_t end = u_now_ns() + 300000000, versions = 0, last = 0;
	struct csf_cpu_snap c;
	struct csf_cpu_row want;
	pthread_t thread;

	TEST("no row is torn while a writer updates all the time") {
		pthread_create(&thread, NULL, writer, p);
		while (u_now_ns() < end) {
			if (csf_cpu_snap(&c, 1) || c.update_tsc == 11)
				continue; /* busy, or as the file was made */
			want = c.row;
			fill_row(&want, c.update_tsc);
			versions += c.update_tsc != last;
			if (!CHECK(!memcmp(&c.row, &want, sizeof(want)) &&
					   c.update_mono_ns == c.update_tsc,
				   "a row of two updates"))
				break;
			last = c.update_tsc;
		}
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		pthread_join(thread, NULL);
		CHECK(versions > 20, "only %llu versions seen", (unsigned long long)versions);
	}
}

int main(void)
{
	u_start();
	test_rows();
	test_failures();
	test_race();
	test_torn();
	return u_done();
}
