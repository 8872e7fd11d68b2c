/* Allocates from code that it generates, which it names as just-in-time compilers do: `map` in /tmp/perf-PID.map, `dump` in
 * jit-PID.dump in the working folder, mapped as code. With a second argument it then waits for the end of its input. */
#include "victim.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>

#define NAME "instance void [App] Trainer::Step(int32)[Tier1]"

typedef CUresult call(CUresult (*)(CUdeviceptr *, size_t), CUdeviceptr *, size_t);

/* A frame of its own, which calls its first argument with the other two. */
static const unsigned char CODE[] = {
#ifdef __aarch64__
    0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0xe8, 0x03, 0x00, 0xaa, 0xe0, 0x03, 0x01, 0xaa,
    0xe1, 0x03, 0x02, 0xaa, 0x00, 0x01, 0x3f, 0xd6, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6,
#else
    0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0xff, 0xd0, 0x5d, 0xc3,
#endif
};

static void allocate(void (*write_names)(FILE *, char *)) {
    char *code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), path[64];
    REQUIRE(code != MAP_FAILED);
    memcpy(code, CODE, sizeof CODE);
    REQUIRE(!mprotect(code, 4096, PROT_READ | PROT_EXEC));
    __builtin___clear_cache(code, code + sizeof CODE);
    write_names(NULL, path);
    FILE *names = fopen(path, "w+");
    REQUIRE(names);
    write_names(names, code);
    REQUIRE(!fflush(names));
    if (path[0] != '/') REQUIRE(mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(names), 0) != MAP_FAILED);
    start_cuda();
    CUdeviceptr memory;
    call *step;
    memcpy(&step, &code, sizeof step);
    OK(step(cuMemAlloc_v2, &memory, 3 << 20));
    if (arguments[0]) {
        printf("%d\n", getpid());
        fflush(stdout);
        getchar();
    }
}

static void map_of(FILE *file, char *code) {
    if (!file)
        sprintf(code, "/tmp/perf-%d.map", getpid());
    else
        fprintf(file, "%lx %zx stub\n%lx %zx " NAME "\n", (long)code, sizeof CODE, (long)code, sizeof CODE);
}

static void dump_of(FILE *file, char *code) {
    if (!file) {
        sprintf(code, "jit-%d.dump", getpid());
        return;
    }
    uint32_t header[10] = {0x4a695444, 1, 40, 0, 0, getpid()};
    uint32_t prefix[4] = {0, 16 + 40 + sizeof NAME + sizeof CODE};
    uint64_t load[5] = {getpid(), (uintptr_t)code, (uintptr_t)code, sizeof CODE, 1};
    fwrite(header, sizeof header, 1, file);
    fwrite(prefix, sizeof prefix, 1, file);
    fwrite(load, sizeof load, 1, file);
    fwrite(NAME, sizeof NAME, 1, file);
    fwrite(CODE, sizeof CODE, 1, file);
}

static void map(void) { allocate(map_of); }
static void dump(void) { allocate(dump_of); }

MAIN(BEHAVIOUR(map), BEHAVIOUR(dump))
