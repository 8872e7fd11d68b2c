/* Stands in for JAX: reaches a PJRT plugin through dlsym("GetPjrtApi") and the table that it returns. Arguments:
 * behaviour, plugin. */
#include "victim.h"
#include "pjrt.h"

static const table *api;
static uint64_t *live_buffers, *queries;

static void load(void) {
    start_cuda();
    void *plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) printf("%s\n", dlerror());
    REQUIRE(plugin);
    const table *(*get)(void) = dlsym(plugin, "GetPjrtApi");
    REQUIRE(get);
    api = get();
    REQUIRE(api && api == get());
    live_buffers = dlsym(plugin, "live_buffers");
    queries = dlsym(plugin, "queries");
    REQUIRE(live_buffers && queries && !dlsym(plugin, "GetPjrtApiOfAnotherName"));
}

static error call(int place, void *args) { return api->functions[place](args); }

static NOINLINE uint64_t put(uint64_t floats) {
    from_host_args args = {.size = sizeof args, .dims = (uint64_t)&floats, .dim_count = 1};
    REQUIRE(!call(FROM_HOST, &args));
    STAY();
    return args.buffer;
}

static uint64_t run(uint64_t results, int donates, uint64_t input, uint64_t *outputs) {
    struct { uint64_t results; int donates; } *executable = malloc(sizeof *executable);
    executable->results = results;
    executable->donates = donates;
    uint64_t *argument_list = &input, *output_list = outputs;
    execute_args args = {
        .size = sizeof args, .executable = (uint64_t)executable, .arguments = (uint64_t)&argument_list, .devices = 1,
        .count = 1, .outputs = (uint64_t)&output_list,
    };
    REQUIRE(!call(EXECUTE, &args));
    small_args destroy = {.size = 24, .of = (uint64_t)executable};
    REQUIRE(!call(LOADED_DESTROY, &destroy));
    return outputs[0];
}

static void end(int how, uint64_t buffer) {
    small_args args = {.size = 24, .of = buffer};
    REQUIRE(!call(how, &args));
}

static uint64_t copy(int how, uint64_t buffer) {
    small_args args = {.size = sizeof args, .of = buffer};
    REQUIRE(!call(how, &args));
    return args.more;
}

/* Every way to create and to delete a buffer. */
static void all(void) {
    load();
    uint64_t results[3];
    uint64_t stays = put(100);            /* 400 bytes */
    uint64_t destroyed = put(200);
    end(BUFFER_DESTROY, destroyed);
    uint64_t deleted = put(300);
    end(BUFFER_DELETE, deleted);
    end(BUFFER_DESTROY, deleted);         /* its memory was freed before */
    run(3, 0, stays, results);            /* 3 results of 1000 bytes */
    end(BUFFER_DESTROY, results[1]);
    uint64_t given = put(500);
    run(1, 1, given, results);            /* 2000 bytes are donated to the result */
    end(BUFFER_DESTROY, given);
    copy(COPY_TO_DEVICE, stays);          /* another 400 */
    copy(COPY_TO_MEMORY, stays);          /* on the host: not recorded */
    copy(RETRIEVE, stays);                /* 2048 */
    uninitialized_args fresh = {.size = sizeof fresh};
    REQUIRE(!call(UNINITIALIZED, &fresh)); /* 4096 */
    if (api->size > offsetof(table, functions) + 8 * DONATE) {
        donate_args donate = {.size = sizeof donate, .buffer = put(1000)};
        REQUIRE(!call(DONATE, &donate));  /* 4000 */
        end(BUFFER_DESTROY, donate.buffer);
    }
    printf("live %llu\n", (unsigned long long)*live_buffers);
}

static void counts_queries(void) {
    load();
    put(100);
    printf("queries %llu\n", (unsigned long long)*queries);
}

static void runs_out(void) {
    load();
    put(100);
    uint64_t floats = 1ull << 40;
    from_host_args args = {.size = sizeof args, .dims = (uint64_t)&floats, .dim_count = 1};
    printf("error %llu\n", (unsigned long long)call(FROM_HOST, &args));
}

MAIN(BEHAVIOUR(all), BEHAVIOUR(counts_queries), BEHAVIOUR(runs_out))
