/* Programs that run into limits, or whose environment changes while they are recorded. The recorder must not affect them. */
#include "victim.h"
#include "../../shim/include/culeak.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

static void limit(int what, rlim_t to) {
    struct rlimit both = {to, to};
    REQUIRE(!setrlimit(what, &both));
}

/* Many different call paths and many live blocks: the recording has to grow. */
static NOINLINE void left(int depth, int path);
static NOINLINE void right(int depth, int path) {
    if (depth) (path & 1 ? left : right)(depth - 1, path >> 1);
    else leak(16);
    STAY();
}
static NOINLINE void left(int depth, int path) {
    if (depth) (path & 1 ? left : right)(depth - 1, path >> 1);
    else leak(16);
    STAY();
}

static void grow(void) {
    for (int path = 0; path < 4096; path++) left(12, path);
    for (int i = 0; i < 60000; i++) leak(16);
}

static void grows(void) {
    start_cuda();
    grow();
}

/* file_size <bytes>: no file of this process may become larger. Records may be lost; SIGXFSZ must not be raised. */
static void file_size(void) {
    limit(RLIMIT_FSIZE, strtoull(arguments[0], NULL, 10));
    start_cuda();
    grow();
}

/* An interval in which allocations are lost, as the file may not grow, and one before it. */
static void interval(void) {
    struct culeak_interval of;
    start_cuda();
    unsigned before = culeak_interval_begin("before", 0);
    leak(100);
    printf("before: %d\n", culeak_interval_read(before, -1, &of));
    limit(RLIMIT_FSIZE, 0);
    unsigned full = culeak_interval_begin("full", 0);
    grow();
    printf("full: %d\n", culeak_interval_read(full, -1, &of));
}

static void file_size_later(void) {
    start_cuda();
    leak(100);
    limit(RLIMIT_FSIZE, 0);
    grow();
}

static void no_descriptors(void) {
    limit(RLIMIT_NOFILE, 3);
    start_cuda();
    leak(100);
}

static void no_descriptors_later(void) {
    start_cuda();
    leak(100);
    limit(RLIMIT_NOFILE, 3);
    grow();
}

/* A daemon closes every descriptor, then opens its own files, which get the recorder's old numbers. */
static void closes_everything(void) {
    start_cuda();
    leak(100);
    int out = fcntl(1, F_DUPFD, 2000);
    REQUIRE(out >= 2000);
    for (int fd = 0; fd <= 1024; fd++) close(fd);
    REQUIRE(open("/dev/null", O_RDWR) == 0);
    char name[] = "own-XXXXXX";
    for (int i = 0; i < 20; i++) {
        strcpy(name, "own-XXXXXX");
        REQUIRE(mkstemp(name) >= 0);
    }
    grow();
    /* nothing else wrote to the program's own files or changed their size */
    for (int fd = 1; fd <= 20; fd++) {
        struct stat file;
        REQUIRE(!fstat(fd, &file) && file.st_size == 0);
    }
    REQUIRE(write(out, "untouched\n", 10) == 10);
    _exit(0);
}

/* The program opens a file under every available descriptor number. */
static void takes_every_number(void) {
    struct stat file;
    start_cuda();
    leak(100);
    int own = open("own", O_RDWR | O_CREAT, 0600);
    REQUIRE(own >= 0);
    for (int fd = 3; fd < 512; fd++) REQUIRE(fd == own || dup2(own, fd) == fd);
    grow();
    REQUIRE(!fstat(own, &file) && file.st_size == 0);
}

static void changes_folder(void) {
    start_cuda();
    leak(100);
    REQUIRE(!chdir("/"));
    grow();
}

/* The recording is deleted while the program runs: argument = the folder. */
static void recording_removed(void) {
    start_cuda();
    leak(100);
    char command[4096];
    snprintf(command, sizeof command, "rm -f %s/*.culeak", arguments[0]);
    REQUIRE(!system(command));
    grow();
}

