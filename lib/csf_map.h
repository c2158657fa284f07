/* SPDX-License-Identifier: MIT */
/*
 * Part of coarse_stat_fs.h: which page belongs to the calling thread, and mapping it. Names that
 * end in an underscore are the implementation, not the interface.
 */
#ifndef COARSE_STAT_FS_MAP_H
#define COARSE_STAT_FS_MAP_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../include/uapi/coarse_stat_fs.h"
#include "csf_client.h"

/* Where the pages are; define them before including this header to read other files. */
#ifndef CSF_THREAD_PATH
#define CSF_THREAD_PATH CSF_MOUNT_POINT "/thread-self"
#endif
#ifndef CSF_CPU_PATH
#define CSF_CPU_PATH CSF_MOUNT_POINT "/cpu"
#endif

#define csf_barrier_() __asm__ __volatile__("" ::: "memory")
#define csf_likely_(x) __builtin_expect(!!(x), 1)
#define csf_unlikely_(x) __builtin_expect(!!(x), 0)
#define CSF_INLINE_ __attribute__((always_inline)) static inline
#define CSF_SHARED_ __attribute__((weak, visibility("hidden")))
/*
 * In a shared library, thread-local storage is a function call away unless it is in the block that
 * exists from the start. glibc keeps room there for libraries that are loaded later, others may
 * not.
 */
#if defined(__PIC__) && !defined(__PIE__) && defined(__GLIBC__)
#define CSF_TLS_MODEL_ __attribute__((tls_model("initial-exec")))
#else
#define CSF_TLS_MODEL_
#endif

/*
 * After a failure, the next attempt to map a page is made this much later at the earliest, and not
 * before the time that the failed one took: a service that hangs stops a thread half of the time.
 */
#define CSF_RETRY_NS_ 100000000ull
/* A page of a service that has not changed for so long may be that of a dead one. */
#define CSF_STALE_NS_ 1000000000ull
/* A foreign page that is still being written after so many tries belongs to a stalled CPU. */
#define CSF_TRIES_ 100000

#ifdef __cplusplus
extern "C" {
#endif

#ifdef MAP_ANONYMOUS
#define CSF_MAP_ANONYMOUS_ MAP_ANONYMOUS
#else
#define CSF_MAP_ANONYMOUS_ 0x20
#endif
#define CSF_MADV_WIPEONFORK_ 18

/*
 * One page per process that the kernel wipes in a forked child, however the fork was made. A
 * thread's mapping is valid while the generation it was made in is the one in here. 0 is a guard
 * that was wiped or never made, CSF_UNMAPPED_ a thread without a mapping: never equal, not even in
 * the child of a thread that had none.
 */
#define CSF_UNMAPPED_ (~0u)

struct csf_guard_ {
	uint32_t gen;
	pid_t pid; /* the child of vfork() sees its parent's */
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
	uint64_t checked_ns; /* when the writer was last seen to be alive */
	void *stale; /* a page whose writer was not, still mapped in generation stale_gen */
	uint32_t stale_gen;
};

CSF_SHARED_ CSF_TLS_MODEL_ __thread struct csf_tls_ csf_tls_ = { NULL, CSF_UNMAPPED_, 0,
								 0,    { 0, 0 },      { 0, 0 },
								 0,    NULL,	      0 };
CSF_SHARED_ struct csf_guard_ csf_no_guard_ = { 0, 0, NULL };
CSF_SHARED_ struct csf_guard_ *csf_guard_ = &csf_no_guard_;
CSF_SHARED_ uint32_t csf_generations_;
CSF_SHARED_ pthread_key_t csf_key_;
CSF_SHARED_ int csf_key_err_ = EAGAIN;
CSF_SHARED_ pthread_once_t csf_key_once_ = PTHREAD_ONCE_INIT;

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
	(void)clock;
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

/* Has its writer written it lately, if its clock is off by this from ours? */
static inline int csf_cpu_fresh_(const struct csf_cpu_page *page, uint64_t updated_ns,
				 int64_t offset)
{
	int64_t age = (int64_t)(csf_own_mono_ns_() + (uint64_t)offset - updated_ns);

	return age >= -(int64_t)CSF_STALE_NS_ &&
	       age <= (int64_t)(CSF_STALE_NS_ + 2000ull * page->period_us);
}

/* Maps all of a page file; NULL with errno. */
static inline const void *csf_map_file_(const char *path, unsigned int kind, size_t min_size)
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

/*
 * Makes the thread's page a stale one. A handler may come in between anywhere, and give up the page
 * or map another itself: so the page is first made no thread's, and changes hands in one
 * instruction. At worst a mapping stays unused.
 */
static inline void csf_page_drop_(struct csf_tls_ *t)
{
	void *page = (void *)(uintptr_t)t->page, *old;
	uint32_t gen = t->gen;

	if (gen != csf_guard_->gen)
		return; /* a handler was here, or forked */
	t->gen = CSF_UNMAPPED_;
	csf_barrier_();
	if (t->stale_gen != gen) {
		t->stale = NULL; /* of the parent */
		csf_barrier_();
		t->stale_gen = gen;
		csf_barrier_();
	}
	old = __atomic_exchange_n(&t->stale, page, __ATOMIC_RELAXED);
	if (old && old != page)
		munmap(old, CSF_SLOT_SIZE); /* dropped long ago: no copy is under way */
}

/*
 * The destructor of csf_key_: the end of a thread. In a forked child the page is not mapped. A
 * handler may map a page anew as soon as this one is given up, and the destructor is called again
 * then: nothing of it is touched here.
 */
static inline void csf_thread_end_(void *arg)
{
	struct csf_tls_ *t = (struct csf_tls_ *)arg;
	const void *page = NULL;
	size_t len = 0;
	void *stale;

	if (t->gen == csf_guard_->gen) {
		page = t->page;
		len = csf_map_len_(t->page->hdr.size);
	}
	csf_page_drop_(t);
	if (t->stale_gen != csf_guard_->gen)
		return;
	stale = __atomic_exchange_n(&t->stale, NULL, __ATOMIC_RELAXED);
	if (stale)
		munmap(stale, stale == page ? len : CSF_SLOT_SIZE);
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

		g->pid = getpid();
		__atomic_compare_exchange_n(&g->gen, &wiped, gen, 0, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE);
	}
	return g;
}

