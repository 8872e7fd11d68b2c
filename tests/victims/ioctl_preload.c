/* Another tool that interposes ioctl, of a common kind. It prints what reaches it for descriptor -77, and answers that itself with an
   error of its own; its constructor makes a call before other libraries are initialized. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef int function(int, unsigned long, void *);
static int calls;

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    calls++;
    if (fd == -77) {
        printf("preload: %#lx %p\n", request, argument);
        errno = 77;
        return -7;
    }
    static function *next;
    if (!next) next = (function *)dlsym(RTLD_NEXT, "ioctl");
    return next(fd, request, argument);
}

__attribute__((constructor)) static void start(void) {
    int ends[2], waiting = -1;
    if (pipe(ends) || write(ends[1], "four", 4) != 4) _exit(9);
    int result = ioctl(ends[0], FIONREAD, &waiting);
    printf("constructor: %d, %d bytes\n", result, waiting);
    close(ends[0]);
    close(ends[1]);
}

__attribute__((destructor)) static void report(void) { printf("preload: %d calls\n", calls); }
