/* The number of instructions of one allocation and one free, and how many of them are locked: figures that do not depend on
 * the load of the machine. Linked with a driver that does nothing; x86-64 only.
 *
 *   count FRAMES
 *
 * A child allocates and frees blocks at the end of a stack of FRAMES frames until everything is warm; then the parent steps
 * through ten allocations and ten frees and prints the means, including this program and the driver. */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t address;
int cuInit(unsigned);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);

enum { ROUNDS = 300, KEPT = 64, COUNTED = 10 };
static volatile int sink;

/* Calls from one line each: another line would be another stack. */
__attribute__((noinline)) static void get(address *block, int mark) {
    if (mark) __asm__ volatile("int3");
    cuMemAlloc_v2(block, 512);
    sink++;
}
__attribute__((noinline)) static void give(address block, int mark) {
    if (mark) __asm__ volatile("int3");
    cuMemFree_v2(block);
    sink++;
}

__attribute__((noinline)) static void deep(int left) {
    if (left > 0) {
        deep(left - 1);
        sink++; /* no tail call */
        return;
    }
    address blocks[KEPT];
    for (int round = 0; round < ROUNDS; round++) {
        int last = round == ROUNDS - 1;
        for (int i = 0; i < KEPT; i++) get(&blocks[i], last && (i == COUNTED || i == 2 * COUNTED));
        for (int i = 0; i < KEPT; i++) give(blocks[i], last && (i == COUNTED || i == 2 * COUNTED));
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

static void count(pid_t child, const char *what) {
    long steps = 0, locked = 0;
    for (int status;;) {
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        long code[2] = {ptrace(PTRACE_PEEKTEXT, child, registers.rip, 0), ptrace(PTRACE_PEEKTEXT, child, registers.rip + 8, 0)};
        if (*(unsigned char *)code == 0xcc) break;
        steps++;
        locked += is_locked((unsigned char *)code);
        ptrace(PTRACE_SINGLESTEP, child, 0, 0);
        if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) exit(1);
    }
    printf("%s: %.1f instructions, %.1f locked\n", what, (double)steps / COUNTED, (double)locked / COUNTED);
}

static void go_on(pid_t child) {
    int status;
    ptrace(PTRACE_CONT, child, 0, 0);
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) exit(1);
}

int main(int arguments, char **argument) {
    int frames = arguments > 1 ? atoi(argument[1]) : 20;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        cuInit(0);
        deep(frames - 5);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    go_on(child);
    count(child, "allocation");
    go_on(child); /* past the mark at which it stopped */
    go_on(child);
    count(child, "free");
    kill(child, SIGKILL);
    return 0;
}