/*
 * The module's page, else the service's; NULL with errno. A page whose writer is gone is mapped
 * over, never unmapped: this may be a signal handler that interrupted a copy of it.
 */
static inline const struct csf_thread_page *csf_thread_page_(struct csf_tls_ *t, uint32_t gen)
{
	void *stale = t->stale_gen == gen ? t->stale : NULL, *at = stale;
	const void *page =
		csf_map_file_(CSF_THREAD_PATH, CSF_KIND_THREAD, sizeof(struct csf_thread_page));

	if (page || errno != ENOENT)
		return (const struct csf_thread_page *)page;
	page = csf_service_thread_page_(&at);
	if (at != stale)
		t->stale = NULL;
	if (page && !csf_hdr_known_((const struct csf_hdr *)page, CSF_KIND_THREAD)) {
		if (page == stale)
			t->stale = stale;
		else
			munmap((void *)(uintptr_t)page, CSF_SLOT_SIZE);
		errno = EPROTO;
		return NULL;
	}
	return (const struct csf_thread_page *)page;
}

static inline int csf_thread_map_now_(struct csf_tls_ *t)
{
	struct csf_guard_ *g = csf_guard_get_();
	const struct csf_thread_page *page;
	uint32_t gen;

	if (!g)
		return -1;
	gen = g->gen; /* once: a handler that forks wipes it for the child, where 0 would do */
	csf_barrier_();
	if (g->pid != getpid()) { /* what it would map, its parent would find */
		errno = ESRCH;
		return -1;
	}
	pthread_once(&csf_key_once_, csf_key_make_);
	if (csf_key_err_) {
		errno = csf_key_err_;
		return -1;
	}
	page = csf_thread_page_(t, gen);
	if (!page)
		return -1;
	errno = pthread_setspecific(csf_key_, t);
	if (errno) {
		munmap((void *)(uintptr_t)page, csf_map_len_(page->hdr.size));
		return -1;
	}
	t->page = page;
	t->clock = page->hdr.clock;
	t->checked_ns = 0;
	csf_barrier_();
	t->gen = gen;
	return 0;
}

