// SPDX-License-Identifier: GPL-2.0
/* csfcat on pages made here: what it prints, to the letter. U_CSFCAT is the program. */
#include "u.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static char out[8192];

/* Runs it; its exit status. out has what it printed, to stdout and stderr. */
static int csfcat(const char *args)
{
	char command[1024];
	size_t len;
	FILE *f;

	snprintf(command, sizeof(command), "U_THREAD='%s' U_CPU='%s' '%s' %s 2>&1", u_thread_path,
		 u_cpu_path, getenv("U_CSFCAT"), args);
	f = popen(command, "r");
	if (!f)
		u_die("popen");
	len = fread(out, 1, sizeof(out) - 1, f);
	out[len] = 0;
	return WEXITSTATUS(pclose(f));
}

/*
 * Numbers that grow by a tick each; two of them with almost another tick, which is not to be seen.
 */
static void fill_row(struct csf_cpu_row *r, uint32_t cpu, uint64_t first)
{
	const uint64_t tick = 1000000000u / (uint64_t)sysconf(_SC_CLK_TCK), bit = tick - 1;

	memset(r, 0, sizeof(*r));
	r->user_ns = first * tick + bit;
	r->nice_ns = (first + 1) * tick + bit;
	r->system_ns = (first + 2) * tick;
	r->idle_ns = (first + 3) * tick;
	r->iowait_ns = (first + 4) * tick;
	r->irq_ns = (first + 5) * tick;
	r->softirq_ns = (first + 6) * tick;
	r->steal_ns = (first + 7) * tick;
	r->guest_ns = (first + 8) * tick;
	r->guest_nice_ns = (first + 9) * tick;
	r->irqs = 12345678901;
	r->softirqs = 98765432109;
	r->cpu = cpu;
	r->online = 1;
}

static struct {
	struct csf_cpu_page page;
	struct csf_cpu_row rows[4];
} cpus;

static void fill_cpus(void)
{
	u_fill_hdr(&cpus.page.hdr, CSF_KIND_CPU, sizeof(cpus));
	cpus.page.nr_rows = 4;
	cpus.page.row_size = sizeof(cpus.rows[0]);
	cpus.page.rows_offset = sizeof(cpus.page);
	cpus.page.update_tsc = 1;
	fill_row(&cpus.rows[0], CSF_CPU_ALL, 100);
	fill_row(&cpus.rows[1], 0, 200);
	fill_row(&cpus.rows[2], 1, 300);
	fill_row(&cpus.rows[3], 2, 400);
	cpus.rows[2].online = 0;
}

static void test_cpu(void)
{
	fill_cpus();
	TEST("csfcat cpu: rounded down to ticks, without the CPU that is offline") {
		u_write_file(u_cpu_path, &cpus, sizeof(cpus));
		CHECK_EQ(csfcat("cpu"), 0);
		CHECK(!strcmp(out, "cpu  100 101 102 103 104 105 106 107 108 109\n"
				   "cpu0 200 201 202 203 204 205 206 207 208 209\n"
				   "cpu2 400 401 402 403 404 405 406 407 408 409\n"
				   "intr 12345678901\n"
				   "softirq 98765432109\n"),
		      "it printed:\n%s", out);
	}
	TEST("csfcat cpu: a page that is always being written is an error") {
		cpus.page.seq = 1;
		u_write_file(u_cpu_path, &cpus, sizeof(cpus));
		CHECK_EQ(csfcat("cpu"), 1);
		CHECK(strstr(out, "temporarily unavailable"), "it printed:\n%s", out);
	}
	TEST("csfcat cpu: a page that is never updated is an error, in the end") {
		cpus.page.seq = 0;
		cpus.page.update_tsc = 0;
		u_write_file(u_cpu_path, &cpus, sizeof(cpus));
		CHECK_EQ(csfcat("cpu"), 1);
		CHECK(strstr(out, "does not update"), "it printed:\n%s", out);
	}
}

/* Is there a line that begins so? */
static int prints(const char *line)
{
	const char *at = strstr(out, line);

	while (at && at != out && at[-1] != '\n')
		at = strstr(at + 1, line);
	return at != NULL;
}

/* The last fields all hold a value of their own: 1000, 1001 and so on. */
static void fill_values(struct csf_thread_page *p)
{
	const size_t start = offsetof(struct csf_thread_page, oncpu_cyc);
	__u64 values[(sizeof(*p) - offsetof(struct csf_thread_page, oncpu_cyc)) / 8];
	size_t i;

	for (i = 0; i < sizeof(values) / 8; i++)
		values[i] = 1000 + i;
	memcpy((char *)p + start, values, sizeof(values));
}

