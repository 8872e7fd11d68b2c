/* Loads a runtime and looks up its functions by name and version, as bindings for other languages do. */
#include "victim.h"

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    void *runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    REQUIRE(runtime);
    int (*allocate)(void **, size_t) = dlsym(runtime, "cudaMalloc");
    int (*versioned)(void **, size_t) = dlvsym(runtime, "cudaMalloc", "libcudart.so.12");
    int (*give_back)(void *) = dlsym(runtime, "cudaFree");
    REQUIRE(allocate && versioned && give_back);
    REQUIRE(allocate == versioned);
    REQUIRE(!dlvsym(runtime, "cudaMalloc", "libcudart.so.13"));
    void *one, *two, *three;
    OK(allocate(&one, 10));
    OK(versioned(&two, 20));
    OK(allocate(&three, 30));
    OK(give_back(three));
    return 0;
}
