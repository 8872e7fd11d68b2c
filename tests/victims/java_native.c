/* The native method of Trainer.java, without the headers of a JDK. */
#include "cuda.h"

void Java_Trainer_allocate(void *environment, void *class, long long bytes) {
    CUcontext context;
    CUdeviceptr address;
    (void)environment, (void)class;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuMemAlloc_v2(&address, bytes);
}
