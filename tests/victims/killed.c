/* Children allocate and free, note every call before and after it in a shared page that outlives them, and are killed at a
 * random instant: killed KILLS THREADS FOLDER leaves FOLDER/PID.calls for every child. With the path of a stand-in for libc10_cuda
 * behind the folder, they are tensors. */
#include "victim.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { EVENTS = 2000, MOST_THREADS = 8 };
enum progress { NOT_STARTED, ALLOCATING, LIVE, FREEING, FREED };

/* A thread's note on one allocation. The size is unique, so it identifies the allocation before it has an address. */
struct allocation { uint64_t progress, bytes, address; };
struct thread_page { struct allocation all[EVENTS]; };
static struct thread_page *page;
static CUcontext context;

/* The allocator's blocks, by number; of memory of the driver, the address alone. */
static struct { void *(*malloc)(size_t); void (*free)(void *); CUdeviceptr (*address)(void *); } torch;
static void *blocks[MOST_THREADS][EVENTS];

static void load_torch(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    *(void **)&torch.malloc = dlsym(library, "stand_in_malloc");
    *(void **)&torch.free = dlsym(library, "stand_in_free");
    *(void **)&torch.address = dlsym(library, "stand_in_address");
    REQUIRE(torch.malloc && torch.free && torch.address);
}

static CUdeviceptr take(uint64_t bytes, void **block) {
    CUdeviceptr address;
    if (torch.malloc) {
        REQUIRE(*block = torch.malloc(bytes));
        return torch.address(*block);
    }
    OK(cuMemAlloc_v2(&address, bytes));
    return address;
}

static void give_back(CUdeviceptr address, void *block) {
    if (block) torch.free(block);
    else OK(cuMemFree_v2(address));
}

static void note(struct allocation *one, enum progress what) { __atomic_store_n(&one->progress, what, __ATOMIC_SEQ_CST); }

static void *work(void *number) {
    struct allocation *all = page[(size_t)number].all;
    void **block = blocks[(size_t)number];
    /* Tensors have multiples of 512 bytes. */
    uint64_t first = torch.malloc ? 512 * EVENTS * (uint64_t)(size_t)number : (uint64_t)(size_t)number << 20;
    unsigned random = (unsigned)getpid() * 31 + (unsigned)(size_t)number;
    OK(cuCtxSetCurrent(context));
    for (int made = 0; made < EVENTS;) {
        random = random * 1664525 + 1013904223;
        /* One of the last few, so that some stay live. */
        int other = made - 1 - (int)(random >> 8) % 16;
        if (random >> 31 && other >= 0 && all[other].progress == LIVE) {
            note(&all[other], FREEING);
            give_back(all[other].address, block[other]);
            note(&all[other], FREED);
        } else {
            struct allocation *one = &all[made++];
            one->bytes = first + (uint64_t)made * (torch.malloc ? 512 : 1);
            note(one, ALLOCATING);
            one->address = take(one->bytes, &block[made - 1]);
            note(one, LIVE);
        }
    }
    for (;;) pause();
}

static void spend(unsigned long nanoseconds) {
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((unsigned long)((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec) < nanoseconds);
}

static void child(int threads) {
    context = start_cuda();
    if (arguments[3]) load_torch(arguments[3]);
    pthread_t thread;
    for (int i = 1; i < threads; i++) REQUIRE(!pthread_create(&thread, NULL, work, (void *)(size_t)i));
    work(NULL);
}

static void killed(void) {
    int kills = atoi(arguments[0]), threads = atoi(arguments[1]);
    unsigned random = 12345;
    REQUIRE(threads <= MOST_THREADS);
    for (int i = 0; i < kills; i++) {
        char name[4096], page_name[4200];
        snprintf(name, sizeof name, "%s/next", arguments[2]);
        int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        REQUIRE(file >= 0 && !ftruncate(file, (off_t)sizeof *page * threads));
        page = mmap(NULL, sizeof *page * threads, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        REQUIRE(page != MAP_FAILED);
        pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (!pid) child(threads);
        /* Every eighth child is killed early, while its recording is created; the others after a first allocation. */
        if (i % 8)
            while (__atomic_load_n(&page->all[0].progress, __ATOMIC_SEQ_CST) < LIVE) usleep(50);
        random = random * 1664525 + 1013904223;
        spend(random >> 12);
        REQUIRE(!kill(pid, SIGKILL));
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        snprintf(page_name, sizeof page_name, "%s/%d.calls", arguments[2], pid);
        REQUIRE(!munmap(page, sizeof *page * threads) && !close(file) && !rename(name, page_name));
    }
}

MAIN(BEHAVIOUR(killed))
