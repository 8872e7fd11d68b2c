"""The public names."""

from rmm.pylibrmm.memory_resource import (
    CallbackMemoryResource,
    CudaMemoryResource,
    DeviceMemoryResource,
    LimitingResourceAdaptor,
    PoolMemoryResource,
    get_current_device_resource,
    get_per_device_resource,
    set_current_device_resource,
    set_per_device_resource,
)

__all__ = [
    "CallbackMemoryResource",
    "CudaMemoryResource",
    "DeviceMemoryResource",
    "LimitingResourceAdaptor",
    "PoolMemoryResource",
    "get_current_device_resource",
    "get_per_device_resource",
    "set_current_device_resource",
    "set_per_device_resource",
]