static void little_address_space(void) {
    start_cuda();
    leak(100);
    limit(RLIMIT_AS, 512 << 20);
    grow();
}

/* A server drops its user after it has opened its sockets. */
static void drops_user(void) {
    start_cuda();
    leak(100);
    REQUIRE(!setgid(65534) && !setuid(65534));
    grow();
}

static void changes_root(void) {
    start_cuda();
    leak(100);
    REQUIRE(!mkdir("jail", 0755) && !chroot("jail") && !chdir("/"));
    grow();
}

/* moves_folder <from> <to>: the output folder is moved while the program runs. */
static void moves_folder(void) {
    start_cuda();
    leak(100);
    REQUIRE(!rename(arguments[0], arguments[1]));
    grow();
}

/* The same, after every descriptor was closed: the recording can no longer be reopened. */
static void moves_folder_and_closes(void) {
    start_cuda();
    leak(100);
    REQUIRE(!rename(arguments[0], arguments[1]));
    for (int fd = 3; fd <= 1024; fd++) close(fd);
    grow();
}

/* From here on this system call fails with EPERM. */
static void forbid(int call) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    REQUIRE(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void may_open_no_files(void) {
    start_cuda();
    leak(100);
    forbid(SYS_openat);
    grow();
}

static void may_not_extend_files(void) {
    start_cuda();
    leak(100);
    forbid(SYS_fallocate);
    grow();
}

/* A full disk has room again: the program continues until the recorder has retried. */
long slow_disk_requests(void) __attribute__((weak));
static void disk_is_full_for_a_while(void) {
    struct timespec time = {0, 10 * 1000 * 1000};
    start_cuda();
    grow();
    REQUIRE(slow_disk_requests);
    long requests = slow_disk_requests();
    for (int path = 0; slow_disk_requests() == requests; path++) {
        left(12, path % 4096);
        nanosleep(&time, NULL);
    }
    leak(777);
}

static pthread_barrier_t together;
static int blocks_each;

static void *allocates(void *context) {
    pthread_barrier_wait(&together);
    if (context == NULL) start_cuda();
    else OK(cuCtxSetCurrent(context));
    for (int block = 0; block < blocks_each; block++) leak(16);
    return NULL;
}

static void with_threads(int threads, CUcontext context) {
    pthread_t all[64];
    REQUIRE(threads <= 64 && !pthread_barrier_init(&together, NULL, (unsigned)threads));
    for (int thread = 0; thread < threads; thread++) REQUIRE(!pthread_create(&all[thread], NULL, allocates, context));
    for (int thread = 0; thread < threads; thread++) REQUIRE(!pthread_join(all[thread], NULL));
}

static void begins_on_eight_threads(void) {
    blocks_each = 4;
    REQUIRE(open_driver());
    with_threads(8, NULL);
}

static void grows_on_four_threads(void) {
    blocks_each = 10000;
    CUcontext context = start_cuda();
    with_threads(4, context);
}

MAIN(BEHAVIOUR(interval), BEHAVIOUR(takes_every_number), BEHAVIOUR(drops_user), BEHAVIOUR(changes_root), BEHAVIOUR(moves_folder), BEHAVIOUR(moves_folder_and_closes),
     BEHAVIOUR(may_open_no_files), BEHAVIOUR(may_not_extend_files), BEHAVIOUR(disk_is_full_for_a_while),
     BEHAVIOUR(begins_on_eight_threads), BEHAVIOUR(grows_on_four_threads), BEHAVIOUR(grows), BEHAVIOUR(file_size), BEHAVIOUR(file_size_later), BEHAVIOUR(no_descriptors),
     BEHAVIOUR(no_descriptors_later), BEHAVIOUR(closes_everything), BEHAVIOUR(changes_folder),
     BEHAVIOUR(recording_removed), BEHAVIOUR(little_address_space))
