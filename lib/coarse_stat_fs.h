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
 * The first call in a thread maps that thread's page (about 10 microseconds); all translation units
 * of one program or shared library use the same mapping. It is taken down when the thread ends,
 * and a forked child maps its own. Nothing here prints; errors are in errno.
 *
 * Signals: a function may be called from a signal handler once the interrupted thread has called
 * it with success before; the first call allocates. In a child of vfork(), and in a raw clone()
 * that shares memory but not thread-local storage, csf_thread_snap() fails with ESRCH.
 */
#ifndef COARSE_STAT_FS_LIB_H
#define COARSE_STAT_FS_LIB_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../include/uapi/coarse_stat_fs.h"

/* Where the pages are; define them before including this header to read other files. */
#ifndef CSF_THREAD_PATH
#define CSF_THREAD_PATH CSF_MOUNT_POINT "/thread-self"
#endif
#ifndef CSF_CPU_PATH
#define CSF_CPU_PATH CSF_MOUNT_POINT "/cpu"
#endif

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

/*
 * Names that end in an underscore are the implementation, not the interface.
 */

#define csf_barrier_() __asm__ __volatile__("" ::: "memory")
#define csf_likely_(x) __builtin_expect(!!(x), 1)
#define csf_unlikely_(x) __builtin_expect(!!(x), 0)
#define CSF_INLINE_ __attribute__((always_inline)) static inline
#define CSF_SHARED_ __attribute__((weak, visibility("hidden")))
/*
 * In a shared library, thread-local storage is a function call away unless it is in the block that
 * exists from the start. glibc keeps room there for libraries that are loaded later, others may not.
 */
#if defined(__PIC__) && !defined(__PIE__) && defined(__GLIBC__)
#define CSF_TLS_MODEL_ __attribute__((tls_model("initial-exec")))
#else
#define CSF_TLS_MODEL_
#endif

/* After a failure, the next attempt to map a page is made this much later at the earliest. */
#define CSF_RETRY_NS_ 100000000ull
/* A foreign page that is still being written after so many tries belongs to a stalled CPU. */
#define CSF_TRIES_ 100000

