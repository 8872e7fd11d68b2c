/* A library with TensorFlow's allocator: the names, argument types and virtual functions that TensorFlow 2.21 exports. It takes
 * a region from CUDA and divides it into chunks. -DOTHER_NAMES: a version whose names are others. */
extern "C" {
#include "cuda.h"
}
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace tsl {

struct AllocationAttributes {
    bool retry_on_failure = true;
};

enum class AllocatorMemoryType { kUnknown = 0, kDevice = 1, kHostPageable = 2, kHostPinned = 3 };

class Allocator {
public:
    virtual ~Allocator() {}
    virtual std::string Name() = 0;
    virtual void *AllocateRaw(size_t alignment, size_t num_bytes) = 0;
    virtual void *AllocateRaw(size_t alignment, size_t num_bytes, const AllocationAttributes &) {
        return AllocateRaw(alignment, num_bytes);
    }
    virtual void DeallocateRaw(void *ptr) = 0;
    virtual size_t AllocatedSize(const void *) const { return 0; }
    virtual AllocatorMemoryType GetMemoryType() const { return AllocatorMemoryType::kUnknown; }
};

#ifdef OTHER_NAMES
#define BFCAllocator BestFitAllocator
#endif

class BFCAllocator : public Allocator {
public:
    BFCAllocator(int device) : device_(device) {}
    ~BFCAllocator() override;
    std::string Name() override { return "GPU_" + std::to_string(device_) + "_bfc"; }
    void *AllocateRaw(size_t alignment, size_t num_bytes) override { return AllocateRaw(alignment, num_bytes, AllocationAttributes()); }
    void *AllocateRaw(size_t alignment, size_t num_bytes, const AllocationAttributes &attributes) override;
    void DeallocateRaw(void *ptr) override;
    size_t AllocatedSize(const void *ptr) const override;
    AllocatorMemoryType GetMemoryType() const override;

private:
    void Extend();

    static constexpr size_t kRegion = 1 << 20;
    int device_;
    uintptr_t region_ = 0;
    size_t used_ = 0;
    mutable std::mutex mutex_;
    std::map<uintptr_t, size_t> chunks_;
};

BFCAllocator::~BFCAllocator() {}

/* As TensorFlow does: the device's context is current only while the driver is called. */
void BFCAllocator::Extend() {
    if (device_ < 0) {
        void *pinned = nullptr;
        if (!cuMemHostAlloc(&pinned, kRegion, 0)) region_ = (uintptr_t)pinned;
        return;
    }
    CUcontext before, own;
    CUdevice device;
    CUdeviceptr region;
    if (cuCtxGetCurrent(&before) || cuDeviceGet(&device, device_) || cuDevicePrimaryCtxRetain(&own, device) || cuCtxSetCurrent(own)) return;
    if (!cuMemAlloc_v2(&region, kRegion)) region_ = region;
    cuCtxSetCurrent(before);
}

void *BFCAllocator::AllocateRaw(size_t, size_t num_bytes, const AllocationAttributes &attributes) {
    size_t rounded = (num_bytes + 255) / 256 * 256;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!num_bytes || !attributes.retry_on_failure) return nullptr;
    if (!region_) Extend();
    if (!region_ || rounded > kRegion - used_) return nullptr;
    uintptr_t chunk = region_ + used_;
    used_ += rounded;
    chunks_[chunk] = rounded;
    return (void *)chunk;
}

void BFCAllocator::DeallocateRaw(void *ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    chunks_.erase((uintptr_t)ptr);
}

size_t BFCAllocator::AllocatedSize(const void *ptr) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return chunks_.at((uintptr_t)ptr);
}

AllocatorMemoryType BFCAllocator::GetMemoryType() const {
    return device_ < 0 ? AllocatorMemoryType::kHostPinned : AllocatorMemoryType::kDevice;
}

} // namespace tsl

namespace tensorflow {

class GPUBFCAllocator : public tsl::BFCAllocator {
public:
    GPUBFCAllocator(int device) : BFCAllocator(device) {}
    ~GPUBFCAllocator() override;
};

GPUBFCAllocator::~GPUBFCAllocator() {}

} // namespace tensorflow

/* Device -1: page-locked memory. */
extern "C" void *new_allocator(int device) {
    if (cuInit(0)) return nullptr;
    return device < 0 ? new tsl::BFCAllocator(device) : new tensorflow::GPUBFCAllocator(device);
}

extern "C" void *allocate(tsl::Allocator *allocator, size_t bytes) { return allocator->AllocateRaw(64, bytes); }

extern "C" void deallocate(tsl::Allocator *allocator, void *ptr) { allocator->DeallocateRaw(ptr); }
