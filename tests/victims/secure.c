/* Prints whether the kernel started it with raised privileges, and leaks. */
#include "victim.h"
#include <sys/auxv.h>

int main(void) {
    printf("secure %lu\n", getauxval(AT_SECURE));
    start_cuda();
    leak(100);
    return 0;
}