/* 1 if the last failure is too recent for another attempt; errno is that failure again then. */
static inline int csf_failed_lately_(const struct csf_failure_ *f)
{
	if (!f->err || csf_own_mono_ns_() >= f->retry_ns)
		return 0;
	errno = f->err;
	return 1;
}

static inline void csf_remember_(struct csf_failure_ *f, int failed, uint64_t begun_ns)
{
	uint64_t now = csf_own_mono_ns_(), pause = now - begun_ns;

	f->err = failed ? errno : 0;
	f->retry_ns = now + (pause > CSF_RETRY_NS_ ? pause : CSF_RETRY_NS_);
}

/* Out of line: the first call of a thread or a forked child, and every failing one. */
__attribute__((noinline)) CSF_SHARED_ int csf_thread_map_(void)
{
	struct csf_tls_ *t = &csf_tls_;
	uint64_t begun_ns = csf_own_mono_ns_();
	int saved = errno;
	int ret, state;

	if (t->busy) { /* a signal handler interrupted the first call */
		errno = EBUSY;
		return -1;
	}
	if (csf_failed_lately_(&t->thread_failed))
		return -1;
	t->busy = 1;
	csf_barrier_();
	/* Opening, closing and asking are cancellation points: half a mapping would stay. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	/* A handler that ran just before that has mapped the page already. */
	ret = t->gen == csf_guard_->gen ? 0 : csf_thread_map_now_(t);
	pthread_setcancelstate(state, &state);
	csf_remember_(&t->thread_failed, ret, begun_ns);
	csf_barrier_();
	t->busy = 0;
	if (!ret)
		errno = saved;
	return ret;
}

/*
 * Whether a page that has just been mapped can be used; 0 or an error. What a service writes is new
 * by then: if it seems not to be, this process may be in a time namespace of its own.
 */
static inline int csf_cpu_check_(const struct csf_cpu_page *page)
{
	uint64_t updated_ns = page->update_mono_ns;
	int64_t offset;

	if (!csf_hdr_known_(&page->hdr, CSF_KIND_CPU) ||
	    page->row_size < sizeof(struct csf_cpu_row) ||
	    (uint64_t)page->rows_offset + (uint64_t)page->nr_rows * page->row_size > page->hdr.size)
		return EPROTO;
	if (page->hdr.clock != CSF_CLOCK_MONOTONIC ||
	    csf_cpu_fresh_(page, updated_ns, csf_mono_offset_))
		return 0;
	if (!csf_time_offset_(&offset) || !csf_cpu_fresh_(page, updated_ns, offset))
		return ESTALE;
	csf_mono_offset_ = offset;
	return 0;
}

/* The cpu page, with all the rows that it says it has; NULL with errno. */
static inline const struct csf_cpu_page *csf_cpu_map_now_(void)
{
	const struct csf_cpu_page *page = (const struct csf_cpu_page *)csf_map_file_(
		CSF_CPU_PATH, CSF_KIND_CPU, sizeof(*page));

	int err;

	if (!page && errno == ENOENT)
		page = (const struct csf_cpu_page *)csf_service_cpu_page_();
	if (!page)
		return NULL;
	err = csf_cpu_check_(page);
	if (!err)
		return page;
	munmap((void *)(uintptr_t)page, csf_map_len_(page->hdr.size));
	errno = err;
	return NULL;
}

__attribute__((noinline)) CSF_SHARED_ const struct csf_cpu_page *csf_cpu_map_(void)
{
	struct csf_tls_ *t = &csf_tls_;
	const struct csf_cpu_page *page = NULL, *none = NULL;
	uint64_t begun_ns = csf_own_mono_ns_();
	struct csf_guard_ *g;
	int state;

	if (csf_failed_lately_(&t->cpu_failed))
		return NULL;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	g = csf_guard_get_();
	if (g)
		page = csf_cpu_map_now_();
	pthread_setcancelstate(state, &state);
	csf_remember_(&t->cpu_failed, !page, begun_ns);
	if (!page)
		return NULL;
	if (__atomic_compare_exchange_n(&g->cpu, &none, page, 0, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return page;
	munmap((void *)(uintptr_t)page, csf_map_len_(page->hdr.size));
	return none; /* another thread was faster */
}

#ifdef __cplusplus
}
#endif

#endif /* COARSE_STAT_FS_MAP_H */
