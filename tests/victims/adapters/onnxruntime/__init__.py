"""A stand-in for ONNX Runtime 1.31: values on a device."""

import driver

__version__ = "1.31.1"


class Value:
    """The compiled value: it ends with its last Python object."""

    def __init__(self, size, device):
        self.size, self.device = size, device
        self.ptr = driver.allocate(size) if device == "cuda" else 0x1000

    def __del__(self):
        if self.device == "cuda":
            driver.free(self.ptr)


class OrtValue:
    def __init__(self, ortvalue, numpy_obj=None):
        self._ortvalue = ortvalue

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape, element_type=None, device_type="cpu", device_id=0):
        return cls(Value(shape[0], device_type))

    def device_name(self):
        return self._ortvalue.device

    def is_tensor(self):
        return True

    def has_value(self):
        return True

    def data_ptr(self):
        return self._ortvalue.ptr

    def tensor_size_in_bytes(self):
        return self._ortvalue.size
