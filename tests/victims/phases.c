/* Ranges and marks of NVTX: with -DREAL_HEADER through NVIDIA's header, otherwise through a copy of its interface, which finds
 * its tool as the header does. Phases of the client API. */
#include "victim.h"
#include "../../shim/include/culeak.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <wchar.h>

#ifdef REAL_HEADER
#include <nvtx3/nvToolsExt.h>
#else
typedef uint64_t nvtxRangeId_t;
typedef const void *nvtxDomainHandle_t, *nvtxStringHandle_t;
typedef union { const char *ascii; const wchar_t *unicode; nvtxStringHandle_t registered; } nvtxMessageValue_t;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    uint64_t payload;
    int32_t messageType;
    nvtxMessageValue_t message;
} nvtxEventAttributes_t;
enum { NVTX_VERSION = 3, NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE, NVTX_MESSAGE_TYPE_REGISTERED };
typedef void (*function)(void);

/* Slots by number, in the order of the tables; a table ends with a null pointer, which is not counted. */
static function core[16], core2[16];
static function *core_slots[17], *core2_slots[17];

static int slots_of(uint32_t module, function ***slots, unsigned *count) {
    for (int i = 1; i < 16; i++) core_slots[i] = &core[i], core2_slots[i] = &core2[i];
    if (module != 1 && module != 5) return 0;
    *slots = module == 1 ? core_slots : core2_slots;
    *count = 16;
    return 1;
}

static const void *table_of(uint32_t table) {
    static struct { size_t bytes; int (*slots_of)(uint32_t, function ***, unsigned *); } callbacks = {sizeof callbacks, slots_of};
    return table == 1 ? &callbacks : NULL;
}

static void find_tool(void) {
    static int done;
    if (done++) return;
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_LAZY) : NULL;
    int (*initialize)(const void *(*)(uint32_t)) = library ? dlsym(library, "InitializeInjectionNvtx2") : NULL;
    if (initialize) REQUIRE(initialize(table_of));
}

#define CALL(none, slot, type, ...) (find_tool(), (slot) ? ((type)(slot))(__VA_ARGS__) : (none))
#define VOID_CALL(slot, type, ...) (find_tool(), (slot) ? ((type)(slot))(__VA_ARGS__) : (void)0)
#define nvtxMarkEx(event) VOID_CALL(core[1], void (*)(const nvtxEventAttributes_t *), event)
#define nvtxMarkA(text) VOID_CALL(core[2], void (*)(const char *), text)
#define nvtxRangeStartA(text) CALL(0, core[5], nvtxRangeId_t (*)(const char *), text)
#define nvtxRangeEnd(id) VOID_CALL(core[7], void (*)(nvtxRangeId_t), id)
#define nvtxRangePushEx(event) CALL(-2, core[8], int (*)(const nvtxEventAttributes_t *), event)
#define nvtxRangePushA(text) CALL(-2, core[9], int (*)(const char *), text)
#define nvtxRangePushW(text) CALL(-2, core[10], int (*)(const wchar_t *), text)
#define nvtxRangePop() CALL(-2, core[11], int (*)(void), )
#define nvtxDomainMarkEx(domain, event) VOID_CALL(core2[1], void (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain, event)
#define nvtxDomainRangeStartEx(domain, event) CALL(0, core2[2], nvtxRangeId_t (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain, event)
#define nvtxDomainRangeEnd(domain, id) VOID_CALL(core2[3], void (*)(nvtxDomainHandle_t, nvtxRangeId_t), domain, id)
#define nvtxDomainRangePushEx(domain, event) CALL(-2, core2[4], int (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain, event)
#define nvtxDomainRangePop(domain) CALL(-2, core2[5], int (*)(nvtxDomainHandle_t), domain)
#define nvtxDomainRegisterStringA(domain, text) CALL(NULL, core2[10], nvtxStringHandle_t (*)(nvtxDomainHandle_t, const char *), domain, text)
#define nvtxDomainCreateA(name) CALL(NULL, core2[12], nvtxDomainHandle_t (*)(const char *), name)
#endif

