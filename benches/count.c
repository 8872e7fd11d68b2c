/* The number of instructions of one allocation and one free of memory, of a block that PyTorch's allocator reports, of objects and
 * of segments, of a request at ioctl that is not recorded, of a reading of the clock, which is the kernel's code, of an allocation
 * whose stack is one of hundreds in turn, and of one whose stack is new; how many of the instructions are locked, or system
 * calls; and how many lines of 64 bytes of culeak's code are executed: figures that do not depend on the load of the machine. Linked with a driver that does nothing (tests/victims/tiny_driver.c with -DANSWERS_IOCTL) and
 * a libc10_cuda that only reports (tests/victims/tiny_c10_cuda.c); x86-64 only.
 *
 *   count FRAMES
 *
 * That driver makes culeak take /dev/null for NVIDIA's device. A child calls everything at the end of a stack of FRAMES frames
 * until all is warm; then the parent steps through ten calls of each and prints the means, including this program and the driver,
 * and the number of different lines in all ten. */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "segment.h"

typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuStreamCreate(address *, unsigned);
int cuStreamDestroy_v2(address);
int cuEventCreate(address *, unsigned);
int cuEventDestroy_v2(address);
void tiny_report(address, int64_t change, size_t live, size_t reserved, uint64_t device);

enum { ROUNDS = 300, KEPT = 64, COUNTED = 10 };
static volatile int sink;
static address kept[KEPT];
static struct timespec now;

/* Calls from one line each: another line would be another stack. */
#define PAIR(name, get, give)                                           \
    __attribute__((noinline)) static void get_##name(int i, int mark) {  \
        if (mark) __asm__ volatile("int3");                              \
        get;                                                             \
        sink = i;                                                        \
    }                                                                    \
    __attribute__((noinline)) static void give_##name(int i, int mark) { \
        if (mark) __asm__ volatile("int3");                              \
        give;                                                            \
        sink = i;                                                        \
    }
PAIR(memory, cuMemAlloc_v2(&kept[i], 512), cuMemFree_v2(kept[i]))
enum { CUDA = 1 };
static size_t live;
PAIR(tensor, tiny_report(0x600000000000 + 512 * i, 512, live += 512, 1 << 20, CUDA), tiny_report(0x600000000000 + 512 * i, -512, live -= 512, 1 << 20, CUDA))
PAIR(stream, cuStreamCreate(&kept[i], 1), cuStreamDestroy_v2(kept[i]))
PAIR(event, cuEventCreate(&kept[i], 2), cuEventDestroy_v2(kept[i]))
PAIR(segment, request(DEVICE, FIRST + i, CLASS_MEMORY, 2 << 20), release(FIRST + i))
PAIR(clock, clock_gettime(CLOCK_MONOTONIC, &now), clock_gettime(CLOCK_MONOTONIC, &now))

/* Another stack for each number: one of two functions by each of its bits. */
enum { BITS = 15 };
static unsigned number;
static void descend(unsigned bits, int i, int left);
#define CALLS(name)                                                                      \
    __attribute__((noinline, noclone)) static void name(unsigned bits, int i, int left) { \
        descend(bits, i, left);                                                          \
        sink++; /* no tail call */                                                       \
    }
CALLS(one)
CALLS(other)
__attribute__((always_inline)) static inline void descend(unsigned bits, int i, int left) {
    if (left == 0) cuMemAlloc_v2(&kept[i], 512);
    else (bits & 1 ? one : other)(bits >> 1, i, left - 1);
}
PAIR(new, descend(number++, i, BITS), cuMemFree_v2(kept[i]))
/* As in a training step: each of some hundred stacks in turn. */
enum { ALTERNATING = 240 };
static unsigned turn;
PAIR(alternating, descend(turn++ % ALTERNATING, i, BITS), cuMemFree_v2(kept[i]))
PAIR(other, ioctl(file, 0x5401, 0), ioctl(file, 0x30000001, 0))

