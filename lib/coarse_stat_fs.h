/* SPDX-License-Identifier: MIT */
/*
 * Reading coarse_stat_fs pages: header only, C99 and C++17, GNU compilers; link with -pthread
 * where the C library is older than glibc 2.34.
 *
 *	struct csf_snap before, after;
 *	char buf[CSF_DIFF_BUFSZ];
 *
 *	csf_thread_snap(&before);
 *	op();
 *	csf_thread_snap(&after);
 *	if (csf_format_diff(buf, sizeof(buf), &before, &after) >= 0)
 *		puts(buf);
 *
 * The first call in a thread maps that thread's page: four system calls with the module, about 0.1
 * ms with a service (the first of a process more), and up to a second if the service hangs. So
 * does one that finds a service's page out of date: its service has ended, or the kernel has hidden
 * a switch from it, as that of some virtual machines does. All translation units of one program or
 * shared library use the same mapping. It is taken down when the thread ends, and a forked child
 * maps its own. Nothing here prints; errors are in errno, and a snapshot that failed is one that
 * csf_format_diff() refuses.
 *
 * Shared libraries: after dlclose() of one that uses this header, the cpu page, one page of
 * bookkeeping and the pages of the threads that live on stay mapped. With -fPIC on glibc, each such
 * library takes about 100 bytes of static TLS, of which glibc keeps some for dlopen(): enough for
 * some twenty of them.
 *
 * Signals: a function may be called from a signal handler once the interrupted thread has called
 * it with success before; the first call allocates. A page that a handler maps after the thread's
 * destructors of thread-specific data have run stays mapped until the process ends. A child of
 * vfork() must not call anything here (it gets ESRCH if its parent has before), nor must two tasks
 * that share thread-local storage, which takes a raw clone().
 */
#ifndef COARSE_STAT_FS_LIB_H
#define COARSE_STAT_FS_LIB_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../include/uapi/coarse_stat_fs.h"
#include "csf_map.h"

/* Large enough for any output of csf_format_diff(), its terminating 0 included. */
#define CSF_DIFF_BUFSZ 512

/**
 * struct csf_snap - a private copy of a thread page, and when it was made
 * @p: the page; with @extrapolated, the bucket of p.state includes the time up to @tsc
 * @tsc: the page's clock when the copy was made, in cycles; 0 if the snapshot failed
 * @extrapolated: 1 if the buckets are exact as of @tsc, 0 if they are as of p.last_switch_tsc
 */
struct csf_snap {
	struct csf_thread_page p;
	uint64_t tsc;
	int extrapolated;
};

/**
 * struct csf_cpu_snap - a private copy of one row of the cpu page
 * @row: the row: ns and counts since boot
 * @update_tsc: the TSC when the writer took the values
 * @update_mono_ns: CLOCK_MONOTONIC at that moment, in ns
 */