static nvtxEventAttributes_t event(int kind, nvtxMessageValue_t message) {
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = sizeof event, .messageType = kind};
    event.message = message;
    return event;
}

static nvtxEventAttributes_t ascii(const char *text) {
    return event(NVTX_MESSAGE_TYPE_ASCII, (nvtxMessageValue_t){.ascii = text});
}

static void drop(CUdeviceptr address) { OK(cuMemFree_v2(address)); }

/* One of each kind: nested ranges, a domain whose ranges interleave with others, all kinds of messages, marks. */
static void ranges(void) {
    start_cuda();
    leak(100);
    nvtxRangePushA("epoch");
    for (int i = 0; i < 3; i++) {
        char name[] = "step";
        int level = nvtxRangePushA(name);
        REQUIRE(level == 1 || level == -2);
        name[0] = 'x'; /* the text was copied */
        drop(leak(1000));
        leak(10);
        level = nvtxRangePop();
        REQUIRE(level == 1 || level == -2);
    }
    nvtxDomainHandle_t data = nvtxDomainCreateA("data");
    nvtxStringHandle_t batch = nvtxDomainRegisterStringA(data, "batch");
    nvtxEventAttributes_t registered = event(NVTX_MESSAGE_TYPE_REGISTERED, (nvtxMessageValue_t){.registered = batch});
    int level = nvtxDomainRangePushEx(data, &registered);
    REQUIRE(level == 0 || level == -2);
    nvtxEventAttributes_t wide = event(NVTX_MESSAGE_TYPE_UNICODE, (nvtxMessageValue_t){.unicode = L"\u8a13\u7df4"});
    nvtxRangePushEx(&wide);
    level = nvtxDomainRangePop(data); /* the range of the other domain stays open */
    REQUIRE(level == 0 || level == -2);
    leak(7);
    nvtxRangePop();
    nvtxEventAttributes_t without = {.version = NVTX_VERSION, .size = sizeof without};
    nvtxRangePushEx(&without);
    nvtxRangePop();
    nvtxRangePushW(L"wide");
    nvtxRangePop();
    nvtxRangePop();
    level = nvtxRangePop(); /* nothing is open */
    REQUIRE(level < 0);
    nvtxMarkA("asleep");
    nvtxEventAttributes_t awake = ascii("awake");
    nvtxMarkEx(&awake);
    nvtxDomainMarkEx(data, &awake);
}

static pthread_barrier_t barrier;

static void *worker(void *id) {
    start_cuda();
    nvtxRangePushA("worker");
    leak(50);
    pthread_barrier_wait(&barrier); /* both threads are inside their ranges */
    nvtxRangeEnd(*(nvtxRangeId_t *)id);
    nvtxRangeEnd(*(nvtxRangeId_t *)id);
    nvtxRangeEnd(12345);
    nvtxRangePop();
    return NULL;
}

/* A range that another thread ends, inside a range of this thread, to which it does not belong. */
static void threads(void) {
    start_cuda();
    leak(1);
    pthread_barrier_init(&barrier, NULL, 2);
    nvtxRangePushA("main");
    nvtxEventAttributes_t request = ascii("request");
    nvtxDomainHandle_t domain = nvtxDomainCreateA("server");
    nvtxRangeId_t id = nvtxDomainRangeStartEx(domain, &request), open = nvtxRangeStartA("never ended");
    (void)open;
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, worker, &id));
    pthread_barrier_wait(&barrier);
    nvtxRangePushA("inner");
    nvtxRangePop();
    REQUIRE(!pthread_join(thread, NULL));
    nvtxRangePushA("never popped");
}

/* Ranges that begin before CUDA is used. */
static void early(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("early");
    nvtxEventAttributes_t program = ascii("program");
    nvtxRangePushA("gone before");
    nvtxRangePop();
    nvtxDomainRangePushEx(domain, &program);
    nvtxRangePushA("load");
    start_cuda();
    leak(1000);
    nvtxRangePop();
    nvtxDomainRangePop(domain);
}

static void without_cuda(void) {
    nvtxRangePushA("no GPU");
    nvtxRangePop();
    nvtxMarkA("no GPU");
}

