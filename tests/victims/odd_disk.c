/* Preloaded: the folder ODD_DISK is on a file system that cannot hold mapped files. ODD_DISK_IS: "network" (the kernel names such a
 * file system), "unmapped" (shared writable mappings are refused), "unallocated" (fallocate does not exist), or an overlayfs whose
 * upper folder is on ext4, btrfs or ZFS: "over ext4", "over btrfs", "over zfs". Writes to copies (*.part) in it fail with the error
 * ODD_DISK_ERROR, if that is set. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static int is_there(int fd, const char *ending) {
    char link[64], path[4096] = "";
    const char *folder = getenv("ODD_DISK");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || !folder || strncmp(path, folder, strlen(folder))) return 0;
    size_t end = strlen(ending);
    return (size_t)length >= end && !strcmp(path + length - end, ending);
}

static int is(const char *what) {
    const char *value = getenv("ODD_DISK_IS");
    return value && !strcmp(value, what);
}

EXPORTED int fstatfs(int fd, struct statfs *status) {
    int result = (int)syscall(SYS_fstatfs, fd, status);
    if (result || !is_there(fd, "")) return result;
    if (is("network")) status->f_type = 0x6969;
    if (is("over ext4") || is("over btrfs") || is("over zfs")) {
        status->f_type = 0x794c7630;
        status->f_bsize = is("over zfs") ? 128 << 10 : 4096;
        status->f_files = is("over btrfs") ? 0 : 65536;
    }
    return result;
}

EXPORTED int fstatfs64(int fd, struct statfs64 *status) { return fstatfs(fd, (struct statfs *)status); }

EXPORTED void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && is("unmapped") && is_there(fd, ".culeak")) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

EXPORTED int posix_fallocate(int fd, off_t offset, off_t length) {
    if (is("unallocated") && is_there(fd, ".culeak")) return ENOSYS;
    return syscall(SYS_fallocate, fd, 0, offset, length) ? errno : 0;
}

EXPORTED ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    const char *error = getenv("ODD_DISK_ERROR");
    if (error && is_there(fd, ".part")) {
        errno = atoi(error);
        return -1;
    }
    return syscall(SYS_pwrite64, fd, bytes, length, offset);
}
