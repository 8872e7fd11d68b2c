// Calls the driver with and without culeak in one process, by turns, so that both run on one core, with one heap and one
// clock speed. Single processes differ by up to 2x on a machine that others use too.
//
//   LD_PRELOAD="switch.so libculeak.so" program
//
// The program finds `switch_to` with dlsym and chooses a way for the calls that follow. Four functions of the driver and two
// of PyTorch go through the switch; a call takes about 2 ns more in each way. Blocks should be freed in the way in which
// they were allocated: else culeak misses one of the two events.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Ways of a call, in the order of step.py and cost.cu: straight to the driver; through culeak; straight after a function that
// does nothing; straight after the clock was read; through culeak, but backward passes go straight to PyTorch's engine.
enum way { BARE, RECORDED, EMPTY_HOOK, CLOCK_ONLY, RECORDED_WITHOUT_LINES };
static volatile enum way way = BARE;

static int is_recorded(void) { return way == RECORDED || way == RECORDED_WITHOUT_LINES; }

void switch_to(int chosen) { way = chosen; }

// ---- symbols, from the tables of the loaded objects: dlsym is culeak's ----

struct wanted {
    const char *object, *symbol;
    void *found;
};

static int look(struct dl_phdr_info *info, size_t size, void *argument) {
    struct wanted *wanted = argument;
    (void)size;
    if (!strstr(info->dlpi_name, wanted->object)) return 0;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *entry = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); entry->d_tag != DT_NULL; entry++) {
            // glibc has relocated these addresses.
            if (entry->d_tag == DT_SYMTAB) symbols = (void *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRTAB) strings = (void *)entry->d_un.d_ptr;
        }
    }
    if (!symbols || (const char *)symbols >= strings) return 0;
    // Linkers put the names behind the symbols.
    for (const ElfW(Sym) *symbol = symbols; (const char *)symbol < strings; symbol++) {
        if (symbol->st_shndx != SHN_UNDEF && symbol->st_value && strcmp(strings + symbol->st_name, wanted->symbol) == 0) {
            wanted->found = (void *)(info->dlpi_addr + symbol->st_value);
            return 1;
        }
    }
    return 0;
}

static void *defined_in(const char *object, const char *symbol) {
    struct wanted wanted = {object, symbol, NULL};
    dl_iterate_phdr(look, &wanted);
    return wanted.found;
}

static void *must(void *found, const char *what) {
    if (found) return found;
    fprintf(stderr, "switch.so: %s was not found\n", what);
    abort();
}

// ---- the ways ----

__attribute__((noinline)) static void nothing(void) { __asm__ volatile(""); }

static void before(void) {
    struct timespec time;
    if (way == EMPTY_HOOK) nothing();
    if (way == CLOCK_ONLY) clock_gettime(CLOCK_MONOTONIC, &time);
}

// NAME_entry goes to NAME_bare or NAME_recorded.
#define SWITCHED(name, parameters, arguments)                                                                                  \
    static int(*name##_bare) parameters, (*name##_recorded)parameters;                                                         \
    static int name##_entry parameters {                                                                                       \
        if (is_recorded()) return name##_recorded arguments;                                                                   \
        before();                                                                                                              \
        return name##_bare arguments;                                                                                          \
    }

SWITCHED(allocate, (uint64_t * address, size_t bytes), (address, bytes))
SWITCHED(release, (uint64_t address), (address))
SWITCHED(allocate_async, (uint64_t * address, size_t bytes, void *stream), (address, bytes, stream))
SWITCHED(release_async, (uint64_t address, void *stream), (address, stream))

static const struct {
    const char *symbol;
    void **bare, **recorded, *entry;
} functions[] = {
#define LISTED(symbol, name) {symbol, (void **)&name##_bare, (void **)&name##_recorded, (void *)name##_entry}
    LISTED("cuMemAlloc", allocate),
    LISTED("cuMemFree", release),
    LISTED("cuMemAllocAsync", allocate_async),
    LISTED("cuMemFreeAsync", release_async),
};

// ---- how a CUDA runtime finds the driver's functions ----

typedef int GetProcAddress(const char *symbol, void **function, int version, uint64_t flags, void *status);
static GetProcAddress *recorded_look_up, *bare_look_up;

static int get_proc_address(const char *symbol, void **function, int version, uint64_t flags, void *status) {
    int result = recorded_look_up(symbol, function, version, flags, status);
    if (result != 0 || !function || !*function) return result;
    // Since CUDA 12 this function has the five parameters above.
    if (strcmp(symbol, "cuGetProcAddress") == 0 && version >= 12000) {
        *function = (void *)get_proc_address;
        return result;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *bare;
        if (strcmp(symbol, functions[i].symbol) != 0) continue;
        if (bare_look_up(symbol, &bare, version, flags, status) != 0) return result;
        // The first answer counts; a request for another version or another default stream stays without a switch.
        if (*functions[i].bare && *functions[i].bare != bare) continue;
        *functions[i].bare = bare;
        *functions[i].recorded = *function;
        *function = functions[i].entry;
    }
    return result;
}

void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (!next) {
        void *recorder = defined_in("libculeak", "dlsym");
        next = recorder ? recorder : must(defined_in("libc.so", "dlsym"), "dlsym");
    }
    if (strcmp(name, "cuGetProcAddress") == 0 || strcmp(name, "cuGetProcAddress_v2") == 0) {
        void *found = next(handle, name), *bare = defined_in("libcuda.so", name);
        if (!found || !bare) return found;
        recorded_look_up = (GetProcAddress *)found;
        bare_look_up = (GetProcAddress *)bare;
        return (void *)get_proc_address;
    }
    return next(handle, name);
}

// ---- PyTorch informs its profiler of each block through this function, which is how culeak sees tensors ----

typedef void Usage(void *block, int64_t change, size_t live, size_t reserved, uint64_t device);
#define USAGE "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
void usage(void *block, int64_t change, size_t live, size_t reserved, uint64_t device) __asm__(USAGE);

void usage(void *block, int64_t change, size_t live, size_t reserved, uint64_t device) {
    static Usage *bare, *recorded;
    if (!bare) {
        bare = must(defined_in("libc10.so", USAGE), USAGE);
        recorded = defined_in("libculeak", USAGE);
    }
    if (is_recorded() && recorded) {
        recorded(block, change, live, reserved, device);
    } else {
        before();
        bare(block, change, live, reserved, device);
    }
}

// ---- a backward pass enters PyTorch's engine through this function, which is how culeak knows the line that called backward() ----

// The result is an object in memory whose address precedes the arguments. Both calls are tail calls, as the one above: culeak looks for the
// next definition from its caller on.
typedef void *Engine(void *result, void *engine, const void *task, void *root, void *inputs);
#define ENGINE(function, name)                                                                   \
    Engine function __asm__(name);                                                               \
    void *function(void *result, void *engine, const void *task, void *root, void *inputs) {     \
        static Engine *bare, *recorded;                                                          \
        if (!bare) {                                                                             \
            recorded = defined_in("libculeak", name);                                            \
            bare = must(defined_in("libtorch_cpu.so", name), name);                              \
        }                                                                                        \
        return (way == RECORDED && recorded ? recorded : bare)(result, engine, task, root, inputs); \
    }

#define EXECUTE(pointer) "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEE" pointer "ONS0_11InputBufferE"
ENGINE(execute, EXECUTE("S2_INS0_4NodeEE"))
// Since PyTorch 2.13.
ENGINE(execute_intrusive, EXECUTE("N3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEE"))
