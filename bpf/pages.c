// SPDX-License-Identifier: GPL-2.0
#include "pages.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* What is kept ready of each size: a burst of new processes takes single pages. */
static const struct {
	uint32_t slots;
	unsigned int ready;
} sizes[CSF_NR_SIZES] = { { 1, 32 }, { 4, 16 }, { 16, 8 }, { 64, 2 }, { 256, 2 } };

/* Most of the work is waiting for grace periods, and those who wait at one time share one. */
#define NR_WORKERS 32
#define LINGER_MS 100

/* A chunk's number goes through these in a circle. */
enum chunk_state { UNUSED, MAKING, READY, TAKEN, RETIRED, REMOVING, LINGERING, GONE };

struct chunk {
	enum chunk_state state;
	unsigned int size;
	int fd;
	uint32_t map_id;
	bool looked_for;
};

struct csf_pages {
	struct csf_pages_maps maps;
	struct csf_chunk *use; /* the map chunk_use */
	struct chunk *chunks;
	uint32_t flags; /* of the pages' headers */
	unsigned int nr_ready[CSF_NR_SIZES]; /* and being made */
	unsigned int nr_retired, nr_lingering;
	unsigned int last_number; /* numbers are used again as late as possible */
	int event_fd;
	bool stop;
	pthread_mutex_t lock; /* states of chunks, nr_*, last_number, stop */
	pthread_cond_t work, lingering;
	pthread_t workers[NR_WORKERS], reaper;
	unsigned int nr_threads;
};

uint32_t csf_pages_slots(unsigned int size)
{
	return sizes[size].slots;
}

/* The kernel adds a page for its own struct, mapped arrays being aligned to pages. */
uint64_t csf_pages_bytes(unsigned int size)
{
	return (sizes[size].slots + 1ull) * CSF_PAGE_SIZE;
}

static void init_header(struct csf_hdr *h, uint32_t flags)
{
	h->magic = CSF_MAGIC;
	h->version = CSF_ABI_VERSION;
	h->kind = CSF_KIND_THREAD;
	h->size = sizeof(struct csf_thread_page);
	h->flags = flags;
	h->clock_khz = 1000000;
	h->clock = CSF_CLOCK_MONOTONIC;
	h->mult = 1;
	h->shift = 0;
}

/* Headers are written before the freeze: after it only the programs can write. */
static int init_and_freeze(int fd, uint32_t nr_slots, uint32_t flags)
{
	size_t len = (size_t)nr_slots * CSF_PAGE_SIZE;
	struct csf_slot *slots;
	uint32_t i;

	slots = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (slots == MAP_FAILED)
		return -1;
	for (i = 0; i < nr_slots; i++)
		init_header(&slots[i].page.hdr, flags);
	munmap(slots, len);
	return bpf_map_freeze(fd);
}

static int create_chunk(struct csf_pages *p, uint32_t nr_slots)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP,
		    .btf_fd = p->maps.btf_fd, .btf_key_type_id = p->maps.key_type,
		    .btf_value_type_id = p->maps.value_type);
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "csf_pages", sizeof(uint32_t),
				sizeof(struct csf_slot), nr_slots, &opts);

	if (fd >= 0 && init_and_freeze(fd, nr_slots, p->flags)) {
		close(fd);
		return -1;
	}
	return fd;
}

static uint32_t map_id(int fd)
{
	struct bpf_map_info info = { 0 };
	uint32_t len = sizeof(info);

	return bpf_obj_get_info_by_fd(fd, &info, &len) ? 0 : info.id;
}

static int next_in_state(const struct csf_pages *p, enum chunk_state state)
{
	unsigned int i, number;

	for (i = 1; i <= CSF_MAX_CHUNKS; i++) {
		number = (p->last_number + i) % CSF_MAX_CHUNKS;
		if (p->chunks[number].state == state)
			return (int)number;
	}
	return -1;
}

/* Without the lock: a chunk that is MAKING or REMOVING is touched by one worker only. */
static int make_chunk(struct csf_pages *p, int i)
{
	uint32_t number = i, nr_slots = sizes[p->chunks[i].size].slots;
	int fd = create_chunk(p, nr_slots);

	if (fd < 0)
		return -1;
	memset(&p->use[i], 0, sizeof(p->use[i]));
	p->use[i].nr_slots = nr_slots;
	if (bpf_map_update_elem(p->maps.chunks_fd, &number, &fd, BPF_ANY)) {
		close(fd);
		return -1;
	}
	p->chunks[i].fd = fd;
	p->chunks[i].map_id = map_id(fd);
	return 0;
}

static void notify(struct csf_pages *p)
{
	eventfd_write(p->event_fd, 1);
}

