/* Preloaded: a file system on which allocating space takes SLOW_DISK_MS milliseconds from SLOW_DISK_FROM bytes on, and
 * fails SLOW_DISK_FAILS times once SLOW_DISK_ROOM bytes are used. Its requests are logged to SLOW_DISK_LOG, with how often the
 * program's mappings are listed. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long requests, failed, first, last, lists;

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* For the program: the number of requests. */
__attribute__((visibility("default"))) long slow_disk_requests(void) { return __atomic_load_n(&requests, __ATOMIC_RELAXED); }

__attribute__((visibility("default"))) int posix_fallocate(int fd, off_t offset, off_t length) {
    long wait = offset >= number("SLOW_DISK_FROM", 0) ? number("SLOW_DISK_MS", 0) : 0;
    struct timespec time = {wait / 1000, wait % 1000 * 1000000};
    while (wait && nanosleep(&time, &time)) {}
    __atomic_fetch_add(&requests, 1, __ATOMIC_RELAXED);
    if (offset + length > number("SLOW_DISK_ROOM", 1L << 60) && failed < number("SLOW_DISK_FAILS", 1L << 60)) {
        last = milliseconds();
        if (__atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED) == 0) first = last;
        return ENOSPC;
    }
    return syscall(SYS_fallocate, fd, 0, offset, length) ? errno : 0;
}

/* Opens any file, and counts /proc/self/maps. */
__attribute__((visibility("default"))) int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (!strcmp(path, "/proc/self/maps")) __atomic_fetch_add(&lists, 1, __ATOMIC_RELAXED);
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* The number of failed requests, the milliseconds between the first and the last of them, and the number of lists. */
__attribute__((destructor)) static void report(void) {
    const char *path = getenv("SLOW_DISK_LOG");
    FILE *log = path ? fopen(path, "w") : NULL;
    if (!log) return;
    fprintf(log, "%ld %ld %ld", failed, last - first, lists);
    fclose(log);
}
