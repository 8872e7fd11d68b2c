"""Memory resources. A pool takes one large block from its upstream and hands out parts."""

import driver


class DeviceMemoryResource:
    pass


class CudaMemoryResource(DeviceMemoryResource):
    def allocate(self, nbytes, stream=None):
        return driver.allocate(nbytes)

    def deallocate(self, ptr, nbytes, stream=None):
        driver.free(ptr)


class CallbackMemoryResource(DeviceMemoryResource):
    def __init__(self, allocate_func, deallocate_func):
        self.allocate = lambda nbytes, stream=None: allocate_func(nbytes, stream)
        self.deallocate = lambda ptr, nbytes, stream=None: deallocate_func(ptr, nbytes, stream)


class PoolMemoryResource(DeviceMemoryResource):
    def __init__(self, upstream_mr):
        self.upstream_mr = upstream_mr
        self.at = upstream_mr.allocate(1 << 20)
        self.free = []

    def pool_size(self):
        return 1 << 20

    def allocate(self, nbytes, stream=None):
        if self.free:
            return self.free.pop()
        self.at += 4096
        return self.at - 4096

    def deallocate(self, ptr, nbytes, stream=None):
        self.free.append(ptr)


class LimitingResourceAdaptor(DeviceMemoryResource):
    def __init__(self, upstream_mr, allocation_limit):
        self.upstream_mr = upstream_mr

    def allocate(self, nbytes, stream=None):
        return self.upstream_mr.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream=None):
        self.upstream_mr.deallocate(ptr, nbytes, stream)


_current = {0: CudaMemoryResource()}


def set_per_device_resource(device, mr):
    _current[device] = mr


def get_per_device_resource(device):
    return _current[device]


def set_current_device_resource(mr):
    _current[0] = mr


def get_current_device_resource():
    return _current[0]
