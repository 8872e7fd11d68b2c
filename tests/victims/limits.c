/* A program that runs into limits, or whose surroundings change under the recorder. It must not notice the recorder. */
#include "victim.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

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

/* file_size <bytes>: no file of this process may become larger. Losing records is right, SIGXFSZ is not. */
static void file_size(void) {
    limit(RLIMIT_FSIZE, strtoull(arguments[0], NULL, 10));
    start_cuda();
    grow();
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

/* A daemon closes everything, then opens files of its own, which get the recorder's old numbers. */
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
    /* nobody wrote into, or changed the size of, the program's own files */
    for (int fd = 1; fd <= 20; fd++) {
        struct stat file;
        REQUIRE(!fstat(fd, &file) && file.st_size == 0);
    }
    REQUIRE(write(out, "untouched\n", 10) == 10);
    _exit(0);
}

static void changes_folder(void) {
    start_cuda();
    leak(100);
    REQUIRE(!chdir("/"));
    grow();
}

/* Somebody tidies the output folder while the program runs: argument = the folder. */
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

MAIN(BEHAVIOUR(grows), BEHAVIOUR(file_size), BEHAVIOUR(file_size_later), BEHAVIOUR(no_descriptors),
     BEHAVIOUR(no_descriptors_later), BEHAVIOUR(closes_everything), BEHAVIOUR(changes_folder),
     BEHAVIOUR(recording_removed), BEHAVIOUR(little_address_space))
