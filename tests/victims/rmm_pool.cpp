/* A pool of RMM's kind behind culeak_rmm.hpp; each request leaks one block. */
#include "../../shim/include/culeak_rmm.hpp"

extern "C" {
#include "victim.h"
}

struct pool {
    CUdeviceptr *next;

    void *allocate(cuda::stream_ref, std::size_t, std::size_t) {
        *next += 4096;
        return reinterpret_cast<void *>(*next - 4096);
    }
    void deallocate(cuda::stream_ref, void *, std::size_t, std::size_t) noexcept {}
    void *allocate_sync(std::size_t bytes, std::size_t alignment) { return allocate(cuda::stream_ref{nullptr}, bytes, alignment); }
    void deallocate_sync(void *, std::size_t, std::size_t) noexcept {}
    friend void get_property(pool const &, cuda::mr::device_accessible) noexcept {}
};

static NOINLINE void *request(cuda::mr::any_resource<cuda::mr::device_accessible> &resource) {
    cuda::stream_ref stream{reinterpret_cast<CUstream_st *>(0x77)};
    void *work = resource.allocate(stream, 700, 256), *synchronous = resource.allocate_sync(600, 256);
    void *leaked = resource.allocate(stream, 500, 256);
    resource.deallocate(stream, work, 700, 256);
    resource.deallocate_sync(synchronous, 600, 256);
    STAY();
    return leaked;
}

static void requests(void) {
    start_cuda();
    CUdeviceptr slab = leak(1 << 20);
    culeak::rmm_adaptor adaptor{pool{&slab}, "my pool"}, copy = adaptor;
    REQUIRE(copy == adaptor && !(copy != adaptor));
    cuda::mr::any_resource<cuda::mr::device_accessible> resource{copy};
    for (int i = 0; i < 5; i++) REQUIRE(request(resource));
}

MAIN(BEHAVIOUR(requests))
