// SPDX-License-Identifier: GPL-2.0
/*
 * The description's own examples, word for word, in C and in C++: they compile, and print what they
 * are said to print.
 */
#include "u.h"

static struct csf_thread_page *page;

/* An operation as the writer would record it: 25 ms asleep, then running again. */
static void op(void)
{
	const uint64_t slept = 25102UL * 2000, start = csf_rdtsc();

	while (csf_rdtsc() - start <= slept)
		;
	page->seq += 2;
	page->oncpu_cyc += start - page->last_switch_tsc;
	page->sleep_cyc += slept;
	page->last_switch_tsc = start + slept;
	page->nr_block++;
	page->maj_flt += 3;
}

/* clang-format off */
static void first_example(uint64_t slow)
{
struct csf_snap before, after;
char buf[CSF_DIFF_BUFSZ]; /* fits any csf_format_diff() output */

csf_thread_snap(&before); /* ~16 ns, no syscall */
uint64_t t0 = csf_rdtsc();
op();
if (csf_rdtsc() - t0 > slow) {
 csf_thread_snap(&after);
 csf_format_diff(buf, sizeof(buf), &before, &after);
 puts(buf);
}
}

static int second_example(void)
{
struct csf_snap a, b;

if (csf_thread_snap(&a))
 return -1; /* errno says why, for example ENOENT when not mounted */
op();
csf_thread_snap(&b);

/* Time: TSC cycles; the header holds the conversion to ns. */
const struct csf_hdr *h = &b.p.hdr;
double wall_ms = csf_cyc_to_ns(h, b.tsc - a.tsc) / 1e6;
double iowait_ms = csf_cyc_to_ns(h, b.p.iowait_cyc - a.p.iowait_cyc) / 1e6;

/* Counters: plain differences. */
unsigned long long blocked = b.p.nr_block - a.p.nr_block;
unsigned long long major_faults = b.p.maj_flt - a.p.maj_flt;

printf("%.1f ms, %.1f ms in iowait, blocked %llu times, %llu major faults\n", wall_ms,
 iowait_ms, blocked, major_faults);
return 0;
}

/* clang-format on */

/* What fn prints, by way of a file. */
static void capture(int (*fn)(void), char *line, size_t size)
{
	FILE *f = tmpfile();
	int saved = dup(1);
	size_t len;

	fflush(stdout);
	if (!f || saved < 0 || dup2(fileno(f), 1) < 0)
		u_die("capture");
	if (fn())
		u_die("the example");
	fflush(stdout);
	dup2(saved, 1);
	close(saved);
	rewind(f);
	len = fread(line, 1, size - 1, f);
	line[len] = 0;
	fclose(f);
}

static int slow_enough(void)
{
	first_example(50000000); /* 25 ms at 2 GHz */
	return 0;
}

static int not_slow_enough(void)
{
	first_example(~0ull);
	return 0;
}

int main(void)
{
	char line[2 * CSF_DIFF_BUFSZ];

	u_start();
	u_make_thread_file();
	page = (struct csf_thread_page *)u_map_to_write(u_thread_path, sizeof(*page));
	TEST("the first example prints a slow operation") {
		capture(slow_enough, line, sizeof(line));
		CHECK(strstr(line,
			     " + sleep 25.102 + dsleep 0.000 + iowait 0.000 | preempt 0 block 1 "
			     "migrate 0 | flt 0/3 | sysc r0 w0 | io r0B w0B\n"),
		      "it printed: %s", line);
	}
	TEST("... and not a fast one") {
		capture(not_slow_enough, line, sizeof(line));
		CHECK(!*line, "it printed: %s", line);
	}
	TEST("the second example") {
		capture(second_example, line, sizeof(line));
		CHECK(strstr(line, " ms, 0.0 ms in iowait, blocked 1 times, 3 major faults\n"),
		      "it printed: %s", line);
	}
	return u_done();
}