/* Takes and leaves the lock held, and is without it meanwhile; so does remove_chunk(). */
static int add_chunk(struct csf_pages *p, unsigned int size)
{
	int i = next_in_state(p, UNUSED), err;

	if (i < 0)
		return -1;
	p->last_number = i;
	p->chunks[i] = (struct chunk){ MAKING, size, -1, 0, false };
	p->nr_ready[size]++;
	pthread_mutex_unlock(&p->lock);
	err = make_chunk(p, i);
	pthread_mutex_lock(&p->lock);
	p->chunks[i].state = err ? UNUSED : READY;
	if (err)
		p->nr_ready[size]--;
	else
		notify(p);
	return err;
}

/* Waits for the grace period after which no program uses the map; only then is the number free. */
static void remove_chunk(struct csf_pages *p, int i)
{
	uint32_t number = i;

	p->chunks[i].state = REMOVING;
	p->nr_retired--;
	pthread_mutex_unlock(&p->lock);
	bpf_map_delete_elem(p->maps.chunks_fd, &number);
	close(p->chunks[i].fd);
	pthread_mutex_lock(&p->lock);
	p->chunks[i].state = LINGERING;
	p->nr_lingering++;
	pthread_cond_signal(&p->lingering);
}

/* The size that is shortest of what it should have, or -1 */
static int wanted_size(const struct csf_pages *p)
{
	unsigned int i, lack = 0;
	int best = -1;

	for (i = 0; i < CSF_NR_SIZES; i++) {
		unsigned int now = (sizes[i].ready - p->nr_ready[i]) * 64 / sizes[i].ready;

		if (now > lack) {
			lack = now;
			best = (int)i;
		}
	}
	return best;
}

static void wait_ms(struct csf_pages *p, pthread_cond_t *cond, unsigned int ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += ms % 1000 * 1000000L;
	until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(cond, &p->lock, &until);
}

