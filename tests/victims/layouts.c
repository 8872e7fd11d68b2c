/* Requests to the kernel driver in any layout: its fields are the arguments, in the order of layout.h. The last line is the kernel's
   own sum, `KERNEL device host`. */
#include "victim.h"
#include "layout.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ioctl.h>

enum { CLIENT = 0x41, DEVICE = 0x80, VIDEO = 0x40, SYSTEM = 0x3e, NO_MEMORY = 0x51 };
#define MIB (1ull << 20)

static int file;
static unsigned layout[FIELDS], direction = 3;
static void (*answer)(int, int);
static uint64_t (*kernel_bytes)(uint32_t);
static uint32_t client, device;

static void start(void) {
    start_cuda();
    answer = (void (*)(int, int))dlsym(RTLD_DEFAULT, "fake_kernel_answer");
    kernel_bytes = (uint64_t(*)(uint32_t))dlsym(RTLD_DEFAULT, "fake_kernel_bytes");
    void (*set)(const unsigned *) = (void (*)(const unsigned *))dlsym(RTLD_DEFAULT, "fake_kernel_layout");
    REQUIRE(answer && kernel_bytes && set);
    for (int i = 0; i < FIELDS; i++) {
        REQUIRE(arguments[i]);
        layout[i] = strtoul(arguments[i], 0, 0);
    }
    set(layout);
    file = open("/dev/null", O_RDWR);
    REQUIRE(file >= 0);
}

/* A request, which another one makes if `is_within`. */
static int request(enum field number, enum field bytes, void *argument, int is_within) {
    unsigned long low = 'F' << 8, way = (unsigned long)direction << 30;
    if (!is_within) return ioctl(file, way | (unsigned long)layout[bytes] << 16 | low | layout[number], argument);
    char transfer[64] = {0};
    *word_at(transfer, layout[TRANSFER_REQUEST]) = layout[number];
    *word_at(transfer, layout[TRANSFER_BYTES]) = layout[bytes];
    *long_at(transfer, layout[TRANSFER_ARGUMENT]) = (uint64_t)argument;
    return ioctl(file, way | (unsigned long)layout[TRANSFER_SIZE] << 16 | low | layout[TRANSFER_NUMBER], transfer);
}

enum form { SHORT, LONG, WITHIN };

/* What an argument is filled with where it has no field. */
static int rest = 0xaa;

/* Handle of a new object; 0 if the request failed. */
static uint32_t take(enum form form, uint32_t parent, uint32_t class, uint64_t bytes) {
    static uint64_t parameters[32], rights;
    unsigned shift = form == SHORT ? 0 : LONG_SIZE - SHORT_SIZE, status = layout[form == SHORT ? SHORT_STATUS : LONG_STATUS];
    const unsigned *at = layout + shift;
    char argument[256];
    memset(argument, rest, sizeof argument);
    /* What another layout may have in the places of the size and the limit. */
    for (int i = 0; i < 32; i++) parameters[i] = class == DEVICE ? 0 : 2 * MIB;
    *long_at(parameters, layout[MEMORY_BYTES]) = bytes;
    if (form != SHORT) *long_at(argument, layout[LONG_RIGHTS]) = (uint64_t)&rights;
    *word_at(argument, at[SHORT_CLIENT]) = client;
    *word_at(argument, at[SHORT_PARENT]) = parent;
    *word_at(argument, at[SHORT_OBJECT]) = 0;
    *word_at(argument, at[SHORT_CLASS]) = class;
    *long_at(argument, at[SHORT_PARAMETERS]) = (uint64_t)parameters;
    *word_at(argument, status) = 99;
    int result = request(ALLOC_NUMBER, form == SHORT ? SHORT_SIZE : LONG_SIZE, argument, form == WITHIN);
    STAY();
    return result || *word_at(argument, status) ? 0 : *word_at(argument, at[SHORT_OBJECT]);
}

