/* culeak.h: reports to culeak what it cannot observe. One file, C or C++, nothing to link.
 *
 *   culeak_alloc("my cache", address, bytes, stream)   the allocator "my cache" has allocated a block
 *   culeak_free("my cache", address)                   it has freed the block
 *   culeak_alloc_pages("my cache", addresses, n, bytes, stream), culeak_free_pages("my cache", addresses, n)
 *                                                      n blocks at once, with one stack: faster than n calls
 *   culeak_pool_begin, culeak_owner_begin, culeak_set_pages, culeak_owner_end
 *                                                      how many pages of a pool are live, cached, waiting, free, and whose
 *   culeak_mark("epoch 3")                             a mark: a name for this point in time
 *   culeak_phase_begin("load"), culeak_phase_end(id)   a phase: a name for the time in between
 *   culeak_snapshot("after warm-up")                   save a snapshot beside the recording
 *   culeak_interval_begin("test 7", 0)                 measure from here on: bytes left, and their peak
 *
 * Without culeak (`culeak run`, or LD_PRELOAD) each call only tests a pointer. The functions may be called from any thread,
 * under any lock and in a forked child. They wait for no lock of their own, and call CUDA only to get the current context and
 * device; so a signal handler may call them unless it interrupts a call of CUDA, whose locks it would wait for. Strings are
 * copied. Addresses are never dereferenced.
 *
 * A domain is the name of an allocator. Each domain has its own blocks, so one allocator may hand out parts of another's
 * blocks. A block counts for the current device of the calling thread, as with cudaMalloc. Blocks are parts of memory that
 * CUDA allocated: reports list them separately and never add them to it.
 *
 * Addresses only identify blocks: an allocator of pages that are scattered over several tensors may pass numbers of its own,
 * below 2^56, instead.
 *
 * Pools of pages, as servers have for the KV cache, are reported by numbers of pages in each state, of the pool and of each owner
 * in it, such as a request. Both reports are independent of each other and of culeak_alloc_pages: report what the program knows.
 *
 *   unsigned long long pool = culeak_pool_begin("my engine", 2 << 20);        its pages have 2 MiB each
 *   unsigned long long request = culeak_owner_begin(pool, "request 17");
 *   culeak_set_pages(pool, &(struct culeak_pages){.live = 40, .reclaimable = 12, .free = 948});
 *   culeak_set_pages(request, &(struct culeak_pages){.live = 8});             whenever a number has changed
 *   ...
 *   culeak_owner_end(request);
 *
 * An owner that has ended and still has pages stays in the report, as "ended", until culeak_set_pages sets its pages to 0. At most
 * 4096 pools and owners are recorded at one time; others have the id 0, with which calls have no effect. Calls with one id must not
 * overlap, nor calls for an owner with the end of its pool.
 *
 * culeak_forward is for allocators that are two C functions, as torch.cuda.memory.CUDAPluggableAllocator takes them:
 *
 *   void *alloc(size_t bytes, int device, void *stream);
 *   void free(void *address, size_t bytes, int device, void *stream);
 *
 * It replaces the two addresses by those of functions that call them and record the blocks, for at most 8 allocators.
 *
 * Phases of one thread may nest, and a phase may end on another thread than it began:
 *
 *   unsigned long long load = culeak_phase_begin("load");
 *   ...
 *   culeak_phase_end(load);
 *
 * Intervals are for test harnesses. They are measured only if CULEAK_INTERVALS=1 was in the environment when the recording
 * started. An interval counts what was allocated in it, each byte once: tensors of PyTorch rather than the segments that
 * PyTorch caches for them, and of everything else what CUDA allocated. Only one interval is measured at a time, the last
 * one begun. Its start is a mark, too: `culeak check PID --since "test 7"` checks what was allocated since then and is
 * still live. If limit is not 0, a snapshot is taken when all devices together exceed it.
 *
 *   unsigned test = culeak_interval_begin("test 7", 0);
 *   ...
 *   struct culeak_interval all;
 *   if (culeak_interval_read(test, -1, &all)) printf("left %llu, needed %llu\n", all.left_bytes, all.peak_bytes);
 *
 * From Python, where the functions exist only under culeak:
 *
 *   import ctypes
 *   culeak = ctypes.CDLL(None)
 *   if hasattr(culeak, "culeak_mark"):
 *       culeak.culeak_mark(b"epoch 3")
 */
#ifndef CULEAK_H
#define CULEAK_H

