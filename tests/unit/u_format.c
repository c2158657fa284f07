// SPDX-License-Identifier: GPL-2.0
/* csf_format_diff(): the line, its arithmetic, its size, and what it refuses. */
#include "u.h"

#define US 2000ull /* cycles in a microsecond at u_fill_hdr()'s 2 GHz */

static void fill_pair(struct csf_snap *a, struct csf_snap *b)
{
	memset(a, 0, sizeof(*a));
	u_fill_thread_page(&a->p);
	a->tsc = a->p.last_switch_tsc;
	a->extrapolated = 1;
	*b = *a;
}

static void check_line(const struct csf_snap *a, const struct csf_snap *b, const char *want)
{
	char buf[CSF_DIFF_BUFSZ];
	int len = csf_format_diff(buf, sizeof(buf), a, b);

	CHECK(!strcmp(buf, want), "the line is\n# '%s', not\n# '%s'", buf, want);
	CHECK_EQ(len, strlen(want));
}

static void test_lines(void)
{
	struct csf_snap a, b;

	TEST("the line of the description, to the letter") {
		fill_pair(&a, &b);
		b.p.oncpu_cyc += 17 * US;
		b.p.sleep_cyc += 25102 * US;
		b.tsc += 25119 * US;
		b.p.nr_block += 1;
		b.p.min_flt += 4;
		check_line(&a, &b,
			   "wall 25.119ms = cpu 0.017 + runq 0.000 + sleep 25.102 + dsleep 0.000 + "
			   "iowait 0.000 | preempt 0 block 1 migrate 0 | flt 4/0 | sysc r0 w0 | "
			   "io r0B w0B");
	}
	TEST("each field in its place") {
		fill_pair(&a, &b);
		a.p.nr_preempt = 100; /* differences, not values */
		b.p.nr_preempt = 101;
		b.p.nr_block = 2;
		b.p.nr_migrate = 3;
		b.p.min_flt = 4;
		b.p.maj_flt = 5;
		b.p.syscr = 6;
		b.p.syscw = 7;
		b.p.read_bytes = 8;
		b.p.write_bytes = 9;
		b.p.oncpu_cyc = 1001 * US;
		b.p.runq_cyc = 2002 * US;
		b.p.sleep_cyc = 3003 * US;
		b.p.dsleep_cyc = 4004 * US;
		b.p.iowait_cyc = 5005 * US;
		check_line(&a, &b,
			   "wall 15.015ms = cpu 1.001 + runq 2.002 + sleep 3.003 + dsleep 4.004 + "
			   "iowait 5.005 | preempt 1 block 2 migrate 3 | flt 4/5 | sysc r6 w7 | "
			   "io r8B w9B");
	}
	TEST("a kernel that does not account I/O does not claim there was none") {
		fill_pair(&a, &b);
		b.p.hdr.flags &= ~(__u32)CSF_F_IO;
		check_line(&a, &b,
			   "wall 0.000ms = cpu 0.000 + runq 0.000 + sleep 0.000 + dsleep 0.000 + "
			   "iowait 0.000 | preempt 0 block 0 migrate 0 | flt 0/0 | sysc n/a | "
			   "io n/a");
	}
}

static void set_buckets(struct csf_thread_page *p, const uint64_t cyc[CSF_NR_BUCKETS])
{
	p->oncpu_cyc += cyc[CSF_ONCPU];
	p->runq_cyc += cyc[CSF_RUNQ];
	p->sleep_cyc += cyc[CSF_SLEEP];
	p->dsleep_cyc += cyc[CSF_DSLEEP];
	p->iowait_cyc += cyc[CSF_IOWAIT];
}

/* "12.345" as 12345; the line has at most three decimals, so this is exact. */
static int64_t parse_us(const char **at, const char *after)
{
	const char *start = strstr(*at, after);
	long long whole;
	char *end;
	int minus;

	if (!start)
		return INT64_MIN;
	start += strlen(after);
	minus = *start == '-';
	whole = strtoll(start + minus, &end, 10) * 1000;
	whole += strtoll(end + 1, &end, 10);
	*at = end;
	return minus ? -whole : whole;
}

static int parts_add_up(const char *line, const struct csf_hdr *h, const uint64_t *cyc)
{
	static const char *const names[] = { "cpu ", "runq ", "sleep ", "dsleep ", "iowait " };
	const char *at = line;
	int64_t wall = parse_us(&at, "wall "), sum = 0;
	int i;

	for (i = 0; i < CSF_NR_BUCKETS; i++) {
		int64_t us = parse_us(&at, names[i]);
		double exact = (double)csf_cyc_to_ns(h, cyc[i]) / 1000;

		sum += us;
		if (!CHECK((double)us >= exact - 1.1 && (double)us <= exact + 1.1,
			   "%sis %lld us, was %.1f: %s", names[i], (long long)us, exact, line))
			return 0;
	}
	return CHECK(sum == wall, "parts are %lld us: %s", (long long)sum, line);
}