static void *worker(void *arg)
{
	struct csf_pages *p = arg;
	bool made = false;
	int size;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		size = wanted_size(p);
		/*
		 * in turns, or processes that come and go fast would pile up what is to be removed
		 */
		made = size >= 0 && !(made && p->nr_retired) && !add_chunk(p, size);
		if (made)
			continue;
		if (p->nr_retired)
			remove_chunk(p, next_in_state(p, RETIRED));
		else if (size >= 0)
			wait_ms(p, &p->work, LINGER_MS); /* out of memory or numbers */
		else
			pthread_cond_wait(&p->work, &p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* The numbers of all maps that there are, in ascending order. */
struct map_ids {
	uint32_t *ids;
	size_t nr, room;
};

static bool ids_read(struct map_ids *m, int fd)
{
	size_t len = 0;
	ssize_t n;

	for (;;) {
		if (len / sizeof(*m->ids) + 1024 > m->room) {
			size_t room = m->room * 2 + 4096;
			uint32_t *ids = realloc(m->ids, room * sizeof(*ids));

			if (!ids)
				return false;
			m->ids = ids;
			m->room = room;
		}
		n = read(fd, (char *)m->ids + len, m->room * sizeof(*m->ids) - len);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			break;
		len += n;
	}
	m->nr = len / sizeof(*m->ids);
	return !n;
}

static bool ids_get(const struct csf_pages *p, struct map_ids *m)
{
	int fd = bpf_iter_create(p->maps.ids_link_fd);
	bool whole;

	if (fd < 0)
		return false;
	whole = ids_read(m, fd);
	close(fd);
	return whole;
}

static int compare_ids(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static bool ids_have(const struct map_ids *m, uint32_t id)
{
	return bsearch(&id, m->ids, m->nr, sizeof(id), compare_ids);
}

/*
 * The process, or whoever it gave the descriptor to, may keep the map alive as long as it likes. So
 * the kernel is asked which maps there are: by a program, since bpf(2) tells only who has
 * CAP_SYS_ADMIN.
 */
static bool look_at_lingering(struct csf_pages *p)
{
	struct map_ids m = { 0 };
	bool found = false, known;
	int i;

	pthread_mutex_lock(&p->lock);
	for (i = 0; i < CSF_MAX_CHUNKS; i++)
		p->chunks[i].looked_for = p->chunks[i].state == LINGERING;
	pthread_mutex_unlock(&p->lock);
	known = ids_get(p, &m);
	pthread_mutex_lock(&p->lock);
	for (i = 0; known && i < CSF_MAX_CHUNKS; i++) {
		if (!p->chunks[i].looked_for || ids_have(&m, p->chunks[i].map_id))
			continue;
		p->chunks[i].state = GONE;
		p->nr_lingering--;
		found = true;
	}
	pthread_mutex_unlock(&p->lock);
	free(m.ids);
	return found;
}

static void *reaper(void *arg)
{
	struct csf_pages *p = arg;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		if (!p->nr_lingering) {
			pthread_cond_wait(&p->lingering, &p->lock);
			continue;
		}
		wait_ms(p, &p->lingering, LINGER_MS);
		pthread_mutex_unlock(&p->lock);
		if (look_at_lingering(p))
			notify(p);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void init_locks(struct csf_pages *p)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->work, &attr);
	pthread_cond_init(&p->lingering, &attr);
	pthread_condattr_destroy(&attr);
}

static int start_threads(struct csf_pages *p)
{
	errno = pthread_create(&p->reaper, NULL, reaper, p);
	if (errno)
		return -1;
	while (p->nr_threads < NR_WORKERS) {
		errno = pthread_create(&p->workers[p->nr_threads], NULL, worker, p);
		if (errno)
			return -1;
		p->nr_threads++;
	}
	return 0;
}

static void stop_threads(struct csf_pages *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->work);
	pthread_cond_broadcast(&p->lingering);
	pthread_mutex_unlock(&p->lock);
	while (p->nr_threads)
		pthread_join(p->workers[--p->nr_threads], NULL);
	if (p->reaper)
		pthread_join(p->reaper, NULL);
}

static bool first_ready(struct csf_pages *p)
{
	unsigned int size;
	bool ready = true;

	pthread_mutex_lock(&p->lock);
	for (size = 0; size < CSF_NR_SIZES && ready; size++)
		ready = !add_chunk(p, size);
	pthread_mutex_unlock(&p->lock);
	return ready;
}

static void free_pages(struct csf_pages *p)
{
	size_t len = sizeof(*p->use) * CSF_MAX_CHUNKS;
	int i;

	for (i = 0; p->chunks && i < CSF_MAX_CHUNKS; i++)
		if (p->chunks[i].state >= READY && p->chunks[i].state < REMOVING)
			close(p->chunks[i].fd);
	if (p->use != MAP_FAILED)
		munmap(p->use, len);
	if (p->event_fd >= 0)
		close(p->event_fd);
	free(p->chunks);
	free(p);
}

struct csf_pages *csf_pages_start(const struct csf_pages_maps *maps)
{
	struct csf_pages *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	init_locks(p);
	p->maps = *maps;
	p->flags = CSF_F_TSC_CONSTANT | CSF_F_TSC_SYNCED;
	if (!access("/proc/self/io", F_OK))
		p->flags |= CSF_F_IO;
	p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->chunks = calloc(CSF_MAX_CHUNKS, sizeof(*p->chunks));
	p->use = mmap(NULL, sizeof(*p->use) * CSF_MAX_CHUNKS, PROT_READ | PROT_WRITE, MAP_SHARED,
		      maps->chunk_use_fd, 0);
	if (p->event_fd >= 0 && p->chunks && p->use != MAP_FAILED && first_ready(p) &&
	    !start_threads(p))
		return p;
	csf_pages_stop(p);
	return NULL;
}

void csf_pages_stop(struct csf_pages *p)
{
	int saved = errno;

	stop_threads(p);
	free_pages(p);
	errno = saved;
}

int csf_pages_event_fd(const struct csf_pages *p)
{
	return p->event_fd;
}

void csf_pages_event_clear(struct csf_pages *p)
{
	eventfd_t n;

	eventfd_read(p->event_fd, &n);
}

int csf_pages_take(struct csf_pages *p, unsigned int size)
{
	int i, found = -1;

	pthread_mutex_lock(&p->lock);
	for (i = 0; i < CSF_MAX_CHUNKS && p->nr_ready[size] && found < 0; i++)
		if (p->chunks[i].state == READY && p->chunks[i].size == size)
			found = i;
	if (found >= 0) {
		p->chunks[found].state = TAKEN;
		p->nr_ready[size]--;
	}
	pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
	return found;
}

int csf_pages_fd(const struct csf_pages *p, int chunk)
{
	return p->chunks[chunk].fd;
}

uint32_t csf_pages_free_slots(const struct csf_pages *p, int chunk)
{
	const struct csf_chunk *use = &p->use[chunk];
	uint32_t taken = 0;
	int i;

	for (i = 0; i < CSF_CHUNK_SLOTS_MAX / 64; i++)
		taken += __builtin_popcountll(__atomic_load_n(&use->used[i], __ATOMIC_RELAXED));
	return use->nr_slots - taken;
}

void csf_pages_retire(struct csf_pages *p, int chunk)
{
	pthread_mutex_lock(&p->lock);
	p->chunks[chunk].state = RETIRED;
	p->nr_retired++;
	pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
}

int csf_pages_gone(struct csf_pages *p)
{
	int found;

	pthread_mutex_lock(&p->lock);
	found = next_in_state(p, GONE);
	if (found >= 0)
		p->chunks[found].state = UNUSED;
	pthread_mutex_unlock(&p->lock);
	return found;
}