/* More ranges than are kept, and deeper than is tracked. */
static void many(void) {
    start_cuda();
    leak(1);
    for (int i = 0; i < (1 << 20) - 100; i++) {
        nvtxRangePushA("small");
        nvtxRangePop();
    }
    for (int i = 0; i < 80; i++) nvtxRangePushA("deep");
    for (int i = 0; i < 80; i++) nvtxRangePop();
    for (int i = 0; i < 100; i++) {
        nvtxRangePushA("beyond");
        nvtxRangePop();
    }
    nvtxMarkA("end");
}

/* A child ends ranges of its parent, which has none of them in its own recording, and begins its own. */
static void forks(void) {
    culeak_mark("parent"); /* starts the recording */
    nvtxDomainHandle_t domain = nvtxDomainCreateA("both");
    nvtxStringHandle_t name = nvtxDomainRegisterStringA(domain, "registered by the parent");
    nvtxEventAttributes_t registered = event(NVTX_MESSAGE_TYPE_REGISTERED, (nvtxMessageValue_t){.registered = name});
    nvtxRangePushA("parent");
    nvtxRangeId_t id = nvtxRangeStartA("started by the parent");
    pid_t child = fork();
    if (!child) {
        int level = nvtxRangePop();
        REQUIRE(level < 0);
        culeak_mark("child");
        nvtxDomainRangePushEx(domain, &registered);
        nvtxRangeEnd(id);
        nvtxDomainRangePop(domain);
        exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    nvtxRangePop();
    nvtxRangeEnd(id);
}

static void *end_elsewhere(void *id) {
    culeak_phase_end(*(unsigned long long *)id);
    return NULL;
}

/* Phases of the client API, around ranges of NVTX. The first starts the recording. */
static void client(void) {
    unsigned long long all = culeak_phase_begin("all"), load;
    start_cuda();
    load = culeak_phase_begin("load");
    nvtxRangePushA("read");
    leak(100);
    culeak_phase_end(load); /* not the innermost */
    culeak_phase_end(load);
    culeak_phase_end(0);
    culeak_phase_end(~0ull);
    nvtxRangePop();
    unsigned long long elsewhere = culeak_phase_begin("elsewhere");
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, end_elsewhere, &elsewhere));
    REQUIRE(!pthread_join(thread, NULL));
    nvtxRangePushA("after");
    nvtxRangePop();
    culeak_phase_end(all);
}

/* Three rounds of an engine that sleeps: what a round leaves is its argument's share. */
static void rounds(void) {
    size_t leaked = arguments[0] ? (size_t)atoi(arguments[0]) : 0;
    start_cuda();
    leak(1 << 20);
    for (int i = 0; i < 3; i++) {
        unsigned long long awake = culeak_phase_begin("awake");
        CUdeviceptr weights = leak(4 << 20);
        if (leaked) leak(leaked);
        drop(weights);
        culeak_phase_end(awake);
        culeak_mark("asleep");
    }
    culeak_mark("once");
    drop(leak(100));
}

/* Three rounds, each of which replaces the buffer of the one before by one that is larger by the argument. */
static void replaces(void) {
    size_t leaked = arguments[0] ? (size_t)atoi(arguments[0]) : 0;
    start_cuda();
    CUdeviceptr buffer = 0;
    for (int i = 0; i < 3; i++) {
        if (buffer) drop(buffer);
        buffer = leak((10 << 20) + leaked * i);
        culeak_mark("asleep");
    }
}

/* Prints the processor time of a push and a pop. */
static void cost(void) {
    enum { TIMES = 200000 };
    struct timespec start, end;
    start_cuda();
    leak(1);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    for (int i = 0; i < TIMES; i++) {
        nvtxRangePushA("forward of the model");
        nvtxRangePop();
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    fprintf(stderr, "%.1f ns\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / TIMES);
}

MAIN(BEHAVIOUR(ranges), BEHAVIOUR(threads), BEHAVIOUR(early), BEHAVIOUR(without_cuda), BEHAVIOUR(many), BEHAVIOUR(forks),
     BEHAVIOUR(client), BEHAVIOUR(rounds), BEHAVIOUR(replaces), BEHAVIOUR(cost))