#ifdef __cplusplus
extern "C" {
#endif

/* What strict ISO modes of the C library hide; C++ compilers always show it. */
#if defined(__STRICT_ANSI__) && !defined(__cplusplus)
int clock_gettime(int clock, struct timespec *ts);
int madvise(void *addr, size_t len, int advice);
#endif
#ifdef O_CLOEXEC
#define CSF_O_CLOEXEC_ O_CLOEXEC
#else
#define CSF_O_CLOEXEC_ 02000000
#endif
#ifdef MAP_ANONYMOUS
#define CSF_MAP_ANONYMOUS_ MAP_ANONYMOUS
#else
#define CSF_MAP_ANONYMOUS_ 0x20
#endif
#define CSF_MADV_WIPEONFORK_ 18
#define CSF_CLOCK_MONOTONIC_ID_ 1

/*
 * One page per process that the kernel wipes in a forked child, however the fork was made. A
 * thread's mapping is valid while the generation it was made in is the one in here. 0 is a guard
 * that was wiped or never made, CSF_UNMAPPED_ a thread without a mapping: never equal, not even in
 * the child of a thread that had none.
 */
#define CSF_UNMAPPED_ (~0u)

struct csf_guard_ {
	uint32_t gen;
	const struct csf_cpu_page *cpu;
};

struct csf_failure_ {
	int err;
	uint64_t retry_ns;
};

struct csf_tls_ {
	const struct csf_thread_page *page;
	uint32_t gen;
	uint32_t clock;
	int busy;
	struct csf_failure_ thread_failed;
	struct csf_failure_ cpu_failed;
};

CSF_SHARED_ CSF_TLS_MODEL_ __thread struct csf_tls_ csf_tls_ = { NULL, CSF_UNMAPPED_, 0,
								 0,    { 0, 0 },      { 0, 0 } };
CSF_SHARED_ struct csf_guard_ csf_no_guard_ = { 0, NULL };
CSF_SHARED_ struct csf_guard_ *csf_guard_ = &csf_no_guard_;
CSF_SHARED_ uint32_t csf_generations_;
CSF_SHARED_ pthread_key_t csf_key_;
CSF_SHARED_ int csf_key_err_ = EAGAIN;
CSF_SHARED_ pthread_once_t csf_key_once_ = PTHREAD_ONCE_INIT;

static inline uint64_t csf_mono_ns_(void)
{
	struct timespec ts;

	clock_gettime(CSF_CLOCK_MONOTONIC_ID_, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The clock as early as the CPU likes; *cpu, if asked for, is where it was read. */
static inline uint64_t csf_now_(uint32_t clock)
{
#if defined(__x86_64__) || defined(__i386__)
	if (csf_likely_(clock == CSF_CLOCK_TSC))
		return __builtin_ia32_rdtsc();
#endif
	(void)clock;
	return csf_mono_ns_();
}

/* The clock after everything before it has completed; *cpu is where it was read, or ~0. */
static inline uint64_t csf_now_ordered_(uint32_t clock, uint32_t *cpu)
{
	*cpu = ~0u;
#if defined(__x86_64__) || defined(__i386__)
	if (csf_likely_(clock == CSF_CLOCK_TSC)) {
		unsigned int aux;
		uint64_t now = __builtin_ia32_rdtscp(&aux);

		*cpu = aux & 0xfff;
		return now;
	}
#endif
	return csf_mono_ns_();
}

static inline int csf_clock_known_(uint32_t clock)
{
#if defined(__x86_64__) || defined(__i386__)
	if (clock == CSF_CLOCK_TSC)
		return 1;
#endif
	return clock == CSF_CLOCK_MONOTONIC;
}

/* A page that this library can read, all its arithmetic defined. */
static inline int csf_hdr_known_(const struct csf_hdr *h, unsigned int kind)
{
	return h->magic == CSF_MAGIC && h->version == CSF_ABI_VERSION && h->kind == kind &&
	       h->shift <= 32 && h->clock_khz && csf_clock_known_(h->clock);
}

/* What mmap() makes of a length. */
static inline size_t csf_map_len_(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (len + page - 1) / page * page;
}

/* Maps all of a page file; NULL with errno. */
static inline const void *csf_map_file_now_(const char *path, unsigned int kind, size_t min_size)
{
	int fd = open(path, O_RDONLY | CSF_O_CLOEXEC_);
	struct stat st;
	void *p;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st)) {
		close(fd);
		return NULL;
	}
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return NULL;
	if ((uint64_t)st.st_size < min_size || !csf_hdr_known_((const struct csf_hdr *)p, kind) ||
	    csf_map_len_(((const struct csf_hdr *)p)->size) != csf_map_len_((size_t)st.st_size)) {
		munmap(p, (size_t)st.st_size);
		errno = EPROTO;
		return NULL;
	}
	return p;
}

/* open() and close() are cancellation points, and half a mapping would stay. */
static inline const void *csf_map_file_(const char *path, unsigned int kind, size_t min_size)
{
	const void *p;
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	p = csf_map_file_now_(path, kind, min_size);
	pthread_setcancelstate(state, &state);
	return p;
}

/* The destructor of csf_key_: the end of a thread. In a forked child the page is not mapped. */
static inline void csf_thread_end_(void *arg)
{
	struct csf_tls_ *t = (struct csf_tls_ *)arg;

	if (t->gen == csf_guard_->gen)
		munmap((void *)(uintptr_t)t->page, csf_map_len_(t->page->hdr.size));
	t->gen = CSF_UNMAPPED_;
	t->page = NULL;
}

static inline void csf_key_make_(void)
{
	csf_key_err_ = pthread_key_create(&csf_key_, csf_thread_end_);
}

/* A shared library that is unloaded must not leave its destructor behind; one call is enough. */
__attribute__((destructor)) static inline void csf_key_drop_(void)
{
	if (!csf_key_err_)
		pthread_key_delete(csf_key_);
	csf_key_err_ = EAGAIN;
}

/* The guard of this process with a generation in it; NULL with errno. */
static inline struct csf_guard_ *csf_guard_get_(void)
{
	struct csf_guard_ *g = __atomic_load_n(&csf_guard_, __ATOMIC_ACQUIRE);
	struct csf_guard_ *none = &csf_no_guard_;
	uint32_t wiped = 0;

	if (g == &csf_no_guard_) {
		size_t len = (size_t)sysconf(_SC_PAGESIZE);
		void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | CSF_MAP_ANONYMOUS_,
			       -1, 0);

		if (p == MAP_FAILED)
			return NULL;
		if (madvise(p, len, CSF_MADV_WIPEONFORK_)) {
			munmap(p, len);
			return NULL;
		}
		g = (struct csf_guard_ *)p;
		if (!__atomic_compare_exchange_n(&csf_guard_, &none, g, 0, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE)) {
			munmap(p, len);
			g = none;
		}
	}
	if (!__atomic_load_n(&g->gen, __ATOMIC_ACQUIRE)) {
		uint32_t gen = __atomic_add_fetch(&csf_generations_, 1, __ATOMIC_RELAXED);

		__atomic_compare_exchange_n(&g->gen, &wiped, gen, 0, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE);
	}
	return g;
}

static inline int csf_thread_map_now_(struct csf_tls_ *t)
{
	struct csf_guard_ *g = csf_guard_get_();
	const struct csf_thread_page *page;

	if (!g)
		return -1;
	pthread_once(&csf_key_once_, csf_key_make_);
	if (csf_key_err_) {
		errno = csf_key_err_;
		return -1;
	}
	page = (const struct csf_thread_page *)csf_map_file_(CSF_THREAD_PATH, CSF_KIND_THREAD,
							     sizeof(*page));
	if (!page)
		return -1;
	errno = pthread_setspecific(csf_key_, t);
	if (errno) {
		munmap((void *)(uintptr_t)page, csf_map_len_(page->hdr.size));
		return -1;
	}
	t->page = page;
	t->clock = page->hdr.clock;
	csf_barrier_();
	t->gen = g->gen;
	return 0;
}

