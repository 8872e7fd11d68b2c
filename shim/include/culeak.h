/* culeak.h: tells culeak what it cannot see by itself. One file, C or C++, nothing to link.
 *
 *   culeak_alloc("my cache", address, bytes, stream)   a block was handed out of memory that the allocator already holds
 *   culeak_free("my cache", address)                   it was taken back
 *   culeak_mark("epoch 3")                             this moment has a name
 *   culeak_snapshot("after warm-up")                   keep a snapshot of this moment on disk, beside the recording
 *   culeak_interval_begin("test 7", 0)                 measure from here: what is left in the end, and how high it rose
 *
 * Without culeak (`culeak run`, or LD_PRELOAD) each of them is a test of a pointer and nothing else. They may be called
 * from any thread, under any lock, in a signal handler and in a forked child; they never wait and never call CUDA but for
 * the current context. Strings are copied. Addresses are never followed.
 *
 * A domain is the allocator's name. Each has its own blocks, so one allocator may hand out parts of another's. A block
 * counts for the device that is current in the calling thread, as with cudaMalloc. Blocks are parts of memory that CUDA
 * handed out: they are shown at a level of their own and never added to it.
 *
 * Intervals are for harnesses that judge a program piece by piece, and are measured only where CULEAK_INTERVALS=1 was in the
 * environment when the recording began. An interval counts what was allocated in it, and each byte once: tensors of
 * PyTorch, not the segments it keeps for them; of all others what the driver handed out. One at a time: the last begun
 * counts. It is a mark, too: `culeak check PID --since "test 7"` judges what was allocated since and is still there.
 * With a limit other than 0, a snapshot is kept of the moment when all devices together needed more.
 *
 *   unsigned test = culeak_interval_begin("test 7", 0);
 *   ...
 *   struct culeak_interval all;
 *   if (culeak_interval_read(test, -1, &all)) printf("left %llu, needed %llu\n", all.left_bytes, all.peak_bytes);
 *
 * The same from Python, where the names are there only under culeak:
 *
 *   import ctypes
 *   culeak = ctypes.CDLL(None)
 *   if hasattr(culeak, "culeak_mark"):
 *       culeak.culeak_mark(b"epoch 3")
 */
#ifndef CULEAK_H
#define CULEAK_H

#include <stddef.h>

/* Bytes in use, as an interval sees them. */
struct culeak_interval {
    unsigned long long left_bytes; /* allocated in the interval and not freed */
    unsigned long long left_count; /* in so many blocks */
    unsigned long long peak_bytes; /* the most that left_bytes ever was: exact */
    unsigned long long held_bytes; /* in use now, whenever it was allocated */
};

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__PIC__) || defined(__PIE__)

/* Weak: a name that nobody defines has the address 0. */
__attribute__((weak)) void culeak_alloc(const char *domain, const void *address, size_t bytes, void *stream);
__attribute__((weak)) void culeak_free(const char *domain, const void *address);
__attribute__((weak)) void culeak_mark(const char *name);
__attribute__((weak)) void culeak_snapshot(const char *name);
/* The interval's number; 0 where none is measured. */
__attribute__((weak)) unsigned culeak_interval_begin(const char *name, unsigned long long limit);
/* Of a device; -1: of all together, -2: of the host's page-locked memory. 1, or 0 when there is nothing to say: another
 * interval has begun, or no memory of that device was ever seen. */
__attribute__((weak)) int culeak_interval_read(unsigned number, int device, struct culeak_interval *out);

/* In its own expansion a macro's name is not expanded again, so these call the functions. */
#define culeak_alloc(domain, address, bytes, stream) \
    (culeak_alloc ? culeak_alloc((domain), (address), (bytes), (stream)) : (void)0)
#define culeak_free(domain, address) (culeak_free ? culeak_free((domain), (address)) : (void)0)
#define culeak_mark(name) (culeak_mark ? culeak_mark(name) : (void)0)
#define culeak_snapshot(name) (culeak_snapshot ? culeak_snapshot(name) : (void)0)
#define culeak_interval_begin(name, limit) (culeak_interval_begin ? culeak_interval_begin((name), (limit)) : 0u)
#define culeak_interval_read(number, device, out) \
    (culeak_interval_read ? culeak_interval_read((number), (device), (out)) : 0)

#else

/* In a program that is not position independent the linker has settled weak names at 0 for good: they are looked up. */
#include <dlfcn.h>

/* The handle 0 is RTLD_DEFAULT, which some headers hide. */
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

static inline void culeak_mark(const char *name) {
    void (*found)(const char *);
    *(void **)&found = culeak_find_("culeak_mark");
    if (found) found(name);
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
