// Takes the place of PyTorch's allocator for the CPU and reports each block as libc10_cuda reports one of a GPU. A step on the CPU then
// gives the recorder the stacks of a real program, hundreds of them in turn. The recorder knows such reports by the library's name, so
// this one is called libc10_cuda.so.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>
#include <x86intrin.h>

enum Mode { SILENT, REPORTED, TIMED, STEPPED };
struct Event {
    int64_t change, nanoseconds, instructions, has_walked;
};
constexpr size_t ROOM = 1 << 20;
constexpr uint8_t BREAKPOINT = 0xcc;
constexpr unsigned long TRAP_FLAG = 0x100;
// One of this many events is executed by single steps, which take microseconds each.
constexpr size_t STEPPED_ONE_OF = 29;

static int mode = SILENT;
static Event events[ROOM];
static size_t count, live, reserved;
static std::mutex mutex;
static std::map<size_t, std::vector<void *>> unused;

// ---- single steps, and a breakpoint at the recorder's function that walks a stack ----

static volatile long instructions;
static volatile bool has_walked;
static volatile uint8_t *walk;
static uint8_t first_byte;

static void trapped(int, siginfo_t *, void *context) {
    greg_t &next = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (walk && next == (greg_t)walk + 1 && *walk == BREAKPOINT) {
        has_walked = true;
        *walk = first_byte;
        next = (greg_t)walk;
    } else {
        instructions = instructions + 1;
    }
}

static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000 * time.tv_sec + time.tv_nsec;
}

// PyTorch reports with its allocator's lock held; so does this.
static void report(void *block, int64_t change) {
    const c10::Device device(c10::DeviceType::CUDA, 0);
    live += change;
    if (mode == REPORTED || count == ROOM) return c10::reportMemoryUsageToProfiler(block, change, live, reserved, device);
    instructions = 0;
    has_walked = false;
    const bool steps = mode == STEPPED && count % STEPPED_ONE_OF == 0;
    if (mode == STEPPED && walk) *walk = BREAKPOINT;
    const int64_t began = now();
    // One call for all, since another would be another stack.
    __writeeflags(__readeflags() | (steps ? TRAP_FLAG : 0));
    c10::reportMemoryUsageToProfiler(block, change, live, reserved, device);
    __writeeflags(__readeflags() & ~TRAP_FLAG);
    events[count++] = {change, now() - began, instructions, has_walked};
    if (mode == STEPPED && walk) *walk = first_byte;
}

// ---- the allocator: blocks of one size are used again, the last one first ----

struct alignas(64) Head {
    size_t bytes;
    bool is_reported;
};

static void release(void *data) {
    if (!data) return;
    std::lock_guard<std::mutex> guard(mutex);
    Head *head = (Head *)data - 1;
    if (head->is_reported) report(data, -(int64_t)head->bytes);
    unused[head->bytes].push_back(head);
}

struct Reporting final : c10::Allocator {
    c10::DataPtr allocate(size_t wanted) override {
        if (wanted == 0) return {nullptr, nullptr, release, c10::DeviceType::CPU};
        const size_t bytes = (wanted + 511) / 512 * 512;
        std::lock_guard<std::mutex> guard(mutex);
        auto &same = unused[bytes];
        if (same.empty()) {
            same.push_back(aligned_alloc(64, sizeof(Head) + bytes));
            if (!same.back()) abort();
            reserved += bytes;
        }
        Head *head = (Head *)same.back();
        same.pop_back();
        *head = {bytes, mode != SILENT};
        if (head->is_reported) report(head + 1, bytes);
        return {head + 1, head + 1, release, c10::DeviceType::CPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return release; }
    void copy_data(void *to, const void *from, size_t bytes) const override { memcpy(to, from, bytes); }
};

// ---- for step.py ----

extern "C" void install(uintptr_t address_of_walk) {
    static Reporting reporting;
    if (address_of_walk) {
        walk = (uint8_t *)address_of_walk;
        first_byte = *walk;
        void *page = (void *)(address_of_walk & ~4095ul);
        if (mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) abort();
    }
    struct sigaction action = {};
    action.sa_sigaction = trapped;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, nullptr);
    c10::SetCPUAllocator(&reporting, 200);
}

extern "C" void begin(int chosen) {
    count = 0;
    mode = chosen;
}

extern "C" size_t noted(Event **first) {
    *first = events;
    return count;
}