static const struct {
    const char *names[2];
    void (*get)(int, int), (*give)(int, int);
} pairs[] = {
    {{"allocation", "free"}, get_memory, give_memory},
    {{"tensor", "free of a tensor"}, get_tensor, give_tensor},
    {{"stream", "destruction of a stream"}, get_stream, give_stream},
    {{"event", "destruction of an event"}, get_event, give_event},
    {{"segment", "free of a segment"}, get_segment, give_segment},
    {{"other request", "another one"}, get_other, give_other},
    {{"clock", "the clock again"}, get_clock, give_clock},
    {{"new stack", "free of its block"}, get_new, give_new},
    {{"one stack of hundreds", "its free"}, get_alternating, give_alternating},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };
_Static_assert(ROUNDS * KEPT <= 1 << BITS, "a stack for each call");

/* Volatile, or the compiler makes a loop of its own, with other call sites, of the last round. */
static volatile int last_round = ROUNDS - 1;

static int is_marked(int round, int i) { return round == last_round && (i == COUNTED || i == 2 * COUNTED); }

__attribute__((noinline)) static void deep(int left) {
    if (left > 0) {
        deep(left - 1);
        sink++; /* no tail call */
        return;
    }
    for (int pair = 0; pair < PAIRS; pair++)
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < KEPT; i++) pairs[pair].get(i, is_marked(round, i));
            for (int i = 0; i < KEPT; i++) pairs[pair].give(i, is_marked(round, i));
        }
}

/* The lock prefix, or an exchange with memory, which is always locked. */
static int is_locked(const unsigned char *code) {
    int at = 0, locked = 0;
    while (code[at] == 0xf0 || code[at] == 0xf2 || code[at] == 0xf3 || code[at] == 0x66 || code[at] == 0x2e || code[at] == 0x64)
        locked |= code[at++] == 0xf0;
    if ((code[at] & 0xf0) == 0x40) at++;
    return locked || ((code[at] == 0x86 || code[at] == 0x87) && code[at + 1] >> 6 != 3);
}

/* culeak's code, which the child has at the same addresses, and which of its lines were executed; empty without culeak. */
enum { LINE = 64, LINES = 1 << 18 };
static uint64_t code_start, code_end;
static char executed[LINES];

static void find_code(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    for (char line[4096]; maps && fgets(line, sizeof line, maps);)
        if (strstr(line, " r-xp ") && strstr(line, "/libculeak")) sscanf(line, "%lx-%lx", &code_start, &code_end);
    if (!maps || fclose(maps) || code_end - code_start > LINES * LINE) exit(1);
}

static void count(pid_t child, const char *what) {
    long steps = 0, locked = 0, calls = 0, lines = 0;
    memset(executed, 0, sizeof executed);
    for (int status;;) {
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        long code[2] = {ptrace(PTRACE_PEEKTEXT, child, registers.rip, 0), ptrace(PTRACE_PEEKTEXT, child, registers.rip + 8, 0)};
        if (*(unsigned char *)code == 0xcc) break;
        steps++;
        locked += is_locked((unsigned char *)code);
        calls += (uint16_t)code[0] == 0x050f; /* syscall */
        if (registers.rip >= code_start && registers.rip < code_end) {
            char *line = &executed[(registers.rip - code_start) / LINE];
            lines += !*line;
            *line = 1;
        }
        ptrace(PTRACE_SINGLESTEP, child, 0, 0);
        if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) exit(1);
    }
    const double each = COUNTED;
    printf("%s: %.1f instructions, %.1f locked, %.1f system calls, %ld lines of code\n", what, steps / each, locked / each, calls / each, lines);
}

static void go_on(pid_t child) {
    int status;
    ptrace(PTRACE_CONT, child, 0, 0);
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) exit(1);
}

int main(int arguments, char **argument) {
    int frames = arguments > 1 ? atoi(argument[1]) : 20;
    find_code();
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) {
            perror("count: it may not trace its child, so it cannot count instructions: ptrace");
            _exit(1);
        }
        raise(SIGSTOP);
        cuInit(0);
        open_device();
        request(DEVICE, FIRST + KEPT, CLASS_MEMORY, 2 << 20);
        duplicate(FIRST + KEPT + 1, FIRST + KEPT); /* which the free of other memory does not look for */
        deep(frames - 5);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 1;
    for (int i = 0; i < 2 * PAIRS; i++) {
        go_on(child);
        count(child, pairs[i / 2].names[i % 2]);
        go_on(child); /* past the mark at which it stopped */
    }
    kill(child, SIGKILL);
    return 0;
}