#include <stddef.h>

/* What an interval measures of a device. */
struct culeak_interval {
    unsigned long long left_bytes; /* allocated in the interval and not freed */
    unsigned long long left_count; /* the number of allocations in left_bytes */
    unsigned long long peak_bytes; /* the exact maximum of left_bytes */
    unsigned long long held_bytes; /* live now, whenever it was allocated */
};

/* Numbers of pages by state. */
struct culeak_pages {
    unsigned long long live;        /* in use */
    unsigned long long reclaimable; /* kept by a cache alone, which gives them up when pages are needed */
    unsigned long long waiting;     /* kept until a transfer has ended */
    unsigned long long free;
};

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__PIC__) || defined(__PIE__)

/* Weak: without a definition the address is 0. */
__attribute__((weak)) void culeak_alloc(const char *domain, const void *address, size_t bytes, void *stream);
__attribute__((weak)) void culeak_free(const char *domain, const void *address);
__attribute__((weak)) void culeak_alloc_pages(const char *domain, const unsigned long long *addresses, size_t count,
                                              size_t bytes, void *stream);
__attribute__((weak)) void culeak_free_pages(const char *domain, const unsigned long long *addresses, size_t count);
/* Returns 1, or 0 and leaves the addresses as they are. */
__attribute__((weak)) int culeak_forward(const char *domain, void *functions[2]);
/* Returns the id of the pool; 0 if it is not recorded. */
__attribute__((weak)) unsigned long long culeak_pool_begin(const char *domain, size_t page_bytes);
/* Returns the id of the owner; 0 if it is not recorded. */
__attribute__((weak)) unsigned long long culeak_owner_begin(unsigned long long pool, const char *name);
/* The pages of an owner or of the whole pool. */
__attribute__((weak)) void culeak_set_pages(unsigned long long id, const struct culeak_pages *pages);
/* Ends an owner, or a pool with all its owners. */
__attribute__((weak)) void culeak_owner_end(unsigned long long id);
__attribute__((weak)) void culeak_mark(const char *name);
/* Returns the phase's id, for culeak_phase_end. */
__attribute__((weak)) unsigned long long culeak_phase_begin(const char *name);
__attribute__((weak)) void culeak_phase_end(unsigned long long id);
__attribute__((weak)) void culeak_snapshot(const char *name);
/* Returns the interval's number; 0 if intervals are not measured. */
__attribute__((weak)) unsigned culeak_interval_begin(const char *name, unsigned long long limit);
/* Reads the interval of one device; device -1: of all devices together, -2: of page-locked host memory. Returns 1, or 0 if
 * another interval has begun, no memory of that device was recorded, or an allocation of the interval could not be recorded. */
__attribute__((weak)) int culeak_interval_read(unsigned number, int device, struct culeak_interval *out);

/* A macro's name is not expanded again inside its expansion, so these call the functions. */
#define culeak_alloc(domain, address, bytes, stream) \
    (culeak_alloc ? culeak_alloc((domain), (address), (bytes), (stream)) : (void)0)
#define culeak_free(domain, address) (culeak_free ? culeak_free((domain), (address)) : (void)0)
#define culeak_alloc_pages(domain, addresses, count, bytes, stream) \
    (culeak_alloc_pages ? culeak_alloc_pages((domain), (addresses), (count), (bytes), (stream)) : (void)0)
#define culeak_free_pages(domain, addresses, count) \
    (culeak_free_pages ? culeak_free_pages((domain), (addresses), (count)) : (void)0)
#define culeak_forward(domain, functions) (culeak_forward ? culeak_forward((domain), (functions)) : 0)
#define culeak_pool_begin(domain, page_bytes) (culeak_pool_begin ? culeak_pool_begin((domain), (page_bytes)) : 0ull)
#define culeak_owner_begin(pool, name) (culeak_owner_begin ? culeak_owner_begin((pool), (name)) : 0ull)
/* The rest is one argument, which may be a compound literal. */
#define culeak_set_pages(id, ...) (culeak_set_pages ? culeak_set_pages((id), (__VA_ARGS__)) : (void)0)
#define culeak_owner_end(id) (culeak_owner_end ? culeak_owner_end((id)) : (void)0)
#define culeak_mark(name) (culeak_mark ? culeak_mark(name) : (void)0)
#define culeak_phase_begin(name) (culeak_phase_begin ? culeak_phase_begin((name)) : 0ull)
#define culeak_phase_end(id) (culeak_phase_end ? culeak_phase_end((id)) : (void)0)
#define culeak_snapshot(name) (culeak_snapshot ? culeak_snapshot(name) : (void)0)
#define culeak_interval_begin(name, limit) (culeak_interval_begin ? culeak_interval_begin((name), (limit)) : 0u)
#define culeak_interval_read(number, device, out) \
    (culeak_interval_read ? culeak_interval_read((number), (device), (out)) : 0)

