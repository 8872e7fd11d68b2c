/* Not linked with libcuda; refers to one of its functions weakly and calls it if it seems to be present. */
#include <stddef.h>
#include <stdio.h>

extern int cuMemAlloc_v2(unsigned long long *, size_t) __attribute__((weak));

int main(void) {
    unsigned long long address = 0;
    if (cuMemAlloc_v2) printf("%s\n", cuMemAlloc_v2(&address, 8) && !address ? "failed" : "allocated");
    else printf("failed\n");
    return 0;
}