struct csf_cpu_snap {
	struct csf_cpu_row row;
	uint64_t update_tsc;
	uint64_t update_mono_ns;
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Pages are copied in vectors, each a load and a store whatever the compiler and its options. Of
 * memcpy() gcc makes a string move above 256 bytes, or with -Os any, and clang a call above 128;
 * both cost more than reading the clock.
 */
typedef long long csf_vec_
	__attribute__((vector_size(16), aligned(__alignof__(struct csf_thread_page)), may_alias));

CSF_INLINE_ void csf_copy4_(csf_vec_ *dst, const csf_vec_ *src)
{
	dst[0] = src[0];
	dst[1] = src[1];
	dst[2] = src[2];
	dst[3] = src[3];
}

CSF_INLINE_ void csf_copy_page_(struct csf_thread_page *to, const struct csf_thread_page *from)
{
	csf_vec_ *dst = (csf_vec_ *)to;
	const csf_vec_ *src = (const csf_vec_ *)from;

	csf_copy4_(dst, src);
	csf_copy4_(dst + 4, src + 4);
	csf_copy4_(dst + 8, src + 8);
	csf_copy4_(dst + 12, src + 12);
	csf_copy4_(dst + 15, src + 15); /* one vector twice: there are 19 */
}

CSF_INLINE_ void csf_copy_row_(struct csf_cpu_row *to, const void *from)
{
	csf_vec_ *dst = (csf_vec_ *)to;
	const csf_vec_ *src = (const csf_vec_ *)from;

	csf_copy4_(dst, src);
	csf_copy4_(dst + 4, src + 4);
}

CSF_CHECK(sizeof(struct csf_thread_page) == 19 * sizeof(csf_vec_));
CSF_CHECK(sizeof(struct csf_cpu_row) == 8 * sizeof(csf_vec_));

static inline void csf_extrapolate_(struct csf_snap *s, uint64_t now)
{
	uint64_t past = now - s->p.last_switch_tsc;

	switch (s->p.state) {
	case CSF_ONCPU:
		s->p.oncpu_cyc += past;
		break;
	case CSF_RUNQ:
		s->p.runq_cyc += past;
		break;
	case CSF_SLEEP:
		s->p.sleep_cyc += past;
		break;
	case CSF_DSLEEP:
		s->p.dsleep_cyc += past;
		break;
	default:
		s->p.iowait_cyc += past;
		break;
	}
	s->extrapolated = 1;
}

static inline int csf_snap_fail_(struct csf_snap *s)
{
	memset(s, 0, sizeof(*s));
	return -1;
}

/* Another thread may still read a page whose writer is gone: it stays mapped, unused. */
__attribute__((noinline)) CSF_SHARED_ int csf_cpu_gone_(const struct csf_cpu_page *page,
							uint64_t updated_ns)
{
	if (csf_cpu_fresh_(page, updated_ns, csf_mono_offset_))
		return 0;
	__atomic_compare_exchange_n(&csf_guard_->cpu, &page, (const struct csf_cpu_page *)NULL, 0,
				    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	errno = ESTALE;
	return 1;
}

/* Not before there is a reason: it costs four times what the snapshot does. */
static inline int csf_cpu_snap_fail_(struct csf_cpu_snap *c)
{
	memset(c, 0, sizeof(*c));
	return -1;
}

/*
 * Pages of a service outlive it, and would show running time for ever. A page that has not changed
 * for long is asked about: the kernel counts the same switches of this thread as a live one.
 */
__attribute__((noinline)) CSF_SHARED_ int csf_writer_gone_(const struct csf_snap *s, uint64_t now)
{
	struct csf_tls_ *t = &csf_tls_;

	if (now - t->checked_ns < CSF_STALE_NS_)
		return 0;
	if (csf_thread_switches_() == (unsigned long)(s->p.nvcsw + s->p.nivcsw) ||
	    s->p.seq != *(const volatile __u32 *)&t->page->seq) {
		t->checked_ns = now;
		return 0;
	}
	csf_page_drop_(t);
	errno = ESTALE;
	return 1;
}

static inline uint64_t csf_self_copy_(const struct csf_tls_ *t, struct csf_snap *s, int ordered)
{
	const struct csf_thread_page *page = t->page;
	uint32_t seq, cpu;
	uint64_t now;

	do {
		/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the generation says there is one */
		seq = *(const volatile __u32 *)&page->seq;
		csf_barrier_();
		csf_copy_page_(&s->p, page);
		now = ordered ? csf_now_ordered_(s->p.hdr.clock, &cpu) : csf_now_(s->p.hdr.clock);
		csf_barrier_();
	} while (csf_unlikely_(seq != *(const volatile __u32 *)&page->seq));
	return now;
}

static inline int csf_running_(const struct csf_snap *s)
{
	return s->p.state == CSF_ONCPU && s->p.life == CSF_LIVE;
}

/*
 * The page says that its thread does not run, but the caller does. Either this is the child of
 * vfork(), with the page of its parent, or the reverse, after the child's end; or the writer of the
 * page missed a switch or is gone. Mapping again tells, and a living writer then brings its page up
 * to date. 0 with *now, or -1 with errno.
 */
__attribute__((noinline)) CSF_SHARED_ int csf_self_again_(struct csf_snap *s, uint64_t *now)
{
	struct csf_tls_ *t = &csf_tls_;
	int saved = errno, tries = 3;

	errno = ESRCH;
	if (csf_guard_->pid != getpid())
		return -1;
	if (t->clock != CSF_CLOCK_MONOTONIC && s->p.life != CSF_DEAD)
		return -1;
	while (tries--) {
		csf_page_drop_(t);
		if (csf_thread_map_())
			return -1;
		*now = csf_self_copy_(t, s, 1);
		if (csf_running_(s)) {
			errno = saved;
			return 0;
		}
	}
	errno = t->clock == CSF_CLOCK_MONOTONIC ? ESTALE : ESRCH;
	return -1;
}

static inline int csf_self_snap_(struct csf_snap *s, int ordered)
{
	const struct csf_tls_ *t = &csf_tls_;
	uint64_t now;

	if (csf_unlikely_(t->gen != csf_guard_->gen) && csf_thread_map_())
		return csf_snap_fail_(s);
	now = csf_self_copy_(t, s, ordered);
	if (csf_unlikely_(!csf_running_(s)) && csf_self_again_(s, &now))
		return csf_snap_fail_(s);
	if (csf_unlikely_(s->p.hdr.clock == CSF_CLOCK_MONOTONIC &&
			  now - s->p.last_switch_tsc > CSF_STALE_NS_) &&
	    csf_writer_gone_(s, now))
		return csf_snap_fail_(s);
	s->tsc = now;
	s->p.oncpu_cyc += now - s->p.last_switch_tsc;
	s->extrapolated = 1;
	return 0;
}

/**
 * csf_thread_snap - copy the calling thread's page, exact as of now
 * @s: filled; zeroed on failure
 *
 * Costs about as much as reading the clock. The clock is read without ordering it against the
 * instructions around it: an operation whose last loads are still under way (a cache miss) may end
 * some hundred cycles after @s->tsc. The buckets add up regardless.
 *
 * Return: 0, or -1 with errno:
 *  ENOENT   there is no writer: coarse_stat_fs is not mounted, and no service listens
 *  EACCES   the page file or the socket of the service is not for this user
 *  EMFILE   no descriptor is left; mapping takes up to four for a moment
 *  EDQUOT   the service's limits for this user are reached
 *  EAGAIN   the service is busy, or did not answer within a second; or the thread can have no
 *           state of its own
 *  ESTALE   the writer is gone: the next call looks for another
 *  EPROTO   the page or the service is of no version and clock known here
 *  EPERM    the service does not take the thread for one of the program's own
 *  EBUSY    in a signal handler that interrupted a call which maps the page: the thread's first,
 *           or one after ESTALE
 *  ESRCH    the page is not the calling thread's (see the top of this file)
 *  ENOMEM or EINVAL, from allocating the per-thread state
 * or another one of open(2), fstat(2), mmap(2), socket(2) or connect(2). But for ESTALE and ESRCH
 * of a page that is mapped, the same error is returned without a new attempt for 0.1 s after a
 * failure, or for as long as it took.
 */
static inline int csf_thread_snap(struct csf_snap *s)
{
	return csf_self_snap_(s, 0);
}

/**
 * csf_thread_snap_ordered - csf_thread_snap() with an ordered clock
 *
 * @s->tsc is read only after everything before the call has completed. Use it where the edge
 * must be sharper than a cache miss; it costs what csf_rdtsc() costs on top of the copy.
 *
 * @s and return value: as csf_thread_snap().
 */
static inline int csf_thread_snap_ordered(struct csf_snap *s)
{
	return csf_self_snap_(s, 1);
}

/**
 * csf_page_snap - copy another thread's page
 * @page: a mapped thread page, for example of a descriptor that its owner passed on
 * @s: filled; zeroed on failure
 *
 * The copy is extrapolated to now if the page is live and its clock can be compared: its flags say
 * CSF_F_TSC_CONSTANT, and either CSF_F_TSC_SYNCED too or the thread's last switch was on the CPU
 * that reads. A thread that was woken but has no CPU yet still counts as sleeping; its wait moves
 * to runq_cyc once it runs. May be called by any thread at any time, signal handlers included.
 *
 * A page outlives the service that wrote it, and this function cannot tell: it goes on as the
 * thread was seen last. The owner's csf_thread_snap() fails with ESTALE then. In a time namespace
 * of its own, a process can compare the service's clock once it has a page itself.
 *
 * Return: 0, or -1 with errno: EPROTO if @page is not a thread page of a known version; EAGAIN if
 * it was being written all the time (the CPU that writes it may be a stalled virtual CPU).
 */
static inline int csf_page_snap(const struct csf_thread_page *page, struct csf_snap *s)
{
	uint32_t clock = page->hdr.clock, seq, cpu;
	int tries = CSF_TRIES_;

	if (!csf_hdr_known_(&page->hdr, CSF_KIND_THREAD)) {
		errno = EPROTO;
		return csf_snap_fail_(s);
	}
	do {
		if (!tries--) {
			errno = EAGAIN;
			return csf_snap_fail_(s);
		}
		seq = __atomic_load_n(&page->seq, __ATOMIC_ACQUIRE);
		csf_copy_page_(&s->p, page);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while ((seq & 1) || seq != __atomic_load_n(&page->seq, __ATOMIC_RELAXED));
	s->tsc = csf_now_ordered_(clock, &cpu);
	s->extrapolated = 0;
	if (s->p.life != CSF_LIVE || !(s->p.hdr.flags & CSF_F_TSC_CONSTANT))
		return 0;
	if (!(s->p.hdr.flags & CSF_F_TSC_SYNCED) && cpu != s->p.cpu)
		return 0;
	if ((int64_t)(s->tsc - s->p.last_switch_tsc) < 0)
		s->tsc = s->p.last_switch_tsc;
	csf_extrapolate_(s, s->tsc);
	return 0;
}

/**
 * csf_cpu_snap - copy a row of the cpu page
 * @c: filled; zeroed on failure
 * @cpu: a CPU number, or CSF_CPU_ALL for the sum over all of them
 *
 * The first call in a process maps the page, and keeps the writer updating it from then on.
 *
 * Return: 0, or -1 with errno: EINVAL if there can be no such CPU; EAGAIN if the page was being
 * written all the time, or the service is busy or did not answer within a second; ESTALE if the
 * writer is gone, and the next call looks for another; ENOENT, EACCES, EMFILE, EDQUOT and others as
 * csf_thread_snap(), for the cpu page.
 */
static inline int csf_cpu_snap(struct csf_cpu_snap *c, unsigned int cpu)
{
	const struct csf_cpu_page *page = __atomic_load_n(&csf_guard_->cpu, __ATOMIC_ACQUIRE);
	uint32_t index = cpu + 1; /* CSF_CPU_ALL is row 0 */
	int tries = CSF_TRIES_;
	const void *row;
	uint32_t seq;

	if (csf_unlikely_(!page)) {
		page = csf_cpu_map_();
		if (!page)
			return csf_cpu_snap_fail_(c);
	}
	if (csf_unlikely_(index >= page->nr_rows)) {
		errno = EINVAL;
		return csf_cpu_snap_fail_(c);
	}
	row = (const char *)page + page->rows_offset + (size_t)index * page->row_size;
	do {
		if (csf_unlikely_(!tries--)) {
			errno = EAGAIN;
			return csf_cpu_snap_fail_(c);
		}
		seq = __atomic_load_n(&page->seq, __ATOMIC_ACQUIRE);
		csf_copy_row_(&c->row, row);
		c->update_tsc = page->update_tsc;
		c->update_mono_ns = page->update_mono_ns;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while ((seq & 1) || seq != __atomic_load_n(&page->seq, __ATOMIC_RELAXED));
	if (csf_unlikely_(page->hdr.clock == CSF_CLOCK_MONOTONIC) &&
	    csf_cpu_gone_(page, c->update_mono_ns))
		return csf_cpu_snap_fail_(c);
	return 0;
}

/**
 * csf_writer - who writes the calling thread's page
 *
 * Maps the page if the thread has none yet.
 *
 * Return: "module" or "bpf", a constant string, or NULL with errno as csf_thread_snap().
 */
static inline const char *csf_writer(void)
{
	const struct csf_tls_ *t = &csf_tls_;

	if (t->gen != csf_guard_->gen && csf_thread_map_())
		return NULL;
	return t->clock == CSF_CLOCK_MONOTONIC ? "bpf" : "module";
}

/**
 * csf_rdtsc - read the clock of the calling thread's page, ordered after what comes before
 *
 * Return: cycles: the TSC (by rdtscp) before the thread's first snapshot and with the kernel
 * module; CLOCK_MONOTONIC ns where the page's header says so, and where there is no TSC. Never
 * fails; may be called anywhere, signal handlers included.
 */
static inline uint64_t csf_rdtsc(void)
{
	uint32_t clock = csf_tls_.clock, cpu;

	return csf_now_ordered_(clock ? clock : CSF_CLOCK_TSC, &cpu);
}

/**
 * csf_cyc_to_ns - convert a difference of the page's clock to nanoseconds
 * @h: the header of the page, or of a snapshot of it
 * @cyc: cycles
 *
 * Return: floor(@cyc * mult / 2^shift), modulo 2^64. Exact for any @cyc whose result fits.
 */
static inline uint64_t csf_cyc_to_ns(const struct csf_hdr *h, uint64_t cyc)
{
	uint64_t high = cyc >> 32, low = cyc & 0xffffffffu;

	return ((high * h->mult) << (32 - h->shift)) + ((low * h->mult) >> h->shift);
}

/**
 * csf_ns_to_cyc - convert nanoseconds to cycles of the page's clock
 * @h: the header of the page, or of a snapshot of it
 * @ns: nanoseconds
 *
 * Return: floor(@ns * clock_khz / 1e6), modulo 2^64. Exact for any @ns whose result fits.
 */
static inline uint64_t csf_ns_to_cyc(const struct csf_hdr *h, uint64_t ns)
{
	return ns / 1000000 * h->clock_khz + ns % 1000000 * h->clock_khz / 1000000;
}

/* A signed number of cycles, rounded to microseconds. */
static inline int64_t csf_cyc_to_us_(const struct csf_hdr *h, uint64_t cyc)
{
	if ((int64_t)cyc < 0)
		return -(int64_t)((csf_cyc_to_ns(h, 0 - cyc) + 500) / 1000);
	return (int64_t)((csf_cyc_to_ns(h, cyc) + 500) / 1000);
}

#define CSF_MS_ "%s%llu.%03llu"
#define CSF_MS_ARGS_(us)                                                           \
	(us) < 0 ? "-" : "", (unsigned long long)((us) < 0 ? -(us) : (us)) / 1000, \
		(unsigned long long)((us) < 0 ? -(us) : (us)) % 1000

/* What csf_format_diff() says in place of a difference that would not be true. */
static inline int csf_diff_error_(char *buf, size_t size, int err, const char *why)
{
	snprintf(buf, size, "%s", why);
	errno = err;
	return -1;
}

static inline int csf_format_io_(char *buf, size_t size, const struct csf_thread_page *a,
				 const struct csf_thread_page *b)
{
	if (!(b->hdr.flags & CSF_F_IO))
		return snprintf(buf, size, "sysc n/a | io n/a");
	return snprintf(buf, size, "sysc r%llu w%llu | io r%lluB w%lluB",
			(unsigned long long)(b->syscr - a->syscr),
			(unsigned long long)(b->syscw - a->syscw),
			(unsigned long long)(b->read_bytes - a->read_bytes),
			(unsigned long long)(b->write_bytes - a->write_bytes));
}

/**
 * csf_format_diff - describe in one line what happened between two snapshots
 * @buf: filled and 0-terminated, cut at @size
 * @size: bytes of @buf; CSF_DIFF_BUFSZ is always enough
 * @a: the earlier snapshot
 * @b: the later snapshot, of the same thread and epoch
 *
 * Times are in ms. The wall time is the sum of the five buckets, which for extrapolated snapshots
 * is @b->tsc - @a->tsc; the parts are rounded such that they add up as printed. Counters are as
 * old as the last time the thread left its CPU. On an error @buf says what is wrong.
 *
 * Return: the length of the whole line, as snprintf(3), or -1 with errno: EINVAL if one of the two
 * is no snapshot (a failed one included) or they are in the wrong order; ESTALE if they are of two
 * threads, or the page was armed anew between them. Thread and signal safety: as snprintf(3).
 */
static inline int csf_format_diff(char *buf, size_t size, const struct csf_snap *a,
				  const struct csf_snap *b)
{
	const struct csf_thread_page *p = &a->p, *q = &b->p;
	const struct csf_hdr *h = &q->hdr;
	uint64_t cyc[CSF_NR_BUCKETS];
	int64_t us[CSF_NR_BUCKETS], past = 0;
	uint64_t sum = 0;
	char io[128];
	int i;

	if (p->hdr.magic != CSF_MAGIC || h->magic != CSF_MAGIC)
		return csf_diff_error_(buf, size, EINVAL, "no difference: a snapshot failed");
	if (p->epoch != q->epoch)
		return csf_diff_error_(buf, size, ESTALE,
				       "no difference: the page was armed anew in between");
	cyc[CSF_ONCPU] = q->oncpu_cyc - p->oncpu_cyc;
	cyc[CSF_RUNQ] = q->runq_cyc - p->runq_cyc;
	cyc[CSF_SLEEP] = q->sleep_cyc - p->sleep_cyc;
	cyc[CSF_DSLEEP] = q->dsleep_cyc - p->dsleep_cyc;
	cyc[CSF_IOWAIT] = q->iowait_cyc - p->iowait_cyc;
	for (i = 0; i < CSF_NR_BUCKETS; i++) {
		int64_t until;

		sum += cyc[i];
		until = csf_cyc_to_us_(h, sum);
		us[i] = until - past;
		past = until;
	}
	if ((int64_t)sum < 0)
		return csf_diff_error_(buf, size, EINVAL,
				       "no difference: the second snapshot is the earlier one");
	csf_format_io_(io, sizeof(io), p, q);
	return snprintf(buf, size,
			"wall " CSF_MS_ "ms = cpu " CSF_MS_ " + runq " CSF_MS_ " + sleep " CSF_MS_
			" + dsleep " CSF_MS_ " + iowait " CSF_MS_
			" | preempt %llu block %llu migrate %llu | flt %llu/%llu | %s",
			CSF_MS_ARGS_(past), CSF_MS_ARGS_(us[CSF_ONCPU]), CSF_MS_ARGS_(us[CSF_RUNQ]),
			CSF_MS_ARGS_(us[CSF_SLEEP]), CSF_MS_ARGS_(us[CSF_DSLEEP]),
			CSF_MS_ARGS_(us[CSF_IOWAIT]),
			(unsigned long long)(q->nr_preempt - p->nr_preempt),
			(unsigned long long)(q->nr_block - p->nr_block),
			(unsigned long long)(q->nr_migrate - p->nr_migrate),
			(unsigned long long)(q->min_flt - p->min_flt),
			(unsigned long long)(q->maj_flt - p->maj_flt), io);
}

#ifdef __cplusplus
}
#endif

#endif /* COARSE_STAT_FS_LIB_H */