#else

/* In a program that is not position independent the linker resolves weak names to 0, so they are looked up. */
#include <dlfcn.h>

/* The handle 0 is RTLD_DEFAULT, which some headers define only on request. */
static inline void *culeak_find_(const char *name) { return dlsym((void *)0, name); }

static inline void culeak_alloc(const char *domain, const void *address, size_t bytes, void *stream) {
    void (*found)(const char *, const void *, size_t, void *);
    *(void **)&found = culeak_find_("culeak_alloc");
    if (found) found(domain, address, bytes, stream);
}

static inline void culeak_free(const char *domain, const void *address) {
    void (*found)(const char *, const void *);
    *(void **)&found = culeak_find_("culeak_free");
    if (found) found(domain, address);
}

static inline void culeak_alloc_pages(const char *domain, const unsigned long long *addresses, size_t count, size_t bytes,
                                      void *stream) {
    void (*found)(const char *, const unsigned long long *, size_t, size_t, void *);
    *(void **)&found = culeak_find_("culeak_alloc_pages");
    if (found) found(domain, addresses, count, bytes, stream);
}

static inline void culeak_free_pages(const char *domain, const unsigned long long *addresses, size_t count) {
    void (*found)(const char *, const unsigned long long *, size_t);
    *(void **)&found = culeak_find_("culeak_free_pages");
    if (found) found(domain, addresses, count);
}

static inline int culeak_forward(const char *domain, void *functions[2]) {
    int (*found)(const char *, void *[2]);
    *(void **)&found = culeak_find_("culeak_forward");
    return found ? found(domain, functions) : 0;
}

static inline unsigned long long culeak_pool_begin(const char *domain, size_t page_bytes) {
    unsigned long long (*found)(const char *, size_t);
    *(void **)&found = culeak_find_("culeak_pool_begin");
    return found ? found(domain, page_bytes) : 0;
}

static inline unsigned long long culeak_owner_begin(unsigned long long pool, const char *name) {
    unsigned long long (*found)(unsigned long long, const char *);
    *(void **)&found = culeak_find_("culeak_owner_begin");
    return found ? found(pool, name) : 0;
}

static inline void culeak_set_pages(unsigned long long id, const struct culeak_pages *pages) {
    void (*found)(unsigned long long, const struct culeak_pages *);
    *(void **)&found = culeak_find_("culeak_set_pages");
    if (found) found(id, pages);
}

static inline void culeak_owner_end(unsigned long long id) {
    void (*found)(unsigned long long);
    *(void **)&found = culeak_find_("culeak_owner_end");
    if (found) found(id);
}

static inline void culeak_mark(const char *name) {
    void (*found)(const char *);
    *(void **)&found = culeak_find_("culeak_mark");
    if (found) found(name);
}

static inline unsigned long long culeak_phase_begin(const char *name) {
    unsigned long long (*found)(const char *);
    *(void **)&found = culeak_find_("culeak_phase_begin");
    return found ? found(name) : 0;
}

static inline void culeak_phase_end(unsigned long long id) {
    void (*found)(unsigned long long);
    *(void **)&found = culeak_find_("culeak_phase_end");
    if (found) found(id);
}

static inline void culeak_snapshot(const char *name) {
    void (*found)(const char *);
    *(void **)&found = culeak_find_("culeak_snapshot");
    if (found) found(name);
}

static inline unsigned culeak_interval_begin(const char *name, unsigned long long limit) {
    unsigned (*found)(const char *, unsigned long long);
    *(void **)&found = culeak_find_("culeak_interval_begin");
    return found ? found(name, limit) : 0;
}

static inline int culeak_interval_read(unsigned number, int device, struct culeak_interval *out) {
    int (*found)(unsigned, int, struct culeak_interval *);
    *(void **)&found = culeak_find_("culeak_interval_read");
    return found ? found(number, device, out) : 0;
}

#endif

#ifdef __cplusplus
}
#endif

#endif
