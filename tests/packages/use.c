// SPDX-License-Identifier: GPL-2.0
/* What the README's program needs: an operation that is slow, and one who watches it. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "lib/coarse_stat_fs.h"

void op(void);
void watch(uint64_t slow);

static void sleep_ms(long ms)
{
	struct timespec ts = { 0, ms * 1000000 };

	nanosleep(&ts, NULL);
}

void op(void)
{
	sleep_ms(25);
}

/* A service that begins with our first request can take longer than the library waits. */
static const char *patient_writer(void)
{
	const char *writer = csf_writer();
	int tries = 100;

	while (!writer && errno == EAGAIN && tries--) {
		sleep_ms(200);
		writer = csf_writer();
	}
	return writer;
}

int main(void)
{
	const char *writer = patient_writer();
	struct csf_snap s;

	if (!writer || csf_thread_snap(&s)) {
		perror("use");
		return 1;
	}
	printf("writer %s\n", writer);
	watch(csf_ns_to_cyc(&s.p.hdr, 1000000));
	return 0;
}
