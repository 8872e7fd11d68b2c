/* Preloaded: a file system on which allocating space takes SLOW_DISK_MS milliseconds from SLOW_DISK_FROM bytes on, and
 * fails SLOW_DISK_FAILS times once SLOW_DISK_ROOM bytes are used. Its requests are logged to SLOW_DISK_LOG. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long requests, failed, first, last;

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

/* The number of failed requests, and the milliseconds between the first and the last of them. */
__attribute__((destructor)) static void report(void) {
    const char *path = getenv("SLOW_DISK_LOG");
    FILE *log = path ? fopen(path, "w") : NULL;
    if (!log) return;
    fprintf(log, "%ld %ld", failed, last - first);
    fclose(log);
}
