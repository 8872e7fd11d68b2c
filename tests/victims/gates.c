/* Programs for gates: what they hold is known at each mark and at the end. */
#include "victim.h"
#include "../../shim/include/culeak.h"

static NOINLINE CUdeviceptr keep(size_t bytes) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc_v2(&address, bytes));
    STAY();
    return address;
}

static NOINLINE CUdeviceptr work(size_t bytes) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc_v2(&address, bytes));
    STAY();
    return address;
}

CUdeviceptr kept[8];

/* rounds <n>: keeps 4 MiB at each of two call sites, in a global; at each of n marks "m" another MiB is held, which is freed afterwards. */
static void rounds(void) {
    start_cuda();
    for (int i = 0; i < 4; i++) kept[2 * i] = keep(1 << 20), kept[2 * i + 1] = work(1 << 20);
    for (int round = 0; round < atoi(arguments[0]); round++) {
        CUdeviceptr block = work(1 << 20);
        culeak_mark("m");
        OK(cuMemFree_v2(block));
    }
}

/* highest <n>: 500 MiB are held at the first mark "m" and 1 MiB at three more; n allocations follow each of them. */
static void highest(void) {
    start_cuda();
    for (int round = 0; round < 4; round++) {
        CUdeviceptr block = keep(round ? 1 << 20 : 500 << 20);
        culeak_mark("m");
        OK(cuMemFree_v2(block));
        for (int i = 0; i < atoi(arguments[0]); i++) OK(cuMemFree_v2(work(4096)));
    }
}

/* Blocks of 1 MiB in no time, each freed. */
static void many_short(int blocks) {
    start_cuda();
    for (int i = 0; i < blocks; i++) OK(cuMemFree_v2(work(1 << 20)));
}

/* burst <n>: n short blocks, then 15,000 leaks of 4 KiB. */
static void burst(void) {
    many_short(atoi(arguments[0]));
    for (int i = 0; i < 15000; i++) keep(4096);
}

/* limited <n>: 50,000 short blocks, then `rounds`. */
static void limited(void) {
    many_short(50000);
    rounds();
}

/* marks <n>: 500 MiB are held at the last of n marks "m". */
static void marks(void) {
    start_cuda();
    CUdeviceptr small = keep(4096);
    for (int i = 1; i < atoi(arguments[0]); i++) culeak_mark("m");
    CUdeviceptr large = keep(500 << 20);
    culeak_mark("m");
    OK(cuMemFree_v2(large));
    OK(cuMemFree_v2(small));
}

/* many: three blocks of 1 MiB are held at the first mark "m", one of 500 MiB at the second. */
static void many(void) {
    start_cuda();
    CUdeviceptr small[3];
    for (int i = 0; i < 3; i++) small[i] = work(1 << 20);
    culeak_mark("m");
    for (int i = 0; i < 3; i++) OK(cuMemFree_v2(small[i]));
    CUdeviceptr large = keep(500 << 20);
    culeak_mark("m");
    OK(cuMemFree_v2(large));
}

MAIN(BEHAVIOUR(many), BEHAVIOUR(rounds), BEHAVIOUR(highest), BEHAVIOUR(burst), BEHAVIOUR(limited), BEHAVIOUR(marks))
