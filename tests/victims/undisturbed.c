/* A program that fails if the recorder raises signals, uses its descriptors or needs much of its stack. */
#include "victim.h"
#include "../../shim/include/culeak.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void allocates(void) {
    start_cuda();
    leak(100);
}

/* The reader of the log has ended before the program ends. */
static void stderr_without_reader(void) {
    int ends[2];
    REQUIRE(!pipe(ends) && dup2(ends[1], 2) == 2 && !close(ends[0]));
    REQUIRE(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    allocates();
}

/* The reader of the log does not read. */
static void stderr_without_room(void) {
    static char text[1 << 16];
    int ends[2];
    REQUIRE(!pipe(ends) && dup2(ends[1], 2) == 2);
    REQUIRE(!fcntl(2, F_SETFL, O_NONBLOCK));
    while (write(2, text, sizeof text) > 0 || write(2, text, 1) > 0) {}
    REQUIRE(!fcntl(2, F_SETFL, 0));
    allocates();
}

/* The log has reached its size limit, and so has the recording. */
static void stderr_at_its_limit(void) {
    struct rlimit none = {0, 0};
    int log = open("log", O_RDWR | O_CREAT, 0600);
    REQUIRE(log >= 0 && dup2(log, 2) == 2);
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &none));
    allocates();
}

/* A library keeps writing to stderr, which a daemon has closed. */
static volatile int stop;
static void *writes(void *unused) {
    long written = 0;
    while (!stop)
        if (write(2, "a line for a closed stderr...\n", 30) > 0) written++;
    (void)unused;
    return (void *)written;
}

static void stderr_closed(void) {
    pthread_t thread;
    void *written;
    close(2);
    REQUIRE(!pthread_create(&thread, NULL, writes, NULL));
    start_cuda();
    for (int block = 0; block < 20000; block++) leak(16);
    stop = 1;
    REQUIRE(!pthread_join(thread, &written));
    printf("written %ld\n", (long)written);
}

/* The descriptors below 64, which programs expect to be free. */
static void lists_descriptors(void) {
    start_cuda();
    culeak_snapshot("one");
    for (int block = 0; block < 20000; block++) leak(16);
    culeak_snapshot("two");
    for (int fd = 0; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0) printf("%d is open\n", fd);
}

/* stack_of <event>: how much stack the first event of a process uses, if it is of this kind. */
static void initializes(void) { cuInit(0); }
static void fails(void) {
    CUdeviceptr address;
    start_cuda();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, (size_t)1 << 60));
}
static void keeps_snapshot(void) { culeak_snapshot("first"); }
static void ends(void) {
    allocates();
    exit(0);
}

static void *on_this_stack(void *event) {
    ((void (*)(void))event)();
    return NULL;
}

static void stack_of(void) {
    static const struct behaviour events[] = {{"allocates", allocates}, {"initializes", initializes}, {"fails", fails},
                                              {"keeps_snapshot", keeps_snapshot}, {"ends", ends}, {0, 0}};
    const size_t size = 1 << 20;
    unsigned char *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct behaviour *event = events;
    while (event->name && strcmp(event->name, arguments[0])) event++;
    REQUIRE(event->name && stack != MAP_FAILED);
    memset(stack, 0xa5, size);
    REQUIRE(open_driver());
    pid_t child = fork();
    if (child == 0) {
        pthread_attr_t attributes;
        pthread_t thread;
        REQUIRE(!pthread_attr_init(&attributes) && !pthread_attr_setstack(&attributes, stack, size));
        REQUIRE(!pthread_create(&thread, &attributes, on_this_stack, (void *)event->run));
        REQUIRE(!pthread_join(thread, NULL));
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    size_t untouched = 0;
    while (untouched < size && stack[untouched] == 0xa5) untouched++;
    printf("bytes %zu\n", size - untouched);
}

MAIN(BEHAVIOUR(stderr_without_reader), BEHAVIOUR(stderr_without_room), BEHAVIOUR(stderr_at_its_limit),
     BEHAVIOUR(stderr_closed), BEHAVIOUR(lists_descriptors), BEHAVIOUR(stack_of))