static void test_self(void)
{
	struct csf_thread_page p;

	u_fill_thread_page(&p);
	fill_values(&p);
	p.hdr.flags = CSF_F_TSC_CONSTANT;
	p.tid = 4242;
	p.nr_guessed = 2;
	TEST("csfcat self: each field by its name, with its unit") {
		u_write_thread_file(&p);
		CHECK_EQ(csfcat("self"), 0);
		CHECK(prints("hdr.flags               0x1 tsc_constant\n"), "%s", out);
		CHECK(prints("hdr.clock_khz           2000000 kHz\n"), "%s", out);
		CHECK(prints("tid                     4242\n"), "%s", out);
		CHECK(prints("nr_guessed              2\n"), "%s", out);
		CHECK(prints("runq_cyc                1001 cycles = 500 ns\n"), "%s", out);
		CHECK(prints("nr_switch_in            1005\n"), "%s", out);
		CHECK(prints("sum_exec_ns             1009 ns\n"), "%s", out);
		CHECK(prints("maj_flt                 1017\n"), "%s", out);
		CHECK(prints("cancelled_write_bytes   1024 bytes\n"), "%s", out);
	}
	TEST("csfcat self: a page that is not its own is an error") {
		p.state = CSF_SLEEP;
		u_write_thread_file(&p);
		CHECK_EQ(csfcat("self"), 1);
		CHECK_EQ(csfcat("self 1"), 1);
	}
}

/* The list of fields is in csfcat.c and in the contract: they must not drift apart. */
static void test_all_fields(void)
{
	FILE *f = fopen("../../include/uapi/coarse_stat_fs.h", "r");
	char line[256], name[64];
	int inside = 0, n = 0;

	u_make_thread_file();
	TEST("csfcat self: every field of the contract") {
		CHECK_EQ(csfcat("self"), 0);
		while (f && fgets(line, sizeof(line), f)) {
			inside |= !strcmp(line, "struct csf_thread_page {\n");
			if (!inside || sscanf(line, " __u%*d %60[a-z_];", name) != 1)
				continue;
			name[strlen(name) + 1] = 0;
			name[strlen(name)] = ' ';
			CHECK(prints(name), "no %s in:\n%s", name, out);
			n++;
			inside = !strstr(line, "cancelled_write_bytes"); /* the last */
		}
		CHECK(n >= 33, "the contract has %d fields", n);
	}
	if (f)
		fclose(f);
}

/*
 * Where there is no file, csfcat asks whatever listens at CSF_SOCKET, and says whose fault it is.
 */

static char socket_path[64];

/* At socket_path; a client can connect, and waits for an answer. */
static int listen_there(int type)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", socket_path);
	unlink(socket_path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 4))
		u_die(socket_path);
	return fd;
}

static void *answer_rubbish(void *arg)
{
	int fd = accept(*(int *)arg, NULL, NULL);
	char question[64], answer[256] = "220 welcome";

	if (recv(fd, question, sizeof(question), 0) > 0)
		send(fd, answer, sizeof(answer), MSG_NOSIGNAL);
	close(fd);
	return NULL;
}

static void check_says(const char *args, const char *words)
{
	CHECK_EQ(csfcat(args), 1);
	CHECK(strstr(out, words), "%s: no '%s' in:\n%s", args, words, out);
	CHECK(strstr(out, socket_path), "%s: it does not name the socket:\n%s", args, out);
}

static void check_no_blame(void)
{
	CHECK(!strstr(out, "module") && !strstr(out, u_thread_path) && !strstr(out, u_cpu_path),
	      "it blames the module:\n%s", out);
}

static void test_no_answer(void)
{
	int fd = listen_there(SOCK_SEQPACKET);

	TEST("csfcat: a service that does not answer") {
		check_says("self", "busy or stopped");
		check_no_blame();
		check_says("cpu", "busy or stopped");
		check_no_blame();
	}
	close(fd);
}

static void test_other_socket(void)
{
	int fd = listen_there(SOCK_STREAM);
	pthread_t thread;

	TEST("csfcat: a socket of another kind") {
		check_says("self", "no csf serve");
		check_no_blame();
	}
	close(fd);
	fd = listen_there(SOCK_SEQPACKET);
	TEST("csfcat: a socket of something else") {
		pthread_create(&thread, NULL, answer_rubbish, &fd);
		check_says("self", "no csf serve");
		check_no_blame();
		pthread_join(thread, NULL);
	}
	close(fd);
}

static void test_nobody(void)
{
	close(listen_there(SOCK_SEQPACKET));
	TEST("csfcat: nobody listens any more: both ways are named") {
		check_says("self", "any more");
		CHECK(strstr(out, "The module") && strstr(out, "csf serve --socket "), "%s", out);
	}
	unlink(socket_path);
	TEST("csfcat: nobody has ever listened: no insmod of a file that is not there") {
		check_says("cpu", "no service listens");
		CHECK(!strstr(out, "any more") && !strstr(out, "insmod"), "%s", out);
	}
	unsetenv("CSF_SOCKET");
}

static void test_no_file(void)
{
	char dir[] = "/tmp/csf-unit.XXXXXX"; /* $U_DIR may be too long for a socket */

	u_remove_files();
	if (!mkdtemp(dir))
		u_die(dir);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
	setenv("CSF_SOCKET", socket_path, 1);
	test_no_answer();
	test_other_socket();
	test_nobody();
	rmdir(dir);
}

int main(void)
{
	u_start();
	test_cpu();
	test_self();
	test_all_fields();
	test_no_file();
	return u_done();
}