static void test_sums(void)
{
	uint64_t cyc[CSF_NR_BUCKETS], start[CSF_NR_BUCKETS];
	char buf[CSF_DIFF_BUFSZ];
	struct csf_snap a, b;
	int i, j;

	TEST("the printed parts add up to the printed wall time, each within a microsecond")
		for (i = 0; i < 50000; i++) {
			fill_pair(&a, &b);
			b.p.hdr.mult = (uint32_t)(u_random() % 0xffffffff) | 0x10000000;
			for (j = 0; j < CSF_NR_BUCKETS; j++) {
				cyc[j] = u_random() >> (12 + u_random() % 52);
				start[j] = u_random(); /* counters may wrap in between */
			}
			set_buckets(&a.p, start);
			set_buckets(&b.p, start);
			set_buckets(&b.p, cyc);
			csf_format_diff(buf, sizeof(buf), &a, &b);
			if (!parts_add_up(buf, &b.p.hdr, cyc))
				break;
		}
	TEST("foreign snapshots that are not extrapolated: wall is what the buckets say") {
		fill_pair(&a, &b);
		a.extrapolated = b.extrapolated = 0;
		b.p.sleep_cyc += 1500 * US;
		b.tsc += 99999 * US;
		csf_format_diff(buf, sizeof(buf), &a, &b);
		CHECK(!strncmp(buf, "wall 1.500ms = ", 15), "%s", buf);
	}
}

/* Each counter that the line shows, at a value with the most digits. */
static void fill_counters(struct csf_thread_page *p, uint64_t v)
{
	p->nr_preempt = p->nr_block = p->nr_migrate = v;
	p->min_flt = p->maj_flt = p->syscr = p->syscw = v;
	p->read_bytes = p->write_bytes = v;
}

static void test_size(void)
{
	char buf[CSF_DIFF_BUFSZ], cut[CSF_DIFF_BUFSZ];
	struct csf_snap a, b;
	int i, len, longest = 0;

	TEST("CSF_DIFF_BUFSZ is enough for every input") {
		for (i = 0; i < 100000; i++) {
			uint64_t cyc[] = { u_random_edgy(), u_random_edgy(), u_random_edgy(),
					   u_random_edgy(), u_random_edgy() };

			fill_pair(&a, &b);
			fill_counters(&b.p, i % 2 ? ~0ull : u_random_edgy());
			b.p.hdr.mult = i % 3 ? ~0u : (uint32_t)u_random();
			b.p.hdr.shift = i % 4 ? 0 : (uint32_t)(u_random() % 33);
			set_buckets(&b.p, cyc);
			len = csf_format_diff(buf, sizeof(buf), &a, &b);
			if (len > longest)
				longest = len;
			CHECK(len < 0 || (size_t)len == strlen(buf), "%d bytes of %zu: cut", len,
			      strlen(buf));
		}
		CHECK(longest > 300 && longest < CSF_DIFF_BUFSZ, "longest: %d", longest);
	}
	TEST("a small buffer is cut and terminated, the length is that of the whole line") {
		fill_pair(&a, &b);
		len = csf_format_diff(buf, sizeof(buf), &a, &b);
		for (i = 1; i <= len; i++) {
			memset(cut, 'x', sizeof(cut));
			CHECK_EQ(csf_format_diff(cut, (size_t)i, &a, &b), len);
			CHECK(strlen(cut) == (size_t)i - 1 && !strncmp(cut, buf, (size_t)i - 1) &&
				      cut[i] == 'x',
			      "at size %d: '%s'", i, cut);
		}
		CHECK_EQ(csf_format_diff(NULL, 0, &a, &b), len);
	}
}

static void check_refused(const struct csf_snap *a, const struct csf_snap *b, int err)
{
	char buf[CSF_DIFF_BUFSZ] = "";
	int ret;

	errno = 0;
	ret = csf_format_diff(buf, sizeof(buf), a, b);
	CHECK(ret == -1, "gave %d: %s", ret, buf);
	CHECK(errno == err, "errno is %s, not %s", strerror(errno), strerror(err));
	CHECK(strlen(buf) > 10 && !strstr(buf, "wall"), "it says: '%s'", buf);
}

static void test_refused(void)
{
	struct csf_snap a, b, failed;

	memset(&failed, 0, sizeof(failed));
	TEST("two epochs: ESTALE") {
		fill_pair(&a, &b);
		b.p.epoch++;
		check_refused(&a, &b, ESTALE);
	}
	TEST("a failed snapshot: EINVAL") {
		fill_pair(&a, &b);
		check_refused(&failed, &b, EINVAL);
		check_refused(&a, &failed, EINVAL);
		check_refused(&failed, &failed, EINVAL);
	}
	TEST("swapped snapshots: EINVAL") {
		fill_pair(&a, &b);
		b.p.oncpu_cyc += 1;
		check_refused(&b, &a, EINVAL);
		b.p.sleep_cyc += 100000 * US;
		check_refused(&b, &a, EINVAL);
	}
}

int main(void)
{
	u_start();
	test_lines();
	test_sums();
	test_size();
	test_refused();
	return u_done();
}
