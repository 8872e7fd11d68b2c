/* A program without CUDA that calls each function which the preload library replaces for such programs as well, in a sandbox that
   permits what the program itself needs and kills it for anything else.

   PLUGIN: a library that the program closes. ANSWERS: a preload behind the preload library, which plays a device of requests that
   have the same numbers as those of NVIDIA's driver, and succeed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICE (-78)

#ifdef PLUGIN
int plugin(void) { return 1; }
#elif defined ANSWERS
int ioctl(int file, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    return file == DEVICE ? 0 : (int)syscall(SYS_ioctl, file, request, argument);
}
#else
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int enter(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_ioctl), ALLOW(SYS_write), ALLOW(SYS_munmap), ALLOW(SYS_rt_sigaction), ALLOW(SYS_rt_sigprocmask),
        ALLOW(SYS_clone), ALLOW(SYS_set_robust_list), ALLOW(SYS_wait4), ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(9);
}

/* Requests by which NVIDIA's driver allocates, frees, duplicates, obtains memory otherwise, and makes another request, each with an argument of the right
   size and of another. */
static void request(int file) {
    static const unsigned numbers[] = {0x2b, 0x29, 0x34, 0x4a, 0xd3}, sizes[] = {16, 28, 32, 48, 184, 24};
    unsigned *heap = calloc(64, 4), stack[64] = {0};
    for (unsigned n = 0; n < 5; n++)
        for (unsigned s = 0; s < 6; s++) {
            unsigned long request = 3ul << 30 | sizes[s] << 16 | 'F' << 8 | numbers[n];
            ioctl(file, request, heap);
            ioctl(file, request, stack);
            ioctl(-1, request, heap);
            ioctl(DEVICE, request, heap);
            ioctl(DEVICE, request, stack);
        }
    say("requests\n");
}

int main(int count, char **words) {
    int file = open("/dev/null", O_RDWR);
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : 0;
    void *again = library ? dlopen(words[1], RTLD_NOW) : 0;
    if (file < 0 || !library || !again || enter()) return 3;
    request(file);
    if (!dlsym(RTLD_DEFAULT, "write") || dlsym(RTLD_DEFAULT, "curl_easy_init") || dlsym(library, "no_such_name")) return 4;
    if (!dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5") && !dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.17")) return 5;
    say("look-ups\n");
    /* The first call leaves it loaded. */
    if (dlclose(again) || dlclose(library)) return 6;
    say("closed\n");
    struct sigaction action = {.sa_handler = SIG_IGN};
    if (sigaction(SIGUSR1, &action, 0)) return 7;
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        request(file);
        exit(0);
    }
    if (waitpid(child, &status, 0) != child || status) return 8;
    say("forked\n");
    if (count > 2) _exit(0);
    return 0;
}
#endif
