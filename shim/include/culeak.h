/* culeak.h: tells culeak what it cannot see by itself. One file, C or C++, nothing to link.
 *
 *   culeak_alloc("my cache", address, bytes, stream)   a block was handed out of memory that the allocator already holds
 *   culeak_free("my cache", address)                   it was taken back
 *   culeak_mark("epoch 3")                             this moment has a name
 *   culeak_snapshot("after warm-up")                   keep a picture of this moment on disk, beside the recording
 *
 * Without culeak (`culeak run`, or LD_PRELOAD) each of them is a test of a pointer and nothing else. They may be called
 * from any thread, under any lock, in a signal handler and in a forked child; they never wait and never call CUDA but for
 * the current context. Strings are copied. Addresses are never followed.
 *
 * A domain is the allocator's name. Each has its own blocks, so one allocator may hand out parts of another's. A block
 * counts for the device that is current in the calling thread, as with cudaMalloc. Blocks are parts of memory that CUDA
 * handed out: they are shown at a level of their own and never added to it.
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

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__PIC__) || defined(__PIE__)

/* Weak: a name that nobody defines has the address 0. */
__attribute__((weak)) void culeak_alloc(const char *domain, const void *address, size_t bytes, void *stream);
__attribute__((weak)) void culeak_free(const char *domain, const void *address);
__attribute__((weak)) void culeak_mark(const char *name);
__attribute__((weak)) void culeak_snapshot(const char *name);

/* In its own expansion a macro's name is not expanded again, so these call the functions. */
#define culeak_alloc(domain, address, bytes, stream) \
    (culeak_alloc ? culeak_alloc((domain), (address), (bytes), (stream)) : (void)0)
#define culeak_free(domain, address) (culeak_free ? culeak_free((domain), (address)) : (void)0)
#define culeak_mark(name) (culeak_mark ? culeak_mark(name) : (void)0)
#define culeak_snapshot(name) (culeak_snapshot ? culeak_snapshot(name) : (void)0)

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

#endif

#ifdef __cplusplus
}
#endif

#endif
