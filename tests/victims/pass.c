/* A library through which a program allocates: each copy of it is another module on the stack. */
#include "victim.h"

CUresult pass(CUdeviceptr *out, size_t bytes) {
    CUresult result = cuMemAlloc_v2(out, bytes);
    STAY();
    return result;
}
