/* Requests to the kernel driver as CUDA's driver makes them (src/rm.rs), on /dev/null. They succeed if the program is linked with
 * tests/victims/tiny_driver.c, built with -DANSWERS_IOCTL, which also makes
 * culeak take /dev/null for NVIDIA's device. */
#include <fcntl.h>
#include <stdint.h>

typedef int Ioctl(int, unsigned long, ...);
Ioctl ioctl;
#ifdef SEGMENT
/* The same function of that driver, under a name that no recorder knows. */
Ioctl plain_ioctl;
#endif

static int file;

#define REQUEST(number, bytes) (3u << 30 | (bytes) << 16 | 'F' << 8 | (number))
enum { CLASS_CLIENT = 0x41, CLASS_DEVICE = 0x80, CLASS_MEMORY = 0x40, CLIENT = 0xc1d00001, DEVICE = 0x5c000001, FIRST = 0x5c000002 };

__attribute__((always_inline)) static inline void request_by(Ioctl *call, uint32_t parent, uint32_t object, uint32_t class, uint64_t bytes) {
    uint64_t parameters[16];
    parameters[0] = 0; /* the number of a device */
    parameters[8] = bytes;
    parameters[11] = bytes - 1; /* the limit, which the kernel driver would set */
    uint64_t at = (uint64_t)parameters;
    uint32_t words[8] = {class == CLASS_CLIENT ? 0 : CLIENT, parent, object, class, (uint32_t)at, (uint32_t)(at >> 32)};
    __asm__ volatile("" ::: "memory");
    call(file, REQUEST(0x2b, 32), words);
}

__attribute__((always_inline)) static inline void release_by(Ioctl *call, uint32_t object) {
    uint32_t words[4] = {CLIENT, DEVICE, object};
    call(file, REQUEST(0x29, 16), words);
}

__attribute__((always_inline, unused)) static inline void request(uint32_t parent, uint32_t object, uint32_t class, uint64_t bytes) {
    request_by(ioctl, parent, object, class, bytes);
}

__attribute__((always_inline, unused)) static inline void release(uint32_t object) { release_by(ioctl, object); }

__attribute__((unused)) static void duplicate(uint32_t copy, uint32_t original) {
    uint32_t words[7] = {CLIENT, DEVICE, copy, CLIENT, original};
    ioctl(file, REQUEST(0x34, 28), words);
}

static void open_device(void) {
    file = open("/dev/null", O_RDWR);
    request(0, CLIENT, CLASS_CLIENT, 0);
    request(CLIENT, DEVICE, CLASS_DEVICE, 0);
}