/* 1 if the last failure is too recent for another attempt; errno is that failure again then. */
static inline int csf_failed_lately_(const struct csf_failure_ *f)
{
	if (!f->err || csf_mono_ns_() >= f->retry_ns)
		return 0;
	errno = f->err;
	return 1;
}

static inline void csf_remember_(struct csf_failure_ *f, int failed)
{
	f->err = failed ? errno : 0;
	f->retry_ns = failed ? csf_mono_ns_() + CSF_RETRY_NS_ : 0;
}

/* Out of line: the first call of a thread or a forked child, and every failing one. */
__attribute__((noinline)) CSF_SHARED_ int csf_thread_map_(void)
{
	struct csf_tls_ *t = &csf_tls_;
	int saved = errno;
	int ret;

	if (t->busy) { /* a signal handler interrupted the first call */
		errno = EBUSY;
		return -1;
	}
	if (csf_failed_lately_(&t->thread_failed))
		return -1;
	t->busy = 1;
	csf_barrier_();
	/* A handler that ran just before that has mapped the page already. */
	ret = t->gen == csf_guard_->gen ? 0 : csf_thread_map_now_(t);
	csf_remember_(&t->thread_failed, ret);
	csf_barrier_();
	t->busy = 0;
	if (!ret)
		errno = saved;
	return ret;
}

/* The cpu page, with all the rows that it says it has; NULL with errno. */
static inline const struct csf_cpu_page *csf_cpu_map_now_(void)
{
	const struct csf_cpu_page *page = (const struct csf_cpu_page *)csf_map_file_(
		CSF_CPU_PATH, CSF_KIND_CPU, sizeof(*page));

	if (!page || (page->row_size >= sizeof(struct csf_cpu_row) &&
		      (uint64_t)page->rows_offset + (uint64_t)page->nr_rows * page->row_size <=
			      page->hdr.size))
		return page;
	munmap((void *)(uintptr_t)page, csf_map_len_(page->hdr.size));
	errno = EPROTO;
	return NULL;
}

__attribute__((noinline)) CSF_SHARED_ const struct csf_cpu_page *csf_cpu_map_(void)
{
	struct csf_tls_ *t = &csf_tls_;
	const struct csf_cpu_page *page = NULL, *none = NULL;
	struct csf_guard_ *g;

	if (csf_failed_lately_(&t->cpu_failed))
		return NULL;
	g = csf_guard_get_();
	if (g)
		page = csf_cpu_map_now_();
	csf_remember_(&t->cpu_failed, !page);
	if (!page)
		return NULL;
	if (__atomic_compare_exchange_n(&g->cpu, &none, page, 0, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return page;
	munmap((void *)(uintptr_t)page, csf_map_len_(page->hdr.size));
	return none; /* another thread was faster */
}

/*
 * Pages are copied in vectors, each a load and a store whatever the compiler and its options. Of
 * memcpy() gcc makes a string move above 256 bytes, or with -Os any, and clang a call above 128; both
 * cost more than reading the clock.
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

/* Not before there is a reason: it costs four times what the snapshot does. */
static inline int csf_cpu_snap_fail_(struct csf_cpu_snap *c)
{
	memset(c, 0, sizeof(*c));
	return -1;
}

static inline int csf_self_snap_(struct csf_snap *s, int ordered)
{
	const struct csf_tls_ *t = &csf_tls_;
	const struct csf_thread_page *page;
	uint32_t seq, cpu;
	uint64_t now;

	if (csf_unlikely_(t->gen != csf_guard_->gen) && csf_thread_map_())
		return csf_snap_fail_(s);
	page = t->page;
	do {
		seq = *(const volatile __u32 *)&page->seq;
		csf_barrier_();
		csf_copy_page_(&s->p, page);
		now = ordered ? csf_now_ordered_(t->clock, &cpu) : csf_now_(t->clock);
		csf_barrier_();
	} while (csf_unlikely_(seq != *(const volatile __u32 *)&page->seq));
	if (csf_unlikely_(s->p.state != CSF_ONCPU || s->p.life != CSF_LIVE)) {
		errno = ESRCH; /* not the caller's page: it would be running */
		return csf_snap_fail_(s);
	}
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
 * Return: 0, or -1 with errno: that of open(2), fstat(2) or mmap(2) on the page file, ENOENT where
 * coarse_stat_fs is not mounted; EPROTO if the file is no page of a version and clock known here;
 * EBUSY in a signal handler that interrupted the thread's first call; ESRCH if the page is not the
 * calling thread's (see the top of this file); ENOMEM, EAGAIN or EINVAL from allocating the
 * per-thread state. For 0.1 s after a failure the same error is returned without a new attempt.
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
 * written all the time; else as csf_thread_snap(), for the cpu file.
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
	return 0;
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