static int release(uint32_t object, int is_within) {
    char argument[256];
    memset(argument, rest, sizeof argument);
    *word_at(argument, layout[FREE_CLIENT]) = client;
    *word_at(argument, layout[FREE_PARENT]) = device;
    *word_at(argument, layout[FREE_OBJECT]) = object;
    int result = request(FREE_NUMBER, FREE_SIZE, argument, is_within);
    STAY();
    return result || *word_at(argument, layout[FREE_STATUS]);
}

static uint32_t duplicate(uint32_t of, int is_within) {
    char argument[256];
    memset(argument, rest, sizeof argument);
    *word_at(argument, layout[DUPLICATE_CLIENT]) = *word_at(argument, layout[DUPLICATE_OF_CLIENT]) = client;
    *word_at(argument, layout[DUPLICATE_PARENT]) = device;
    *word_at(argument, layout[DUPLICATE_OBJECT]) = 0;
    *word_at(argument, layout[DUPLICATE_OF]) = of;
    int result = request(DUPLICATE_NUMBER, DUPLICATE_SIZE, argument, is_within);
    STAY();
    return result || *word_at(argument, layout[DUPLICATE_STATUS]) ? 0 : *word_at(argument, layout[DUPLICATE_OBJECT]);
}

static void fail_by_heap(void) {
    char argument[256] = {0};
    *word_at(argument, layout[HEAP_FUNCTION]) = 2;
    answer(0, NO_MEMORY);
    REQUIRE(!request(HEAP_NUMBER, HEAP_SIZE, argument, 0));
}

static void own_device(enum form form) {
    client = take(form, 0, CLIENT, 0);
    device = take(form, client, DEVICE, 0);
    REQUIRE(client && device);
}

/* All that the recorder reads, in each form, done and failed. */
static void replay(void) {
    start();
    own_device(LONG);
    static const enum form forms[] = {LONG, SHORT, WITHIN};
    for (int i = 0; i < 3; i++) {
        enum form form = forms[i];
        int is_within = form == WITHIN;
        uint32_t kept = take(form, device, VIDEO, (i + 1) * MIB), gone = take(form, device, VIDEO, 64 * MIB);
        REQUIRE(kept && gone && take(form, device, SYSTEM, 999) && take(form, device, VIDEO, 4096));
        answer(0, NO_MEMORY);
        REQUIRE(!take(form, device, VIDEO, 128 * MIB));
        answer(-1, 0);
        REQUIRE(!take(form, device, VIDEO, 128 * MIB));
        answer(0, NO_MEMORY);
        REQUIRE(release(kept, is_within));
        REQUIRE(!release(gone, is_within));
        uint32_t original = take(form, device, VIDEO, 32 * MIB), copy = duplicate(original, is_within);
        REQUIRE(original && copy && !release(original, is_within));
        answer(0, NO_MEMORY);
        REQUIRE(!duplicate(copy, is_within));
    }
    fail_by_heap();
}

static void one_way(void) {
    direction = 1;
    replay();
}

/* Only the short form, which has one size in all drivers, and nothing where it has no field: done and failed. */
static void short_form(void) {
    rest = 0;
    start();
    own_device(SHORT);
    REQUIRE(take(SHORT, device, VIDEO, MIB));
    answer(0, NO_MEMORY);
    REQUIRE(!take(SHORT, device, VIDEO, 128 * MIB));
    REQUIRE(take(SHORT, device, VIDEO, 2 * MIB));
}

static int run(int argc, char **argv) {
    static const struct behaviour list[] = {BEHAVIOUR(replay), BEHAVIOUR(one_way), BEHAVIOUR(short_form), {0, 0}};
    (void)argc;
    return behave(list, argv);
}

int main(int argc, char **argv) {
    int status = run(argc, argv);
    printf("KERNEL %llu %llu\n", (unsigned long long)kernel_bytes(VIDEO), (unsigned long long)kernel_bytes(SYSTEM));
    return status;
}
