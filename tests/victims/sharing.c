/* Memory of another process: one exports, the other opens. Both run this program; the handle travels through a pipe. */
#include "victim.h"
#include <sys/wait.h>

/* Starts this program again as `behaviour`, with its stdin and stdout on pipes. */
static pid_t start(const char *behaviour, int *to, int *from) {
    int in[2], out[2];
    REQUIRE(!pipe(in) && !pipe(out));
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[0]), close(in[1]), close(out[0]), close(out[1]);
        execl("/proc/self/exe", "sharing", behaviour, (char *)NULL);
        _exit(9);
    }
    close(in[0]), close(out[1]);
    *to = in[1], *from = out[0];
    return child;
}

static void owner(void) {
    int to, from, status;
    char answer;
    pid_t child = start("opener", &to, &from);
    start_cuda();
    CUipcHandle handle;
    CUdeviceptr address = leak(4096);
    OK(cuIpcGetMemHandle(&handle, address));
    REQUIRE(cuIpcCloseMemHandle(address)); /* it is this process's own */
    REQUIRE(write(to, &handle, sizeof handle) == sizeof handle);
    REQUIRE(read(from, &answer, 1) == 1); /* the other process has opened it */
    close(to);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

/* Opens the handle twice, closes it once, then exits with one opening left. */
static void opener(void) {
    CUipcHandle handle;
    start_cuda();
    REQUIRE(read(0, &handle, sizeof handle) == sizeof handle);
    CUdeviceptr first, second;
    OK(cuIpcOpenMemHandle_v2(&first, handle, 1));
    OK(cuIpcOpenMemHandle_v2(&second, handle, 1));
    REQUIRE(first == second);
    REQUIRE(write(1, "o", 1) == 1);
    REQUIRE(read(0, &handle, 1) == 0);
    OK(cuIpcCloseMemHandle(first));
}

static void polite_owner(void) {
    int to, from, status;
    char answer;
    pid_t child = start("polite_opener", &to, &from);
    start_cuda();
    CUipcHandle handle;
    CUdeviceptr address = leak(4096);
    OK(cuIpcGetMemHandle(&handle, address));
    REQUIRE(write(to, &handle, sizeof handle) == sizeof handle);
    REQUIRE(read(from, &answer, 1) == 1);
    close(to);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    OK(cuMemFree_v2(address));
}

static void polite_opener(void) {
    CUipcHandle handle;
    start_cuda();
    REQUIRE(read(0, &handle, sizeof handle) == sizeof handle);
    CUdeviceptr address;
    OK(cuIpcOpenMemHandle(&address, handle, 1));
    REQUIRE(write(1, "o", 1) == 1);
    REQUIRE(read(0, &handle, 1) == 0);
    OK(cuIpcCloseMemHandle(address));
}

MAIN(BEHAVIOUR(owner), BEHAVIOUR(opener), BEHAVIOUR(polite_owner), BEHAVIOUR(polite_opener))
