/* A program that is linked with a runtime and exports no symbols. */
#include "victim.h"

extern int cudaMalloc(void **, size_t);

int main(void) {
    void *address;
    OK(cudaMalloc(&address, 100));
    return 0;
}
