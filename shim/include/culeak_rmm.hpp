/* culeak_rmm.hpp: reports to culeak the blocks that an RMM resource hands out. One file beside culeak.h; C++17.
 *
 *   rmm::mr::pool_memory_resource pool{rmm::mr::cuda_memory_resource{}, 1 << 30};
 *   rmm::mr::set_current_device_resource(culeak::rmm_adaptor{pool});
 *
 * For RMM from 26.06, whose resources are those of <cuda/memory_resource>: this adaptor is such a resource too, and copies of
 * it share the upstream. Without culeak, an allocation costs a test of a pointer and the call of the upstream. A resource
 * without a pool needs no adaptor, because each of its blocks is an allocation of CUDA, which culeak records anyway.
 */
#ifndef CULEAK_RMM_HPP
#define CULEAK_RMM_HPP

#include "culeak.h"

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace culeak {

class rmm_adaptor {
public:
    using upstream_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

    /* The name is the domain that reports show. */
    explicit rmm_adaptor(upstream_resource upstream, std::string name = "RMM")
        : shared_(std::make_shared<shared>(shared{std::move(upstream), std::move(name)})) {}

    void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
        void *address = shared_->upstream.allocate(stream, bytes, alignment);
        culeak_alloc(shared_->name.c_str(), address, bytes, stream.get());
        return address;
    }

    /* The record goes first: the upstream may hand the address to another thread before it returns. */
    void deallocate(cuda::stream_ref stream, void *address, std::size_t bytes, std::size_t alignment = 256) noexcept {
        culeak_free(shared_->name.c_str(), address);
        shared_->upstream.deallocate(stream, address, bytes, alignment);
    }

    void *allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
        void *address = shared_->upstream.allocate_sync(bytes, alignment);
        culeak_alloc(shared_->name.c_str(), address, bytes, nullptr);
        return address;
    }

    void deallocate_sync(void *address, std::size_t bytes, std::size_t alignment = 256) noexcept {
        culeak_free(shared_->name.c_str(), address);
        shared_->upstream.deallocate_sync(address, bytes, alignment);
    }

    friend bool operator==(rmm_adaptor const &one, rmm_adaptor const &other) noexcept { return one.shared_ == other.shared_; }
    friend bool operator!=(rmm_adaptor const &one, rmm_adaptor const &other) noexcept { return one.shared_ != other.shared_; }
    friend void get_property(rmm_adaptor const &, cuda::mr::device_accessible) noexcept {}

private:
    struct shared {
        upstream_resource upstream;
        std::string name;
    };
    std::shared_ptr<shared> shared_;
};

} // namespace culeak

#endif
