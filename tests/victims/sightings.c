/* Allocates at each of 300 stacks, once and then again, and prints by how many KiB its private memory grew each time. */
#include "victim.h"

static volatile int sink;
static NOINLINE void descend(int number, int left);
static NOINLINE void one(int number, int left) { descend(number, left); sink++; }
static NOINLINE void other(int number, int left) { descend(number, left); sink++; }
static NOINLINE void descend(int number, int left) {
    if (left > 0) (number & 1 ? one : other)(number >> 1, left - 1);
    else leak(512);
    sink++;
}

static long private_kib(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    REQUIRE(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmData: %ld", &kib);
    fclose(status);
    return kib;
}

int main(void) {
    start_cuda();
    leak(512);
    for (int sighting = 0; sighting < 2; sighting++) {
        long before = private_kib();
        for (int number = 0; number < 300; number++) descend(number, 9);
        printf("%ld\n", private_kib() - before);
    }
    return 0;
}
