/* Takes the place of NVIDIA's kernel driver: a library preloaded after culeak that answers the requests of the CUDA driver on a
   character device of CULEAK_TEST_MAJOR. It keeps the objects by client and handle, frees what is below a freed one, and adds
   up the memory that the process holds. Requests on other files go on to the next definition. */
#define _GNU_SOURCE
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
enum { ALLOC = 0x2b, FREE = 0x29, DUPLICATE = 0x34, HEAP = 0x4a, CAPACITY = 1 << 16 };
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

static uint32_t handle_request(unsigned number, uint32_t *words) {
    struct object *object;
    switch (number) {
    case ALLOC: {
        uint64_t parameters;
        memcpy(&parameters, words + 4, 8);
        int is_client = words[3] == 0x41;
        if (!is_client && !find(words[0], words[1])) return NO_SUCH_OBJECT;
        if (is_client) words[0] = words[2] = next_client++;
        if (!words[2]) words[2] = next_handle++;
        object = add(words[0], is_client ? 0 : words[1], words[2], words[3]);
        if (!object) return NO_ROOM;
        if (is_memory(words[3]) && parameters) memcpy(&object->bytes, (char *)parameters + 64, 8);
        return OK;
    }
    case FREE:
        if (!find(words[0], words[2])) return NO_SUCH_OBJECT;
        drop(words[0], words[2]);
        return OK;
    default: {
        struct object *source = find(words[3], words[4]);
        if (!words[2]) words[2] = next_handle++;
        struct object copy = source ? *source : (struct object){0};
        object = add(words[0], words[1], words[2], copy.class);
        if (!object) return NO_ROOM;
        object->bytes = copy.bytes;
        if (copy.memory) object->memory = copy.memory;
        return OK;
    }
    }
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
    const char *major_number = getenv("CULEAK_TEST_MAJOR");
    return major_number && !fstat(fd, &status) && S_ISCHR(status.st_mode)
        && major(status.st_rdev) == (unsigned)atoi(major_number);
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    unsigned number = request & 0xff, status_at;
    switch (request & 0xffff) {
    case 0x4600 | ALLOC: status_at = (request >> 16 & 0x3fff) == 32 ? 7 : 10; break;
    case 0x4600 | FREE: status_at = 3; break;
    case 0x4600 | DUPLICATE: status_at = 6; break;
    case 0x4600 | HEAP: status_at = 5; break;
    default: status_at = 0;
    }
    int saved = errno;
    if (!status_at || !is_drivers(fd)) {
        errno = saved;
        int (*next)(int, unsigned long, void *) = dlsym(RTLD_NEXT, "ioctl");
        return next(fd, request, argument);
    }
    errno = saved;
    uint32_t *words = argument;
    pthread_mutex_lock(&lock);
    int result = 0;
    if (!answered) {
        answered = 1;
        result = answer_result;
        if (result == 0) words[status_at] = answer_status;
        else errno = ENOTTY;
    } else
        words[status_at] = handle_request(number, words);
    void (*work)(void) = meanwhile;
    meanwhile = 0;
    pthread_mutex_unlock(&lock);
    if (work) work();
    return result;
}
