/* CUDA is used by a constructor, before main. */
#include "victim.h"

__attribute__((constructor)) static void early(void) {
    start_cuda();
    leak(100);
}

int main(void) {
    printf("done\n");
    return 0;
}
