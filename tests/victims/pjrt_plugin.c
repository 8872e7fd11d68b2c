/* Stands in for xla_cuda_plugin: a table of PJRT functions over one slab from the driver. -DSHORT: an older plugin, whose
 * table lacks donation. -DNEXT_MAJOR: a plugin of an unknown major version. */
#include "cuda.h"
#include "pjrt.h"
#include <stdlib.h>

struct buffer { uint64_t bytes, at; int deleted, on_host; };
struct executable { uint64_t results; int donates; };
static CUdeviceptr slab;
static uint64_t used;
static int device = 0;
static const char *const memory_names[] = {"device", "pinned_host"};
uint64_t live_buffers, errors_destroyed, queries;

static struct buffer *make(uint64_t bytes, int on_host) {
    struct buffer *made = malloc(sizeof *made);
    if (!slab) cuMemAlloc_v2(&slab, 64 << 20);
    *made = (struct buffer){bytes, slab + used, 0, on_host};
    used += bytes;
    live_buffers++;
    return made;
}
static void end(struct buffer *buffer) {
    if (!buffer->deleted) live_buffers--;
    buffer->deleted = 1;
}

static error error_destroy(void *a) { (void)a; errors_destroyed++; return 0; }
static error error_get_code(void *a) { ((small_args *)a)->out = ((small_args *)a)->of; return 0; }
static error from_host(void *a) {
    from_host_args *args = a;
    uint64_t bytes = 4;
    for (uint64_t i = 0; i < args->dim_count; i++) bytes *= ((uint64_t *)args->dims)[i];
    if (bytes > 64 << 20) return 8; /* RESOURCE_EXHAUSTED */
    args->buffer = (uint64_t)make(bytes, 0);
    return 0;
}
static error uninitialized(void *a) { ((uninitialized_args *)a)->buffer = (uint64_t)make(4096, 0); return 0; }
static error local_hardware_id(void *a) { queries++; ((small_args *)a)->out = 0; return 0; }
static error memory_kind(void *a) {
    small_args *args = a;
    const char *name = (const char *)args->of;
    uint64_t length = 0;
    while (name[length]) length++;
    args->out = args->of;
    args->more = length;
    return 0;
}
static error executable_destroy(void *a) { (void)a; return 0; }
static error get_executable(void *a) { ((small_args *)a)->out = ((small_args *)a)->of; return 0; }
static error num_outputs(void *a) { ((small_args *)a)->out = ((struct executable *)((small_args *)a)->of)->results; return 0; }
static error loaded_destroy(void *a) { free((void *)((small_args *)a)->of); return 0; }
static error execute(void *a) {
    execute_args *args = a;
    struct executable *executable = (void *)args->executable;
    for (uint64_t d = 0; d < args->devices; d++) {
        struct buffer **inputs = ((struct buffer ***)args->arguments)[d], **outputs = ((struct buffer ***)args->outputs)[d];
        for (uint64_t r = 0; r < executable->results; r++) {
            /* A donated input's memory becomes the first result's, without a call. */
            if (executable->donates && r == 0 && args->count) {
                outputs[r] = make(inputs[0]->bytes, 0);
                outputs[r]->at = inputs[0]->at;
                end(inputs[0]);
            } else {
                outputs[r] = make(1000, 0);
            }
        }
    }
    return 0;
}
static error buffer_destroy(void *a) {
    struct buffer *buffer = (void *)((small_args *)a)->of;
    end(buffer);
    free(buffer);
    return 0;
}
static error buffer_delete(void *a) { end((void *)((small_args *)a)->of); return 0; }
static error buffer_size(void *a) { ((small_args *)a)->out = ((struct buffer *)((small_args *)a)->of)->bytes; return 0; }
static error buffer_device(void *a) { ((small_args *)a)->out = (uint64_t)&device; return 0; }
static error buffer_memory(void *a) { ((small_args *)a)->out = (uint64_t)memory_names[((struct buffer *)((small_args *)a)->of)->on_host]; return 0; }
static error is_deleted(void *a) { *(char *)&((small_args *)a)->out = (char)((struct buffer *)((small_args *)a)->of)->deleted; return 0; }
static error copy_to_device(void *a) { ((small_args *)a)->more = (uint64_t)make(((struct buffer *)((small_args *)a)->of)->bytes, 0); return 0; }
static error copy_to_memory(void *a) { ((small_args *)a)->more = (uint64_t)make(((struct buffer *)((small_args *)a)->of)->bytes, 1); return 0; }
static error unsafe_pointer(void *a) { ((small_args *)a)->out = ((struct buffer *)((small_args *)a)->of)->at; return 0; }
static error retrieve(void *a) { ((small_args *)a)->more = (uint64_t)make(2048, 0); return 0; }
static error donate(void *a) {
    donate_args *args = a;
    struct buffer *given = (void *)args->buffer;
    args->out = (uint64_t)make(given->bytes, 0);
    end(given);
    return 0;
}

static const table api = {
#if defined(SHORT)
    .size = offsetof(table, functions) + 8 * DONATE,
#else
    .size = sizeof(table),
#endif
    .version_size = 24,
#if defined(NEXT_MAJOR)
    .major = 1,
#endif
    .minor = 115,
    .functions = {
        [ERROR_DESTROY] = error_destroy, [ERROR_GET_CODE] = error_get_code, [FROM_HOST] = from_host,
        [LOCAL_HARDWARE_ID] = local_hardware_id, [MEMORY_KIND] = memory_kind, [EXECUTABLE_DESTROY] = executable_destroy,
        [NUM_OUTPUTS] = num_outputs, [LOADED_DESTROY] = loaded_destroy, [GET_EXECUTABLE] = get_executable, [EXECUTE] = execute,
        [BUFFER_DESTROY] = buffer_destroy, [BUFFER_SIZE] = buffer_size, [BUFFER_DEVICE] = buffer_device,
        [BUFFER_MEMORY] = buffer_memory, [BUFFER_DELETE] = buffer_delete, [IS_DELETED] = is_deleted,
        [COPY_TO_DEVICE] = copy_to_device, [UNSAFE_POINTER] = unsafe_pointer, [COPY_TO_MEMORY] = copy_to_memory,
        [RETRIEVE] = retrieve, [UNINITIALIZED] = uninitialized, [DONATE] = donate,
    },
};
const table *GetPjrtApi(void) { return &api; }
