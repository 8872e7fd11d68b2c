/* Has files of /dev/null's driver, whose major number is 1, pass for NVIDIA's, whose is 195. culeak asks the kernel by `syscall`, so a
   library in front of the C library's may answer. */
#pragma once
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

enum { MAJOR_OF_NULL = 1, MAJOR_OF_NVIDIA = 195 };

static inline long by_kernel(long number, long a, long b, long c, long d, long e, long f) {
#ifdef __x86_64__
    long result;
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

/* Another name in C: the declared one takes any number of arguments. */
__attribute__((visibility("default"))) long with_drivers_files(long, long, long, long, long, long, long) __asm__("syscall");

long with_drivers_files(long number, long a, long b, long c, long d, long e, long f) {
    long result = by_kernel(number, a, b, c, d, e, f);
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    struct stat *status = (struct stat *)b;
    if (number == SYS_fstat && S_ISCHR(status->st_mode) && major(status->st_rdev) == MAJOR_OF_NULL)
        status->st_rdev = makedev(MAJOR_OF_NVIDIA, minor(status->st_rdev));
    return result;
}
