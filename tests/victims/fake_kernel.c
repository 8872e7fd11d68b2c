/* Takes the place of NVIDIA's kernel driver: a library preloaded after culeak that answers the requests of the CUDA driver on a
   character device of /dev/null's driver. It keeps the objects by client and handle, frees what is below a freed one, and adds
   up the memory that the process holds. Requests on other files go on to the next definition. It reads and writes the layout of
   driver 580, or that of `fake_kernel_layout`. */
#define _GNU_SOURCE
#include "drivers_file.h"
#include "layout.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define EXPORT __attribute__((visibility("default")))
enum { CAPACITY = 1 << 16 };
enum { OK = 0, NO_SUCH_OBJECT = 0x57, NO_ROOM = 0x51 };

struct object {
    uint32_t client, handle, parent, class;
    uint64_t bytes;
    /* Handles of one memory have one number. */
    uint32_t memory;
};

static struct object objects[CAPACITY];
static uint32_t count, next_handle = 0x5c000001, next_client = 0xc1d00001, next_memory = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* What the next request is answered instead. */
static int answer_result, answer_status, answered = 1;
/* What happens before the next request that is answered returns. */
static void (*meanwhile)(void);

static struct object *find(uint32_t client, uint32_t handle) {
    for (uint32_t i = 0; i < count; i++)
        if (objects[i].client == client && objects[i].handle == handle && handle) return &objects[i];
    return 0;
}

static struct object *add(uint32_t client, uint32_t parent, uint32_t handle, uint32_t class) {
    for (uint32_t i = 0; i <= count && i < CAPACITY; i++)
        if (!objects[i].handle) {
            if (i == count) count++;
            objects[i] = (struct object){client, handle, parent, class, 0, next_memory++};
            return &objects[i];
        }
    return 0;
}

static void drop(uint32_t client, uint32_t handle) {
    struct object *gone = find(client, handle);
    if (gone) memset(gone, 0, sizeof *gone);
    for (uint32_t i = 0; i < count; i++)
        if (objects[i].handle && objects[i].client == client && (handle == client || objects[i].parent == handle))
            drop(client, objects[i].handle);
}

static int is_memory(uint32_t class) { return class == 0x40 || class == 0x3e; }

static const unsigned *layout = known_layout;
EXPORT void fake_kernel_layout(const unsigned *other) { layout = other; }

static uint32_t allocate(void *argument, int is_long) {
    const unsigned *at = layout + (is_long ? LONG_SIZE : SHORT_SIZE) - SHORT_SIZE;
    uint32_t *client = word_at(argument, at[SHORT_CLIENT]), *handle = word_at(argument, at[SHORT_OBJECT]);
    uint32_t parent = *word_at(argument, at[SHORT_PARENT]), class = *word_at(argument, at[SHORT_CLASS]);
    char *parameters = (char *)*long_at(argument, at[SHORT_PARAMETERS]);
    int is_client = class == 0x41;
    if (!is_client && !find(*client, parent)) return NO_SUCH_OBJECT;
    if (is_client) *client = *handle = next_client++;
    if (!*handle) *handle = next_handle++;
    struct object *object = add(*client, is_client ? 0 : parent, *handle, class);
    if (!object) return NO_ROOM;
    if (is_memory(class) && parameters) {
        object->bytes = *long_at(parameters, layout[MEMORY_BYTES]);
        *long_at(parameters, layout[MEMORY_LIMIT]) = object->bytes - 1;
    }
    return OK;
}

static uint32_t release(uint32_t client, uint32_t handle) {
    if (!find(client, handle)) return NO_SUCH_OBJECT;
    drop(client, handle);
    return OK;
}

static uint32_t duplicate(void *argument) {
    struct object *source = find(*word_at(argument, layout[DUPLICATE_OF_CLIENT]), *word_at(argument, layout[DUPLICATE_OF]));
    uint32_t *handle = word_at(argument, layout[DUPLICATE_OBJECT]);
    if (!*handle) *handle = next_handle++;
    struct object copy = source ? *source : (struct object){0};
    struct object *object = add(*word_at(argument, layout[DUPLICATE_CLIENT]), *word_at(argument, layout[DUPLICATE_PARENT]), *handle, copy.class);
    if (!object) return NO_ROOM;
    object->bytes = copy.bytes;
    if (copy.memory) object->memory = copy.memory;
    return OK;
}

/* Where the status of a request is; 0: this is none that is answered. */
static unsigned status_of(unsigned number, unsigned bytes) {
    if (number == layout[ALLOC_NUMBER]) return layout[bytes == layout[SHORT_SIZE] ? SHORT_STATUS : LONG_STATUS];
    if (number == layout[FREE_NUMBER]) return layout[FREE_STATUS];
    if (number == layout[DUPLICATE_NUMBER]) return layout[DUPLICATE_STATUS];
    return number == layout[HEAP_NUMBER] ? layout[HEAP_STATUS] : 0;
}

static uint32_t handle_request(unsigned number, unsigned bytes, void *argument) {
    if (number == layout[ALLOC_NUMBER]) return allocate(argument, bytes != layout[SHORT_SIZE]);
    if (number == layout[FREE_NUMBER]) return release(*word_at(argument, layout[FREE_CLIENT]), *word_at(argument, layout[FREE_OBJECT]));
    return number == layout[DUPLICATE_NUMBER] ? duplicate(argument) : OK;
}

/* The next request returns this and has this status. */
EXPORT void fake_kernel_answer(int result, int status) {
    answer_result = result;
    answer_status = status;
    answered = 0;
}

/* Something that happens after the next request was answered, before it returns. */
EXPORT void fake_kernel_meanwhile(void (*work)(void)) { meanwhile = work; }

/* Memory of a class, each counted once however many handles it has. */
EXPORT uint64_t fake_kernel_bytes(uint32_t class) {
    uint64_t sum = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < count; i++) {
        int is_first = objects[i].handle && objects[i].class == class;
        for (uint32_t j = 0; is_first && j < i; j++) is_first = objects[j].memory != objects[i].memory;
        if (is_first) sum += objects[i].bytes;
    }
    pthread_mutex_unlock(&lock);
    return sum;
}

static int is_drivers(int fd) {
    struct stat status;
    return !fstat(fd, &status) && S_ISCHR(status.st_mode) && major(status.st_rdev) == MAJOR_OF_NULL;
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    unsigned number = request & 0xff, bytes = request >> 16 & 0x3fff;
    int saved = errno;
    int is_answered = (request >> 8 & 0xff) == 'F' && is_drivers(fd);
    if (is_answered && number == layout[TRANSFER_NUMBER]) {
        number = *word_at(argument, layout[TRANSFER_REQUEST]);
        bytes = *word_at(argument, layout[TRANSFER_BYTES]);
        argument = (void *)*long_at(argument, layout[TRANSFER_ARGUMENT]);
    }
    unsigned status_at = status_of(number, bytes);
    errno = saved;
    if (!status_at || !is_answered) {
        int (*next)(int, unsigned long, void *) = dlsym(RTLD_NEXT, "ioctl");
        return next(fd, request, argument);
    }
    pthread_mutex_lock(&lock);
    int result = 0;
    if (!answered) {
        answered = 1;
        result = answer_result;
        if (result == 0) *word_at(argument, status_at) = answer_status;
        else errno = ENOTTY;
    } else
        *word_at(argument, status_at) = handle_request(number, bytes, argument);
    void (*work)(void) = meanwhile;
    meanwhile = 0;
    pthread_mutex_unlock(&lock);
    if (work) work();
    return result;
}
